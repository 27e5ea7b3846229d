// The text files that octet-conformance reads: profiles, which may include one another, and expectations.
// An input is up to eight files, each ended by a zero byte; the first is also read as expectations.

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tests/conformance/case_lists.h"
#include "tests/fuzz/checks.h"

namespace {

namespace kit = octet::conformance;

const std::vector<std::string>& Cases() {
  static const std::vector<std::string> cases = {"Abi.TablesAreComplete", "Quant.Append/int8", "Attention.Run/bf16/64",
                                                 "aaaaaaaaaaaaaaaaaaaaaaab"};
  return cases;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<std::string> files;
  for (std::string_view rest(reinterpret_cast<const char*>(data), size); files.size() < 8 && !rest.empty();) {
    const std::string_view one = rest.substr(0, rest.find('\0'));
    files.emplace_back(one);
    rest.remove_prefix(std::min(rest.size(), one.size() + 1));
  }
  const auto read = [&files](const std::string& name) -> absl::StatusOr<std::string> {
    const size_t index = name.size() == 1 ? static_cast<size_t>(name[0] - '0') : files.size();
    if (index < files.size()) return files[index];
    return absl::NotFoundError("there is no profile " + name);
  };
  const auto profile = kit::LoadProfile("0", read);
  octet::fuzz::RequireSentence(profile.status());
  if (profile.ok()) {
    for (const std::string& glob : profile->globs) {
      octet::fuzz::Require(kit::GlobMatch(glob, glob), "a glob that does not match its own text");
      for (const std::string& name : Cases()) kit::GlobMatch(glob, name);
    }
  }
  if (files.empty()) return 0;
  const auto expectations = kit::ParseExpectations(files[0]);
  octet::fuzz::RequireSentence(expectations.status());
  if (!expectations.ok()) return 0;
  octet::fuzz::RequireSentence(kit::CheckThatEachMatches(*expectations, Cases()));
  for (const std::string& name : Cases()) kit::FindExpectation(*expectations, name);
  return 0;
}
