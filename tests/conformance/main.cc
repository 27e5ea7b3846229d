// octet-conformance: does this backend library keep the contract? Loads one file, runs every case on one of its devices
// and says pass, fail or unsupported for each; no source and no rebuild needed. Reference: docs/conformance.md.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "core/base/mapped_file.h"
#include "core/base/thread_pool.h"
#include "core/loader/elf_preflight.h"
#include "core/loader/host_table.h"
#include "core/loader/open_library.h"
#include "core/loader/table_check.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/conformance/case_lists.h"
#include "tests/conformance/harness.h"
#include "tests/conformance/modes.h"
#include "tests/conformance/report.h"

namespace octet::conformance {
namespace {

struct Options {
  std::string backend, device_options, filter = "*", mode = "test", json, expect;
  std::vector<std::string> profiles;
  uint32_t device = 0;
  int threads = 0;
  double seconds = -1;
  uint64_t seed = 0;
  bool list = false, verbose = false, no_unsupported = false;
};

class NameList : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& test) override {
    std::printf("%s.%s\n", test.test_suite_name(), test.name());
  }
};

int Refuse(const std::string& sentence) {
  std::fprintf(stderr, "octet-conformance: %s\n", sentence.c_str());
  return 2;
}

absl::Status OpenSubject(const Options& options, ThreadPool* pool) {
  Subject& subject = TheSubject();
  std::error_code error;
  subject.path = std::filesystem::canonical(options.backend, error).string();
  if (error) return absl::NotFoundError(options.backend + ": " + error.message());
  const auto file = MappedFile::Open(subject.path);
  if (!file.ok()) return file.status();
  const auto elf = InspectElf(file->bytes());
  if (!elf.ok()) return elf.status();
  if (elf->abi_majors.empty()) {
    return absl::FailedPreconditionError(options.backend + " exports no octet_backend_query_v1");
  }
  const auto query = OpenLibrary(subject.path);
  if (!query.ok()) return query.status();
  subject.host = MakeHostTable(pool);
  octet_error why = Error();
  const octet_backend_v1* table = nullptr;
  try {
    table = (*query)(subject.host, &why);
  } catch (...) {
    return absl::FailedPreconditionError(options.backend + ": octet_backend_query_v1 threw an exception (rule A8)");
  }
  if (table == nullptr) return absl::UnavailableError(std::string("the backend answered: ") + why.message);
  if (absl::Status status = CheckTable(*table); !status.ok()) {
    return absl::FailedPreconditionError(options.backend + ": " + std::string(status.message()) + " (rule A1)");
  }
  subject.name = table->name;
  subject.version = table->version;
  subject.abi = AbiText(*table);
  subject.index = options.device;
  subject.options = options.device_options;
  auto device = Device::Open(table, subject.index, subject.name + ":" + std::to_string(subject.index), subject.options);
  if (!device.ok()) return device.status();
  subject.device = *std::move(device);
  auto stream = subject.device->CreateStream();
  if (!stream.ok()) return stream.status();
  subject.stream = *std::move(stream);
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadText(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError("cannot read " + path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// A file, or the name of one that was installed with the kit.
absl::StatusOr<std::string> ReadProfileText(const std::string& name) {
  if (name.find('/') != std::string::npos) return ReadText(name);
  const auto folder =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "../share/octet/conformance/profiles";
  const auto text = ReadText((folder / (name + ".txt")).lexically_normal().string());
  if (text.ok()) return text;
  return absl::NotFoundError("there is no profile '" + name + "': " + std::string(text.status().message()));
}

std::vector<std::string> AllCases() {
  std::vector<std::string> names;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *all.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      names.push_back(std::string(suite.name()) + "." + suite.GetTestInfo(t)->name());
    }
  }
  return names;
}

absl::StatusOr<ReportOptions> ReadLists(const Options& options) {
  ReportOptions lists;
  lists.verbose = options.verbose;
  for (const std::string& name : options.profiles) {
    auto profile = LoadProfile(name, ReadProfileText);
    if (!profile.ok()) return profile.status();
    lists.profiles.push_back(*std::move(profile));
  }
  if (options.expect.empty()) return lists;
  const auto text = ReadText(options.expect);
  if (!text.ok()) return text.status();
  auto expectations = ParseExpectations(*text);
  if (expectations.ok()) {
    if (absl::Status status = CheckThatEachMatches(*expectations, AllCases()); !status.ok()) expectations = status;
  }
  if (!expectations.ok()) {
    return absl::InvalidArgumentError(options.expect + ": " + std::string(expectations.status().message()));
  }
  lists.expectations = *std::move(expectations);
  return lists;
}

// Test and stress.
int RunCases(const Options& options, ReportOptions lists) {
  auto* report = new Report(std::move(lists));
  testing::UnitTest::GetInstance()->listeners().Append(report);
  ReportCrashes();
  const int result = RUN_ALL_TESTS();
  if (report->ran() == 0) return Refuse("no case matches '" + options.filter + "'; --list shows them");
  const bool passed = report->Finish();
  if (!options.json.empty()) {
    nlohmann::json json = report->Json();
    json["mode"] = options.mode;
    json["filter"] = options.filter;
    if (absl::Status status = WriteJson(options.json, json); !status.ok()) return Refuse(std::string(status.message()));
  }
  // GoogleTest counts what was expected to fail too; failures outside of cases count in any event.
  const bool outside = testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed();
  const bool refused = options.no_unsupported && report->Count("unsupported") > 0;
  if (refused) std::fprintf(stderr, "octet-conformance: --no-unsupported, but some cases are\n");
  return (passed && !outside && !refused && (result == 0 || !options.expect.empty())) ? 0 : 1;
}

int RunMode(const Options& options, ReportOptions lists, ThreadPool* pool) {
  if (options.mode == "test" || options.mode == "stress") return RunCases(options, std::move(lists));
  const absl::Status status =
      options.mode == "support"
          ? RunSupport(options.json)
          : RunPerf(options.filter, options.seconds < 0 ? 0.2 : options.seconds, options.json, pool);
  if (status.ok()) return 0;
  std::fprintf(stderr, "octet-conformance: %s\n", std::string(status.message()).c_str());
  return status.code() == absl::StatusCode::kInternal ? 1 : 2;
}

void AddAllCases() {
  AddAbiCases();
  AddStructCases();
  AddHonestyCases();
  AddAppendCases();
  AddPageCases();
  AddMemoryCases();
  AddAttentionCases();
  AddBoundaryCases();
  AddMetamorphicCases();
  AddWeightCases();
  AddDenseCases();
  AddFailureCases();
  AddLifeCycleCases();
  AddThreadCases();
}

int Main(int argc, char** argv) {
  CLI::App app("Checks a backend library against octet's contract");
  Options options;
  app.add_option("--backend", options.backend, "The library: liboctet_backend_<name>.so");
  app.add_option("--device", options.device, "Index of the device")->capture_default_str();
  app.add_option("--options", options.device_options, "Handed to the backend's open: key=value,key=value");
  app.add_option("--mode", options.mode,
                 "test: every case; support: what the backend says it has; perf: how fast; stress: random cases")
      ->check(CLI::IsMember({"test", "support", "perf", "stress"}))
      ->capture_default_str();
  auto* filter =
      app.add_option("--filter", options.filter,
                     "Cases to run: globs with * and ?, several joined by ':', '-' before those to leave out; "
                     "for perf one glob")
          ->capture_default_str();
  app.add_option("--profile", options.profiles,
                 "Also demand that the cases of this list pass: decode-int8, attention-only, full-model, or a file")
      ->excludes(filter);
  app.add_option("--expect", options.expect,
                 "A file of cases that do not pass, under [never] and [not yet], with reasons");
  app.add_option("--json", options.json, "Write the results to this file too");
  app.add_option("--seconds", options.seconds, "stress: how long (10); perf: per case (0.2)");
  app.add_option("--seed", options.seed, "stress: the first seed; random unless given");
  app.add_option("--threads", options.threads,
                 "Threads lent to the backend; 0: one per core, 1: no parallel loop is lent")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_flag("--list", options.list, "Print the names of the cases and stop");
  app.add_flag("--verbose", options.verbose, "Also print each case that passes or is unsupported");
  app.add_flag("--no-unsupported", options.no_unsupported, "Exit with 1 where a case is unsupported, too");
  CLI11_PARSE(app, argc, argv);

  int gtest_argc = 1;
  testing::InitGoogleTest(&gtest_argc, argv);
  testing::GTEST_FLAG(filter) = options.filter;
  if (options.mode == "stress") {
    if (app.count("--seed") == 0) options.seed = std::random_device{}();
    AddStressCase(options.seed, options.seconds < 0 ? 10 : options.seconds);
  } else {
    AddAllCases();
  }
  testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  if (options.list) {
    OnlyListCases();
    listeners.Append(new NameList);
    return RUN_ALL_TESTS();
  }
  if (options.backend.empty()) return Refuse("--backend is missing: the path of a liboctet_backend_<name>.so");
  auto lists = ReadLists(options);
  if (!lists.ok()) return Refuse(std::string(lists.status().message()));
  // Lives until the process ends, as the backend may keep what it was lent.
  ThreadPool* pool = options.threads == 1 ? nullptr : new ThreadPool(options.threads);
  if (absl::Status status = OpenSubject(options, pool); !status.ok()) return Refuse(std::string(status.message()));
  const int code = RunMode(options, *std::move(lists), pool);
  TheSubject().stream = {};
  TheSubject().device.reset();
  return code;
}

}  // namespace
}  // namespace octet::conformance

int main(int argc, char** argv) {
  try {
    return octet::conformance::Main(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "octet-conformance: %s\n", e.what());
    return 2;
  }
}
