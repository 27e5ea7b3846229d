// What every fuzz target demands beyond "no crash": a broken promise ends the process with a line that names it.
#ifndef OCTET_TESTS_FUZZ_CHECKS_H_
#define OCTET_TESTS_FUZZ_CHECKS_H_

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace octet::fuzz {

inline void Require(bool promise, std::string_view what) {
  if (promise) return;
  std::fprintf(stderr, "broken promise: %s\n", std::string(what).c_str());
  std::abort();
}

// An error says something, and is not one of those that mean a fault of octet's own.
inline void RequireSentence(const absl::Status& status) {
  if (status.ok()) return;
  Require(!status.message().empty(), "an error without a message");
  Require(status.code() != absl::StatusCode::kInternal && status.code() != absl::StatusCode::kUnknown,
          "an input is answered with an internal error: " + std::string(status.message()));
}

}  // namespace octet::fuzz

#endif  // OCTET_TESTS_FUZZ_CHECKS_H_
