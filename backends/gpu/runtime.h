// The GPU runtime under one set of names, so that CUDA and HIP compile the same source: about thirty thin functions, no
// macro sheet. A build defines OCTET_GPU_CUDA. Nothing here has static storage, and nothing throws.
#ifndef OCTET_BACKENDS_GPU_RUNTIME_H_
#define OCTET_BACKENDS_GPU_RUNTIME_H_

#include <cstddef>
#include <cstdint>

#if defined(OCTET_GPU_CUDA)
#include <cuda_runtime_api.h>
#else
#error "define OCTET_GPU_CUDA"
#endif

namespace octet_gpu {
namespace runtime {

using Error = cudaError_t;
using Stream = cudaStream_t;
using Event = cudaEvent_t;
using Graph = cudaGraphExec_t;

constexpr Error kSuccess = cudaSuccess;
constexpr const char* kName = "cuda";

inline const char* Name(Error e) { return cudaGetErrorName(e); }
inline const char* Text(Error e) { return cudaGetErrorString(e); }
inline bool IsOutOfMemory(Error e) { return e == cudaErrorMemoryAllocation; }
// After one of these every later call in the process answers the same.
inline bool IsSticky(Error e) {
  switch (e) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorHardwareStackError:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorUnknown:
      return true;
    default:
      return false;
  }
}
// The last error of this thread's calls, which is forgotten; a launch that could not be made shows here only.
inline Error TakeLastError() { return cudaGetLastError(); }

// Can this kernel run on the current device?
inline bool HasCode(const void* kernel) {
  cudaFuncAttributes attributes{};
  return cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess;
}

inline Error SetDevice(int device) { return cudaSetDevice(device); }
inline Error MemoryInfo(size_t* free, size_t* total) { return cudaMemGetInfo(free, total); }
inline Error Alloc(void** p, size_t bytes) { return cudaMalloc(p, bytes); }
inline Error Free(void* p) { return cudaFree(p); }
inline Error AllocHost(void** p, size_t bytes) { return cudaHostAlloc(p, bytes, cudaHostAllocDefault); }
inline Error FreeHost(void* p) { return cudaFreeHost(p); }
// Host memory that is not pinned has been read when the call returns.
inline Error CopyAsync(void* dst, const void* src, size_t bytes, Stream s) {
  return cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, s);
}
inline Error Copy2DAsync(void* dst, size_t dst_pitch, const void* src, size_t src_pitch, size_t width, size_t height,
                         Stream s) {
  return cudaMemcpy2DAsync(dst, dst_pitch, src, src_pitch, width, height, cudaMemcpyDefault, s);
}
inline Error FillAsync(void* dst, int value, size_t bytes, Stream s) { return cudaMemsetAsync(dst, value, bytes, s); }

inline Error CreateStream(Stream* s) { return cudaStreamCreateWithFlags(s, cudaStreamNonBlocking); }
inline Error DestroyStream(Stream s) { return cudaStreamDestroy(s); }
inline Error Synchronize(Stream s) { return cudaStreamSynchronize(s); }
inline Error CreateEvent(Event* e) { return cudaEventCreateWithFlags(e, cudaEventDisableTiming); }
inline Error DestroyEvent(Event e) { return cudaEventDestroy(e); }
inline Error RecordEvent(Event e, Stream s) { return cudaEventRecord(e, s); }
inline Error WaitEvent(Stream s, Event e) { return cudaStreamWaitEvent(s, e, 0); }
inline Error SynchronizeEvent(Event e) { return cudaEventSynchronize(e); }

inline Error BeginCapture(Stream s) { return cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal); }
// *graph is null where the error is not kSuccess.
inline Error EndCapture(Stream s, Graph* graph) {
  *graph = nullptr;
  cudaGraph_t captured = nullptr;
  Error error = cudaStreamEndCapture(s, &captured);
  if (error == kSuccess) error = cudaGraphInstantiate(graph, captured, 0);
  if (captured != nullptr) cudaGraphDestroy(captured);
  return error;
}
inline Error LaunchGraph(Graph g, Stream s) { return cudaGraphLaunch(g, s); }
inline Error DestroyGraph(Graph g) { return cudaGraphExecDestroy(g); }

}  // namespace runtime
}  // namespace octet_gpu

#endif  // OCTET_BACKENDS_GPU_RUNTIME_H_
