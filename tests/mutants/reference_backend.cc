// The reference backend as a whole, and the faults that sit in its device. See reference_backend.h.
#include "tests/mutants/reference_backend.h"

#include <atomic>
#include <chrono>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "octet/plugin.hpp"
#include "tests/mutants/fault.h"

namespace octet::mutants {
namespace {

// A device that is as it should be but for one fault.
class FaultyDevice final : public OpenDevice {
 public:
  explicit FaultyDevice(std::unique_ptr<OpenDevice> device) : device_(std::move(device)) {
    if (Faulty("leaks_thread")) {
      std::thread([] {
        while (true) std::this_thread::sleep_for(std::chrono::hours(1));
      }).detach();
    }
  }
  ~FaultyDevice() override {
    if (Faulty("close_breaks_others")) Broken() = true;
  }

  StatusOr<MemoryUse> Memory() override { return device_->Memory(); }
  StatusOr<std::unique_ptr<DeviceBuffer>> Alloc(uint64_t bytes, uint32_t kind) override {
    if (Broken()) return Internal("the device is broken");
    auto buffer = device_->Alloc(bytes, kind);
    if (!buffer.ok() && Faulty("full_is_internal")) return Internal(buffer.status().message());
    if (!buffer.ok() && Faulty("breaks_when_full")) Broken() = true;
    if (buffer.ok() && Faulty("leaks_buffer")) {
      if (auto more = device_->Alloc(64, kind); more.ok()) leaked_.push_back(*std::move(more));
    }
    return buffer;
  }
  StatusOr<std::unique_ptr<DeviceStream>> CreateStream() override { return device_->CreateStream(); }
  StatusOr<std::unique_ptr<DeviceEvent>> CreateEvent() override { return device_->CreateEvent(); }
  QuantOps& quant() override { return device_->quant(); }
  AttentionBackend& attention() override { return device_->attention(); }
  DenseOps* dense() override { return device_->dense(); }
  FusedOps* fused() override { return device_->fused(); }

 private:
  static std::atomic<bool>& Broken() {
    static std::atomic<bool> broken{false};
    return broken;
  }

  std::unique_ptr<OpenDevice> device_;
  std::vector<std::unique_ptr<DeviceBuffer>> leaked_;
};

class ReferenceBackend final : public HostMemoryBackend {
 public:
  ReferenceBackend() : HostMemoryBackend({.name = "reference", .vendor = "octet", .version = "0.1.0"}) {}
  QuantOps* quant() override { return quant_.get(); }
  AttentionBackend* attention() override { return attention_.get(); }
  DenseOps* dense() override { return dense_.get(); }
  FusedOps* fused() override { return fused_.get(); }
  Status SetOption(std::string_view key, std::string_view value) override {
    if (key != "fault") return HostMemoryBackend::SetOption(key, value);
    if (Fault() != value) Fault() = value;
    return OkStatus();
  }
  StatusOr<std::unique_ptr<OpenDevice>> Open(uint32_t index, std::string_view options) override {
    auto device = HostMemoryBackend::Open(index, options);
    if (!device.ok() || Fault().empty()) return device;
    return std::unique_ptr<OpenDevice>(std::make_unique<FaultyDevice>(*std::move(device)));
  }

 private:
  std::unique_ptr<QuantOps> quant_ = MakeReferenceQuant();
  std::unique_ptr<AttentionBackend> attention_ = MakeReferenceAttention();
  std::unique_ptr<DenseOps> dense_ = MakeReferenceDense();
  std::unique_ptr<FusedOps> fused_ = MakeReferenceFused();
};

}  // namespace

const octet_backend_v1* ReferenceQuery(const octet_host_v1* host, octet_error* error) {
  return plugin::Query<ReferenceBackend>(host, error);
}

}  // namespace octet::mutants
