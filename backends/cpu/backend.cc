// The CPU backend: one device, host memory, kernels for the best instruction set of the processor.
//
// Options of open: isa=v2|v3|avxvnni|v4|vnni|amx (portable elsewhere), prompts=own|onednn|onednn-bf16|onednn-f32.
// Environment: OCTET_CPU_ISA and OCTET_CPU_PROMPTS the same, OCTET_VERBOSE=dispatch logs what was chosen and why the
// rest was not. See abi.h for the contract.
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "backends/cpu/attention.h"
#include "backends/cpu/context.h"
#include "backends/cpu/dense.h"
#include "backends/cpu/dispatch.h"
#include "backends/cpu/fused.h"
#include "backends/cpu/quant.h"
#include "octet/plugin.hpp"

namespace octet_cpu {
namespace {

using octet::Status;
using octet::StatusOr;

class CpuDevice final : public octet::HostMemoryDevice {
 public:
  explicit CpuDevice(const Context& context) : context_(context) {}

  octet::QuantOps& quant() override { return quant_; }
  octet::AttentionBackend& attention() override { return attention_; }
  octet::DenseOps* dense() override { return &dense_; }
  octet::FusedOps* fused() override { return &fused_; }

 private:
  const Context context_;
  Quant quant_{context_};
  Attention attention_{context_};
  Dense dense_{context_, &held()};
  Fused fused_{context_};
};

class CpuBackend final : public octet::Backend {
 public:
  const octet::BackendIdentity& identity() const override { return identity_; }
  octet::BackendFeatures features() const override { return {.dense = true, .fused = true}; }
  StatusOr<uint32_t> CountDevices() override { return uint32_t{1}; }

  StatusOr<octet::DeviceDescription> Describe(uint32_t index) override {
    OCTET_RETURN_IF_ERROR(CheckIndex(index));
    const auto kernels = ChooseKernels("", octet::HostServices());
    if (!kernels.ok()) return kernels.status();
    return octet::DeviceDescription{.kind = OCTET_DEVICE_CPU,
                                    .name = octet::HostProcessorName(),
                                    .arch = (*kernels)->name,
                                    .memory_bytes = octet::HostMemoryBytes("MemTotal"),
                                    .preferred_alignment = 256,
                                    .lanes = static_cast<uint32_t>((*kernels)->lanes)};
  }

  StatusOr<std::unique_ptr<octet::OpenDevice>> Open(uint32_t index, std::string_view options) override {
    OCTET_RETURN_IF_ERROR(CheckIndex(index));
    std::string_view isa, prompts;
    while (!options.empty()) {
      const std::string_view one = options.substr(0, options.find(','));
      options.remove_prefix(std::min(options.size(), one.size() + 1));
      const size_t equals = std::min(one.find('='), one.size());
      const std::string_view name = one.substr(0, equals);
      std::string_view* const value = name == "isa" ? &isa : name == "prompts" ? &prompts : nullptr;
      if (value == nullptr || equals == one.size()) {
        return octet::InvalidArgument("cpu: device option '" + std::string(one) +
                                      "' is unknown; known are isa=NAME and prompts=NAME");
      }
      *value = one.substr(equals + 1);
      if (value->empty()) return octet::InvalidArgument("cpu: device option " + std::string(name) + " has no value");
    }
    const octet::HostServices host;
    const auto kernels = ChooseKernels(isa, host);
    if (!kernels.ok()) return kernels.status();
    auto onednn = ChoosePrompts(prompts, **kernels, host);
    if (!onednn.ok()) return onednn.status();
    return std::unique_ptr<octet::OpenDevice>(std::make_unique<CpuDevice>(Context{*kernels, host, *std::move(onednn)}));
  }

 private:
  static Status CheckIndex(uint32_t index) {
    if (index == 0) return octet::OkStatus();
    return octet::NotFound("backend cpu has one device, 0; device " + std::to_string(index) + " does not exist");
  }

  const octet::BackendIdentity identity_{
      .name = "cpu", .vendor = "octet", .version = OCTET_VERSION, .targets = KernelTargets()};
};

}  // namespace
}  // namespace octet_cpu

OCTET_BACKEND(octet_cpu::CpuBackend);
