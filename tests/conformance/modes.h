// What octet-conformance does besides testing: support, perf and stress. Each expects an open subject and prints to
// stdout; an error is a filter that matches nothing (NotFound), a file that cannot be written (Unknown), or of the
// device: a call that supports had promised (Internal).
#ifndef OCTET_TESTS_CONFORMANCE_MODES_H_
#define OCTET_TESTS_CONFORMANCE_MODES_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "core/base/thread_pool.h"
#include "tests/conformance/report.h"

namespace octet::conformance {

// The matrix of what the backend says it supports, with kernel names and reasons. `json`: where to write it too; may be
// null.
absl::Status RunSupport(JsonFile* json);

// Times append, decode attention and linear layers for `seconds` each and prints the bytes that they must move against
// the device's own copy and read rates, measured in the same run. Cases: `filter`, a glob. `pool`: of the read rate;
// may be null.
absl::Status RunPerf(const std::string& filter, double seconds, JsonFile* json, ThreadPool* pool);

// A case for the runner: random caches and batches, from `seed` on, for `seconds` (0: one of them). Prints the seed of
// the first that fails and stops there.
void AddStressCase(uint64_t seed, double seconds);

}  // namespace octet::conformance

#endif  // OCTET_TESTS_CONFORMANCE_MODES_H_
