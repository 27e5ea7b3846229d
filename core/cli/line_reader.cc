#include "core/cli/line_reader.h"

#include <fcntl.h>
#include <histedit.h>
#include <langinfo.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/message_text.h"
#include "core/base/program.h"

namespace octet {
namespace {

constexpr int kHistoryLines = 1000;

absl::Status ReadError(int error) {
  return absl::UnknownError(absl::StrCat("stdin cannot be read: ", std::strerror(error)));
}

class PlainReader : public LineReader {
 public:
  ~PlainReader() override { std::free(line_); }
  bool is_terminal() const override { return false; }
  absl::StatusOr<InputLine> Read() override {
    errno = 0;
    const ssize_t size = getline(&line_, &capacity_, stdin);
    if (size < 0) {
      if (std::feof(stdin)) return InputLine{};
      return ReadError(errno);
    }
    std::string_view text(line_, static_cast<size_t>(size));
    if (text.ends_with('\n')) text.remove_suffix(1);
    return InputLine{InputLine::Kind::kText, std::string(text)};
  }

 private:
  char* line_ = nullptr;  // getline's
  size_t capacity_ = 0;
};

// Terminals that know bracketed paste put it between these; others ignore the switch.
constexpr char kPasteOn[] = "\033[?2004h";
constexpr char kPasteOff[] = "\033[?2004l";
constexpr wchar_t kPasteEnd[] = L"\033[201~";

unsigned char InsertNewline(EditLine* editor, int) { return el_winsertstr(editor, L"\n") == 0 ? CC_REFRESH : CC_ERROR; }

// Empty where there is no place for it.
std::string StateFolder() {
  // A relative path there is to be ignored, the specification says.
  if (const char* state = std::getenv("XDG_STATE_HOME"); state != nullptr && *state == '/') return state;
  const char* home = std::getenv("HOME");
  return home != nullptr && *home == '/' ? absl::StrCat(home, "/.local/state") : std::string();
}

absl::Status FileError(const char* what, const std::string& path) {
  return absl::UnknownError(absl::StrCat(what, " ", path, ": ", std::strerror(errno)));
}

// The folder and those above it.
absl::Status MakeFolders(const std::string& folder) {
  for (size_t end = folder.find('/', 1);; end = folder.find('/', end + 1)) {
    const std::string part = folder.substr(0, end);
    if (mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) return FileError("cannot make the folder", part);
    if (end == std::string::npos) return absl::OkStatus();
  }
}

class TerminalReader : public LineReader {
 public:
  explicit TerminalReader(std::string prompt) : prompt_(std::move(prompt)) {}
  ~TerminalReader() override {
    if (editor_ != nullptr) el_end(editor_);
    if (history_ != nullptr) history_end(history_);
  }

  absl::Status Open() {
    std::setlocale(LC_CTYPE, "");
    if (std::strcmp(nl_langinfo(CODESET), "UTF-8") != 0) std::setlocale(LC_CTYPE, "C.UTF-8");
    history_ = history_init();
    editor_ = el_init("octet", stdin, stdout, stderr);
    if (history_ == nullptr || editor_ == nullptr) {
      return absl::UnknownError("the terminal's line editor cannot be started");
    }
    HistEvent event;
    history(history_, &event, H_SETSIZE, kHistoryLines);
    history(history_, &event, H_SETUNIQUE, 1);
    el_set(editor_, EL_CLIENTDATA, this);
    el_set(editor_, EL_PROMPT, &TerminalReader::Prompt);
    el_set(editor_, EL_HIST, history, history_);
    el_set(editor_, EL_EDITOR, "emacs");
    el_set(editor_, EL_SIGNAL, 1);  // restores the terminal's mode before a signal ends or stops the program
    // The wide form keeps these pointers; the narrow one makes copies that nobody frees.
    el_wset(editor_, EL_ADDFN, L"octet-paste", L"insert pasted text", &InsertPaste);
    el_wset(editor_, EL_ADDFN, L"octet-newline", L"insert a newline", &InsertNewline);
    el_set(editor_, EL_BIND, "\033[200~", "octet-paste", nullptr);
    el_set(editor_, EL_BIND, "\033\r", "octet-newline", nullptr);
    el_set(editor_, EL_BIND, "\033\n", "octet-newline", nullptr);
    el_source(editor_, nullptr);  // the user's ~/.editrc; there need not be one
    OpenHistory();
    return absl::OkStatus();
  }

  bool is_terminal() const override { return true; }

