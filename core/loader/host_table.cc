#include "core/loader/host_table.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/base/message_text.h"

namespace octet {
namespace {

// Never destroyed: a backend's thread may log while the process ends.
struct Sink {
  std::mutex mutex;
  LogSink function;
};
Sink& TheSink() {
  static Sink* const sink = new Sink;
  return *sink;
}

bool Verbose() {
  const char* words = std::getenv("OCTET_VERBOSE");
  return words != nullptr && *words != '\0';
}

void Log(void*, int32_t level, const char* text, size_t len) noexcept {
  try {
    LogToBackendSink(level, {text, len});
  } catch (...) {
    std::fputs("octet: a backend's message was lost, because writing it failed\n", stderr);
  }
}

void Loop(void* ctx, int64_t n, void (*body)(void*, uint32_t, int64_t, int64_t), void* arg) {
  static_cast<ThreadPool*>(ctx)->ParallelFor(n, body, arg);
}

}  // namespace

void SetBackendLogSink(LogSink sink) {
  std::lock_guard<std::mutex> lock(TheSink().mutex);
  TheSink().function = std::move(sink);
}

void LogToBackendSink(int level, std::string_view text) {
  std::lock_guard<std::mutex> lock(TheSink().mutex);
  if (TheSink().function) {
    TheSink().function(level, text);
  } else if (level >= 2 || Verbose()) {
    std::fprintf(stderr, "octet: %s%s\n", level == 2 ? "warning: " : "", Printable(text).c_str());
  }
}

const octet_host_v1* MakeHostTable(ThreadPool* pool) {
  static std::mutex* const mutex = new std::mutex;
  static auto* const tables = new std::vector<std::unique_ptr<octet_host_v1>>;
  std::lock_guard<std::mutex> lock(*mutex);
  octet_host_v1& table = *tables->emplace_back(std::make_unique<octet_host_v1>());
  table.struct_size = sizeof table;
  table.abi_minor = OCTET_ABI_MINOR;
  table.ctx = pool;
  table.log = Log;
  table.parallel_for = pool != nullptr ? Loop : nullptr;
  table.max_workers = pool != nullptr ? static_cast<uint32_t>(pool->threads()) : 1;
  return &table;
}

}  // namespace octet
