// The entry of the decode kernel in the list of attention kernels.
#ifndef OCTET_BACKENDS_CUDA_DECODE_H_
#define OCTET_BACKENDS_CUDA_DECODE_H_

#include "backends/gpu/attention_kernels.h"

namespace octet_cuda {

extern const octet_gpu::AttentionKernel kDecodeSm90;

}  // namespace octet_cuda

#endif  // OCTET_BACKENDS_CUDA_DECODE_H_
