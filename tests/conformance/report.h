// What a run of cases says: a word for each case, what failed and how to run it again, one line to publish, and the
// same as JSON. Words: pass, fail, unsupported; where an expectation file lists the case, expected-fail and
// unexpected-pass.
#ifndef OCTET_TESTS_CONFORMANCE_REPORT_H_
#define OCTET_TESTS_CONFORMANCE_REPORT_H_

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "nlohmann/json_fwd.hpp"
#include "tests/conformance/case_lists.h"

namespace octet::conformance {

struct ReportOptions {
  bool verbose = false;
  std::vector<Profile> profiles;
  std::vector<Expectation> expectations;
};

class Report : public testing::EmptyTestEventListener {
 public:
  explicit Report(ReportOptions options) : options_(std::move(options)) {}

  void OnTestStart(const testing::TestInfo& test) override;
  void OnTestEnd(const testing::TestInfo& test) override;

  // Once, after all cases: reasons of what is unsupported, what profiles miss, the closing line. False: the backend
  // failed.
  bool Finish();
  int Count(const char* word) const;
  int ran() const { return static_cast<int>(results_.size()); }
  nlohmann::json Json() const;

 private:
  struct Result {
    std::string name, word, text;
    double seconds = 0;
  };
  void CheckProfiles();

  ReportOptions options_;
  std::vector<Result> results_;
  std::vector<std::string> profile_failures_;
};

// The backend, the device and the kit, as every mode writes them into its JSON.
nlohmann::json JsonOfSubject();
std::string TextOfSubject();  // "backend cpu 0.1.0, device 0 (...), ABI 0.9, kit 0.1.0"

// The file of --json. One that cannot be written is noticed before the run. Until the run has something to write, a
// file keeps what it held, and one that was not there is not there.
class JsonFile {
 public:
  // InvalidArgument where it cannot be written, or is one of `inputs`, the files that the run reads.
  static absl::StatusOr<std::unique_ptr<JsonFile>> Open(const std::string& path,
                                                        const std::vector<std::string>& inputs);
  ~JsonFile();
  JsonFile(const JsonFile&) = delete;
  JsonFile& operator=(const JsonFile&) = delete;

  absl::Status Write(const nlohmann::json& json);

 private:
  JsonFile(const std::string& path, int fd) : path_(path), fd_(fd) {}
  const std::string path_;
  int fd_;  // -1: to be created
};

// Names the case in which the process dies of a signal. Not under a sanitizer, which says more.
void ReportCrashes();

}  // namespace octet::conformance

#endif  // OCTET_TESTS_CONFORMANCE_REPORT_H_
