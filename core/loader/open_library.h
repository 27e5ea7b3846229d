// Opens a backend library for the life of the process. The one place that knows Boost.DLL.
#ifndef OCTET_CORE_LOADER_OPEN_LIBRARY_H_
#define OCTET_CORE_LOADER_OPEN_LIBRARY_H_

#include <string>

#include "absl/status/statusor.h"
#include "octet/abi.h"

namespace octet {

// Binds every symbol at once, shares none, and never closes: plugins leave threads, thread-exit callbacks and static
// objects behind. `path` is absolute. FailedPrecondition with one sentence when it cannot be opened. Thread-safe.
absl::StatusOr<octet_backend_query_v1_fn*> OpenLibrary(const std::string& path);

}  // namespace octet

#endif  // OCTET_CORE_LOADER_OPEN_LIBRARY_H_
