// Rows of f32, f16 or bf16 for kernels that know f32 only: a row of f32 is handed over where it lies, any other one is
// widened to f32 in scratch of the worker and rounded back, to nearest even. Assumes tensors that were checked.
#ifndef OCTET_BACKENDS_CPU_FLOAT_ROWS_H_
#define OCTET_BACKENDS_CPU_FLOAT_ROWS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "backends/cpu/context.h"

namespace octet_cpu {

// Memory for one call at a time, kept for later calls: nothing is allocated once calls of each size have run.
// Thread-safe.
class ScratchPool {
 public:
  // `held` counts what the pool keeps and outlives it.
  explicit ScratchPool(std::atomic<uint64_t>* held) : held_(held) {}

  // Gives its memory back to the pool at the end.
  class Lease {
   public:
    Lease() = default;
    Lease(ScratchPool* pool, std::unique_ptr<octet::HostBuffer> buffer) : pool_(pool), buffer_(std::move(buffer)) {}
    Lease(Lease&&) = default;
    Lease& operator=(Lease&&) = delete;
    ~Lease() {
      if (buffer_ != nullptr) pool_->Return(std::move(buffer_));
    }
    float* data() const { return buffer_ != nullptr ? reinterpret_cast<float*>(buffer_->data()) : nullptr; }

   private:
    ScratchPool* pool_ = nullptr;
    std::unique_ptr<octet::HostBuffer> buffer_;
  };

  // At least `floats`, aligned to 64 bytes; none of them: no memory. ResourceExhausted.
  octet::StatusOr<Lease> Take(int64_t floats) {
    if (floats == 0) return Lease();
    const uint64_t bytes = static_cast<uint64_t>(floats) * sizeof(float);
    try {
      std::unique_ptr<octet::HostBuffer> buffer;
      {
        std::lock_guard<std::mutex> lock(mutex_);
        if (free_.empty()) {
          free_.reserve(++buffers_);  // Return then allocates nothing
        } else {
          buffer = std::move(free_.back());
          free_.pop_back();
        }
      }
      if (buffer == nullptr || buffer->bytes() < bytes) buffer = std::make_unique<octet::HostBuffer>(bytes, held_);
      return Lease(this, std::move(buffer));
    } catch (const std::bad_alloc&) {
      return octet::ResourceExhausted("cpu: cannot allocate " + std::to_string(bytes) +
                                      " bytes of scratch for rows of 16-bit floats");
    }
  }

 private:
  void Return(std::unique_ptr<octet::HostBuffer> buffer) {
    std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(std::move(buffer));
  }

  std::atomic<uint64_t>* const held_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<octet::HostBuffer>> free_;  // guarded by mutex_
  size_t buffers_ = 0;                                    // that were made; guarded by mutex_
};

// The rows of a tensor: everything but its last dimension, which is contiguous.
class FloatRows {
 public:
  FloatRows(const KernelTable& kernels, const octet::Tensor& t)
      : kernels_(kernels),
        data_(octet::HostData<uint8_t>(t)),
        element_(ElementOf(octet::TypeOf(t))),
        bytes_(octet::ElementBytes(octet::TypeOf(t))),
        length_(t.shape[t.rank - 1]) {
    for (int i = t.rank - 2, to = 3; i >= 0; --i, --to) {
      shape_[to] = t.shape[i];
      stride_[to] = t.stride[i];
    }
  }

  int64_t count() const { return shape_[0] * shape_[1] * shape_[2] * shape_[3]; }
  int64_t length() const { return length_; }
  bool f32() const { return element_ == Element::kF32; }
  int64_t scratch_floats() const { return f32() ? 0 : (length_ + 15) / 16 * 16; }

  // Where f32 of the row may be written: the row, or `scratch`.
  float* Place(int64_t row, float* scratch) const {
    return f32() ? reinterpret_cast<float*>(data_ + Start(row)) : scratch;
  }
  // The same with the row's values.
  float* Read(int64_t row, float* scratch) const {
    if (!f32()) kernels_.load_row(element_, data_ + Start(row), length_, scratch);
    return Place(row, scratch);
  }
  // Rounds what stands in `scratch`; nothing to do for f32.
  void Write(int64_t row, const float* scratch) const {
    if (!f32()) kernels_.store_row(element_, scratch, length_, data_ + Start(row));
  }

 private:
  int64_t Start(int64_t row) const {  // bytes
    int64_t start = 0;
    for (int i = 3; i >= 0; --i) {
      start += row % shape_[i] * stride_[i];
      row /= shape_[i];
    }
    return start * bytes_;
  }

  const KernelTable& kernels_;
  uint8_t* const data_;
  const Element element_;
  const int64_t bytes_, length_;
  int64_t shape_[4] = {1, 1, 1, 1}, stride_[4] = {0, 0, 0, 0};  // elements
};

// body(row, x, y): f32 of every row of y and of the same row of x. x may be null; `read_y`: y comes in with its values,
// else undefined.
template <typename Body>
octet::Status ForRows(const Context& context, ScratchPool& pool, int64_t flops_per_row, const FloatRows* x,
                      const FloatRows& y, bool read_y, Body&& body) {
  const int64_t x_floats = x != nullptr ? x->scratch_floats() : 0, width = x_floats + y.scratch_floats();
  const auto scratch = pool.Take(width * context.host.max_workers());
  if (!scratch.ok()) return scratch.status();
  context.ForWorkers(y.count(), flops_per_row, [&](uint32_t worker, int64_t begin, int64_t end) {
    float* mine = scratch->data() + worker * width;
    for (int64_t row = begin; row < end; ++row) {
      const float* in = x != nullptr ? x->Read(row, mine) : nullptr;
      float* out = read_y ? y.Read(row, mine + x_floats) : y.Place(row, mine + x_floats);
      body(row, in, out);
      y.Write(row, out);
    }
  });
  return octet::OkStatus();
}

}  // namespace octet_cpu

#endif  // OCTET_BACKENDS_CPU_FLOAT_ROWS_H_
