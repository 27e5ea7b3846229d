#include "core/loader/registry.h"

#include <dirent.h>
#include <sys/auxv.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/base/message_text.h"
#include "core/loader/examine.h"
#include "core/loader/host_table.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "liboctet_backend_";
constexpr std::string_view kSuffix = ".so";

// "cpu" of "liboctet_backend_cpu.so"; empty where the file's name is not of that form.
std::string BackendName(const fs::path& path) {
  const std::string file = path.filename().string();
  if (file.size() <= kPrefix.size() + kSuffix.size() || !file.starts_with(kPrefix) || !file.ends_with(kSuffix)) {
    return "";
  }
  const std::string name = file.substr(kPrefix.size(), file.size() - kPrefix.size() - kSuffix.size());
  const bool valid = std::all_of(name.begin(), name.end(),
                                 [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; });
  return valid ? name : "";
}

// Set-uid and the like: then the environment belongs to somebody else.
bool RaisedPrivileges() { return getauxval(AT_SECURE) != 0; }

// Null: unset or not to be trusted.
const char* Environment(const char* name) { return RaisedPrivileges() ? nullptr : std::getenv(name); }

// Files to look at, in order, and the account of where they were looked for.
class Search {
 public:
  // A file or folder that the user named: it must exist.
  absl::Status AddNamed(const std::string& text) {
    std::error_code error;
    const fs::path path = fs::absolute(text, error);
    if (error || text.empty() || !fs::exists(path, error)) {
      return absl::InvalidArgumentError(absl::StrCat("--backend-path '", text, "' does not exist"));
    }
    if (fs::is_directory(path, error)) {
      AddFolder(path, "");
    } else {
      AddFile(path);
      searched_.push_back(absl::StrCat(path.string(), " (--backend-path)"));
    }
    return absl::OkStatus();
  }

  void AddFolder(const fs::path& folder, const std::string& remark) {
    std::error_code error;
    const fs::path canonical = fs::canonical(folder, error);
    if (error) {
      searched_.push_back(absl::StrCat(folder.string(), " (not there", remark, ")"));
      return;
    }
    if (!folders_.insert(canonical).second) return;
    std::vector<fs::path> found;
    // Not std::filesystem: where its directory_iterator is out of memory, it ends the process (libstdc++ 12).
    const auto close = [](DIR* opened) { closedir(opened); };
    const std::unique_ptr<DIR, decltype(close)> directory(opendir(canonical.c_str()), close);
    if (directory != nullptr) errno = 0;  // from here on it says why the loop ended
    while (const dirent* entry = directory == nullptr ? nullptr : readdir(directory.get())) {
      if (fs::path path = canonical / entry->d_name; !BackendName(path).empty()) found.push_back(std::move(path));
      errno = 0;
    }
    if (const int failed = errno; failed != 0) {
      searched_.push_back(absl::StrCat(canonical.string(), " (cannot be read: ", std::strerror(failed), remark, ")"));
      return;
    }
    std::sort(found.begin(), found.end());
    searched_.push_back(
        absl::StrCat(canonical.string(), " (", CountOf(static_cast<int64_t>(found.size()), "file"), remark, ")"));
    for (const fs::path& path : found) AddFile(path);
  }

  // An entry of $OCTET_BACKEND_PATH; one warning where it cannot be used.
  void AddFromEnvironment(const std::string& text) {
    constexpr char kFrom[] = ", from $OCTET_BACKEND_PATH";
    const fs::path path(text);
    std::error_code error;
    std::string why;
    if (!path.is_absolute()) {
      why = "is not absolute";
      searched_.push_back(absl::StrCat(text, " (ignored: $OCTET_BACKEND_PATH takes absolute paths)"));
    } else if (fs::is_directory(path, error)) {
      AddFolder(path, kFrom);
    } else if (fs::exists(path, error)) {
      AddFile(path);
      searched_.push_back(absl::StrCat(text, " (a file", kFrom, ")"));
    } else {
      why = "does not exist";
      AddFolder(path, kFrom);
    }
    if (why.empty()) return;
    LogToBackendSink(2, absl::StrCat("OCTET_BACKEND_PATH has '", text, "', which ", why, " and has no effect"));
  }

  void AddRemark(std::string remark) { searched_.push_back(std::move(remark)); }

  const std::vector<fs::path>& files() const { return files_; }
  const std::vector<std::string>& searched() const { return searched_; }

 private:
  void AddFile(const fs::path& path) {
    std::error_code error;
    const fs::path canonical = fs::canonical(path, error);
    if (seen_.insert(error ? path : canonical).second) files_.push_back(path);
  }