  absl::StatusOr<InputLine> Read() override {
    std::fputs(kPasteOn, stdout);
    std::fflush(stdout);
    int size = 0;
    errno = 0;
    const char* line = el_gets(editor_, &size);
    const int error = errno;
    std::fputs(kPasteOff, stdout);
    if (line == nullptr || size <= 0) {
      std::fputs("\n", stdout);
      std::fflush(stdout);
      if (std::exchange(interrupted_, false) || (size < 0 && error == EINTR)) {
        return InputLine{InputLine::Kind::kInterrupted, ""};
      }
      if (size < 0 && error != EIO) return ReadError(error);  // EIO: the terminal is gone
      return InputLine{};
    }
    std::fflush(stdout);
    std::string_view text(line, static_cast<size_t>(size));
    if (text.ends_with('\n')) text.remove_suffix(1);
    InputLine result{InputLine::Kind::kText, std::string(text)};
    if (text.find_first_not_of(" \t\n") != std::string_view::npos) {
      HistEvent event;
      history(history_, &event, H_ENTER, result.text.c_str());
      if (!history_path_.empty()) Warn(SaveHistory());
    }
    return result;
  }

 private:
  static TerminalReader* Self(EditLine* editor) {
    TerminalReader* self = nullptr;
    el_get(editor, EL_CLIENTDATA, &self);
    return self;
  }
  static char* Prompt(EditLine* editor) { return Self(editor)->prompt_.data(); }
  static unsigned char InsertPaste(EditLine* editor, int);

  void OpenHistory() {
    if (std::getenv("OCTET_NO_HISTORY") != nullptr) return;
    const std::string state = StateFolder();
    if (state.empty()) return;
    const std::string folder = absl::StrCat(state, "/octet");
    if (auto status = MakeFolders(folder); !status.ok()) return Warn(status);
    history_path_ = absl::StrCat(folder, "/history");
    struct stat file;
    if (stat(history_path_.c_str(), &file) == 0 && file.st_size == 0) return;
    HistEvent event;
    errno = 0;
    if (history(history_, &event, H_LOAD, history_path_.c_str()) < 0 && errno != ENOENT) {
      Warn(absl::UnknownError(
          absl::StrCat(history_path_, " is no history of this editor or cannot be read; remove it to start anew")));
    }
  }

  // Written beside the file and moved over it: never half a history, never one that others may read.
  absl::Status SaveHistory() {
    std::string path = absl::StrCat(history_path_, ".XXXXXX");
    const int fd = mkstemp(path.data());  // with mode 0600
    if (fd < 0) return FileError("cannot write", path);
    std::FILE* file = fdopen(fd, "w");
    if (file == nullptr) {
      const absl::Status status = FileError("cannot write", path);
      close(fd);
      unlink(path.c_str());
      return status;
    }
    HistEvent event;
    const bool saved = history(history_, &event, H_SAVE_FP, file) >= 0;
    const bool written = std::fclose(file) == 0 && saved;
    if (!written || std::rename(path.c_str(), history_path_.c_str()) != 0) {
      const absl::Status status = FileError("cannot write", history_path_);
      unlink(path.c_str());
      return status;
    }
    return absl::OkStatus();
  }

  // Once: the history goes on in memory.
  void Warn(const absl::Status& status) {
    if (status.ok()) return;
    history_path_.clear();
    PrintToStderr(absl::StrCat("octet: warning: what you type is not kept for the next time: ",
                               Printable(std::string(status.message())), "\n"));
  }

  std::string prompt_;
  std::string history_path_;  // empty: not kept
  bool interrupted_ = false;  // inside a paste
  History* history_ = nullptr;
  EditLine* editor_ = nullptr;
};

// A paste becomes part of the line, with its newlines, instead of a message per line.
unsigned char TerminalReader::InsertPaste(EditLine* editor, int) {
  const std::wstring_view end = kPasteEnd;
  std::wstring text;
  wchar_t c;
  while (!text.ends_with(end)) {
    errno = 0;
    if (el_wgetc(editor, &c) != 1) {
      Self(editor)->interrupted_ = errno == EINTR;
      return CC_EOF;
    }
    // Carriage return is what terminals send for a newline.
    const bool second_half = c == L'\n' && text.ends_with(L'\r');
    if (!second_half) text += c;
  }
  text.resize(text.size() - end.size());
  std::wstring plain;
  for (wchar_t w : text) {
    if (w == L'\r') w = L'\n';
    if (w >= 0x20 ? w != 0x7f : w == L'\n' || w == L'\t') plain += w;
  }
  while (plain.ends_with(L'\n')) plain.pop_back();
  if (plain.empty()) return CC_NORM;
  return el_winsertstr(editor, plain.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LineReader>> LineReader::Create(std::string prompt) {
  if (isatty(STDIN_FILENO) != 1 || isatty(STDOUT_FILENO) != 1) return std::make_unique<PlainReader>();
  auto reader = std::make_unique<TerminalReader>(std::move(prompt));
  if (auto status = reader->Open(); !status.ok()) return status;
  return reader;
}

}  // namespace octet
