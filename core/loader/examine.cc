#include "core/loader/examine.h"

#include <algorithm>
#include <new>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/mapped_file.h"
#include "core/base/message_text.h"
#include "core/loader/elf_preflight.h"
#include "core/loader/open_library.h"
#include "core/loader/table_check.h"
#include "octet/convert.h"

namespace octet {
namespace {

constexpr uint32_t kMostDevices = 1024;

// "address" of "compiler=gcc-12.2;sanitizer=address;targets=x86-64"; "none" where it does not say.
std::string SanitizerOf(std::string_view build) {
  constexpr std::string_view kKey = "sanitizer=";
  const size_t at = build.find(kKey);
  if (at == std::string_view::npos) return "none";
  build.remove_prefix(at + kKey.size());
  return std::string(build.substr(0, build.find(';')));
}

std::string SanitizerSentence(const std::string& theirs) {
  const auto named = [](const std::string& name) {
    return name == "none" ? std::string("no sanitizer") : absl::StrCat("the ", name, " sanitizer");
  };
  return absl::StrCat("built with ", named(theirs), "; this program has ", named(convert::BuildSanitizer()),
                      ": both must be built alike");
}

// What can be told without running any of its code. Empty: nothing speaks against opening it.
std::string RefuseUnseen(const std::string& path, BackendReport& report) {
  const absl::StatusOr<MappedFile> file = MappedFile::Open(path);
  if (!file.ok()) return std::string(file.status().message());
  const absl::StatusOr<ElfReport> elf = InspectElf(file->bytes());
  if (!elf.ok()) return std::string(elf.status().message());
  if (elf->abi_majors.empty()) {
    return absl::StrCat("it does not export octet_backend_query_v", OCTET_ABI_MAJOR, ", so it is no octet backend");
  }
  const std::vector<uint32_t>& majors = elf->abi_majors;
  if (std::find(majors.begin(), majors.end(), OCTET_ABI_MAJOR) == majors.end()) {
    report.abi = absl::StrJoin(majors, ", ");
    return absl::StrCat("built for backend ABI ", report.abi, "; this program offers ABI ", OCTET_ABI_MAJOR);
  }
  // Opening it in a program without the run time of the sanitizer would end the process.
  if (!elf->sanitizer.empty() && elf->sanitizer != convert::BuildSanitizer()) return SanitizerSentence(elf->sanitizer);
  return "";
}

// Runs a call into a backend; false where it threw, which abi.h forbids (A8).
template <typename Call>
bool Returns(Call&& call) {
  try {
    call();
    return true;
  } catch (const std::bad_alloc&) {
    throw;  // may be this program's own
  } catch (...) {
    return false;
  }
}

std::string Threw(const char* function) {
  return absl::StrCat("it refuses to start: its ", function,
                      " let a C++ exception out, which the backend ABI forbids (A8)");
}

// A backend's text in one line of a table.
std::string Line(std::string_view text) { return Printable(text.substr(0, 1000)); }

}  // namespace

const char* BackendStateName(BackendState state) {
  switch (state) {
    case BackendState::kReady:
      return "ready";
    case BackendState::kUnavailable:
      return "unavailable";
    case BackendState::kNotLoaded:
      return "not loaded";
    case BackendState::kRefused:
      return "refused";
    case BackendState::kShadowed:
      return "shadowed";
    case BackendState::kDeselected:
      return "deselected";
  }
  return "?";
}

const octet_backend_v1* ExamineBackend(const octet_host_v1* host, BackendReport& report) {
  const auto end = [&](BackendState state, const std::string& reason) {
    report.state = state;
    report.reason = Line(reason);
    return nullptr;
  };
  if (const std::string reason = RefuseUnseen(report.path, report); !reason.empty()) {
    return end(BackendState::kRefused, reason);
  }
  const absl::StatusOr<octet_backend_query_v1_fn*> query = OpenLibrary(report.path);
  if (!query.ok()) return end(BackendState::kNotLoaded, std::string(query.status().message()));

  octet_error error = convert::Sized<octet_error>();
  const octet_backend_v1* table = nullptr;
  if (!Returns([&] { table = (*query)(host, &error); })) return end(BackendState::kRefused, Threw("query"));
  if (table == nullptr) {
    const std::string text = convert::ReadText(error.message);
    return end(BackendState::kRefused,
               text.empty() ? "it refuses to start and gives no reason" : absl::StrCat("it refuses to start: ", text));
  }
  const absl::Status status = CheckTable(*table);
  if (table->struct_size >= offsetof(octet_backend_v1, name)) report.abi = AbiText(*table);
  if (!status.ok()) return end(BackendState::kRefused, std::string(status.message()));
  report.vendor = Line(table->vendor);
  report.version = Line(table->version);
  report.build = Line(table->build);
  if (report.name != table->name) {
    return end(BackendState::kRefused, absl::StrCat("it calls itself '", Line(table->name).substr(0, 80),
                                                    "', but its file is named for '", report.name, "'"));
  }
  if (const std::string theirs = SanitizerOf(report.build); theirs != convert::BuildSanitizer()) {
    return end(BackendState::kRefused, SanitizerSentence(theirs));
  }

  uint32_t count = 0;
  error = convert::Sized<octet_error>();
  octet_code code = OCTET_OK;
  if (!Returns([&] { code = table->device->count(&count, &error); })) {
    return end(BackendState::kRefused, Threw("device count"));
  }
  if (code != OCTET_OK) {
    end(BackendState::kUnavailable, convert::ReadStatus(code, error).message());
    return table;
  }
  if (count > kMostDevices) {
    return end(BackendState::kRefused, absl::StrCat("it counts ", count, " devices; ", kMostDevices, " are possible"));
  }
  for (uint32_t i = 0; i < count; ++i) {
    absl::StatusOr<DeviceInfo> info = absl::InternalError("");
    if (!Returns([&] { info = DescribeDevice(*table, i); })) {
      report.devices.clear();
      return end(BackendState::kRefused, Threw("device description"));
    }
    if (!info.ok()) {
      report.devices.clear();
      end(BackendState::kUnavailable, std::string(info.status().message()));
      return table;
    }
    info->name = Line(info->name);
    info->arch = Line(info->arch);
    report.devices.push_back(*std::move(info));
  }
  if (count == 0) {
    end(BackendState::kUnavailable, "it found no device on this machine");
  } else {
    report.state = BackendState::kReady;
  }
  return table;
}

}  // namespace octet