  std::vector<fs::path> files_;
  std::vector<std::string> searched_;
  std::set<fs::path> folders_, seen_;
};

// $OCTET_BACKENDS: "cpu,cuda" keeps these only, "-rocm" leaves one out.
class Selection {
 public:
  Selection() {
    const char* text = Environment("OCTET_BACKENDS");
    if (text == nullptr) return;
    for (const std::string& item : std::vector<std::string>(absl::StrSplit(text, ',', absl::SkipWhitespace()))) {
      if (item.starts_with('-')) {
        removed_.insert(std::string(absl::StripAsciiWhitespace(item.substr(1))));
      } else {
        wanted_.insert(item);
      }
    }
  }

  bool Keeps(const std::string& name) const {
    return !removed_.contains(name) && (wanted_.empty() || wanted_.contains(name));
  }

  void WarnOfUnknown(const std::vector<BackendReport>& reports) const {
    const auto warn = [&](const std::string& name, const std::string& sign) {
      const bool found = std::any_of(reports.begin(), reports.end(), [&](const auto& r) { return r.name == name; });
      if (found) return;
      LogToBackendSink(2, absl::StrCat("OCTET_BACKENDS names '", sign, name, "', but no such backend was found"));
    };
    for (const std::string& name : wanted_) warn(name, "");
    for (const std::string& name : removed_) warn(name, "-");
  }

 private:
  std::set<std::string> wanted_, removed_;
};

// Words that only a backend from elsewhere knows are not told from misspelled ones: a warning and no error.
void WarnOfUnknownWords() {
  const char* words = std::getenv("OCTET_VERBOSE");
  for (const std::string& word :
       std::vector<std::string>(absl::StrSplit(words == nullptr ? "" : words, ',', absl::SkipEmpty()))) {
    if (word == "dispatch") continue;
    LogToBackendSink(2, absl::StrCat("OCTET_VERBOSE has the word '", word,
                                     "', which octet does not know; it knows "
                                     "dispatch, the CPU backend's choice of kernels"));
  }
}

std::string DeviceId(const std::string& backend, size_t index) { return absl::StrCat(backend, ":", index); }

}  // namespace

absl::StatusOr<std::unique_ptr<Registry>> Registry::Load(const RegistryOptions& options) {
  WarnOfUnknownWords();
  Search search;
  for (const std::string& path : options.backend_paths) {
    if (absl::Status status = search.AddNamed(path); !status.ok()) return status;
  }
  if (const char* paths = std::getenv("OCTET_BACKEND_PATH"); paths == nullptr) {
    search.AddRemark("$OCTET_BACKEND_PATH (unset)");
  } else if (RaisedPrivileges()) {
    search.AddRemark("$OCTET_BACKEND_PATH (ignored: this program runs with raised privileges)");
  } else {
    for (const std::string& folder : std::vector<std::string>(absl::StrSplit(paths, ':', absl::SkipEmpty()))) {
      search.AddFromEnvironment(folder);
    }
  }
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error) {
    search.AddRemark(absl::StrCat("../lib/octet/backends beside the program (/proc/self/exe: ", error.message(), ")"));
  } else {
    search.AddFolder(program.parent_path().parent_path() / "lib/octet/backends", "");
  }
  search.AddFolder(OCTET_INSTALLED_BACKENDS, "");

  std::unique_ptr<Registry> registry(new Registry);
  registry->searched_ = search.searched();
  const Selection selection;
  const octet_host_v1* host = MakeHostTable(options.pool);
  for (const fs::path& path : search.files()) {
    BackendReport report;
    report.path = path.string();
    report.name = BackendName(path);
    const octet_backend_v1* table = nullptr;
    const auto first = std::find_if(registry->reports_.begin(), registry->reports_.end(), [&](const auto& other) {
      return other.name == report.name && other.state != BackendState::kShadowed;
    });
    if (report.name.empty()) {
      report.name = path.filename().string();
      report.state = BackendState::kRefused;
      report.reason = "a backend's file is named liboctet_backend_NAME.so, with a-z, 0-9 and _ in NAME";
    } else if (first != registry->reports_.end()) {
      report.state = BackendState::kShadowed;
      report.reason = absl::StrCat("shadowed by ", first->path, ", which was found first");
    } else if (!selection.Keeps(report.name)) {
      report.state = BackendState::kDeselected;
      report.reason = absl::StrCat("left out by OCTET_BACKENDS=", std::getenv("OCTET_BACKENDS"));
    } else {
      table = ExamineBackend(host, report);
    }
    registry->reports_.push_back(std::move(report));
    registry->tables_.push_back(table);
  }
  selection.WarnOfUnknown(registry->reports_);
  return registry;
}

