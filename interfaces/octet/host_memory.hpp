// Device, memory, streams and events for a backend that computes in host memory before its calls return. A first
// backend derives from HostMemoryBackend and brings two classes, its QuantOps and its AttentionBackend.
//
// Every table function runs to its end on the calling thread (and the host's parallel loop), so streams and events have
// nothing to wait for.
#ifndef OCTET_HOST_MEMORY_HPP_
#define OCTET_HOST_MEMORY_HPP_

#include <atomic>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "octet/backend.hpp"
#include "octet/checks.h"

namespace octet {
inline namespace v1 {

class HostBuffer final : public DeviceBuffer {
 public:
  static constexpr size_t kAlignment = 256;

  // `held` counts the bytes of all live buffers of a device and outlives this one.
  HostBuffer(uint64_t bytes, std::atomic<uint64_t>* held)
      : data_(static_cast<uint8_t*>(::operator new (bytes, std::align_val_t{kAlignment}))), bytes_(bytes), held_(held) {
    held_->fetch_add(bytes_);
  }
  ~HostBuffer() override {
    ::operator delete (data_, std::align_val_t{kAlignment});
    held_->fetch_sub(bytes_);
  }
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;

  uint8_t* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  StatusOr<void*> Map() override { return static_cast<void*>(data_); }

  // Are [offset, offset + bytes) inside?
  Status CheckRange(const char* what, uint64_t offset, uint64_t n) const {
    if (offset <= bytes_ && n <= bytes_ - offset) return OkStatus();
    return InvalidArgument(std::string(what) + ": " + std::to_string(n) + " bytes at " + std::to_string(offset) +
                           " leave the buffer of " + std::to_string(bytes_) + " bytes");
  }

 private:
  uint8_t* data_;
  uint64_t bytes_;
  std::atomic<uint64_t>* held_;
};

inline HostBuffer& HostBufferOf(DeviceBuffer& buffer) { return static_cast<HostBuffer&>(buffer); }
inline HostBuffer& HostBufferOf(Buffer& buffer) { return HostBufferOf(BufferOf(buffer)); }

// The first element, for a tensor that passed CheckHostTensor (or of which no element is touched).
template <typename T>
T* HostData(const Tensor& t) {
  return t.buffer == nullptr ? nullptr : reinterpret_cast<T*>(HostBufferOf(*t.buffer).data() + t.offset);
}

// Every element inside the buffer, and the first one aligned. Expects rank, shape and strides as CheckTensor leaves
// them.
inline Status CheckHostBounds(const char* name, const Tensor& t) {
  const int64_t element = ElementBytes(TypeOf(t));
  if (element == 0) return InvalidArgument(std::string(name) + " has a type without elements");
  uint64_t last = 0;  // elements from the first to the last one
  bool overflow = false;
  for (int i = 0; i < t.rank; ++i) {
    if (t.shape[i] == 0) return OkStatus();
    uint64_t span = 0;
    overflow = overflow || __builtin_mul_overflow(t.shape[i] - 1, t.stride[i], &span) ||
               __builtin_add_overflow(last, span, &last);
  }
  uint64_t bytes = 0;
  overflow = overflow || __builtin_add_overflow(last, uint64_t{1}, &last) ||
             __builtin_mul_overflow(last, static_cast<uint64_t>(element), &bytes);
  if (overflow) return InvalidArgument(std::string(name) + " spans more than 2^64 bytes");
  if (t.offset % static_cast<uint64_t>(element) != 0) {
    return InvalidArgument(std::string(name) + " starts at byte " + std::to_string(t.offset) + ", not a multiple of " +
                           std::to_string(element));
  }
  return HostBufferOf(*t.buffer).CheckRange(name, t.offset, bytes);
}

// CheckTensor plus the bounds of the buffer: afterwards every element may be touched through HostData.
inline Status CheckHostTensor(const char* name, const Tensor* t, DType type, std::initializer_list<int64_t> dims) {
  OCTET_RETURN_IF_ERROR(CheckTensor(name, t, type, dims));
  return CheckHostBounds(name, *t);
}

// CheckLayer plus bounds: the whole cache of the layer and its tensors.
inline Status CheckHostLayer(const KvLayout& l, const KvLayer& layer, int32_t q_heads) {
  OCTET_RETURN_IF_ERROR(CheckLayer(l, layer, q_heads));
  OCTET_RETURN_IF_ERROR(HostBufferOf(*layer.cache).CheckRange("KV cache", layer.cache_offset, l.layer_bytes));
  const std::pair<const char*, const Tensor*> tensors[] = {
      {"k_offset", layer.k_offset}, {"k_scale", layer.k_scale}, {"k_zero", layer.k_zero},
      {"v_scale", layer.v_scale},   {"v_zero", layer.v_zero},   {"sinks", q_heads > 0 ? layer.sinks : nullptr}};
  for (const auto& [name, t] : tensors) {
    if (t != nullptr) OCTET_RETURN_IF_ERROR(CheckHostBounds(name, *t));
  }
  return OkStatus();
}

// CheckTokens plus bounds and values: every slot is -1 or exists, every position has a row in the offset table.
inline Status CheckHostTokens(const KvLayout& l, const KvLayer& layer, const KvTokens& t, bool gather) {
  OCTET_RETURN_IF_ERROR(CheckTokens(l, layer, t, gather));
  if (t.k != nullptr) OCTET_RETURN_IF_ERROR(CheckHostBounds("k", *t.k));
  if (t.v != nullptr) OCTET_RETURN_IF_ERROR(CheckHostBounds("v", *t.v));
  OCTET_RETURN_IF_ERROR(CheckHostBounds("slots", *t.slots));
  if (t.positions != nullptr) OCTET_RETURN_IF_ERROR(CheckHostBounds("positions", *t.positions));
  const int64_t slots = int64_t{l.num_pages} * l.page_tokens;
  const int64_t positions = layer.k_offset != nullptr ? layer.k_offset->shape[0] * l.offset_block : 0;
  for (int64_t i = 0; i < t.slots->shape[0]; ++i) {
    const int64_t slot = HostData<const int64_t>(*t.slots)[i];
    if (slot < -1 || slot >= slots) {
      return InvalidArgument("slots[" + std::to_string(i) + "] is " + std::to_string(slot) + "; the cache has " +
                             std::to_string(slots) + " slots, and -1 skips a row");
    }
    if (slot < 0 || layer.k_offset == nullptr) continue;
    const int32_t position = HostData<const int32_t>(*t.positions)[i];
    if (position < 0 || position >= positions) {
      return InvalidArgument("positions[" + std::to_string(i) + "] is " + std::to_string(position) +
                             "; the K offset table ends at " + std::to_string(positions));
    }
  }
  return OkStatus();
}

class HostEvent final : public DeviceEvent {
 public:
  Status Sync() override { return OkStatus(); }
};

class HostStream final : public DeviceStream {
 public:
  using DeviceStream::DeviceStream;

  Status Sync() override { return OkStatus(); }
  Status Record(DeviceEvent&) override { return OkStatus(); }
  Status Wait(DeviceEvent&) override { return OkStatus(); }
  Status Write(DeviceBuffer& dst, uint64_t offset, const void* src, uint64_t bytes) override {
    OCTET_RETURN_IF_ERROR(HostBufferOf(dst).CheckRange("write", offset, bytes));
    if (bytes > 0) std::memcpy(HostBufferOf(dst).data() + offset, src, bytes);
    return OkStatus();
  }
  Status Read(DeviceBuffer& src, uint64_t offset, void* dst, uint64_t bytes) override {
    OCTET_RETURN_IF_ERROR(HostBufferOf(src).CheckRange("read", offset, bytes));
    if (bytes > 0) std::memcpy(dst, HostBufferOf(src).data() + offset, bytes);
    return OkStatus();
  }
  Status Copy(DeviceBuffer& dst, uint64_t dst_offset, DeviceBuffer& src, uint64_t src_offset, uint64_t bytes) override {
    OCTET_RETURN_IF_ERROR(HostBufferOf(dst).CheckRange("copy, destination", dst_offset, bytes));
    OCTET_RETURN_IF_ERROR(HostBufferOf(src).CheckRange("copy, source", src_offset, bytes));
    if (bytes > 0) std::memmove(HostBufferOf(dst).data() + dst_offset, HostBufferOf(src).data() + src_offset, bytes);
    return OkStatus();
  }
  Status Fill(DeviceBuffer& dst, uint64_t offset, uint64_t bytes, uint8_t value) override {
    OCTET_RETURN_IF_ERROR(HostBufferOf(dst).CheckRange("fill", offset, bytes));
    if (bytes > 0) std::memset(HostBufferOf(dst).data() + offset, value, bytes);
    return OkStatus();
  }
};

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

// One device, index 0. Its operations belong to the backend object, so they must be usable from several open devices
// and threads at once: keep state in plans, weights and buffers.
class HostMemoryBackend : public Backend {
 public:
  explicit HostMemoryBackend(BackendIdentity identity) : identity_(std::move(identity)) {
    if (identity_.targets.empty()) identity_.targets = HostArchitecture();
  }

  virtual QuantOps* quant() = 0;
  virtual AttentionBackend* attention() = 0;
  virtual DenseOps* dense() { return nullptr; }
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
    return std::unique_ptr<OpenDevice>(std::make_unique<HostDevice>(*this));
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
  class HostDevice final : public OpenDevice {
   public:
    explicit HostDevice(HostMemoryBackend& backend) : backend_(&backend), total_(HostMemoryBytes("MemTotal")) {}

    StatusOr<MemoryUse> Memory() override {
      return MemoryUse{
          .free_bytes = HostMemoryBytes("MemAvailable"), .total_bytes = total_, .held_bytes = held_.load()};
    }
    // More than the machine has would be granted and then end the process at the first touch.
    StatusOr<std::unique_ptr<DeviceBuffer>> Alloc(uint64_t bytes, uint32_t) override {
      if (total_ > 0 && bytes > total_) return NoMemory(bytes);
      try {
        return std::unique_ptr<DeviceBuffer>(std::make_unique<HostBuffer>(bytes, &held_));
      } catch (const std::bad_alloc&) {
        return NoMemory(bytes);
      }
    }
    StatusOr<std::unique_ptr<DeviceStream>> CreateStream() override {
      return std::unique_ptr<DeviceStream>(std::make_unique<HostStream>(*this));
    }
    StatusOr<std::unique_ptr<DeviceEvent>> CreateEvent() override {
      return std::unique_ptr<DeviceEvent>(std::make_unique<HostEvent>());
    }
    QuantOps& quant() override { return *backend_->quant(); }
    AttentionBackend& attention() override { return *backend_->attention(); }
    DenseOps* dense() override { return backend_->dense(); }
    FusedOps* fused() override { return backend_->fused(); }

   private:
    Status NoMemory(uint64_t bytes) const {
      return ResourceExhausted("cannot allocate " + std::to_string(bytes) + " bytes of host memory; the machine has " +
                               std::to_string(total_) + " bytes");
    }

    HostMemoryBackend* backend_;
    uint64_t total_;
    std::atomic<uint64_t> held_{0};
  };

  Status CheckIndex(uint32_t index) const {
    if (index == 0) return OkStatus();
    return NotFound("backend " + identity_.name + " has one device, 0; device " + std::to_string(index) +
                    " does not exist");
  }

  BackendIdentity identity_;
};

}  // namespace v1
}  // namespace octet

#endif  // OCTET_HOST_MEMORY_HPP_
