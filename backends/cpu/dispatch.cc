#include "backends/cpu/dispatch.h"

#if defined(OCTET_CPU_X86)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace octet_cpu {

#define OCTET_DECLARE_KERNELS(isa)    \
  namespace isa {                     \
  void FillQuantize(KernelTable*);    \
  void FillAttention(KernelTable*);   \
  void FillLinear(KernelTable*);      \
  void FillPanel(KernelTable*);       \
  void FillElementwise(KernelTable*); \
  void FillQkvAppend(KernelTable*);   \
  }
#if defined(OCTET_CPU_X86)
OCTET_DECLARE_KERNELS(v4)
OCTET_DECLARE_KERNELS(v3)
OCTET_DECLARE_KERNELS(v2)
#define OCTET_DECLARE_INTEGER_KERNELS(isa) \
  namespace isa {                          \
  void FillAttentionWords(KernelTable*);   \
  void FillLinearInt8(KernelTable*);       \
  }
OCTET_DECLARE_INTEGER_KERNELS(vnni)
OCTET_DECLARE_INTEGER_KERNELS(v4)
OCTET_DECLARE_INTEGER_KERNELS(avxvnni)
OCTET_DECLARE_INTEGER_KERNELS(v3)
#undef OCTET_DECLARE_INTEGER_KERNELS
namespace amx {
void FillLinearAmx(KernelTable*);
void FillAttentionAmx(KernelTable*);
}  // namespace amx
#else
OCTET_DECLARE_KERNELS(portable)
#endif
#undef OCTET_DECLARE_KERNELS

