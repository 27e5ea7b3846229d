// What a backend author implements: a Backend that lists and opens devices, an OpenDevice with its operations, and the
// memory, streams and events made on it. plugin.hpp turns them into the C tables. HostMemoryBackend (host_backend.hpp)
// supplies all but the operations for anything that computes synchronously in host memory.
//
// Rules that tables and callers rely on stand in abi.h (A1-A18).
#ifndef OCTET_BACKEND_HPP_
#define OCTET_BACKEND_HPP_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>

#include "octet/abi.h"
#include "octet/attention_backend.h"
#include "octet/dense_ops.h"
#include "octet/fused_ops.h"
#include "octet/quant_ops.h"
#include "octet/status.h"

namespace octet {
inline namespace v1 {

// What the host lends to this library: a log and a parallel loop. A small value; thread-safe. A backend that sizes
// scratch by max_workers() keeps one HostServices for both the size and the loop, since a later query may bring
// another.
class HostServices {
 public:
  HostServices() : host_(Latest().load(std::memory_order_acquire)) {}

  // level: 0 debug, 1 info, 2 warning, 3 error.
  void Log(int32_t level, std::string_view text) const {
    if (OCTET_HAS(host_, log)) host_->log(host_->ctx, level, text.data(), text.size());
  }

  // Worker numbers that ParallelFor hands out are below this.
  uint32_t max_workers() const {
    return OCTET_HAS(host_, parallel_for) && OCTET_HAS(host_, max_workers) ? host_->max_workers : 1;
  }

  // Calls body(uint32_t worker, int64_t begin, int64_t end) over disjoint pieces that cover [0, n); returns when all
  // are done. On the calling thread where the host lends no loop. Does not allocate. The first exception of a body is
  // rethrown here.
  template <typename Body>
  void ParallelFor(int64_t n, Body&& body) const {
    if (n <= 0) return;
    if (n == 1 || max_workers() <= 1) {
      body(uint32_t{0}, int64_t{0}, n);
      return;
    }
    struct Call {
      std::remove_reference_t<Body>* body;
      std::atomic<bool> failed{false};
      std::exception_ptr exception;
    } call{&body, {false}, nullptr};
    host_->parallel_for(
        host_->ctx, n,
        [](void* arg, uint32_t worker, int64_t begin, int64_t end) {
          auto& c = *static_cast<Call*>(arg);
          try {
            (*c.body)(worker, begin, end);
          } catch (...) {
            if (!c.failed.exchange(true)) c.exception = std::current_exception();
          }
        },
        &call);
    if (call.failed.load()) std::rethrow_exception(call.exception);
  }

  // Set by the entry symbol; lives until the process ends.
  static std::atomic<const octet_host_v1*>& Latest() {
    static std::atomic<const octet_host_v1*> host{nullptr};
    return host;
  }

 private:
  const octet_host_v1* host_;
};

// body(worker, begin, end) on the host's threads.
template <typename Body>
void ParallelFor(int64_t n, Body&& body) {
  HostServices().ParallelFor(n, std::forward<Body>(body));
}

struct BackendIdentity {
  std::string name;  // of the file: liboctet_backend_<name>.so; a-z, 0-9 and _
  std::string vendor, version;
  std::string targets = {};  // instruction sets or architectures with native code: "x86-64,x86-64-v3"
};

struct DeviceDescription {
  uint32_t kind = OCTET_DEVICE_OTHER;
  std::string name, arch;  // cut to 63 and 31 bytes
  uint64_t memory_bytes = 0;
  uint32_t preferred_alignment = 256;
  uint32_t lanes = 1;
};

struct MemoryUse {
  uint64_t free_bytes = 0, total_bytes = 0, held_bytes = 0;
};

class OpenDevice;

class DeviceBuffer {
 public:
  explicit DeviceBuffer(uint64_t bytes) : bytes_(bytes) {}
  virtual ~DeviceBuffer() = default;
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  uint64_t bytes() const { return bytes_; }
  // Are [offset, offset + n) inside?
  Status CheckRange(const char* what, uint64_t offset, uint64_t n) const {
    if (offset <= bytes_ && n <= bytes_ - offset) return OkStatus();
    return InvalidArgument(std::string(what) + ": " + std::to_string(n) + " bytes at " + std::to_string(offset) +
                           " leave the buffer of " + std::to_string(bytes_) + " bytes");
  }
  // The host address, valid until the buffer ends; FailedPrecondition where the host cannot reach the memory.
  virtual StatusOr<void*> Map() = 0;

 private:
  const uint64_t bytes_;
};

class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  virtual Status Sync() = 0;  // the host waits
};

// Work in order. Used by one thread at a time. Ranges outside a buffer are InvalidArgument.
class DeviceStream {
 public:
  explicit DeviceStream(OpenDevice& device) : device_(&device) {}
  virtual ~DeviceStream() = default;
  OpenDevice& device() const { return *device_; }

