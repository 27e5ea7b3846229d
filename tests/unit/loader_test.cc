// The loader against real files: backends built beside this test, and files that only look like one.
#include <elf.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "core/loader/elf_preflight.h"
#include "core/loader/hints.h"
#include "core/loader/host_table.h"
#include "core/loader/registry.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "octet/convert.h"

namespace octet {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

namespace fs = std::filesystem;

std::string PluginPath(const std::string& name) {
  return std::string(OCTET_TEST_PLUGINS) + "/liboctet_backend_" + name + ".so";
}

std::vector<std::byte> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::vector<char> text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  std::vector<std::byte> bytes(text.size());
  if (!text.empty()) std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

void WriteFile(const fs::path& path, std::span<const std::byte> bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

std::string Shell(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  std::string out;
  std::array<char, 4096> chunk;
  for (size_t n; (n = fread(chunk.data(), 1, chunk.size(), pipe)) > 0;) out.append(chunk.data(), n);
  EXPECT_EQ(pclose(pipe), 0) << command;
  return out;
}

// An empty folder, and an environment in which no other backend is found.
class LoaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::path(::testing::TempDir()) / ("octet_loader_" + std::to_string(getpid()));
    fs::remove_all(dir_);
    fs::create_directories(dir_);
    unsetenv("OCTET_BACKEND_PATH");
    unsetenv("OCTET_BACKENDS");
    SetBackendLogSink(
        [this](int level, std::string_view text) { log_ += std::to_string(level) + ": " + std::string(text) + "\n"; });
  }
  void TearDown() override {
    SetBackendLogSink(nullptr);
    fs::remove_all(dir_);
    unsetenv("OCTET_BACKEND_PATH");
    unsetenv("OCTET_BACKENDS");
  }

  std::unique_ptr<Registry> Load(std::vector<std::string> paths) {
    auto registry = Registry::Load({.backend_paths = std::move(paths)});
    EXPECT_TRUE(registry.ok()) << registry.status();
    return registry.ok() ? *std::move(registry) : nullptr;
  }

  // The report of one file that was named by --backend-path.
  BackendReport LoadOne(const std::string& path) {
    const auto registry = Load({path});
    if (registry == nullptr || registry->reports().empty()) return {};
    return registry->reports()[0];
  }

  fs::path Copy(const std::string& plugin, const std::string& as) {
    const fs::path to = dir_ / ("liboctet_backend_" + as + ".so");
    fs::copy_file(PluginPath(plugin), to, fs::copy_options::overwrite_existing);
    return to;
  }

  fs::path dir_;
  std::string log_;
};

TEST_F(LoaderTest, ReadyBackendIsListedAndOpened) {
  const auto registry = Load({PluginPath("good")});
  const BackendReport& report = registry->reports()[0];
  EXPECT_EQ(report.state, BackendState::kReady) << report.reason;
  EXPECT_EQ(report.name, "good");
  EXPECT_EQ(report.path, PluginPath("good"));
  EXPECT_EQ(report.abi, "0.9");
  EXPECT_EQ(report.vendor, "tests");
  EXPECT_EQ(report.version, "1.2.3");
  EXPECT_EQ(report.reason, "");
  ASSERT_EQ(report.devices.size(), 1u);
  EXPECT_EQ(report.devices[0].kind, DeviceInfo::Kind::kCpu);
  EXPECT_GT(report.devices[0].memory_bytes, 1u << 20);
  auto device = registry->Open("good");
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ((*device)->id(), "good:0");
  EXPECT_NE((*device)->dense(), nullptr);
  EXPECT_EQ((*device)->fused(), nullptr);
  EXPECT_TRUE((*device)->Alloc(64).ok());
  EXPECT_EQ(registry->Open("good", "threads=2").status().message(), "good:0: backend good has no option 'threads'");
}