absl::StatusOr<std::unique_ptr<Device>> Registry::Open(const std::string& device, const std::string& options) {
  // Everything that could be opened, best first for "auto": GPU, other accelerator, CPU, and of several CPU
  // backends the one with more SIMD lanes; else in the order found.
  struct Ready {
    size_t report, index;
    std::pair<int, int64_t> rank;
  };
  std::vector<Ready> ready;
  std::vector<std::string> not_ready, left_out;  // the latter by the user's own choice
  for (size_t i = 0; i < reports_.size(); ++i) {
    const BackendReport& report = reports_[i];
    if (report.state == BackendState::kShadowed) continue;
    if (report.state != BackendState::kReady) {
      (report.state == BackendState::kDeselected ? left_out : not_ready)
          .push_back(absl::StrCat(report.name, " (", report.reason, ")"));
    }
    for (size_t d = 0; d < report.devices.size() && report.state == BackendState::kReady; ++d) {
      const DeviceInfo::Kind kind = report.devices[d].kind;
      if (kind == DeviceInfo::Kind::kGpu) ready.push_back({i, d, {0, 0}});
      if (kind == DeviceInfo::Kind::kOther) ready.push_back({i, d, {1, 0}});
      if (kind == DeviceInfo::Kind::kCpu) ready.push_back({i, d, {2, -int64_t{report.devices[d].lanes}}});
    }
  }
  std::stable_sort(ready.begin(), ready.end(), [](const Ready& a, const Ready& b) { return a.rank < b.rank; });
  const auto id = [&](const Ready& r) { return DeviceId(reports_[r.report].name, r.index); };
  const auto open = [&](const Ready& r) {
    return Device::Open(tables_[r.report], static_cast<uint32_t>(r.index), id(r), options);
  };
  std::vector<std::string> ids;
  for (const Ready& r : ready) ids.push_back(id(r));
  const std::string have = ids.empty() ? "no device is ready" : absl::StrCat("ready: ", absl::StrJoin(ids, ", "));

  if (device == "auto") {
    if (ready.empty()) {
      not_ready.insert(not_ready.end(), left_out.begin(), left_out.end());
      if (not_ready.empty()) {
        return absl::NotFoundError(
            absl::StrCat("no compute backend was found; searched ", absl::StrJoin(searched_, "; ")));
      }
      return absl::UnavailableError(absl::StrCat("no compute device is ready: ", absl::StrJoin(not_ready, "; ")));
    }
    choice_ =
        absl::StrCat("auto chose ", id(ready[0]), " (", reports_[ready[0].report].devices[ready[0].index].name, ")");
    if (ready.size() > 1) {
      absl::StrAppend(&choice_, " over ", absl::StrJoin(ids.begin() + 1, ids.end(), ", "));
    } else {
      absl::StrAppend(&choice_, ", the only device that is ready");
    }
    if (!not_ready.empty()) absl::StrAppend(&choice_, "; not ready: ", absl::StrJoin(not_ready, "; "));
    return open(ready[0]);
  }

  const size_t colon = device.find(':');
  const std::string name = device.substr(0, colon);
  uint32_t index = 0;
  const std::string number = colon == std::string::npos ? "0" : device.substr(colon + 1);
  const bool digits = std::all_of(number.begin(), number.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (name.empty() || !digits || !absl::SimpleAtoi(number, &index)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", device, "' is no device; write auto, NAME or NAME:NUMBER (", have, ")"));
  }
  if (name == "auto") {
    return absl::InvalidArgumentError(absl::StrCat("'", device,
                                                   "' is no device: auto takes no number, as it picks the "
                                                   "device itself; write auto, NAME or NAME:NUMBER (",
                                                   have, ")"));
  }
  for (const Ready& r : ready) {
    if (reports_[r.report].name == name && r.index == index) return open(r);
  }
  for (const BackendReport& report : reports_) {
    if (report.name != name || report.state == BackendState::kShadowed) continue;
    if (report.state == BackendState::kReady) {
      return absl::NotFoundError(
          absl::StrCat("device ", device, " does not exist: ", name, " has ", report.devices.size(), " (", have, ")"));
    }
    return absl::UnavailableError(absl::StrCat("device ", device, " is not ready: ", report.path, " is ",
                                               BackendStateName(report.state), ": ", report.reason, " (", have, ")"));
  }
  return absl::NotFoundError(absl::StrCat("device ", device, " was asked for, but there is no backend '", name, "' (",
                                          have, "); searched ", absl::StrJoin(searched_, "; ")));
}

}  // namespace octet
