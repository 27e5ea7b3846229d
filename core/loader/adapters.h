// The C tables of a backend as the C++ classes that core programs against. Each object belongs to one open device of a
// table that passed CheckTable; the device stays open while it is used. Errors are prefixed with the device's id.
#ifndef OCTET_CORE_LOADER_ADAPTERS_H_
#define OCTET_CORE_LOADER_ADAPTERS_H_

#include <memory>
#include <string>
#include <utility>

#include "octet/abi.h"
#include "octet/attention_backend.h"
#include "octet/convert.h"
#include "octet/dense_ops.h"
#include "octet/fused_ops.h"
#include "octet/quant_ops.h"
#include "octet/status.h"

namespace octet {

// Which open device an adapter speaks to.
struct DeviceRef {
  const octet_backend_v1* table;
  octet_device* handle;
  std::string id;  // "cpu:0", for messages
};

// call(octet_error*) -> octet_code, as a Status with the device's name. Allocates only to tell of a failure.
template <typename F>
Status CallTable(const std::string& id, F&& call) {
  octet_error error = convert::Sized<octet_error>();
  const octet_code code = call(&error);
  if (code == OCTET_OK) return OkStatus();
  Status status = convert::ReadStatus(code, error);
  return {status.code(), id + ": " + status.message()};
}

std::unique_ptr<QuantOps> MakeQuantOps(const DeviceRef& device);
std::unique_ptr<AttentionBackend> MakeAttention(const DeviceRef& device);
// Null where the table has none.
std::unique_ptr<DenseOps> MakeDenseOps(const DeviceRef& device);
std::unique_ptr<FusedOps> MakeFusedOps(const DeviceRef& device);
std::unique_ptr<GraphOps> MakeGraphOps(const DeviceRef& device);

}  // namespace octet

#endif  // OCTET_CORE_LOADER_ADAPTERS_H_