namespace {

struct Entry {
  const char* isa;
  const char* target;
  int32_t lanes;
  const char* (*refuse)();        // null: it runs here
  void (*fill[9])(KernelTable*);  // null: nothing further
};

#define OCTET_KERNELS(isa) \
  isa::FillQuantize, isa::FillAttention, isa::FillLinear, isa::FillPanel, isa::FillElementwise, isa::FillQkvAppend
#define OCTET_INTEGER_KERNELS(isa) isa::FillAttentionWords, isa::FillLinearInt8
#if defined(OCTET_CPU_X86)
// clang knows the levels by name from version 18 on.
#if defined(__clang__) && __clang_major__ < 18
bool HasV2() { return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt"); }
bool HasV3() {
  unsigned a = 0, b = 0, c = 0, d = 0, extended = 0;
  constexpr unsigned kMovbeF16c = 1u << 22 | 1u << 29, kLzcnt = 1u << 5;
  return HasV2() && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2") && __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & kMovbeF16c) == kMovbeF16c &&
         __get_cpuid(0x80000001, &a, &b, &extended, &d) != 0 && (extended & kLzcnt) != 0;
}
bool HasV4() {
  return HasV3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#else
bool HasV2() { return __builtin_cpu_supports("x86-64-v2"); }
bool HasV3() { return __builtin_cpu_supports("x86-64-v3"); }
bool HasV4() { return __builtin_cpu_supports("x86-64-v4"); }
#endif

// The system hands the tile registers out to processes that ask, for all of their threads.
bool SystemGivesTiles() {
#if defined(__linux__)
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM of asm/prctl.h
  constexpr int kTileData = 18;               // the state component
  static const bool given = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return given;
#else
  return false;
#endif
}

bool HasVnni() {
  unsigned a = 0, b = 0, c = 0, d = 0;  // leaf 7
  constexpr unsigned kVnni = 1u << 11;
  return HasV4() && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (c & kVnni) != 0;
}

bool HasAvxVnni() {
  unsigned a = 0, b = 0, c = 0, d = 0;  // leaf 7, subleaf 1
  constexpr unsigned kAvxVnni = 1u << 4;
  return HasV3() && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & kAvxVnni) != 0;
}

const char* RefuseAmx() {
  // Leaf 7: AMX-BF16, AMX-TILE and AMX-INT8; its subleaf 1: AVX512-BF16. The compilers' names for them are newer than
  // the oldest.
  unsigned a = 0, b = 0, c = 0, d = 0, bf16 = 0;
  constexpr unsigned kAmx = 1u << 22 | 1u << 24 | 1u << 25, kBf16 = 1u << 5;
  const bool processor = HasVnni() && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kAmx) == kAmx &&
                         __get_cpuid_count(7, 1, &bf16, &b, &c, &d) != 0 && (bf16 & kBf16) != 0;
  if (!processor) return "the processor lacks AMX with BF16 and INT8";
  return SystemGivesTiles() ? nullptr : "the system does not give the tile registers of AMX to this process";
}
const char* RefuseVnni() { return HasVnni() ? nullptr : "the processor or the system lacks AVX-512 VNNI"; }
const char* RefuseV4() { return HasV4() ? nullptr : "the processor or the system lacks AVX-512 F, BW, CD, DQ or VL"; }
const char* RefuseAvxVnni() { return HasAvxVnni() ? nullptr : "the processor or the system lacks AVX-VNNI"; }
const char* RefuseV3() {
  return HasV3() ? nullptr : "the processor or the system lacks AVX2, FMA, F16C, LZCNT, MOVBE or BMI";
}
const char* RefuseV2() { return HasV2() ? nullptr : "the processor lacks SSE4.2"; }
constexpr Entry kEntries[] = {
    {"amx",
     "x86-64-v4+amx",
     16,
     RefuseAmx,
     {OCTET_KERNELS(v4), vnni::FillLinearInt8, amx::FillLinearAmx, amx::FillAttentionAmx}},
    {"vnni", "x86-64-v4+vnni", 16, RefuseVnni, {OCTET_KERNELS(v4), OCTET_INTEGER_KERNELS(vnni)}},
    {"v4", "x86-64-v4", 16, RefuseV4, {OCTET_KERNELS(v4), OCTET_INTEGER_KERNELS(v4)}},
    {"avxvnni", "x86-64-v3+avxvnni", 8, RefuseAvxVnni, {OCTET_KERNELS(v3), OCTET_INTEGER_KERNELS(avxvnni)}},
    {"v3", "x86-64-v3", 8, RefuseV3, {OCTET_KERNELS(v3), OCTET_INTEGER_KERNELS(v3)}},
    {"v2", "x86-64-v2", 4, RefuseV2, {OCTET_KERNELS(v2)}},
};
#else
const char* Never() { return nullptr; }
constexpr Entry kEntries[] = {{"portable", "portable", 4, Never, {OCTET_KERNELS(portable)}}};
#endif
#undef OCTET_KERNELS
#undef OCTET_INTEGER_KERNELS

// oneDNN's types; "onednn" is the first of them that is quick here.
constexpr std::pair<const char*, OneDnn::Type> kOneDnnTypes[] = {
    {"onednn-bf16", OneDnn::Type::kBf16}, {"onednn-f32", OneDnn::Type::kF32}, {"onednn-u8s8", OneDnn::Type::kInt8}};

// Who computes prompts where nobody asks for either: the kernels, but for these targets. Rates of oneDNN 2.6.3 over
// those of the kernels in one run, layers of small models (576 to 4864 columns) at 512 tokens, one thread, Sapphire
// Rapids with ONEDNN_MAX_CPU_ISA at the target:
//   x86-64-v4+amx   bf16 0.8, u8s8 0.5
//   x86-64-v4+vnni  u8s8 1.35 (by layer 0.96 to 1.7), f32 0.97, bf16 0.74: there VDPBF16PS is no quicker than f32; on
//                   processors where it has twice the rate (Zen 4, Zen 5) nothing was measured
//   x86-64-v3       f32 0.9
struct DefaultPrompts {
  std::string_view target;
  OneDnn::Type type;
  const char* reason;
};
constexpr DefaultPrompts kDefaultPrompts[] = {
    {"x86-64-v4+vnni", OneDnn::Type::kInt8, "1.35 times as fast as the kernels' f32"},
};

// Filling runs code that was compiled for the instruction set: only after refuse() had nothing to say.
const KernelTable* TableOf(const Entry& entry) {
  static KernelTable tables[std::size(kEntries)] = {};
  static std::once_flag filled[std::size(kEntries)];
  const auto i = static_cast<size_t>(&entry - kEntries);
  std::call_once(filled[i], [&] {
    tables[i].name = entry.target;
    tables[i].lanes = entry.lanes;
    for (auto* fill : entry.fill) {
      if (fill != nullptr) fill(&tables[i]);
    }
  });
  return &tables[i];
}

// Is "dispatch" among the words of OCTET_VERBOSE?
bool Verbose() {
  const char* variable = std::getenv("OCTET_VERBOSE");
  for (std::string_view words = variable != nullptr ? variable : ""; !words.empty();) {
    const std::string_view word = words.substr(0, words.find(','));
    if (word == "dispatch") return true;
    words.remove_prefix(std::min(words.size(), word.size() + 1));
  }
  return false;
}

// Every open of a device comes here, and a program may open one several times.
void LogOnce(const std::string& line, const octet::HostServices& host) {
  static std::mutex* const mutex = new std::mutex;
  static auto* const logged = new std::set<std::string>;
  const std::lock_guard<std::mutex> lock(*mutex);
  if (logged->insert(line).second) host.Log(1, line);
}

void AddToList(std::string* list, const char* separator, std::string_view item) {
  if (!list->empty()) *list += separator;
  *list += item;
}

}  // namespace

