// One open GPU: its memory, streams, events and captured graphs, and what every operation does around its work.
//
// All work is ordered by the caller's stream; nothing waits for the GPU but Sync, Read's event and PrepareWeight. An
// error that breaks the GPU's context is kept: from then on every call answers DATA_LOSS with its text.
#ifndef OCTET_BACKENDS_GPU_DEVICE_H_
#define OCTET_BACKENDS_GPU_DEVICE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "backends/gpu/runtime.h"
#include "octet/backend.hpp"

namespace octet_gpu {

// What kernels are chosen and sized by.
struct Traits {
  int capability = 0;  // 90: compute capability 9.0
  int processors = 0;  // that a grid is spread over
};

// Thread-safe. Outlives everything that was made on its device.
class Context {
 public:
  Context(int device, const Traits& traits) : device_(device), traits_(traits) {}

  // First in every call: DATA_LOSS once the GPU is broken; makes it this thread's current one.
  octet::Status Enter() const;
  // OK for success. `what` names the call: "cuda: what: cudaErrorX: text".
  octet::Status Check(runtime::Error error, const char* what) const;
  // Did the kernels that were just launched start?
  octet::Status CheckLaunch(const char* what) const { return Check(runtime::TakeLastError(), what); }

  const Traits& traits() const { return traits_; }
  std::atomic<uint64_t>& held() { return held_; }

 private:
  const int device_;
  const Traits traits_;
  std::atomic<uint64_t> held_{0};
  mutable std::atomic<bool> broken_{false};
  mutable std::mutex mutex_;
  mutable std::string reason_;  // of broken_
};

class GpuBuffer final : public octet::DeviceBuffer {
 public:
  // Takes `data`, which `bytes` were allocated at.
  GpuBuffer(Context& context, void* data, uint64_t bytes, bool host);
  ~GpuBuffer() override;
  uint8_t* data() const { return data_; }
  octet::StatusOr<void*> Map() override;

 private:
  Context& context_;
  uint8_t* const data_;
  const bool host_;
};

inline GpuBuffer& GpuBufferOf(octet::Buffer& buffer) { return static_cast<GpuBuffer&>(octet::BufferOf(buffer)); }

// The first element of a tensor that was checked; an empty one may have no buffer.
template <typename T>
T* DataOf(const octet::Tensor& t) {
  if (t.buffer == nullptr) return nullptr;
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(GpuBufferOf(*t.buffer).data()) + t.offset);
}

class GpuStream final : public octet::DeviceStream {
 public:
  GpuStream(octet::OpenDevice& device, Context& context, runtime::Stream stream)
      : DeviceStream(device), context_(context), stream_(stream) {}
  ~GpuStream() override;
  runtime::Stream native() const { return stream_; }

  octet::Status Sync() override;
  octet::Status Record(octet::DeviceEvent& event) override;
  octet::Status Wait(octet::DeviceEvent& event) override;
  octet::Status Write(octet::DeviceBuffer& dst, uint64_t offset, const void* src, uint64_t bytes) override;
  octet::Status Read(octet::DeviceBuffer& src, uint64_t offset, void* dst, uint64_t bytes) override;
  octet::Status Copy(octet::DeviceBuffer& dst, uint64_t dst_offset, octet::DeviceBuffer& src, uint64_t src_offset,
                     uint64_t bytes) override;
  octet::Status Fill(octet::DeviceBuffer& dst, uint64_t offset, uint64_t bytes, uint8_t value) override;

 private:
  Context& context_;
  const runtime::Stream stream_;
};

inline runtime::Stream NativeOf(octet::Stream& stream) {
  return static_cast<GpuStream&>(octet::StreamOf(stream)).native();
}

class Graphs final : public octet::GraphOps {
 public:
  explicit Graphs(Context& context) : context_(context) {}
  octet::Status Begin(octet::Stream& stream) override;
  octet::StatusOr<octet_graph*> End(octet::Stream& stream) override;
  octet::Status Launch(octet::Stream& stream, octet_graph* graph) override;
  void Release(octet_graph* graph) override;

 private:
  Context& context_;
};

// Memory, streams, events and graphs; the operations are the derived class's.
class GpuDevice : public octet::OpenDevice {
 public:
  GpuDevice(int device, const Traits& traits) : context_(device, traits), graphs_(context_) {}

  octet::StatusOr<octet::MemoryUse> Memory() override;
  octet::StatusOr<std::unique_ptr<octet::DeviceBuffer>> Alloc(uint64_t bytes, uint32_t kind) override;
  octet::StatusOr<std::unique_ptr<octet::DeviceStream>> CreateStream() override;
  octet::StatusOr<std::unique_ptr<octet::DeviceEvent>> CreateEvent() override;
  octet::GraphOps* graph() override { return &graphs_; }

  Context& context() { return context_; }

 private:
  Context context_;
  Graphs graphs_;
};

}  // namespace octet_gpu

#endif  // OCTET_BACKENDS_GPU_DEVICE_H_
