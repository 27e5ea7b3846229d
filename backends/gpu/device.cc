#include "backends/gpu/device.h"

#include <utility>

namespace octet_gpu {

using octet::OkStatus;
using octet::Status;
using octet::StatusOr;

Status Context::Enter() const {
  if (broken_.load(std::memory_order_acquire)) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return octet::DataLoss("the device is broken since: " + reason_);
  }
  return Check(runtime::SetDevice(device_), "select device");
}

Status Context::Check(runtime::Error error, const char* what) const {
  if (error == runtime::kSuccess) return OkStatus();
  runtime::TakeLastError();  // the same error, which the next launch's check must not find
  const std::string text =
      std::string(runtime::kName) + ": " + what + ": " + runtime::Name(error) + ": " + runtime::Text(error);
  if (runtime::IsOutOfMemory(error)) return octet::ResourceExhausted(text);
  if (!runtime::IsSticky(error)) return octet::Internal(text);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!broken_.load(std::memory_order_relaxed)) {
    reason_ = text;
    broken_.store(true, std::memory_order_release);
  }
  return octet::DataLoss(text);
}

GpuBuffer::GpuBuffer(Context& context, void* data, uint64_t bytes, bool host)
    : DeviceBuffer(bytes), context_(context), data_(static_cast<uint8_t*>(data)), host_(host) {
  context_.held().fetch_add(bytes);
}

// Destructors have nobody to tell: a device that is gone is no error here, and a broken one says so in other calls.
GpuBuffer::~GpuBuffer() {
  context_.held().fetch_sub(bytes());
  if (context_.Enter().ok()) (void)context_.Check(host_ ? runtime::FreeHost(data_) : runtime::Free(data_), "free");
}

StatusOr<void*> GpuBuffer::Map() {
  if (host_) return static_cast<void*>(data_);
  return octet::FailedPrecondition("the host cannot reach device memory; allocate host-visible memory, or use read");
}

namespace {

class GpuEvent final : public octet::DeviceEvent {
 public:
  GpuEvent(Context& context, runtime::Event event) : context_(context), event_(event) {}
  ~GpuEvent() override {
    if (context_.Enter().ok()) (void)context_.Check(runtime::DestroyEvent(event_), "destroy event");
  }
  Status Sync() override {
    OCTET_RETURN_IF_ERROR(context_.Enter());
    return context_.Check(runtime::SynchronizeEvent(event_), "event sync");
  }
  runtime::Event native() const { return event_; }

 private:
  Context& context_;
  const runtime::Event event_;
};

runtime::Event NativeOf(octet::DeviceEvent& event) { return static_cast<GpuEvent&>(event).native(); }
uint8_t* DataAt(octet::DeviceBuffer& buffer, uint64_t offset) {
  return static_cast<GpuBuffer&>(buffer).data() + offset;
}

}  // namespace

GpuStream::~GpuStream() {
  if (context_.Enter().ok()) (void)context_.Check(runtime::DestroyStream(stream_), "destroy stream");
}

Status GpuStream::Sync() {
  OCTET_RETURN_IF_ERROR(context_.Enter());
  return context_.Check(runtime::Synchronize(stream_), "sync");
}

Status GpuStream::Record(octet::DeviceEvent& event) {
  OCTET_RETURN_IF_ERROR(context_.Enter());
  return context_.Check(runtime::RecordEvent(NativeOf(event), stream_), "record event");
}

Status GpuStream::Wait(octet::DeviceEvent& event) {
  OCTET_RETURN_IF_ERROR(context_.Enter());
  return context_.Check(runtime::WaitEvent(stream_, NativeOf(event)), "wait for event");
}

Status GpuStream::Write(octet::DeviceBuffer& dst, uint64_t offset, const void* src, uint64_t bytes) {
  OCTET_RETURN_IF_ERROR(dst.CheckRange("write", offset, bytes));
  OCTET_RETURN_IF_ERROR(context_.Enter());
  if (bytes == 0) return OkStatus();
  return context_.Check(runtime::CopyAsync(DataAt(dst, offset), src, bytes, stream_), "write");
}

Status GpuStream::Read(octet::DeviceBuffer& src, uint64_t offset, void* dst, uint64_t bytes) {
  OCTET_RETURN_IF_ERROR(src.CheckRange("read", offset, bytes));
  OCTET_RETURN_IF_ERROR(context_.Enter());
  if (bytes == 0) return OkStatus();
  return context_.Check(runtime::CopyAsync(dst, DataAt(src, offset), bytes, stream_), "read");
}

