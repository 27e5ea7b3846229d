// Reads what a backend's tables say: is everything there that version 1 requires, and what is a device like?
#ifndef OCTET_CORE_LOADER_TABLE_CHECK_H_
#define OCTET_CORE_LOADER_TABLE_CHECK_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/loader/device.h"
#include "octet/abi.h"

namespace octet {

// "0.9" while the ABI is a draft, then "1.0".
std::string AbiText(const octet_backend_v1& table);

// FailedPrecondition, with a sentence that names what is too short, missing or of another draft.
absl::Status CheckTable(const octet_backend_v1& table);

// Expects CheckTable to have passed.
absl::StatusOr<DeviceInfo> DescribeDevice(const octet_backend_v1& table, uint32_t index);

}  // namespace octet

#endif  // OCTET_CORE_LOADER_TABLE_CHECK_H_
