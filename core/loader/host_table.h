// What this program lends to backends: a log and the thread pool's parallel loop (octet_host_v1).
#ifndef OCTET_CORE_LOADER_HOST_TABLE_H_
#define OCTET_CORE_LOADER_HOST_TABLE_H_

#include <functional>
#include <string_view>

#include "core/base/thread_pool.h"
#include "octet/abi.h"

namespace octet {

// level: 0 debug, 1 info, 2 warning, 3 error. Called from any thread, one call at a time. An empty function restores
// the default: warnings and errors on stderr, and what is below them where OCTET_VERBOSE is set.
using LogSink = std::function<void(int level, std::string_view text)>;
void SetBackendLogSink(LogSink sink);

// The loader's own messages go the same way.
void LogToBackendSink(int level, std::string_view text);

// A table that lives until the process ends, as backends may keep it. `pool` must outlive every device; null: none
// lent.
const octet_host_v1* MakeHostTable(ThreadPool* pool);

}  // namespace octet

#endif  // OCTET_CORE_LOADER_HOST_TABLE_H_
