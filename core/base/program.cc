#include "core/base/program.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <new>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "core/base/message_text.h"
#include "fmt/format.h"
#include "octet/abi.h"

namespace octet {
namespace {

// The wrong way round, so that reading and writing fail as on a closed stream.
void HoldStandardStreams() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (fcntl(fd, F_GETFD) < 0) open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
  }
}

int ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitDone;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kOutOfRange:
      return kExitWrong;
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kResourceExhausted:
      return kExitUnsupported;
    default:
      return kExitFailed;
  }
}

// Sees that this thread has the stack that backends may ask for (octet/abi.h, A11), and takes it, as a stack that
// cannot grow later ends the program without a word. The stacks of threads have the size that the limit says.
absl::Status TakeStack() {
  constexpr size_t kBytes = 2 * OCTET_MIN_STACK_BYTES;  // half of it for our own
  rlimit limit{};
  if (getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < kBytes) {
    return absl::ResourceExhaustedError(
        fmt::format("the stack limit is {} KiB and {} KiB are needed; raise it with ulimit -s 8192",
                    limit.rlim_cur / 1024, kBytes / 1024));
  }
  void* room = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) throw std::bad_alloc();
  munmap(room, kBytes);
  auto* stack = static_cast<volatile char*>(__builtin_alloca(kBytes - kBytes / 8));
  for (size_t at = kBytes - kBytes / 8; at >= 4096; at -= 4096) stack[at - 1] = 0;
  return absl::OkStatus();
}

int Finish(const std::string& name, const absl::Status& status) {
  const auto message = status.message();
  PrintSentence(name, {message.data(), message.size()});
  return ExitCodeOf(status);
}

int RunBody(const std::string& name, const std::function<absl::StatusOr<int>()>& body) {
  absl::StatusOr<int> code;
  try {
    code = body();
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::system_error& error) {  // threads that cannot be started
    code = absl::UnknownError(absl::StrCat("the system refused: ", error.what(), "; --threads asks for fewer"));
  } catch (const std::exception& error) {
    code = absl::InternalError(absl::StrCat(name, " has failed, which is a bug of its own: ", error.what()));
  }
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (code.ok() && !written) code = absl::UnknownError("the output could not be written to stdout in full");
  return code.ok() ? *code : Finish(name, code.status());
}

}  // namespace

int RunProgram(const std::string& name, const std::function<absl::StatusOr<int>()>& body) {
  HoldStandardStreams();
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of the write
  try {
    return RunBody(name, [&body]() -> absl::StatusOr<int> {
      if (const absl::Status stack = TakeStack(); !stack.ok()) return stack;
      return body();
    });
  } catch (const std::bad_alloc&) {  // told without a further allocation
    PrintToStderr(name);
    PrintToStderr(": the machine, or the limit that was set for this process, has too little memory for this\n");
    return kExitFailed;
  }
}

void Print(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

void PrintToStderr(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); }

void PrintSentence(std::string_view name, std::string_view sentence) {
  PrintToStderr(fmt::format("{}: {}\n", name, Printable(sentence)));
}

bool WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno != EINTR) return false;
    if (written > 0) text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace octet
