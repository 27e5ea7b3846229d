// Memory, streams and events of a backend that computes in host memory before its calls return, and tensors there.
//
// Every table function runs to its end on the calling thread (and the host's parallel loop), so streams and events have
// nothing to wait for.
#ifndef OCTET_HOST_MEMORY_HPP_
#define OCTET_HOST_MEMORY_HPP_

#include <atomic>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <new>
#include <string>
#include <utility>

#include "octet/backend.hpp"
#include "octet/bounds.h"
#include "octet/checks.h"

namespace octet {
inline namespace v1 {

class HostBuffer final : public DeviceBuffer {
 public:
  static constexpr size_t kAlignment = 256;

  // `held` counts the bytes of all live buffers of a device and outlives this one.
  HostBuffer(uint64_t bytes, std::atomic<uint64_t>* held)
      : DeviceBuffer(bytes),
        data_(static_cast<uint8_t*>(::operator new (bytes, std::align_val_t{kAlignment}))),
        held_(held) {
    held_->fetch_add(bytes);
  }
  ~HostBuffer() override {
    ::operator delete (data_, std::align_val_t{kAlignment});
    held_->fetch_sub(bytes());
  }

  uint8_t* data() const { return data_; }
  StatusOr<void*> Map() override { return static_cast<void*>(data_); }

 private:
  uint8_t* data_;
  std::atomic<uint64_t>* held_;
};

inline HostBuffer& HostBufferOf(DeviceBuffer& buffer) { return static_cast<HostBuffer&>(buffer); }
inline HostBuffer& HostBufferOf(Buffer& buffer) { return HostBufferOf(BufferOf(buffer)); }

// The first element, for a tensor that passed CheckTensorInside (or of which no element is touched: an empty one may
// have any offset, so the address is computed as a number).
template <typename T>
T* HostData(const Tensor& t) {
  if (t.buffer == nullptr) return nullptr;
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(HostBufferOf(*t.buffer).data()) + t.offset);
}

// Every slot is -1 or exists, and the position of each that exists has a row in the offset table. Expects both tensors,
// `positions` where the layer has offsets, to be inside their buffers.
inline Status CheckHostSlots(const KvLayout& l, const KvLayer& layer, const Tensor& slots, const Tensor* positions) {
  const int64_t count = int64_t{l.num_pages} * l.page_tokens;
  const int64_t blocks = layer.k_offset != nullptr ? layer.k_offset->shape[0] : 0;
  for (int64_t i = 0; i < slots.shape[0]; ++i) {
    const int64_t slot = HostData<const int64_t>(slots)[i];
    if (slot < -1 || slot >= count) {
      return InvalidArgument("slots[" + std::to_string(i) + "] is " + std::to_string(slot) + "; the cache has " +
                             std::to_string(count) + " slots, and -1 skips a row");
    }
    if (slot < 0 || layer.k_offset == nullptr) continue;
    const int32_t position = HostData<const int32_t>(*positions)[i];
    if (position < 0 || position / l.offset_block >= blocks) {
      return InvalidArgument("positions[" + std::to_string(i) + "] is " + std::to_string(position) +
                             "; the K offset table has " + std::to_string(blocks) + " blocks of " +
                             std::to_string(l.offset_block));
    }
  }
  return OkStatus();
}

// CheckTokens plus bounds and the values of slots and positions.
inline Status CheckHostTokens(const KvLayout& l, const KvLayer& layer, const KvTokens& t, bool gather) {
  OCTET_RETURN_IF_ERROR(CheckTokensInside(l, layer, t, gather));
  return CheckHostSlots(l, layer, *t.slots, t.positions);
}

// Every position has a row in a table of so many.
inline Status CheckHostPositions(const Tensor& positions, int64_t table_rows) {
  for (int64_t i = 0; i < positions.shape[0]; ++i) {
    const int32_t position = HostData<const int32_t>(positions)[i];
    if (position < 0 || position >= table_rows) {
      return InvalidArgument("positions[" + std::to_string(i) + "] is " + std::to_string(position) + "; cos_sin has " +
                             std::to_string(table_rows) + " positions");
    }
  }
  return OkStatus();
}

// CheckQkvAppend plus bounds and the values of slots and positions. CheckLayerInside is the caller's.
inline Status CheckHostQkvAppend(const KvLayout& l, const KvLayer& layer, const QkvAppendArgs& a) {
  OCTET_RETURN_IF_ERROR(CheckQkvAppend(l, a));
  const std::pair<const char*, const Tensor*> tensors[] = {
      {"qkv", a.qkv},         {"bias", a.bias},           {"q_gain", a.q_gain}, {"k_gain", a.k_gain},
      {"cos_sin", a.cos_sin}, {"positions", a.positions}, {"slots", a.slots}};
  for (const auto& [name, t] : tensors) {
    if (t != nullptr) OCTET_RETURN_IF_ERROR(CheckBounds(name, *t));
  }
  if (TypeOf(*a.q_out) != DType::kOpaque) OCTET_RETURN_IF_ERROR(CheckBounds("q_out", *a.q_out));
  OCTET_RETURN_IF_ERROR(CheckHostPositions(*a.positions, a.cos_sin->shape[0]));
  return CheckHostSlots(l, layer, *a.slots, a.positions);
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

}  // namespace v1
}  // namespace octet

#endif  // OCTET_HOST_MEMORY_HPP_
