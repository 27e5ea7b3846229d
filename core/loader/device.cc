#include "core/loader/device.h"

#include "absl/strings/str_cat.h"
#include "core/loader/adapters.h"
#include "core/loader/table_check.h"

namespace octet {
namespace {

template <typename Handle>
absl::StatusOr<Owned<Handle>> TakeOver(const Status& status, const std::string& id, const char* what, Handle* handle,
                                       void (*destroy)(Handle*)) {
  if (!status.ok()) return ToAbsl(status);
  if (handle == nullptr) {
    return absl::InternalError(absl::StrCat(id, ": the backend reported success but made no ", what));
  }
  return Owned<Handle>(handle, destroy);
}

}  // namespace

absl::Status ToAbsl(const Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.code()), status.message());
}

absl::StatusOr<std::unique_ptr<Device>> Device::Open(const octet_backend_v1* table, uint32_t index, std::string id,
                                                     const std::string& options) {
  if (absl::Status status = CheckTable(*table); !status.ok()) {
    return absl::Status(status.code(), absl::StrCat(id, ": the backend cannot be used: ", status.message()));
  }
  absl::StatusOr<DeviceInfo> info = DescribeDevice(*table, index);
  if (!info.ok()) return absl::Status(info.status().code(), absl::StrCat(id, ": ", info.status().message()));
  // Made first: from its opening on the handle has an owner.
  std::unique_ptr<Device> device(new Device);
  device->id_ = std::move(id);
  device->info_ = *std::move(info);
  device->table_ = table;
  const Status opened = CallTable(device->id_, [&](octet_error* error) {
    return table->device->open(index, options.c_str(), &device->handle_, error);
  });
  if (!opened.ok()) return ToAbsl(opened);
  if (device->handle_ == nullptr) {
    return absl::InternalError(absl::StrCat(device->id_, ": the backend reported success but opened no device"));
  }
  const DeviceRef ref{table, device->handle_, device->id_};
  device->quant_ = MakeQuantOps(ref);
  device->attention_ = MakeAttention(ref);
  device->dense_ = MakeDenseOps(ref);
  device->fused_ = MakeFusedOps(ref);
  device->graph_ = MakeGraphOps(ref);
  return device;
}

Device::~Device() {
  if (handle_ != nullptr) table_->device->close(handle_);
}

absl::StatusOr<MemoryInfo> Device::memory() const {
  octet_memory_info info = convert::Sized<octet_memory_info>();
  const Status status = CallTable(id_, [&](octet_error* error) { return table_->memory->info(handle_, &info, error); });
  if (!status.ok()) return ToAbsl(status);
  return MemoryInfo{.free_bytes = info.free_bytes, .total_bytes = info.total_bytes, .held_bytes = info.held_bytes};
}

absl::StatusOr<OwnedBuffer> Device::Alloc(uint64_t bytes, MemoryKind kind) {
  octet_buffer* buffer = nullptr;
  const Status status = CallTable(id_, [&](octet_error* error) {
    return table_->memory->alloc(handle_, bytes, static_cast<uint32_t>(kind), &buffer, error);
  });
  return TakeOver(status, id_, "buffer", buffer, table_->memory->free);
}

absl::StatusOr<void*> Device::Map(octet_buffer* buffer) {
  void* host = nullptr;
  const Status status = CallTable(id_, [&](octet_error* error) { return table_->memory->map(buffer, &host, error); });
  if (!status.ok()) return ToAbsl(status);
  return host;
}

absl::StatusOr<OwnedStream> Device::CreateStream() {
  octet_stream* stream = nullptr;
  const Status status =
      CallTable(id_, [&](octet_error* error) { return table_->stream->create(handle_, &stream, error); });
  return TakeOver(status, id_, "stream", stream, table_->stream->destroy);
}

absl::StatusOr<OwnedEvent> Device::CreateEvent() {
  octet_event* event = nullptr;
  const Status status =
      CallTable(id_, [&](octet_error* error) { return table_->stream->create_event(handle_, &event, error); });
  return TakeOver(status, id_, "event", event, table_->stream->destroy_event);
}

absl::StatusOr<OwnedWeight> Device::PrepareWeight(octet_stream* stream, const WeightDesc& desc) {
  if (dense_ == nullptr) {
    return absl::UnimplementedError(absl::StrCat(id_, ": this backend has attention only, no weights"));
  }
  const StatusOr<Weight*> weight = dense_->PrepareWeight(*stream, desc);
  if (!weight.ok()) return ToAbsl(weight.status());
  return OwnedWeight(*weight, table_->dense->release_weight);
}

absl::Status Device::Write(octet_stream* stream, octet_buffer* buffer, uint64_t offset, const void* src,
                           uint64_t bytes) {
  return ToAbsl(CallTable(
      id_, [&](octet_error* error) { return table_->memory->write(stream, buffer, offset, src, bytes, error); }));
}

absl::Status Device::Read(octet_stream* stream, octet_buffer* buffer, uint64_t offset, void* dst, uint64_t bytes) {
  return ToAbsl(CallTable(
      id_, [&](octet_error* error) { return table_->memory->read(stream, buffer, offset, dst, bytes, error); }));
}

absl::Status Device::Copy(octet_stream* stream, octet_buffer* dst, uint64_t dst_offset, octet_buffer* src,
                          uint64_t src_offset, uint64_t bytes) {
  return ToAbsl(CallTable(id_, [&](octet_error* error) {
    return table_->memory->copy(stream, dst, dst_offset, src, src_offset, bytes, error);
  }));
}

absl::Status Device::Fill(octet_stream* stream, octet_buffer* buffer, uint64_t offset, uint64_t bytes, uint8_t value) {
  return ToAbsl(CallTable(
      id_, [&](octet_error* error) { return table_->memory->fill(stream, buffer, offset, bytes, value, error); }));
}

absl::Status Device::Sync(octet_stream* stream) {
  return ToAbsl(CallTable(id_, [&](octet_error* error) { return table_->stream->sync(stream, error); }));
}

void Device::Drain(octet_stream* stream) noexcept { table_->stream->sync(stream, nullptr); }

absl::Status Device::Record(octet_stream* stream, octet_event* event) {
  return ToAbsl(CallTable(id_, [&](octet_error* error) { return table_->stream->record(stream, event, error); }));
}

absl::Status Device::Wait(octet_stream* stream, octet_event* event) {
  return ToAbsl(CallTable(id_, [&](octet_error* error) { return table_->stream->wait(stream, event, error); }));
}

absl::Status Device::EventSync(octet_event* event) {
  return ToAbsl(CallTable(id_, [&](octet_error* error) { return table_->stream->event_sync(event, error); }));
}

}  // namespace octet