TEST_F(LoaderTest, EachRefusalSaysWhatIsWrong) {
  struct Case {
    const char* plugin;
    BackendState state;
    const char* abi;
    const char* reason;
  };
  const Case cases[] = {
      {"throws", BackendState::kRefused, "-", "it refuses to start: the licence file is missing"},
      {"null_with_text", BackendState::kRefused, "-",
       "it refuses to start: this backend needs a kernel from this century"},
      {"null_silent", BackendState::kRefused, "-", "it refuses to start and gives no reason"},
      {"wrong_name", BackendState::kRefused, "0.9", "it calls itself 'other', but its file is named for 'wrong_name'"},
      {"other_draft", BackendState::kRefused, "0.8",
       "built for backend ABI 0.8; this program has 0.9, and drafts do not mix: rebuild the backend with this version"},
      {"short_table", BackendState::kRefused, "0.9", "its table has 80 bytes; version 1 of the backend ABI has 120"},
      {"no_gather", BackendState::kRefused, "0.9",
       "its table has no function quant.gather, which version 1 of the backend ABI requires"},
      {"no_device", BackendState::kUnavailable, "0.9", "no Acme driver: libacme.so.1 was not found"},
      {"abi2", BackendState::kRefused, "2", "built for backend ABI 2; this program offers ABI 1"},
      {"undefined", BackendState::kNotLoaded, "-",
       "needs the symbol octet_test_defined_nowhere, which neither it nor the libraries it names provide: it must be "
       "linked again"},
      {"missing_library", BackendState::kNotLoaded, "-", "needs liboctet_test_gone.so.7, which is not installed"},
      {"no_driver_library", BackendState::kNotLoaded, "-",
       "needs libcuda.so.1, which is not installed (it comes with the NVIDIA driver)"},
      {"query_throws", BackendState::kRefused, "-",
       "it refuses to start: its query let a C++ exception out, which the backend ABI forbids (A8)"},
      {"query_throws_int", BackendState::kRefused, "-",
       "it refuses to start: its query let a C++ exception out, which the backend ABI forbids (A8)"},
      {"count_throws", BackendState::kRefused, "0.9",
       "it refuses to start: its device count let a C++ exception out, which the backend ABI forbids (A8)"},
      {"describe_throws", BackendState::kRefused, "0.9",
       "it refuses to start: its device description let a C++ exception out, which the backend ABI forbids (A8)"},
      {"empty_table", BackendState::kRefused, "-", "its table has 0 bytes; version 1 of the backend ABI has 120"},
      {"short_part", BackendState::kRefused, "0.9",
       "its quant table has 32 bytes; version 1 of the backend ABI has 64"},
      {"no_part", BackendState::kRefused, "0.9",
       "its table has no stream, which version 1 of the backend ABI requires"},
      {"no_text", BackendState::kRefused, "0.9",
       "its table has no name, vendor, version or build text, which version 1 of the backend ABI requires"},
      {"no_device_silent", BackendState::kUnavailable, "0.9", "the backend failed with code 14 and gave no reason"},
      {"zero_devices", BackendState::kUnavailable, "0.9", "it found no device on this machine"},
      {"many_devices", BackendState::kRefused, "0.9", "it counts 4000000000 devices; 1024 are possible"},
      {"device_fails", BackendState::kUnavailable, "0.9", "Acme 200 does not answer"},
      {"bad_device", BackendState::kUnavailable, "0.9",
       "device 0 is described with a preferred alignment of 3 and 32 lanes; the first must be a power of two, the "
       "second 1 or more"},
  };
  for (const Case& c : cases) {
    const BackendReport report = LoadOne(PluginPath(c.plugin));
    EXPECT_EQ(report.name, c.plugin);
    EXPECT_EQ(report.reason, c.reason);
    EXPECT_EQ(report.abi, c.abi) << c.plugin;
    EXPECT_STREQ(BackendStateName(report.state), BackendStateName(c.state)) << c.plugin;
    EXPECT_TRUE(report.devices.empty());
  }
  std::set<std::string> sentences;
  for (const Case& c : cases) sentences.insert(c.reason);
  EXPECT_EQ(sentences.size(), std::size(cases) - 1) << "only the two throwing queries share theirs";
}

