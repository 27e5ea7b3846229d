#include "tests/conformance/report.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/message_text.h"
#include "core/base/program.h"
#include "nlohmann/json.hpp"
#include "octet/convert.h"
#include "tests/conformance/harness.h"

namespace octet::conformance {
namespace {

char current_case[512];  // read by the signal handler

void PrintIndented(const char* text) {
  std::string line;
  for (const char* c = text;; ++c) {
    if (*c != '\n' && *c != '\0') {
      line += *c;
      continue;
    }
    if (!line.empty()) std::printf("  %s\n", Printable(line).c_str());
    line.clear();
    if (*c == '\0') return;
  }
}

std::string FullName(const testing::TestInfo& test) { return absl::StrCat(test.test_suite_name(), ".", test.name()); }

extern "C" void NameTheCase(int signal_number) {
  const auto say = [](const char* text) { return write(STDOUT_FILENO, text, std::strlen(text)); };
  for (const char* text : {"fail         ", static_cast<const char*>(current_case),
                           "\n  the process crashed in this case\n  again: ", AgainCommand(), "\n"}) {
    if (say(text) < 0) _exit(1);
  }
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

}  // namespace

void ReportCrashes() {
  if (std::strcmp(convert::BuildSanitizer(), "none") != 0) return;
  for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) signal(number, NameTheCase);
}

void Report::OnTestStart(const testing::TestInfo& test) {
  const std::string name = FullName(test);
  std::snprintf(current_case, sizeof(current_case), "%s", name.c_str());
  RunAgainWith("--filter '" + name + "'");
}

void Report::OnTestEnd(const testing::TestInfo& test) {
  const testing::TestResult& result = *test.result();
  Result r;
  r.name = FullName(test);
  r.seconds = static_cast<double>(result.elapsed_time()) * 1e-3;
  for (int i = 0; i < result.total_part_count(); ++i) {
    const testing::TestPartResult& part = result.GetTestPartResult(i);
    if (!part.failed() && !part.skipped()) continue;
    absl::StrAppend(&r.text, r.text.empty() ? "" : "\n", part.message());
  }
  r.text = r.text.substr(std::min(r.text.size(), r.text.find_first_not_of(" \n")));
  const Expectation* expected = FindExpectation(options_.expectations, r.name);
  r.word = result.Failed() ? "fail" : result.Skipped() ? "unsupported" : "pass";
  if (r.word == "unsupported" && r.text.starts_with(kNotRun)) r.word = "not-run";
  if (expected != nullptr && r.word == "fail") r.word = "expected-fail";
  if (expected != nullptr && r.word == "pass") {
    r.word = "unexpected-pass";
    r.text = absl::StrCat("the expectation file, line ", expected->line, ", says ", ListName(expected->list), ": ",
                          expected->reason);
  }
  if (r.word == "fail" || r.word == "unexpected-pass") {
    std::printf("%-12s %s\n", r.word.c_str(), r.name.c_str());
    PrintIndented(r.text.c_str());
    std::printf("  again: %s\n", AgainCommand());
  } else if (options_.verbose) {
    std::printf("%-12s %s\n", r.word.c_str(), r.name.c_str());
  }
  std::fflush(stdout);
  results_.push_back(std::move(r));
}

int Report::Count(const char* word) const {
  return static_cast<int>(
      std::count_if(results_.begin(), results_.end(), [&](const Result& r) { return r.word == word; }));
}

void Report::CheckProfiles() {
  for (const Profile& profile : options_.profiles) {
    std::map<std::string, const Result*> missed;
    for (const Profile::Line& line : profile.lines) {
      for (const Result& r : results_) {
        if (r.word != "pass" && GlobMatch(line.glob, r.name)) missed[r.name] = &r;
      }
    }
    for (const auto& [name, r] : missed) {
      const std::string why = r->text.substr(0, r->text.find('\n'));
      profile_failures_.push_back(absl::StrCat("profile ", profile.name, " wants ", name, ": ", r->word,
                                               r->word == "unsupported" ? ": " + why : ""));
    }
  }
}

bool Report::Finish() {
  std::map<std::string, std::pair<int, std::string>> reasons;  // reason -> cases, the first one's name
  for (const Result& r : results_) {
    if (r.word != "unsupported" && r.word != "not-run") continue;
    auto& [count, first] = reasons[r.text];
    if (count++ == 0) first = r.name;
  }
  for (const auto& [reason, cases] : reasons) {
    std::printf("%-12s %s%s: %s\n", reason.starts_with(kNotRun) ? "not-run" : "unsupported", cases.second.c_str(),
                cases.first > 1 ? absl::StrCat(" and ", cases.first - 1, " more").c_str() : "",
                Printable(reason).c_str());
  }
  CheckProfiles();
  for (const std::string& failure : profile_failures_) std::printf("profile      %s\n", Printable(failure).c_str());

  std::string words =
      absl::StrCat(Count("pass"), " passed, ", Count("fail"), " failed, ", Count("unsupported"), " unsupported");
  if (Count("not-run") > 0) absl::StrAppend(&words, ", ", Count("not-run"), " not run");
  if (!options_.expectations.empty()) {
    absl::StrAppend(&words, ", ", Count("expected-fail"), " expected to fail, ", Count("unexpected-pass"),
                    " passed unexpectedly");
  }
  std::vector<std::string> names;
  for (const Result& r : results_) names.push_back(r.name);
  const std::string profiles =
      absl::StrJoin(options_.profiles, "+", [](std::string* out, const Profile& p) { out->append(p.name); });
  std::printf("%s, profile %s%s, %s %s: %s\n", TextOfSubject().c_str(), profiles.empty() ? "none" : profiles.c_str(),
              profile_failures_.empty() ? "" : " MISSED", CountOf(ran(), "case").c_str(), HashOfCases(names).c_str(),
              words.c_str());
  return Count("fail") == 0 && Count("unexpected-pass") == 0 && profile_failures_.empty();
}

nlohmann::json Report::Json() const {
  nlohmann::json json = JsonOfSubject();
  std::vector<std::string> names;
  json["cases"] = nlohmann::json::array();
  for (const Result& r : results_) {
    names.push_back(r.name);
    nlohmann::json one = {{"name", r.name}, {"result", r.word}, {"seconds", r.seconds}};
    if (!r.text.empty()) one["text"] = r.text;
    json["cases"].push_back(std::move(one));
  }
  json["case_list"] = HashOfCases(names);
  for (const char* word : {"pass", "fail", "unsupported", "not-run", "expected-fail", "unexpected-pass"}) {
    json["counts"][word] = Count(word);
  }
  json["profiles"] = nlohmann::json::array();
  for (const Profile& profile : options_.profiles) json["profiles"].push_back(profile.name);
  json["profile_failures"] = profile_failures_;
  return json;
}

nlohmann::json JsonOfSubject() {
  const Subject& s = TheSubject();
  return {{"kit", OCTET_KIT_VERSION},
          {"abi", s.abi},
          {"backend", {{"name", s.name}, {"version", s.version}, {"file", s.path}, {"options", s.options}}},
          {"device", {{"index", s.index}, {"name", s.device->info().name}, {"arch", s.device->info().arch}}}};
}

std::string TextOfSubject() {
  const Subject& s = TheSubject();
  return Printable(absl::StrCat("backend ", s.name, " ", s.version, ", device ", s.index, " (", s.device->info().name,
                                ", ", s.device->info().arch, "), ABI ", s.abi, ", kit ", OCTET_KIT_VERSION));
}

absl::StatusOr<std::unique_ptr<JsonFile>> JsonFile::Open(const std::string& path,
                                                         const std::vector<std::string>& inputs) {
  const auto cannot = [&path](const char* why) {
    return absl::InvalidArgumentError(absl::StrCat("--json cannot write '", path, "': ", why));
  };
  int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) {
    const int made = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (made < 0) return cannot(std::strerror(errno));
    close(made);
    // Through a link: what it names was made.
    std::error_code ignored;  // a file that stays is empty, as the run would leave it when it is interrupted
    std::filesystem::remove(std::filesystem::canonical(path, ignored), ignored);
  } else if (fd < 0) {
    return cannot(std::strerror(errno));
  }
  auto file = std::unique_ptr<JsonFile>(new JsonFile(path, fd));
  struct stat target {};
  if (fd < 0 || fstat(fd, &target) != 0 || !S_ISREG(target.st_mode)) return file;
  for (const std::string& input : inputs) {
    struct stat other {};
    if (stat(input.c_str(), &other) != 0 || other.st_dev != target.st_dev || other.st_ino != target.st_ino) continue;
    return cannot("the run reads that file; name another");
  }
  return file;
}

JsonFile::~JsonFile() {
  if (fd_ >= 0) close(fd_);
}

absl::Status JsonFile::Write(const nlohmann::json& json) {
  const std::string text = json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  if (fd_ < 0) fd_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  struct stat info {};
  const bool good = fd_ >= 0 && fstat(fd_, &info) == 0 && (!S_ISREG(info.st_mode) || ftruncate(fd_, 0) == 0);
  if (good && WriteAll(fd_, text)) return absl::OkStatus();
  return absl::UnknownError(absl::StrCat("--json could not write '", path_, "' in full: ", std::strerror(errno)));
}

}  // namespace octet::conformance
