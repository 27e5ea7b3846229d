// A text from a file, a pipe or standard input.
#ifndef OCTET_CORE_BASE_TEXT_FILE_H_
#define OCTET_CORE_BASE_TEXT_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace octet {

inline constexpr int64_t kMaxTextBytes = 64 << 20;

// All that `path` holds, or for "-" standard input; waits for the writer of a pipe. NotFound where there is no such
// file, InvalidArgument where it cannot be read or has more than kMaxTextBytes; the message names it.
absl::StatusOr<std::string> ReadTextFile(const std::string& path);

}  // namespace octet

#endif  // OCTET_CORE_BASE_TEXT_FILE_H_
