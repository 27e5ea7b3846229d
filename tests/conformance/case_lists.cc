#include "tests/conformance/case_lists.h"

#include <algorithm>
#include <cstdint>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace octet::conformance {
namespace {

// `open`: the profiles around this one; `done`: those whose globs are in already.
absl::Status Load(const std::string& name, const ReadProfile& read, std::vector<std::string>& open,
                  std::set<std::string>& done, Profile& profile) {
  if (std::find(open.begin(), open.end(), name) != open.end()) {
    return absl::InvalidArgumentError(absl::StrCat("profile ", name, " includes itself"));
  }
  if (!done.insert(name).second) return absl::OkStatus();
  const absl::StatusOr<std::string> text = read(name);
  if (!text.ok()) return text.status();
  open.push_back(name);
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line[0] == '#') continue;
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.size() == 1) {
      profile.globs.push_back(words[0]);
    } else if (words.size() == 2 && words[0] == "include") {
      if (absl::Status status = Load(words[1], read, open, done, profile); !status.ok()) return status;
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("profile ", name, ": '", line, "' is neither a glob nor 'include NAME'"));
    }
  }
  open.pop_back();
  return absl::OkStatus();
}

absl::Status BadLine(int line, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("expectations, line ", line, ": ", what));
}

}  // namespace

bool GlobMatch(std::string_view glob, std::string_view text) {
  // Back to the last star, one character further, on every mismatch.
  size_t g = 0, t = 0, star = std::string_view::npos, star_text = 0;
  while (t < text.size()) {
    if (g < glob.size() && glob[g] == '*') {
      star = g++;
      star_text = t;
    } else if (g < glob.size() && (glob[g] == '?' || glob[g] == text[t])) {
      ++g, ++t;
    } else if (star != std::string_view::npos) {
      g = star + 1;
      t = ++star_text;
    } else {
      return false;
    }
  }
  while (g < glob.size() && glob[g] == '*') ++g;
  return g == glob.size();
}

absl::StatusOr<Profile> LoadProfile(const std::string& name, const ReadProfile& read) {
  Profile profile;
  profile.name = name;
  std::vector<std::string> open;
  std::set<std::string> done;
  if (absl::Status status = Load(name, read, open, done, profile); !status.ok()) return status;
  if (profile.globs.empty()) return absl::InvalidArgumentError(absl::StrCat("profile ", name, " lists no case"));
  return profile;
}

const char* ListName(Expectation::List list) { return list == Expectation::List::kNever ? "never" : "not yet"; }

absl::StatusOr<std::vector<Expectation>> ParseExpectations(std::string_view text) {
  std::vector<Expectation> expectations;
  bool in_section = false;
  Expectation::List list = Expectation::List::kNever;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line[0] == '#') continue;
    if (line[0] == '[') {
      if (line != "[never]" && line != "[not yet]") {
        return BadLine(number, absl::StrCat("unknown section ", line, "; there are [never] and [not yet]"));
      }
      list = line == "[never]" ? Expectation::List::kNever : Expectation::List::kNotYet;
      in_section = true;
      continue;
    }
    if (!in_section) return BadLine(number, "a line before the first section; begin with [never] or [not yet]");
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 1));
    Expectation one;
    one.list = list;
    one.glob = std::string(absl::StripAsciiWhitespace(parts.first));
    one.reason = std::string(absl::StripAsciiWhitespace(parts.second));
    one.line = number;
    if (one.glob.empty() || one.reason.empty()) {
      return BadLine(number, absl::StrCat("'", line, "' has no ", one.glob.empty() ? "glob" : "reason",
                                          "; a line is 'glob : reason'"));
    }
    expectations.push_back(std::move(one));
  }
  return expectations;
}

absl::Status CheckThatEachMatches(const std::vector<Expectation>& expectations, const std::vector<std::string>& cases) {
  for (const Expectation& one : expectations) {
    if (std::none_of(cases.begin(), cases.end(), [&](const std::string& c) { return GlobMatch(one.glob, c); })) {
      return BadLine(one.line, absl::StrCat("'", one.glob, "' matches no case; --list shows them"));
    }
  }
  return absl::OkStatus();
}

const Expectation* FindExpectation(const std::vector<Expectation>& expectations, std::string_view name) {
  const auto found = std::find_if(expectations.begin(), expectations.end(),
                                  [&](const Expectation& e) { return GlobMatch(e.glob, name); });
  return found == expectations.end() ? nullptr : &*found;
}

std::string HashOfCases(std::vector<std::string> cases) {
  std::sort(cases.begin(), cases.end());
  uint64_t hash = 0xcbf29ce484222325u;
  for (const std::string& name : cases) {
    for (const char c : name + "\n") hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  return absl::StrCat(absl::Hex(hash, absl::kZeroPad16));
}

}  // namespace octet::conformance
