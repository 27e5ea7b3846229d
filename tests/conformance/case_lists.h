// Lists of case names that people keep beside a backend: profiles (cases that must pass) and expectations (cases that
// do not pass, each with a reason). Parses text only; knows nothing of backends.
//
// A profile is one glob a line; "include NAME" takes in another profile, once. An expectation file has the sections [never]
// and [not yet], with lines "glob : reason". In both, '#' begins a comment line. Globs know * and ?.
#ifndef OCTET_TESTS_CONFORMANCE_CASE_LISTS_H_
#define OCTET_TESTS_CONFORMANCE_CASE_LISTS_H_

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace octet::conformance {

bool GlobMatch(std::string_view glob, std::string_view text);

struct Profile {
  std::string name;
  std::vector<std::string> globs;
};

// `read` gives the text of a profile by name. InvalidArgument for an empty profile or one that includes itself.
using ReadProfile = std::function<absl::StatusOr<std::string>(const std::string& name)>;
absl::StatusOr<Profile> LoadProfile(const std::string& name, const ReadProfile& read);

struct Expectation {
  enum class List { kNever, kNotYet };
  List list = List::kNever;
  std::string glob, reason;
  int line = 0;  // of the file, for messages
};
const char* ListName(Expectation::List list);  // "never", "not yet"

// InvalidArgument, with the line, for a line outside a section, an unknown section, or one without glob or reason.
absl::StatusOr<std::vector<Expectation>> ParseExpectations(std::string_view text);

// InvalidArgument where a line matches none of the cases: what it was for is gone.
absl::Status CheckThatEachMatches(const std::vector<Expectation>& expectations, const std::vector<std::string>& cases);

// The first expectation that matches, or null.
const Expectation* FindExpectation(const std::vector<Expectation>& expectations, std::string_view name);

// 16 hex digits that two runs share only if they ran the same cases, in any order: 64-bit FNV-1a over the sorted names.
std::string HashOfCases(std::vector<std::string> cases);

}  // namespace octet::conformance

#endif  // OCTET_TESTS_CONFORMANCE_CASE_LISTS_H_