Status GpuStream::Copy(octet::DeviceBuffer& dst, uint64_t dst_offset, octet::DeviceBuffer& src, uint64_t src_offset,
                       uint64_t bytes) {
  OCTET_RETURN_IF_ERROR(dst.CheckRange("copy, destination", dst_offset, bytes));
  OCTET_RETURN_IF_ERROR(src.CheckRange("copy, source", src_offset, bytes));
  OCTET_RETURN_IF_ERROR(context_.Enter());
  if (bytes == 0) return OkStatus();
  return context_.Check(runtime::CopyAsync(DataAt(dst, dst_offset), DataAt(src, src_offset), bytes, stream_), "copy");
}

Status GpuStream::Fill(octet::DeviceBuffer& dst, uint64_t offset, uint64_t bytes, uint8_t value) {
  OCTET_RETURN_IF_ERROR(dst.CheckRange("fill", offset, bytes));
  OCTET_RETURN_IF_ERROR(context_.Enter());
  if (bytes == 0) return OkStatus();
  return context_.Check(runtime::FillAsync(DataAt(dst, offset), value, bytes, stream_), "fill");
}

Status Graphs::Begin(octet::Stream& stream) {
  OCTET_RETURN_IF_ERROR(context_.Enter());
  return context_.Check(runtime::BeginCapture(octet_gpu::NativeOf(stream)), "begin capture");
}

StatusOr<octet_graph*> Graphs::End(octet::Stream& stream) {
  OCTET_RETURN_IF_ERROR(context_.Enter());
  runtime::Graph graph = nullptr;
  OCTET_RETURN_IF_ERROR(context_.Check(runtime::EndCapture(octet_gpu::NativeOf(stream), &graph), "end capture"));
  return reinterpret_cast<octet_graph*>(graph);
}

Status Graphs::Launch(octet::Stream& stream, octet_graph* graph) {
  OCTET_RETURN_IF_ERROR(context_.Enter());
  return context_.Check(runtime::LaunchGraph(reinterpret_cast<runtime::Graph>(graph), octet_gpu::NativeOf(stream)),
                        "launch graph");
}

void Graphs::Release(octet_graph* graph) {
  if (context_.Enter().ok()) {
    (void)context_.Check(runtime::DestroyGraph(reinterpret_cast<runtime::Graph>(graph)), "destroy graph");
  }
}

StatusOr<octet::MemoryUse> GpuDevice::Memory() {
  OCTET_RETURN_IF_ERROR(context_.Enter());
  size_t free = 0, total = 0;
  OCTET_RETURN_IF_ERROR(context_.Check(runtime::MemoryInfo(&free, &total), "memory info"));
  return octet::MemoryUse{.free_bytes = free, .total_bytes = total, .held_bytes = context_.held().load()};
}

StatusOr<std::unique_ptr<octet::DeviceBuffer>> GpuDevice::Alloc(uint64_t bytes, uint32_t kind) {
  OCTET_RETURN_IF_ERROR(context_.Enter());
  const bool host = kind == OCTET_MEMORY_HOST_VISIBLE;
  void* data = nullptr;
  const std::string what = "alloc of " + std::to_string(bytes) + " bytes";
  OCTET_RETURN_IF_ERROR(
      context_.Check(host ? runtime::AllocHost(&data, bytes) : runtime::Alloc(&data, bytes), what.c_str()));
  return std::unique_ptr<octet::DeviceBuffer>(std::make_unique<GpuBuffer>(context_, data, bytes, host));
}

StatusOr<std::unique_ptr<octet::DeviceStream>> GpuDevice::CreateStream() {
  OCTET_RETURN_IF_ERROR(context_.Enter());
  runtime::Stream stream{};
  OCTET_RETURN_IF_ERROR(context_.Check(runtime::CreateStream(&stream), "create stream"));
  return std::unique_ptr<octet::DeviceStream>(std::make_unique<GpuStream>(*this, context_, stream));
}

StatusOr<std::unique_ptr<octet::DeviceEvent>> GpuDevice::CreateEvent() {
  OCTET_RETURN_IF_ERROR(context_.Enter());
  runtime::Event event{};
  OCTET_RETURN_IF_ERROR(context_.Check(runtime::CreateEvent(&event), "create event"));
  return std::unique_ptr<octet::DeviceEvent>(std::make_unique<GpuEvent>(context_, event));
}

}  // namespace octet_gpu
