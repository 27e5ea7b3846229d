// Linear layers of prompts through oneDNN: panels of kPanelRows rows of W are expanded from their stored bits, and
// oneDNN multiplies x with them. Its library is opened while the process runs, when a device asks for it: the backend
// loads and works without.
//
// Threads: oneDNN computes on the calling thread. Its primitives are made for one thread, and where it was built with
// OpenMP the thread's own limit is 1 during a call and afterwards what it was, so no second pool comes up. Memory: x,
// and each worker's panel, sums and scratchpad of oneDNN, lie in the workspace of the call; what
// dnnl_primitive_execute keeps books with, a few hundred bytes, it allocates itself. Order of sums for every output: as
// oneDNN does it within a panel of columns, panels in order, then row scale, bias, residual. Products have few shapes,
// so that a token's result does not depend on how many others there are.
#ifndef OCTET_BACKENDS_CPU_ONEDNN_LINEAR_H_
#define OCTET_BACKENDS_CPU_ONEDNN_LINEAR_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "backends/cpu/kernels/kernels.h"
#include "octet/status.h"

namespace octet_cpu {

class OneDnn {
 public:
  // Of x and w as they are multiplied; sums are f32. kInt8: w in s8, the largest of a row within a panel being
  // 127, and x in u8 twice, itself and then what that leaves of it: with 8 bits alone, perplexity grows by 4 %.
  enum class Type { kF32, kBf16, kInt8 };

  // Items are kPanelTiles tiles and at most so many tokens, in multiples of kTokenStep.
  static constexpr int64_t kTokenStep = 32, kMaxTokensPerItem = 512;

  struct Shape;  // the primitives for one number of columns

  // How a weight of so many columns is taken: in panels of `block` columns, the last one shorter.
  struct Panels {
    int64_t columns = 0, block = 0;
    int64_t scratchpad_bytes = 0;
    Shape *whole = nullptr, *last = nullptr;  // of the panels before the last, of the last
  };

  // `workers`: threads that compute at once, as HostServices counts them. `library`: for tests, another file than that
  // of the headers this was built with. Unavailable, with the reason: this build has no oneDNN, there is no library, it
  // is older than its headers, it would start threads, or it knows nothing quick for this processor.
  static octet::StatusOr<std::shared_ptr<OneDnn>> Open(Type type, uint32_t workers, const char* library = nullptr);
  virtual ~OneDnn() = default;
  OneDnn(const OneDnn&) = delete;
  OneDnn& operator=(const OneDnn&) = delete;

  Type type() const { return type_; }
  const char* type_name() const { return type_ == Type::kInt8 ? "u8s8" : type_ == Type::kBf16 ? "bf16" : "f32"; }
  const std::string& name() const { return name_; }  // "oneDNN 2.6.3 bf16 (brg:avx512_core_bf16)"

  // Makes the primitives that are not there yet; they live as long as this. Thread-safe.
  virtual octet::StatusOr<Panels> Prepare(int64_t columns) = 0;

  // Of x for so many tokens, and of a worker's scratch: multiples of 64, and so are their addresses.
  int64_t XBytes(const Panels& panels, int64_t tokens) const;
  int64_t ScratchBytes(const Panels& panels) const;

  // Row `token` of x [columns] to where Run reads it. The last of the tokens also clears what follows up to a whole
  // step.
  void PackX(const Panels& panels, const KernelTable& kernels, const float* x, int64_t token, int64_t tokens,
             uint8_t* packed) const;

  // Items [begin, end) of p with x in `packed` instead of p.x; `scratch` is the worker's. Internal where oneDNN fails.
  // Thread-safe.
  virtual octet::Status Run(const Panels& panels, const KernelTable& kernels, const LinearParams& p,
                            const uint8_t* packed, uint32_t worker, uint8_t* scratch, int64_t begin, int64_t end) = 0;

 protected:
  explicit OneDnn(Type type) : type_(type) {}
  int64_t ElementBytes() const { return type_ == Type::kInt8 ? 1 : type_ == Type::kBf16 ? 2 : 4; }
  int64_t PlaneBytes(const Panels& panels, int64_t tokens) const;  // of packed x
  void SetName(std::string name) { name_ = std::move(name); }

 private:
  const Type type_;
  std::string name_;
};

}  // namespace octet_cpu

#endif  // OCTET_BACKENDS_CPU_ONEDNN_LINEAR_H_