std::string Repeated(std::string_view text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

TEST_F(LoaderTest, GarbageInTextsReachesNoTerminal) {
  EXPECT_EQ(LoadOne(PluginPath("garbage_name")).reason,
            "it calls itself '\\x1b[31m\\x0a\\xffevil', but its file is named for 'garbage_name'");
  EXPECT_EQ(LoadOne(PluginPath("null_garbage")).reason, "it refuses to start: " + Repeated("\\x1b", 979));
  const BackendReport report = LoadOne(PluginPath("garbage_device"));
  ASSERT_EQ(report.devices.size(), 2u) << report.reason;
  EXPECT_EQ(report.devices[1].name, Repeated("\\x1b", 64));
  EXPECT_EQ(report.devices[1].arch, Repeated("\\x0a", 32));
  EXPECT_EQ(report.devices[1].kind, DeviceInfo::Kind::kOther);
}

TEST_F(LoaderTest, ALongerTableOfALaterVersionIsTaken) {
  const BackendReport report = LoadOne(PluginPath("long_table"));
  EXPECT_EQ(report.state, BackendState::kReady) << report.reason;
  EXPECT_EQ(report.devices.size(), 2u);
}

TEST_F(LoaderTest, SanitizersMustMatch) {
  EXPECT_THAT(LoadOne(PluginPath("sanitizer")).reason,
              StartsWith("built with the memory sanitizer; this program has "));
  // Built with the address sanitizer where this program has none, and without where it has one.
  const std::string ours = convert::BuildSanitizer();
  EXPECT_EQ(LoadOne(PluginPath("unlike")).reason,
            ours == "none"
                ? "built with the address sanitizer; this program has no sanitizer: both must be built alike"
                : "built with no sanitizer; this program has the " + ours + " sanitizer: both must be built alike");
}

TEST_F(LoaderTest, TheSameFileUnderTwoPathsIsOneBackend) {
  const fs::path link = dir_ / "liboctet_backend_good.so";
  fs::create_symlink(PluginPath("good"), link);
  const auto registry = Load({PluginPath("good"), link.string(), dir_.string()});
  const auto named_good = [](const BackendReport& report) { return report.name == "good"; };
  EXPECT_EQ(std::count_if(registry->reports().begin(), registry->reports().end(), named_good), 1);
}

TEST_F(LoaderTest, AFileThatIsNotThereIsAnErrorOfItsOwn) {
  const auto registry = Registry::Load({.backend_paths = {(dir_ / "liboctet_backend_nope.so").string()}});
  EXPECT_EQ(registry.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(registry.status().message()),
              AllOf(StartsWith("--backend-path '"), EndsWith("does not exist")));
}

TEST_F(LoaderTest, FilesThatAreNoBackendAreRefusedUnseen) {
  const fs::path text = dir_ / "liboctet_backend_text.so", empty = dir_ / "liboctet_backend_empty.so";
  WriteFile(text, std::as_bytes(std::span("INPUT(libfoo.so)")));
  WriteFile(empty, {});
  fs::create_directory(dir_ / "liboctet_backend_folder.so");
  EXPECT_EQ(LoadOne(text.string()).reason, "the file is not a shared library (no ELF header)");
  EXPECT_EQ(LoadOne(empty.string()).state, BackendState::kRefused);
  ASSERT_EQ(mkfifo((dir_ / "liboctet_backend_pipe.so").c_str(), 0600), 0);
  EXPECT_THAT(LoadOne((dir_ / "liboctet_backend_pipe.so").string()).reason, EndsWith(" is not a regular file"));
  fs::create_symlink(dir_ / "nowhere", dir_ / "liboctet_backend_dangling.so");
  EXPECT_THAT(Load({dir_.string()})->reports()[0].reason, EndsWith(": No such file or directory"));
  fs::remove(dir_ / "liboctet_backend_dangling.so");
  EXPECT_EQ(LoadOne("/proc/self/exe").reason,
            "a backend's file is named liboctet_backend_NAME.so, with a-z, 0-9 and _ in NAME");
  fs::copy_file("/proc/self/exe", dir_ / "liboctet_backend_program.so");
  EXPECT_EQ(LoadOne((dir_ / "liboctet_backend_program.so").string()).reason,
            "it does not export octet_backend_query_v1, so it is no octet backend");

  EXPECT_EQ(LoadOne(PluginPath("imports")).reason,
            "it does not export octet_backend_query_v1, so it is no octet backend");

  std::vector<std::byte> bytes = ReadFile(PluginPath("good"));
  const auto with = [&](size_t at, std::vector<int> values) {
    std::vector<std::byte> changed = bytes;
    for (size_t i = 0; i < values.size(); ++i) changed[at + i] = static_cast<std::byte>(values[i]);
    WriteFile(text, changed);
    return LoadOne(text.string());
  };
  const uint16_t other_machine =
      reinterpret_cast<const Elf64_Ehdr*>(bytes.data())->e_machine == EM_S390 ? EM_RISCV : EM_S390;
  EXPECT_THAT(with(EI_CLASS, {ELFCLASS32}).reason, HasSubstr("32-bit library"));
  EXPECT_THAT(with(EI_DATA, {ELFDATA2MSB}).reason, HasSubstr("big-endian"));
  EXPECT_THAT(with(offsetof(Elf64_Ehdr, e_machine), {other_machine, 0}).reason,
              StartsWith("it was built for s390x; this program runs on "));
  EXPECT_THAT(with(offsetof(Elf64_Ehdr, e_type), {ET_REL, 0}).reason, HasSubstr("not a shared library"));
}

TEST_F(LoaderTest, AStrippedBackendWorks) {
  const fs::path copy = Copy("good", "good");
  Shell("strip '" + copy.string() + "'");
  EXPECT_LT(fs::file_size(copy), fs::file_size(PluginPath("good")));
  EXPECT_EQ(LoadOne(copy.string()).state, BackendState::kReady);
}

TEST_F(LoaderTest, OnlyTheQueryIsExported) {
  EXPECT_THAT(Shell("nm -D --defined-only '" + PluginPath("good") + "' | grep -v __odr_asan"),
              AllOf(HasSubstr(" T octet_backend_query_v1\n"), Not(HasSubstr("\n0"))));
}

TEST_F(LoaderTest, NoCutFileIsTakenForABackendOrReadBeyondItsEnd) {
  const std::vector<std::byte> whole = ReadFile(PluginPath("good"));
  const auto report = InspectElf(whole);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->abi_majors, ElementsAre(1u));
  EXPECT_THAT(report->needed, Contains(HasSubstr("libc.so")));
  const uint64_t loaded_end = [&] {  // what lies behind the last segment is not needed
    const auto* header = reinterpret_cast<const Elf64_Ehdr*>(whole.data());
    uint64_t end = 0;
    for (int i = 0; i < header->e_phnum; ++i) {
      const auto* segment = reinterpret_cast<const Elf64_Phdr*>(whole.data() + header->e_phoff) + i;
      if (segment->p_type == PT_LOAD) end = std::max(end, segment->p_offset + segment->p_filesz);
    }
    return end;
  }();
  std::vector<size_t> lengths;
  for (size_t n = 0; n < 1024; ++n) lengths.push_back(n);
  for (size_t n = 1024; n < whole.size(); n += whole.size() / 300) lengths.push_back(n);
  for (size_t n = loaded_end - 64; n <= loaded_end; ++n) lengths.push_back(n);
  for (size_t n : lengths) {
    // A copy of its own, so that the address sanitizer sees every byte beyond it.
    const std::vector<std::byte> cut(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(n));
    const auto result = InspectElf(cut);
    EXPECT_EQ(result.ok(), n >= loaded_end) << n << " of " << whole.size() << ": " << result.status();
  }
}

