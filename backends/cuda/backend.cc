// The CUDA backend: one device per NVIDIA GPU that this build has code for. No options. See abi.h for the contract.
//
// The CUDA runtime is linked statically and looks for the driver itself; a machine without one is told so in a
// sentence.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <memory>
#include <string>
#include <string_view>

#include "backends/cuda/decode.h"
#include "backends/gpu/attention.h"
#include "backends/gpu/dense.h"
#include "backends/gpu/device.h"
#include "backends/gpu/quant.h"
#include "octet/plugin.hpp"

namespace octet_cuda {
namespace {

using octet::Status;
using octet::StatusOr;

constexpr const octet_gpu::AttentionKernel* kAttentionKernels[] = {
#if defined(OCTET_CUDA_SM90)
    &kDecodeSm90,
#endif
    &octet_gpu::kPlainAttention};

class CudaDevice final : public octet_gpu::GpuDevice {
 public:
  using GpuDevice::GpuDevice;
  octet::QuantOps& quant() override { return quant_; }
  octet::AttentionBackend& attention() override { return attention_; }
  octet::DenseOps* dense() override { return &dense_; }

 private:
  octet_gpu::Quant quant_{context()};
  octet_gpu::Attention attention_{context(), kAttentionKernels};
  octet_gpu::Dense dense_{context()};
};

// "13.0"
std::string VersionText(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string ErrorText(const char* call, cudaError_t error) {
  return std::string("cuda: ") + call + ": " + cudaGetErrorName(error) + ": " + cudaGetErrorString(error);
}

class CudaBackend final : public octet::Backend {
 public:
  const octet::BackendIdentity& identity() const override { return identity_; }
  octet::BackendFeatures features() const override { return {.dense = true, .fused = false, .graph = true}; }

  StatusOr<uint32_t> CountDevices() override {
    // Without a driver the runtime would say that the driver is too old. The handle stays: the driver is never
    // unloaded.
    if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) == nullptr) {
      return octet::Unavailable("no NVIDIA driver: libcuda.so.1 was not found; install the NVIDIA driver");
    }
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaErrorInsufficientDriver) {
      int driver = 0;
      (void)cudaDriverGetVersion(&driver);
      return octet::Unavailable("the NVIDIA driver supports CUDA " + VersionText(driver) + "; this backend needs " +
                                VersionText(CUDART_VERSION) + " or newer: install a newer driver");
    }
    if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) {
      return octet::Unavailable("the NVIDIA driver finds no GPU (is CUDA_VISIBLE_DEVICES empty?)");
    }
    if (error != cudaSuccess) return octet::Unavailable(ErrorText("cudaGetDeviceCount", error));
    return static_cast<uint32_t>(count);
  }

  StatusOr<octet::DeviceDescription> Describe(uint32_t index) override {
    OCTET_RETURN_IF_ERROR(CheckIndex(index));
    cudaDeviceProp properties{};
    const cudaError_t error = cudaGetDeviceProperties(&properties, static_cast<int>(index));
    if (error != cudaSuccess) return octet::Unavailable(ErrorText("cudaGetDeviceProperties", error));
    return octet::DeviceDescription{.kind = OCTET_DEVICE_GPU,
                                    .name = properties.name,
                                    .arch = "sm_" + std::to_string(properties.major) + std::to_string(properties.minor),
                                    .memory_bytes = properties.totalGlobalMem,
                                    .preferred_alignment = 256,
                                    .lanes = static_cast<uint32_t>(properties.warpSize)};
  }

  StatusOr<std::unique_ptr<octet::OpenDevice>> Open(uint32_t index, std::string_view options) override {
    OCTET_RETURN_IF_ERROR(CheckIndex(index));
    if (!options.empty()) {
      return octet::InvalidArgument("cuda: device option '" + std::string(options.substr(0, options.find(','))) +
                                    "' is unknown; there are none");
    }
    cudaDeviceProp properties{};
    const cudaError_t error = cudaGetDeviceProperties(&properties, static_cast<int>(index));
    if (error != cudaSuccess) return octet::Unavailable(ErrorText("cudaGetDeviceProperties", error));
    const octet_gpu::Traits traits = {.capability = properties.major * 10 + properties.minor,
                                      .processors = properties.multiProcessorCount};
    auto device = std::make_unique<CudaDevice>(static_cast<int>(index), traits);
    OCTET_RETURN_IF_ERROR(device->context().Enter());
    if (!octet_gpu::HasKernelCode()) {
      const auto description = Describe(index);
      if (!description.ok()) return description.status();
      return octet::Unavailable("cuda: this build has code for " + identity_.targets + ", not for " +
                                description->name + " (" + description->arch + ")");
    }
    return std::unique_ptr<octet::OpenDevice>(std::move(device));
  }

 private:
  Status CheckIndex(uint32_t index) {
    const auto count = CountDevices();
    if (!count.ok()) return count.status();
    if (index < *count) return octet::OkStatus();
    return octet::NotFound("backend cuda has " + std::to_string(*count) + " devices; device " + std::to_string(index) +
                           " does not exist");
  }

  const octet::BackendIdentity identity_{
      .name = "cuda", .vendor = "octet", .version = OCTET_VERSION, .targets = OCTET_CUDA_TARGETS};
};

}  // namespace
}  // namespace octet_cuda

OCTET_BACKEND(octet_cuda::CudaBackend);