octet::StatusOr<const KernelTable*> ChooseKernels(std::string_view isa, const octet::HostServices& host) {
  const char* variable = std::getenv("OCTET_CPU_ISA");
  const std::string source = isa.empty() ? "OCTET_CPU_ISA" : "device option isa";
  if (isa.empty() && variable != nullptr) isa = variable;
  const bool verbose = Verbose();
  const auto log = [&](const Entry& entry, const std::string& what) {
    if (verbose) LogOnce("cpu: kernels for " + std::string(entry.target) + what, host);
  };
  std::string known, refusals;
  for (const Entry& entry : kEntries) {
    AddToList(&known, ", ", entry.isa);
    if (!isa.empty() && isa != entry.isa) {
      log(entry, " passed over: " + source + " is " + std::string(isa));
      continue;
    }
    const char* reason = entry.refuse();
    if (reason == nullptr) {
      log(entry, " chosen");
      return TableOf(entry);
    }
    AddToList(&refusals, "; ", std::string(entry.target) + ": " + reason);
    log(entry, std::string(" declined: ") + reason);
  }
  if (refusals.empty()) {
    return octet::InvalidArgument(source + " is '" + std::string(isa) + "'; this build knows " + known);
  }
  return octet::Unavailable("cpu: no kernels for this processor: " + refusals);
}

octet::StatusOr<std::shared_ptr<OneDnn>> ChoosePrompts(std::string_view prompts, const KernelTable& kernels,
                                                       const octet::HostServices& host) {
  const char* variable = std::getenv("OCTET_CPU_PROMPTS");
  const std::string source = prompts.empty() ? "OCTET_CPU_PROMPTS" : "device option prompts";
  if (prompts.empty() && variable != nullptr) prompts = variable;
  const bool verbose = Verbose();
  const auto log = [&](const std::string& who, const std::string& what) {
    if (verbose) LogOnce("cpu: prompts by " + who + what, host);
  };
  const std::string own = std::string("kernels for ") + kernels.name;
  if (prompts.empty() || prompts == "own") {
    for (const DefaultPrompts& faster : kDefaultPrompts) {
      if (!prompts.empty() || faster.target != kernels.name) continue;
      auto onednn = OneDnn::Open(faster.type, host.max_workers());
      if (onednn.ok()) {
        log((*onednn)->name(), std::string(" chosen: ") + faster.reason);
        return onednn;
      }
      log("oneDNN", " declined: " + onednn.status().message());
    }
    log(own, " chosen");
    return std::shared_ptr<OneDnn>();
  }
  std::string known = "own, onednn", refusals;
  bool named = prompts == "onednn";
  for (const auto& [name, type] : kOneDnnTypes) {
    AddToList(&known, ", ", name);
    if (prompts != "onednn" && prompts != name) continue;
    named = true;
    auto onednn = OneDnn::Open(type, host.max_workers());
    if (onednn.ok()) {
      log((*onednn)->name(), " chosen: " + source + " is " + std::string(prompts));
      return onednn;
    }
    log(name, " declined: " + onednn.status().message());
    AddToList(&refusals, "; ", std::string(name) + ": " + onednn.status().message());
  }
  if (!named) {
    return octet::InvalidArgument(source + " is '" + std::string(prompts) + "'; this build knows " + known);
  }
  return octet::Unavailable("cpu: " + source + " is " + std::string(prompts) + ", but " + refusals);
}

std::string KernelTargets() {
  std::string targets;
  for (const Entry& entry : kEntries) AddToList(&targets, ",", entry.target);
  return targets;
}

}  // namespace octet_cpu