TEST_F(LoaderTest, DamagedFilesGiveAnAnswerOrASentence) {
  const std::vector<std::byte> whole = ReadFile(PluginPath("gpu"));
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    std::vector<std::byte> bytes = whole;
    // Headers, the dynamic section and the symbol tables all lie in the first pages of so small a file.
    for (int i = 0; i < 1 + static_cast<int>(seed % 8); ++i) {
      const size_t at = 16 + random() % (seed % 2 == 0 ? 1024 : bytes.size() - 16);
      bytes[at] = static_cast<std::byte>(random());
    }
    const auto result = InspectElf(bytes);
    EXPECT_EQ(result.ok(), result.status().message().empty()) << "seed " << seed;
  }
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    std::vector<std::byte> bytes(random() % 4096);
    for (std::byte& b : bytes) b = static_cast<std::byte>(random());
    EXPECT_FALSE(InspectElf(bytes).ok()) << "seed " << seed;
  }
}

TEST_F(LoaderTest, TheFirstFolderWinsAndLaterFilesAreShadowed) {
  const fs::path first = dir_ / "first", second = dir_ / "second";
  fs::create_directories(first);
  fs::create_directories(second);
  for (const fs::path& folder : {first, second}) fs::copy_file(PluginPath("good"), folder / "liboctet_backend_good.so");
  fs::copy_file(PluginPath("gpu"), second / "liboctet_backend_gpu.so");
  WriteFile(second / "README", std::as_bytes(std::span("not a backend")));
  setenv("OCTET_BACKEND_PATH", (second.string() + ":relative:" + (dir_ / "nowhere").string()).c_str(), 1);
  setenv("OCTET_BACKENDS", "good,gpu", 1);
  const auto registry = Load({first.string()});
  ASSERT_GE(registry->reports().size(), 3u);
  const auto& r = registry->reports();
  EXPECT_EQ(r[0].path, (first / "liboctet_backend_good.so").string());
  EXPECT_EQ(r[0].state, BackendState::kReady) << r[0].reason;
  EXPECT_EQ(r[1].path, (second / "liboctet_backend_good.so").string());
  EXPECT_EQ(r[1].state, BackendState::kShadowed);
  EXPECT_EQ(r[1].reason, "shadowed by " + r[0].path + ", which was found first");
  EXPECT_EQ(r[2].state, BackendState::kReady) << r[2].reason;
  const auto& searched = registry->searched();
  ASSERT_GE(searched.size(), 5u);
  EXPECT_EQ(searched[0], first.string() + " (1 file)");
  EXPECT_EQ(searched[1], second.string() + " (2 files, from $OCTET_BACKEND_PATH)");
  EXPECT_THAT(searched[2], StartsWith("relative (ignored"));
  EXPECT_THAT(searched[3], HasSubstr("nowhere (not there"));
  EXPECT_THAT(searched[4], HasSubstr("lib/octet/backends"));
  EXPECT_THAT(log_, AllOf(HasSubstr("2: OCTET_BACKEND_PATH has 'relative', which is not absolute"),
                          HasSubstr("nowhere', which does not exist")));
}

