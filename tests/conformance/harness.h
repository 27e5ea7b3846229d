// What every case of the conformance kit stands on: the backend under test, the list of cases, and device memory with
// guards around it. A case returns OK (it passed, unless it recorded a failure), Unimplemented (the backend said that
// it cannot do this; counted as unsupported), or another error (it failed). Reference: docs/conformance.md.
#ifndef OCTET_TESTS_CONFORMANCE_HARNESS_H_
#define OCTET_TESTS_CONFORMANCE_HARNESS_H_

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/loader/device.h"
#include "octet/dense_ops.h"
#include "octet/status.h"
#include "octet/tensor.h"

namespace octet::conformance {

// The backend and device under test; set once by main before any case runs.
struct Subject {
  std::string path, name, version, abi, options;
  std::string command;  // what chose it, for a shell: octet-conformance --backend ... --device ...
  uint32_t index = 0;
  const octet_host_v1* host = nullptr;  // what it was lent
  std::unique_ptr<Device> device;
  OwnedStream stream;  // for all cases that need no second one

  const octet_backend_v1* table() const { return device->table(); }
  Stream& s() const;  // the calling thread's: see StreamOfThread
};
Subject& TheSubject();

// A stream of its own for the calling thread, which everything here uses until this ends.
class StreamOfThread {
 public:
  StreamOfThread();
  ~StreamOfThread();
  StreamOfThread(const StreamOfThread&) = delete;
  StreamOfThread& operator=(const StreamOfThread&) = delete;

 private:
  OwnedStream stream_;
};

// The same device, opened once more with the same options.
absl::StatusOr<std::unique_ptr<Device>> OpenAgain();

// The subject's device and stream are these until it ends. For one thread only, with nothing alive on the other device
// that ends in between.
class OnDevice {
 public:
  explicit OnDevice(std::unique_ptr<Device> device);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  std::unique_ptr<Device> device_;
  OwnedStream stream_;
};

// Adds a case. The name is also its filter, "Area.Behaviour/details": it has none of the filter's own * ? : -.
// With OnlyListCases, cases do nothing.
void AddCase(std::string name, std::function<Status()> body);
void OnlyListCases();

// The command that repeats the running case. It is --filter with the case's name, unless the case said other arguments:
// one that is many in turn does so before each.
void RunAgainWith(const std::string& arguments);
const char* AgainCommand();

// Called once per file of cases, by main.
void AddAbiCases();
void AddStructCases();
void AddHonestyCases();
void AddAppendCases();
void AddPageCases();
void AddMemoryCases();
void AddAttentionCases();
void AddBoundaryCases();
void AddMetamorphicCases();
void AddWeightCases();
void AddDenseCases();
void AddFusedCases();
void AddFailureCases();
void AddLifeCycleCases();
void AddThreadCases();

// The result of a call that `supports` promised (rule A10): an error becomes a failure, never "unsupported". Where the
// memory of the machine has run out, the case is not run.
Status Promised(const char* call, const Status& status);
inline Status Promised(const char* call, const absl::Status& status) {
  return Promised(call, Status(static_cast<Code>(status.code()), std::string(status.message())));
}

// The case cannot run on this machine, through no fault of the backend: return NotRun("why").
inline constexpr char kNotRun[] = "not run: ";
Status NotRun(const std::string& why);

// Whether the machine, or the limit that was set for the process, cannot give a fraction of a GiB: more than a case
// itself holds, so that where it can, the kit was not the one that ran out.
bool MemoryIsShort();

// body(thread) for each of 0 .. count - 1 on a thread of its own; waits for all. The first error, or what a body threw.
// NotRun where the machine starts no further thread.
Status OnThreads(int count, const std::function<Status(int)>& body);

// For calls of the raw tables.
octet_error Error();
// The call failed, with a code, a reason and a length that fit each other.
void ExpectRefusal(octet_code code, const octet_error& error, const char* what);

// The same for calls of the classes, after which it waits for the stream.
void ExpectRefused(const char* what, const Status& status);

// Waits for the stream. A device that cannot even do that, allocate, write or read is of no use to the other cases:
// these stop the program with the reason.
void Sync();

// Device memory that cases hand to a backend: guard bytes stand before and behind the used region, so between any two
// blocks; the destructor reports a failure where they changed, or where contents given at construction (inputs of a
// call) did. Filled with 0xff without contents: NaN in every float type, -1 as a code.
class Block {
 public:
  static constexpr uint64_t kGuardBytes = 512;

  explicit Block(uint64_t bytes, uint8_t fill = 0xff);
  Block(const void* contents, uint64_t bytes);
  template <typename T>
  explicit Block(const std::vector<T>& contents) : Block(contents.data(), contents.size() * sizeof(T)) {}
  // Rounded to the float type.
  Block(DType type, const std::vector<float>& contents);
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  octet_buffer* buffer() const { return buffer_.get(); }
  uint64_t offset() const { return kGuardBytes; }
  uint64_t size() const { return bytes_; }
  Tensor View(DType type, std::initializer_list<int64_t> shape) const;

  std::vector<uint8_t> Bytes() const;
  std::vector<float> Floats(DType type) const;
  // New contents, which may change.
  void Write(const std::vector<uint8_t>& contents);

 private:
  uint64_t bytes_;
  std::vector<uint8_t> input_;  // what must still be there at the end; empty: anything
  OwnedBuffer buffer_;
};

// As much memory as `supports` asked for: NULL at offset 0 where that is none.
class Workspace {
 public:
  explicit Workspace(uint64_t bytes, uint8_t fill = 0xff) {
    if (bytes > 0) block_.emplace(bytes, fill);
  }
  octet_buffer* buffer() const { return block_ ? block_->buffer() : nullptr; }
  uint64_t offset() const { return block_ ? block_->offset() : 0; }

 private:
  std::optional<Block> block_;
};

// Of a linear layer without bias, norm and residual. Keeps the addresses of x and y.
inline LinearArgs ArgsOf(const Tensor& x, const Tensor& y, const Weight* w, const Workspace& workspace) {
  LinearArgs args;
  args.x = &x;
  args.y = &y;
  args.w = w;
  args.workspace = workspace.buffer();
  args.workspace_offset = workspace.offset();
  return args;
}

// An f32 matrix for linear layers, in host memory. `desc` points into it.
struct FloatWeight {
  FloatWeight(int64_t rows, int64_t columns, int32_t max_tokens, std::vector<float> contents);
  FloatWeight(const FloatWeight&) = delete;
  FloatWeight& operator=(const FloatWeight&) = delete;

  const std::vector<float> values;
  const WeightPart part;
  WeightDesc desc;
};

// True when the block still holds nothing but 0xff; otherwise says where it changed.
bool Untouched(const Block& block, const char* what);

}  // namespace octet::conformance

#endif  // OCTET_TESTS_CONFORMANCE_HARNESS_H_
