// octet-conformance: does this backend library keep the contract? Loads one file, runs every case on one of its devices
// and says pass, fail or unsupported for each; no source and no rebuild needed. Reference: docs/writing-a-backend.md.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <map>
#include <span>
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
#include "tests/conformance/harness.h"

namespace octet::conformance {
namespace {

// "fail  name" with what failed and how to run it again; the reasons of what is unsupported; one line to publish.
class Report : public testing::EmptyTestEventListener {
 public:
  explicit Report(bool verbose) : verbose_(verbose) {}

  void OnTestEnd(const testing::TestInfo& test) override {
    const std::string name = std::string(test.test_suite_name()) + "." + test.name();
    const testing::TestResult& result = *test.result();
    if (result.Failed()) {
      ++failed_;
      std::printf("fail         %s\n", name.c_str());
      for (int i = 0; i < result.total_part_count(); ++i) {
        const testing::TestPartResult& part = result.GetTestPartResult(i);
        if (part.failed()) PrintIndented(part.message());
      }
      std::printf("  again: octet-conformance --backend %s --device %u --filter '%s'\n", TheSubject().path.c_str(),
                  TheSubject().index, name.c_str());
    } else if (result.Skipped()) {
      ++unsupported_;
      const std::string reason = result.total_part_count() > 0 ? result.GetTestPartResult(0).message() : "";
      const size_t start = reason.find_first_not_of(" \n");
      auto& [count, first] = unsupported_reasons_[start == std::string::npos ? reason : reason.substr(start)];
      if (count++ == 0) first = name;
      if (verbose_) std::printf("unsupported  %s\n", name.c_str());
    } else {
      ++passed_;
      if (verbose_) std::printf("pass         %s\n", name.c_str());
    }
    std::fflush(stdout);
  }

  void OnTestProgramEnd(const testing::UnitTest&) override {
    const Subject& subject = TheSubject();
    for (const auto& [reason, cases] : unsupported_reasons_) {
      std::printf("unsupported  %s and %d more: %s\n", cases.second.c_str(), cases.first - 1, reason.c_str());
    }
    std::printf("backend %s %s, device %u (%s, %s), ABI %s: %d passed, %d failed, %d unsupported\n",
                subject.name.c_str(), subject.version.c_str(), subject.index, subject.device->info().name.c_str(),
                subject.device->info().arch.c_str(), subject.abi.c_str(), passed_, failed_, unsupported_);
  }

  int failed() const { return failed_; }
  int ran() const { return passed_ + failed_ + unsupported_; }

 private:
  static void PrintIndented(const char* text) {
    std::string line;
    for (const char* c = text;; ++c) {
      if (*c != '\n' && *c != '\0') {
        line += *c;
        continue;
      }
      if (!line.empty()) std::printf("  %s\n", line.c_str());
      line.clear();
      if (*c == '\0') return;
    }
  }

  bool verbose_;
  std::map<std::string, std::pair<int, std::string>> unsupported_reasons_;  // reason -> cases, the first one's name
  int passed_ = 0, failed_ = 0, unsupported_ = 0;
};

class NameList : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& test) override {
    std::printf("%s.%s\n", test.test_suite_name(), test.name());
  }
};

absl::Status OpenSubject(const std::string& path, uint32_t index, const std::string& options, ThreadPool* pool) {
  Subject& subject = TheSubject();
  std::error_code error;
  subject.path = std::filesystem::canonical(path, error).string();
  if (error) return absl::NotFoundError(path + ": " + error.message());
  const auto file = MappedFile::Open(subject.path);
  if (!file.ok()) return file.status();
  const auto elf = InspectElf(file->bytes());
  if (!elf.ok()) return elf.status();
  if (elf->abi_majors.empty()) return absl::FailedPreconditionError(path + " exports no octet_backend_query_v1");
  const auto query = OpenLibrary(subject.path);
  if (!query.ok()) return query.status();
  subject.host = MakeHostTable(pool);
  octet_error why{};
  why.struct_size = sizeof(why);
  const octet_backend_v1* table = nullptr;
  try {
    table = (*query)(subject.host, &why);
  } catch (...) {
    return absl::FailedPreconditionError(path + ": octet_backend_query_v1 threw an exception (rule A8)");
  }
  if (table == nullptr) return absl::UnavailableError(std::string("the backend answered: ") + why.message);
  if (absl::Status status = CheckTable(*table); !status.ok()) {
    return absl::FailedPreconditionError(path + ": " + std::string(status.message()) + " (rule A1)");
  }
  subject.name = table->name;
  subject.version = table->version;
  subject.abi = AbiText(*table);
  subject.index = index;
  subject.options = options;
  auto device = Device::Open(table, index, subject.name + ":" + std::to_string(index), options);
  if (!device.ok()) return device.status();
  subject.device = *std::move(device);
  auto stream = subject.device->CreateStream();
  if (!stream.ok()) return stream.status();
  subject.stream = *std::move(stream);
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  CLI::App app("Checks a backend library against octet's contract");
  std::string backend, options, filter = "*";
  uint32_t device = 0;
  int threads = 0;
  bool list = false, verbose = false;
  app.add_option("--backend", backend, "The library: liboctet_backend_<name>.so");
  app.add_option("--device", device, "Index of the device")->capture_default_str();
  app.add_option("--options", options, "Handed to the backend's open: key=value,key=value");
  app.add_option("--filter", filter,
                 "Cases to run: globs with * and ?, several joined by ':', '-' before those to leave out")
      ->capture_default_str();
  app.add_option("--threads", threads, "Threads lent to the backend; 0: one per core, 1: no parallel loop is lent")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_flag("--list", list, "Print the names of the cases and stop");
  app.add_flag("--verbose", verbose, "Also print each case that passes or is unsupported");
  CLI11_PARSE(app, argc, argv);

  int gtest_argc = 1;
  testing::InitGoogleTest(&gtest_argc, argv);
  testing::GTEST_FLAG(filter) = filter;
  AddAbiCases();
  AddStructCases();
  AddHonestyCases();
  AddAppendCases();
  AddPageCases();
  AddAttentionCases();
  AddBoundaryCases();
  AddMetamorphicCases();
  AddDenseCases();
  AddFailureCases();
  AddLifeCycleCases();
  AddThreadCases();
  testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  if (list) {
    OnlyListCases();
    listeners.Append(new NameList);
    return RUN_ALL_TESTS();
  }
  if (backend.empty()) {
    std::fprintf(stderr, "octet-conformance: --backend is missing: the path of a liboctet_backend_<name>.so\n");
    return 2;
  }
  // Lives until the process ends, as the backend may keep what it was lent.
  ThreadPool* pool = threads == 1 ? nullptr : new ThreadPool(threads);
  if (absl::Status status = OpenSubject(backend, device, options, pool); !status.ok()) {
    std::fprintf(stderr, "octet-conformance: %s\n", std::string(status.message()).c_str());
    return 2;
  }
  auto* report = new Report(verbose);
  listeners.Append(report);
  const int result = RUN_ALL_TESTS();
  if (report->ran() == 0) {
    std::fprintf(stderr, "octet-conformance: no case matches '%s'; --list shows them\n", filter.c_str());
    return 2;
  }
  const int code = result != 0 || report->failed() > 0 ? 1 : 0;
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