TEST_F(LoaderTest, TheEnvironmentMayNameAFile) {
  setenv("OCTET_BACKEND_PATH", PluginPath("good").c_str(), 1);
  const auto registry = Load({});
  EXPECT_EQ(registry->reports()[0].path, PluginPath("good"));
  EXPECT_EQ(registry->reports()[0].state, BackendState::kReady);
  EXPECT_EQ(log_.find("OCTET_BACKEND_PATH"), std::string::npos) << log_;
}

TEST_F(LoaderTest, SelectionKeepsOrRemovesByName) {
  setenv("OCTET_BACKENDS", "-gpu", 1);
  auto registry = Load({PluginPath("gpu"), PluginPath("good")});
  EXPECT_EQ(registry->reports()[0].state, BackendState::kDeselected);
  EXPECT_EQ(registry->reports()[1].state, BackendState::kReady);
  const auto device = registry->Open("gpu:1");
  EXPECT_EQ(device.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(device.status().message()),
              AllOf(HasSubstr("left out by OCTET_BACKENDS=-gpu"), HasSubstr("ready: "), HasSubstr("good:0")));
  setenv("OCTET_BACKENDS", "good,nonesuch", 1);
  registry = Load({PluginPath("gpu"), PluginPath("good")});
  EXPECT_EQ(registry->reports()[0].state, BackendState::kDeselected);
  EXPECT_EQ(registry->reports()[1].state, BackendState::kReady);
  EXPECT_THAT(log_, HasSubstr("2: OCTET_BACKENDS names 'nonesuch', but no such backend was found"));
  log_.clear();
  setenv("OCTET_BACKENDS", "good,-nonesuch,-", 1);
  registry = Load({PluginPath("good")});
  EXPECT_THAT(log_, AllOf(HasSubstr("2: OCTET_BACKENDS names '-nonesuch'"), HasSubstr("2: OCTET_BACKENDS names '-'")));
}

TEST_F(LoaderTest, AutoPrefersAGpuAndSaysWhy) {
  setenv("OCTET_BACKENDS", "good,gpu,no_device", 1);
  const auto registry = Load({PluginPath("good"), PluginPath("gpu"), PluginPath("no_device")});
  EXPECT_EQ(registry->choice(), "");
  auto device = registry->Open("auto");
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ((*device)->id(), "gpu:0");
  EXPECT_EQ((*device)->info().name, "Acme 100");
  EXPECT_EQ((*device)->info().preferred_alignment, 512u);
  EXPECT_EQ(registry->choice(),
            "auto chose gpu:0 (Acme 100) over gpu:1, good:0; not ready: no_device (no Acme driver: libacme.so.1 was "
            "not found)");
  EXPECT_EQ((*registry->Open("gpu:1"))->info().name, "Acme 200");
  // A device that fails to open is an error, not a reason to take another one.
  EXPECT_EQ(registry->Open("auto", "fail=1").status(), absl::DataLossError("gpu:0: the device fell off the bus"));
}

