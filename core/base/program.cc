#include "core/base/program.h"

#include <fcntl.h>

#include <cstdio>
#include <exception>
#include <new>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "core/base/message_text.h"

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

int Finish(const std::string& name, const absl::Status& status) {
  const auto message = status.message();
  PrintToStderr(absl::StrCat(name, ": ", Printable({message.data(), message.size()}), "\n"));
  return ExitCodeOf(status);
}

int RunBody(const std::string& name, const std::function<absl::StatusOr<int>()>& body) {
  absl::StatusOr<int> code;
  try {
    code = body();
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::system_error& error) {  // threads that cannot be started
    code = absl::UnknownError(absl::StrCat("the system refused: ", error.what()));
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
  try {
    return RunBody(name, body);
  } catch (const std::bad_alloc&) {  // told without a further allocation
    PrintToStderr(name);
    PrintToStderr(": the machine, or the limit that was set for this process, has too little memory for this\n");
    return kExitFailed;
  }
}

void Print(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

void PrintToStderr(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); }

}  // namespace octet
