// An open device of a backend, and the things made on it, as core sees them: C++ classes over the C tables of abi.h.
// Everything made on a device must end before the device does.
#ifndef OCTET_CORE_LOADER_DEVICE_H_
#define OCTET_CORE_LOADER_DEVICE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "octet/abi.h"
#include "octet/attention_backend.h"
#include "octet/dense_ops.h"
#include "octet/fused_ops.h"
#include "octet/quant_ops.h"
#include "octet/status.h"

namespace octet {

// The host's side of octet::Status: the same numbers, the same sentence.
absl::Status ToAbsl(const Status& status);

enum class MemoryKind : uint32_t { kDevice = OCTET_MEMORY_DEVICE, kHostVisible = OCTET_MEMORY_HOST_VISIBLE };

// An owned handle of a C table, ended by `destroy`. Moves, does not copy.
template <typename Handle>
class Owned {
 public:
  Owned() = default;
  Owned(Handle* handle, void (*destroy)(Handle*)) : handle_(handle), destroy_(destroy) {}
  Owned(Owned&& other) noexcept { *this = std::move(other); }
  Owned& operator=(Owned&& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(destroy_, other.destroy_);
    return *this;
  }
  ~Owned() {
    if (handle_ != nullptr) destroy_(handle_);
  }
  Handle* get() const { return handle_; }
  explicit operator bool() const { return handle_ != nullptr; }

 private:
  Handle* handle_ = nullptr;
  void (*destroy_)(Handle*) = nullptr;
};

using OwnedBuffer = Owned<octet_buffer>;
using OwnedStream = Owned<octet_stream>;
using OwnedEvent = Owned<octet_event>;
using OwnedWeight = Owned<octet_weight>;

struct DeviceInfo {
  enum class Kind : uint32_t { kCpu = OCTET_DEVICE_CPU, kGpu = OCTET_DEVICE_GPU, kOther = OCTET_DEVICE_OTHER };
  Kind kind = Kind::kOther;
  std::string name, arch;
  uint64_t memory_bytes = 0;
  uint32_t preferred_alignment = 256, lanes = 1;
};

struct MemoryInfo {
  uint64_t free_bytes = 0, total_bytes = 0, held_bytes = 0;
};

// Thread-safe, except that a stream is used by one thread at a time. Errors carry the backend's sentence, prefixed with
// the device's name ("cpu:0: ...").
class Device {
 public:
  // Takes over an open handle of the table, which lives until the process ends. `id` is "cpu:0".
  static absl::StatusOr<std::unique_ptr<Device>> Open(const octet_backend_v1* table, uint32_t index, std::string id,
                                                      const std::string& options);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const std::string& id() const { return id_; }
  const DeviceInfo& info() const { return info_; }
  const octet_backend_v1* table() const { return table_; }
  octet_device* handle() const { return handle_; }

  // Operations on this device's streams and buffers. dense(), fused() and graph() are null where the backend has none.
  QuantOps& quant() { return *quant_; }
  AttentionBackend& attention() { return *attention_; }
  DenseOps* dense() { return dense_.get(); }
  FusedOps* fused() { return fused_.get(); }
  GraphOps* graph() { return graph_.get(); }

  absl::StatusOr<MemoryInfo> memory() const;
  absl::StatusOr<OwnedBuffer> Alloc(uint64_t bytes, MemoryKind kind = MemoryKind::kDevice);
  absl::StatusOr<void*> Map(octet_buffer* buffer);
  absl::StatusOr<OwnedStream> CreateStream();
  absl::StatusOr<OwnedEvent> CreateEvent();
  absl::StatusOr<OwnedWeight> PrepareWeight(octet_stream* stream, const WeightDesc& desc);

  // Asynchronous, in stream order: `src` must stay until the stream passes it, `dst` is valid after Sync or an event.
  absl::Status Write(octet_stream* stream, octet_buffer* buffer, uint64_t offset, const void* src, uint64_t bytes);
  absl::Status Read(octet_stream* stream, octet_buffer* buffer, uint64_t offset, void* dst, uint64_t bytes);
  absl::Status Copy(octet_stream* stream, octet_buffer* dst, uint64_t dst_offset, octet_buffer* src,
                    uint64_t src_offset, uint64_t bytes);
  absl::Status Fill(octet_stream* stream, octet_buffer* buffer, uint64_t offset, uint64_t bytes, uint8_t value);
  absl::Status Sync(octet_stream* stream);
  // Sync where nobody can be told of a failure: in destructors and behind an error. Does not allocate.
  void Drain(octet_stream* stream) noexcept;
  absl::Status Record(octet_stream* stream, octet_event* event);
  absl::Status Wait(octet_stream* stream, octet_event* event);
  absl::Status EventSync(octet_event* event);

 private:
  Device() = default;

  std::string id_;
  DeviceInfo info_;
  const octet_backend_v1* table_ = nullptr;
  octet_device* handle_ = nullptr;
  std::unique_ptr<QuantOps> quant_;
  std::unique_ptr<AttentionBackend> attention_;
  std::unique_ptr<DenseOps> dense_;
  std::unique_ptr<FusedOps> fused_;
  std::unique_ptr<GraphOps> graph_;
};

// Waits for a stream at the end of a scope, however that ends: before what the stream may still read goes.
class DrainAtEnd {
 public:
  DrainAtEnd(Device& device, octet_stream* stream) : device_(device), stream_(stream) {}
  ~DrainAtEnd() { device_.Drain(stream_); }
  DrainAtEnd(const DrainAtEnd&) = delete;
  DrainAtEnd& operator=(const DrainAtEnd&) = delete;

 private:
  Device& device_;
  octet_stream* stream_;
};

}  // namespace octet

#endif  // OCTET_CORE_LOADER_DEVICE_H_