// A vendor's first backend, plain loops, sits beside a tuned one.
TEST_F(LoaderTest, AutoPrefersTheCpuBackendWithMoreLanes) {
  setenv("OCTET_BACKENDS", "good,wide", 1);
  const auto registry = Load({PluginPath("good"), PluginPath("wide")});
  const auto device = registry->Open("auto");
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ(registry->choice(), "auto chose wide:0 (Acme 100) over wide:1, good:0");
}

TEST_F(LoaderTest, ANamedDeviceIsNeverReplaced) {
  setenv("OCTET_BACKENDS", "gpu,no_device", 1);
  const auto registry = Load({PluginPath("gpu"), PluginPath("no_device")});
  const auto message = [&](const char* device) { return std::string(registry->Open(device).status().message()); };
  EXPECT_EQ(registry->Open("no_device").status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(message("no_device:0"),
              AllOf(HasSubstr("is unavailable: no Acme driver"), HasSubstr("ready: gpu:0, gpu:1")));
  EXPECT_EQ(registry->Open("gpu:2").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(message("gpu:2"), "device gpu:2 does not exist: gpu has 2 (ready: gpu:0, gpu:1)");
  EXPECT_EQ(registry->Open("tpu").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(message("tpu"), AllOf(HasSubstr("there is no backend 'tpu'"), HasSubstr("searched ")));
  for (const char* bad : {"", ":0", "gpu:", "gpu:x", "gpu:-1", "gpu:99999999999"}) {
    EXPECT_EQ(registry->Open(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

TEST_F(LoaderTest, WithoutAReadyDeviceAutoSaysWhatItMet) {
  setenv("OCTET_BACKENDS", "no_device", 1);
  const auto none = Load({PluginPath("no_device")})->Open("auto");
  EXPECT_EQ(none.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("no compute device is ready: "));
  EXPECT_THAT(std::string(none.status().message()),
              HasSubstr("no_device (no Acme driver: libacme.so.1 was not found)"));
}

TEST(HintsTest, NamesWhatProvidesALibrary) {
  EXPECT_EQ(LibraryHint("libcuda.so.1"), "the NVIDIA driver");
  EXPECT_EQ(LibraryHint("libamdhip64.so.6"), "ROCm runtime 6");
  EXPECT_EQ(LibraryHint("/opt/x/libcudart.so.12.4"), "CUDA runtime 12");
  EXPECT_EQ(LibraryHint("libgomp.so.1"), "the GCC OpenMP runtime (package libgomp1)");
  EXPECT_EQ(LibraryHint("libsomething.so"), "");
}

TEST(HintsTest, TellsAMissingDependencyFromTheLinkersText) {
  const auto explain = [](const char* text) { return ExplainOpenError("/p/liboctet_backend_x.so", text); };
  EXPECT_EQ(explain("libamdhip64.so.6: cannot open shared object file: No such file or directory"),
            "needs libamdhip64.so.6, which is not installed (it comes with ROCm runtime 6)");
  EXPECT_EQ(explain("libz.so.1: cannot open shared object file: Permission denied"),
            "needs libz.so.1, which could not be opened");
  EXPECT_THAT(explain("/p/liboctet_backend_x.so: cannot open shared object file: Permission denied"),
              StartsWith("the dynamic linker refused it: /p/"));
  EXPECT_THAT(explain("/lib/libstdc++.so.6: version `GLIBCXX_3.4.99' not found (required by /p/liboctet_backend_x.so)"),
              StartsWith("needs GLIBCXX_3.4.99 of libstdc++.so.6, which is newer than"));
  EXPECT_EQ(explain("odd"), "the dynamic linker refused it: odd");
  EXPECT_EQ(explain(""), "the dynamic linker refused it: ");
}

}  // namespace
}  // namespace octet