  virtual Status Sync() = 0;
  virtual Status Record(DeviceEvent& event) = 0;
  virtual Status Wait(DeviceEvent& event) = 0;
  virtual Status Write(DeviceBuffer& dst, uint64_t offset, const void* src, uint64_t bytes) = 0;
  virtual Status Read(DeviceBuffer& src, uint64_t offset, void* dst, uint64_t bytes) = 0;
  virtual Status Copy(DeviceBuffer& dst, uint64_t dst_offset, DeviceBuffer& src, uint64_t src_offset,
                      uint64_t bytes) = 0;
  virtual Status Fill(DeviceBuffer& dst, uint64_t offset, uint64_t bytes, uint8_t value) = 0;

 private:
  OpenDevice* device_;
};

// Thread-safe. Everything made on a device ends before it. Its destructor joins every thread that it started (A13).
class OpenDevice {
 public:
  virtual ~OpenDevice() = default;

  virtual StatusOr<MemoryUse> Memory() = 0;
  // bytes > 0; kind is OCTET_MEMORY_DEVICE or OCTET_MEMORY_HOST_VISIBLE. Aligned to 256 bytes at least.
  virtual StatusOr<std::unique_ptr<DeviceBuffer>> Alloc(uint64_t bytes, uint32_t kind) = 0;
  virtual StatusOr<std::unique_ptr<DeviceStream>> CreateStream() = 0;
  virtual StatusOr<std::unique_ptr<DeviceEvent>> CreateEvent() = 0;

  virtual QuantOps& quant() = 0;
  virtual AttentionBackend& attention() = 0;
  // Not null where the backend's features say so.
  virtual DenseOps* dense() { return nullptr; }
  virtual FusedOps* fused() { return nullptr; }
  virtual GraphOps* graph() { return nullptr; }
};

// Which optional tables a backend has, on every device.
struct BackendFeatures {
  bool dense = false, fused = false, graph = false;
};

// One per process, made by the first query and never destroyed. Thread-safe.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual const BackendIdentity& identity() const = 0;
  virtual BackendFeatures features() const = 0;
  // Unavailable, with the reason, where there is no device here ("no NVIDIA driver: libcuda.so.1 was not found").
  virtual StatusOr<uint32_t> CountDevices() = 0;
  virtual StatusOr<DeviceDescription> Describe(uint32_t index) = 0;
  // options: "key=value,key=value" or empty; an unknown key is InvalidArgument.
  virtual StatusOr<std::unique_ptr<OpenDevice>> Open(uint32_t index, std::string_view options) = 0;
  // A size-first table of an experiment "vendor.thing.N" (A16), or null.
  virtual const void* Extension(std::string_view) { return nullptr; }
};

// A handle of the C tables is the address of the C++ object that the backend made.
inline DeviceStream& StreamOf(Stream& stream) { return reinterpret_cast<DeviceStream&>(stream); }
inline DeviceBuffer& BufferOf(Buffer& buffer) { return reinterpret_cast<DeviceBuffer&>(buffer); }

}  // namespace v1
}  // namespace octet

#endif  // OCTET_BACKEND_HPP_
