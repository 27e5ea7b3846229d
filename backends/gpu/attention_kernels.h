// Which attention kernels a GPU backend has: one list, the best first, the plain one that takes everything last.
#ifndef OCTET_BACKENDS_GPU_ATTENTION_KERNELS_H_
#define OCTET_BACKENDS_GPU_ATTENTION_KERNELS_H_

#include <cstdint>
#include <span>
#include <string>

#include "backends/gpu/device.h"
#include "backends/gpu/kernels/kernels.h"
#include "octet/attention_backend.h"

namespace octet_gpu {

// `decline` says why the kernel is not for such a plan, nothing where it is; it is asked once, when the plan is made.
// `takes` asks about one run (a mask, an offset table); where it says no, the plain kernel runs, to the same contract.
// The workspace is the plan's, zeros when the plan is made and between launches.
struct AttentionKernel {
  const char* name;
  int32_t level;  // of octet_support
  std::string (*decline)(const octet::AttentionDesc& desc, const Traits& traits);
  bool (*takes)(const AttentionParams& p);
  uint64_t (*workspace_bytes)(const octet::AttentionDesc& desc, const Traits& traits);
  void (*launch)(const AttentionParams& p, void* workspace, const Traits& traits, runtime::Stream stream);
};

extern const AttentionKernel kPlainAttention;

}  // namespace octet_gpu

#endif  // OCTET_BACKENDS_GPU_ATTENTION_KERNELS_H_
