// octet-conformance: does this backend library keep the contract? Loads one file, runs every case on one of its devices
// and says pass, fail or unsupported for each; no source and no rebuild needed. Reference: docs/conformance.md.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "core/base/command_line.h"
#include "core/base/mapped_file.h"
#include "core/base/program.h"
#include "core/base/text_file.h"
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
  int32_t threads = 0;
  double seconds = -1;  // below 0: the mode's own
  uint64_t seed = 0;
  bool list = false, verbose = false, no_unsupported = false;
};

class NameList : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& test) override {
    ++count;
    std::printf("%s.%s\n", test.test_suite_name(), test.name());
  }

 public:
  int count = 0;
};

absl::Status NoCaseMatches(const std::string& filter) {
  return absl::InvalidArgumentError("no case matches '" + filter + "'; --list shows all cases");
}

std::string Quoted(const std::string& text) {  // for a shell
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

absl::Status OpenSubject(const Options& options, ThreadPool* pool) {
  Subject& subject = TheSubject();
  std::error_code error;
  subject.path = std::filesystem::canonical(options.backend, error).string();
  if (error) return absl::NotFoundError(options.backend + ": " + error.message());
  const auto file = MappedFile::Open(subject.path);
  if (!file.ok()) return file.status();
  const auto elf = InspectElf(file->bytes());
  if (!elf.ok()) {
    return absl::FailedPreconditionError(options.backend + ": " + std::string(elf.status().message()));
  }
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
  subject.command =
      "octet-conformance --backend " + Quoted(subject.path) + " --device " + std::to_string(subject.index);
  if (!subject.options.empty()) subject.command += " --options " + Quoted(subject.options);
  if (options.threads != 0) subject.command += " --threads " + std::to_string(options.threads);
  auto device = Device::Open(table, subject.index, subject.name + ":" + std::to_string(subject.index), subject.options);
  if (!device.ok()) return device.status();
  subject.device = *std::move(device);
  auto stream = subject.device->CreateStream();
  if (!stream.ok()) return stream.status();
  subject.stream = *std::move(stream);
  return absl::OkStatus();
}

// A file, or one that was installed with the kit.
std::string ProfilePath(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const auto folder =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "../share/octet/conformance/profiles";
  return (folder / (name + ".txt")).lexically_normal().string();
}

absl::StatusOr<std::string> ReadProfileText(const std::string& name) {
  const std::string path = ProfilePath(name);
  const auto text = ReadTextFile(path);
  if (text.ok() || path == name) return text;
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
    if (absl::Status status = CheckThatEachMatches(*profile, AllCases()); !status.ok()) return status;
    lists.profiles.push_back(*std::move(profile));
  }
  if (options.expect.empty()) return lists;
  const auto text = ReadTextFile(options.expect);
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

std::vector<std::string> FilesRead(const Options& options) {
  std::vector<std::string> files = {TheSubject().path, options.expect == "-" ? "/dev/stdin" : options.expect};
  for (const std::string& name : options.profiles) files.push_back(ProfilePath(name));
  return files;
}

// Test and stress. The value is the exit code.
absl::StatusOr<int> RunCases(const Options& options, ReportOptions lists, JsonFile* json_file) {
  auto* report = new Report(std::move(lists));
  testing::UnitTest::GetInstance()->listeners().Append(report);
  ReportCrashes();
  const int result = RUN_ALL_TESTS();
  if (report->ran() == 0) return NoCaseMatches(options.filter);
  const bool passed = report->Finish();
  if (json_file != nullptr) {
    nlohmann::json json = report->Json();
    json["mode"] = options.mode;
    json["filter"] = options.filter;
    if (absl::Status status = json_file->Write(json); !status.ok()) return status;
  }
  // GoogleTest counts what was expected to fail too; failures outside of cases count in any event.
  const bool outside = testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed();
  const bool refused = options.no_unsupported && report->Count("unsupported") > 0;
  if (refused) PrintToStderr("octet-conformance: --no-unsupported, but some cases are\n");
  const bool good = passed && !outside && !refused && (result == 0 || !options.expect.empty());
  return good ? kExitDone : kExitFailed;
}

absl::StatusOr<int> RunMode(const Options& options, ReportOptions lists, JsonFile* json, ThreadPool* pool) {
  if (options.mode == "test" || options.mode == "stress") return RunCases(options, std::move(lists), json);
  const absl::Status status = options.mode == "support"
                                  ? RunSupport(json)
                                  : RunPerf(options.filter, options.seconds < 0 ? 0.2 : options.seconds, json, pool);
  if (!status.ok()) return status;
  return kExitDone;
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
  AddFusedCases();
  AddFailureCases();
  AddLifeCycleCases();
  AddThreadCases();
}

// Options that the mode would not look at.
absl::Status CheckMode(const CommandLine& line, const Options& options) {
  const std::string& mode = options.mode;
  if (mode != "test" && mode != "support" && mode != "perf" && mode != "stress") {
    return absl::InvalidArgumentError("--mode is '" + mode + "'; use test, support, perf or stress");
  }
  const std::pair<const char*, const char*> uses[] = {
      {"--seed", "stress"}, {"--seconds", "stress perf"},        {"--filter", "test perf"}, {"--profile", "test"},
      {"--expect", "test"}, {"--no-unsupported", "test stress"}, {"--list", "test stress"},
  };
  for (const auto& [option, modes] : uses) {
    if (!line.Has(option) || std::string(modes).find(mode) != std::string::npos) continue;
    return absl::InvalidArgumentError(std::string(option) + " has no use in --mode " + mode +
                                      "; leave it out, or use " + "--mode " +
                                      std::string(modes, std::strcspn(modes, " ")));
  }
  if (line.Has("--expect") && options.expect.empty()) {
    return absl::InvalidArgumentError("--expect is ''; give the path of a file");
  }
  for (const char* option : {"--backend", "--device", "--options", "--profile", "--expect", "--json", "--threads",
                             "--verbose", "--no-unsupported"}) {
    if (!options.list || !line.Has(option)) continue;
    return absl::InvalidArgumentError("--list names the cases of every backend and runs none; leave out " +
                                      std::string(option));
  }
  if (options.profiles.empty() || !line.Has("--filter")) return absl::OkStatus();
  return absl::InvalidArgumentError("--profile demands cases that --filter may leave out; give one of them");
}

// Which cases run is said on the command line only: GoogleTest reads these while the program starts.
void ForgetGoogleTestEnvironment() {
  for (const char* name : {"GTEST_TOTAL_SHARDS", "GTEST_SHARD_INDEX", "GTEST_SHARD_STATUS_FILE"}) unsetenv(name);
  testing::GTEST_FLAG(also_run_disabled_tests) = false;
  testing::GTEST_FLAG(break_on_failure) = false;
  testing::GTEST_FLAG(catch_exceptions) = true;
  testing::GTEST_FLAG(fail_fast) = false;
  testing::GTEST_FLAG(list_tests) = false;
  testing::GTEST_FLAG(output) = "";
  testing::GTEST_FLAG(repeat) = 1;
  testing::GTEST_FLAG(shuffle) = false;
  testing::GTEST_FLAG(throw_on_failure) = false;
}

absl::StatusOr<int> Main(int argc, char** argv) {
  CommandLine line("octet-conformance", "Checks a backend library against octet's contract");
  Options options;
  line.AddText("--backend", &options.backend, "The library: liboctet_backend_<name>.so");
  line.AddNumber<uint32_t>("--device", {}, &options.device, "Index of the device");
  line.AddText("--options", &options.device_options, "Handed to the backend's open: key=value,key=value");
  line.AddText("--mode", &options.mode,
               "test: every case; support: what the backend says it has; perf: how fast; stress: random cases",
               CommandLine::Text::kShowsDefault);
  line.AddText("--filter", &options.filter,
               "Cases to run: globs with * and ?, several joined by ':', '-' before those to leave out; "
               "for perf one glob",
               CommandLine::Text::kShowsDefault);
  line.AddTexts("--profile", &options.profiles,
                "Also demand that the cases of this list pass: decode-int8, attention-only, full-model, or a file",
                CommandLine::Texts::kMany);
  line.AddText("--expect", &options.expect,
               "A file of cases that do not pass, under [never] and [not yet], with reasons");
  line.AddText("--json", &options.json, "Write the results to this file too");
  line.AddNumber<double>(
      "--seconds", {0, 1e6}, [&options](double seconds) { options.seconds = seconds; },
      "stress: how long (10); perf: per case (0.2)");
  line.AddNumber<uint64_t>(
      "--seed", {}, [&options](uint64_t seed) { options.seed = seed; }, "stress: the first seed; random unless given");
  line.AddNumber<int32_t>("--threads", {0, 1024}, &options.threads,
                          "Threads lent to the backend; 0: one per core, 1: no parallel loop is lent");
  line.SetVersion(std::string("octet-conformance ") + OCTET_KIT_VERSION);
  line.AddFlag("--list", &options.list, "Print the names of the cases and stop");
  line.AddFlag("--verbose", &options.verbose, "Also print each case that passes or is unsupported");
  line.AddFlag("--no-unsupported", &options.no_unsupported, "Exit with 1 where a case is unsupported, too");
  const auto parsed = line.Parse(argc, argv);
  if (!parsed.ok()) return parsed.status();
  if (!*parsed) return kExitDone;
  if (absl::Status status = CheckMode(line, options); !status.ok()) return status;

  ForgetGoogleTestEnvironment();
  int gtest_argc = 1;
  testing::InitGoogleTest(&gtest_argc, argv);
  testing::GTEST_FLAG(filter) = options.filter;
  if (options.mode == "stress") {
    if (!line.Has("--seed")) options.seed = std::random_device{}();
    AddStressCase(options.seed, options.seconds < 0 ? 10 : options.seconds);
  } else {
    AddAllCases();
  }
  testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  if (options.list) {
    OnlyListCases();
    auto* names = new NameList;
    listeners.Append(names);
    const int result = RUN_ALL_TESTS();
    if (names->count == 0) return NoCaseMatches(options.filter);
    return result;
  }
  if (options.backend.empty()) {
    return absl::InvalidArgumentError("--backend is missing: the path of a liboctet_backend_<name>.so");
  }
  auto lists = ReadLists(options);
  if (!lists.ok()) return absl::InvalidArgumentError(lists.status().message());
  // Lives until the process ends, as the backend may keep what it was lent.
  ThreadPool* pool = options.threads == 1 ? nullptr : new ThreadPool(options.threads);
  if (absl::Status status = OpenSubject(options, pool); !status.ok()) {
    if (status.code() == absl::StatusCode::kResourceExhausted) return status;
    return absl::InvalidArgumentError(status.message());
  }
  std::unique_ptr<JsonFile> json;
  if (line.Has("--json")) {
    auto opened = JsonFile::Open(options.json, FilesRead(options));
    if (!opened.ok()) return opened.status();
    json = *std::move(opened);
  }
  const auto code = RunMode(options, *std::move(lists), json.get(), pool);
  TheSubject().stream = {};
  TheSubject().device.reset();
  return code;
}

}  // namespace
}  // namespace octet::conformance

int main(int argc, char** argv) {
  return octet::RunProgram("octet-conformance", [=]() -> absl::StatusOr<int> {
    try {
      return octet::conformance::Main(argc, argv);
    } catch (const std::bad_alloc&) {  // told without a further allocation
      octet::PrintToStderr(
          "octet-conformance: the machine, or the limit that was set for this process, has too little memory for "
          "this\n");
      return octet::kExitUnsupported;
    } catch (const std::system_error& error) {
      if (error.code() != std::errc::resource_unavailable_try_again) throw;
      return absl::ResourceExhaustedError(std::string("the system starts no further thread: ") + error.what());
    }
  });
}
