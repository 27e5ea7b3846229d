#include "core/cli/file_fault.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "core/base/program.h"

namespace octet {
namespace {

// Everything here runs inside a signal handler: no allocation, no locks, no stdio.

struct sigaction g_previous;
std::atomic<bool> g_answering{false};
char g_line[8192];  // of /proc/self/maps; only the one answering thread uses it

uint64_t Hex(const char*& at) {
  uint64_t value = 0;
  for (;; ++at) {
    const char c = *at;
    if (c >= '0' && c <= '9') {
      value = value * 16 + static_cast<uint64_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      value = value * 16 + static_cast<uint64_t>(c - 'a' + 10);
    } else {
      return value;
    }
  }
}

// The file of a line "begin-end flags offset device inode   /path"; empty where the address lies elsewhere.
std::string_view FileOf(const char* line, uint64_t address) {
  const char* at = line;
  const uint64_t begin = Hex(at);
  if (*at++ != '-') return {};
  const uint64_t end = Hex(at);
  const char* path = std::strchr(at, '/');
  return address >= begin && address < end && path != nullptr ? std::string_view(path) : std::string_view();
}

// The path of the file that is mapped at an address, in g_line; empty where none is.
std::string_view MappedFileAt(uint64_t address) {
  const int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  std::string_view path;
  size_t length = 0;
  for (char c; path.empty() && read(fd, &c, 1) == 1;) {
    if (c != '\n') {
      if (length + 1 < sizeof g_line) g_line[length++] = static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
      continue;
    }
    g_line[length] = '\0';
    length = 0;
    path = FileOf(g_line, address);
  }
  close(fd);
  return path;
}

void OnFault(int, siginfo_t* info, void*) {
  if (g_answering.exchange(true)) {
    for (;;) pause();  // another thread met the same file and is about to end the process
  }
  const std::string_view path =
      info->si_code == BUS_ADRERR ? MappedFileAt(reinterpret_cast<uintptr_t>(info->si_addr)) : std::string_view();
  if (path.empty()) {
    sigaction(SIGBUS, &g_previous, nullptr);  // the instruction runs again, and meets the previous handler
    g_answering.store(false);
    return;
  }
  for (const std::string_view part :
       {std::string_view("octet: "), path,
        std::string_view(" was cut short while octet used it, or its disk could not be read; run again once it is "
                         "whole\n")}) {
    WriteAll(STDERR_FILENO, part);
  }
  _exit(kExitFailed);
}

}  // namespace

void AnswerFileFaults() {
  struct sigaction action {};
  action.sa_sigaction = OnFault;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, &g_previous);
}

}  // namespace octet
