// HostMemoryBackend: device, memory, streams and dense operations for anything that computes in host memory. A first
// backend derives from it and brings two classes, its QuantOps and its AttentionBackend.
#ifndef OCTET_HOST_BACKEND_HPP_
#define OCTET_HOST_BACKEND_HPP_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <fstream>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "octet/backend.hpp"
#include "octet/host_dense.hpp"
#include "octet/host_memory.hpp"

namespace octet {
inline namespace v1 {

// "MemTotal", "MemAvailable": bytes of this machine, 0 where /proc does not say.
inline uint64_t HostMemoryBytes(std::string_view key) {
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  uint64_t kib = 0;
  while (file >> name >> kib >> unit) {
    if (name.size() == key.size() + 1 && name.starts_with(key)) return kib * 1024;
  }
  return 0;
}

inline std::string HostProcessorName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "host memory";
}

// Memory, streams and events of a device that computes in host memory. The operations are the derived class's.
class HostMemoryDevice : public OpenDevice {
 public:
  StatusOr<MemoryUse> Memory() override {
    return MemoryUse{.free_bytes = HostMemoryBytes("MemAvailable"), .total_bytes = total_, .held_bytes = held_.load()};
  }
  StatusOr<std::unique_ptr<DeviceBuffer>> Alloc(uint64_t bytes, uint32_t) override {
    // More than the machine has would be granted and then end the process at the first touch.
    if (total_ == 0 || bytes <= total_) {
      try {
        return std::unique_ptr<DeviceBuffer>(std::make_unique<HostBuffer>(bytes, &held_));
      } catch (const std::bad_alloc&) {  // answered below
      }
    }
    return ResourceExhausted("cannot allocate " + std::to_string(bytes) + " bytes of host memory; the machine has " +
                             std::to_string(total_) + " bytes");
  }
  StatusOr<std::unique_ptr<DeviceStream>> CreateStream() override {
    return std::unique_ptr<DeviceStream>(std::make_unique<HostStream>(*this));
  }
  StatusOr<std::unique_ptr<DeviceEvent>> CreateEvent() override {
    return std::unique_ptr<DeviceEvent>(std::make_unique<HostEvent>());
  }

 protected:
  // Bytes of live buffers; operations that keep memory of their own add to it.
  std::atomic<uint64_t>& held() { return held_; }

 private:
  const uint64_t total_ = HostMemoryBytes("MemTotal");
  std::atomic<uint64_t> held_{0};
};

// One device, index 0. Its operations belong to the backend object, so they must be usable from several open devices
// and threads at once: keep state in plans, weights and buffers.
class HostMemoryBackend : public Backend {
 public:
  explicit HostMemoryBackend(BackendIdentity identity) : identity_(std::move(identity)) {
    if (identity_.targets.empty()) identity_.targets = HostArchitecture();
  }

  virtual QuantOps* quant() = 0;
  virtual AttentionBackend* attention() = 0;
  // Plain loops unless overridden; null: attention only.
  virtual DenseOps* dense() { return &dense_; }
  virtual FusedOps* fused() { return nullptr; }

  // Options of open; none unless overridden. The same call must have the same effect for every open device.
  virtual Status SetOption(std::string_view key, std::string_view) {
    return InvalidArgument("backend " + identity_.name + " has no option '" + std::string(key) + "'");
  }

  const BackendIdentity& identity() const override { return identity_; }
  BackendFeatures features() const override {
    auto* self = const_cast<HostMemoryBackend*>(this);
    return {.dense = self->dense() != nullptr, .fused = self->fused() != nullptr};
  }
  StatusOr<uint32_t> CountDevices() override { return uint32_t{1}; }
  StatusOr<DeviceDescription> Describe(uint32_t index) override {
    OCTET_RETURN_IF_ERROR(CheckIndex(index));
    return DeviceDescription{.kind = OCTET_DEVICE_CPU,
                             .name = HostProcessorName(),
                             .arch = HostArchitecture(),
                             .memory_bytes = HostMemoryBytes("MemTotal"),
                             .preferred_alignment = 256,
                             .lanes = 1};
  }
  StatusOr<std::unique_ptr<OpenDevice>> Open(uint32_t index, std::string_view options) override {
    OCTET_RETURN_IF_ERROR(CheckIndex(index));
    while (!options.empty()) {
      const std::string_view one = options.substr(0, options.find(','));
      options.remove_prefix(std::min(options.size(), one.size() + 1));
      const size_t equals = one.find('=');
      if (equals == 0 || equals == std::string_view::npos) {
        return InvalidArgument("device option '" + std::string(one) + "' is not of the form key=value");
      }
      OCTET_RETURN_IF_ERROR(SetOption(one.substr(0, equals), one.substr(equals + 1)));
    }
    return std::unique_ptr<OpenDevice>(std::make_unique<Device>(*this));
  }

  static std::string HostArchitecture() {
#if defined(__x86_64__)
    return "x86-64";
#elif defined(__aarch64__)
    return "aarch64";
#else
    return "portable";
#endif
  }

 private:
  class Device final : public HostMemoryDevice {
   public:
    explicit Device(HostMemoryBackend& backend) : backend_(&backend) {}
    QuantOps& quant() override { return *backend_->quant(); }
    AttentionBackend& attention() override { return *backend_->attention(); }
    DenseOps* dense() override { return backend_->dense(); }
    FusedOps* fused() override { return backend_->fused(); }

   private:
    HostMemoryBackend* backend_;
  };

  Status CheckIndex(uint32_t index) const {
    if (index == 0) return OkStatus();
    return NotFound("backend " + identity_.name + " has one device, 0; device " + std::to_string(index) +
                    " does not exist");
  }

  BackendIdentity identity_;
  HostDenseOps dense_;
};

}  // namespace v1
}  // namespace octet

#endif  // OCTET_HOST_BACKEND_HPP_
