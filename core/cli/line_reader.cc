#include "core/cli/line_reader.h"

#include <fcntl.h>
#include <histedit.h>
#include <langinfo.h>
#include <poll.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cwchar>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/program.h"
#include "core/cli/history_file.h"
#include "core/cli/prompt_signals.h"

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
    return InputLine{InputLine::Kind::kText, std::string(text), {}};
  }

 private:
  char* line_ = nullptr;  // getline's
  size_t capacity_ = 0;
};

// Terminals that know bracketed paste put it between these; others ignore the switch.
constexpr char kPasteOn[] = "\033[?2004h";
constexpr char kPasteOff[] = "\033[?2004l";
constexpr wchar_t kPasteEnd[] = L"\033[201~";

// What mbrtowc says.
constexpr size_t kNoCharacter = static_cast<size_t>(-1);
constexpr size_t kUnfinished = static_cast<size_t>(-2);

unsigned char InsertNewline(EditLine* editor, int) { return el_winsertstr(editor, L"\n") == 0 ? CC_REFRESH : CC_ERROR; }

// The user's settings of the editor, as el_source looks for them; it would wait for a pipe.
bool EditrcIsAFile() {
  const char* path = std::getenv("EDITRC");
  const char* home = std::getenv("HOME");
  if (path == nullptr && home == nullptr) return false;
  struct stat file = {};
  return stat(path != nullptr ? path : absl::StrCat(home, "/.editrc").c_str(), &file) == 0 && S_ISREG(file.st_mode);
}

class TerminalReader : public LineReader {
 public:
  explicit TerminalReader(std::string prompt) : prompt_(std::move(prompt)) {}
  ~TerminalReader() override {
    if (editor_ != nullptr) {
      // With editing off el_end leaves the terminal alone: it would throw away what is typed ahead.
      el_reset(editor_);
      el_set(editor_, EL_EDITMODE, 0);
      el_end(editor_);
      tcsetattr(STDIN_FILENO, TCSADRAIN, &found_);
    }
    if (keys_ != STDIN_FILENO) close(keys_);
    if (history_ != nullptr) history_end(history_);
  }

  absl::Status Open() {
    if (auto status = PromptSignals::Open(); !status.ok()) return status;
    tcgetattr(STDIN_FILENO, &found_);
    // Opened anew, so that not waiting is this reader's alone: Ctrl-C may take away a key between poll and read.
    keys_ = open("/proc/self/fd/0", O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (keys_ < 0) keys_ = STDIN_FILENO;
    std::setlocale(LC_CTYPE, "");
    if (std::strcmp(nl_langinfo(CODESET), "UTF-8") != 0) std::setlocale(LC_CTYPE, "C.UTF-8");
    history_ = history_init();
    output_.reset(fopencookie(this, "w", {.read = nullptr, .write = &WriteEditor, .seek = nullptr, .close = nullptr}));
    if (output_ != nullptr) {
      editor_ = el_init_fd("octet", stdin, output_.get(), stderr, STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO);
    }
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
    el_set(editor_, EL_GETCFN, &TerminalReader::GetKey);
    // The wide form keeps these pointers; the narrow one makes copies that nobody frees.
    el_wset(editor_, EL_ADDFN, L"octet-paste", L"insert pasted text", &InsertPaste);
    el_wset(editor_, EL_ADDFN, L"octet-newline", L"insert a newline", &InsertNewline);
    el_set(editor_, EL_BIND, "\033[200~", "octet-paste", nullptr);
    el_set(editor_, EL_BIND, "\033\r", "octet-newline", nullptr);
    el_set(editor_, EL_BIND, "\033\n", "octet-newline", nullptr);
    if (EditrcIsAFile()) el_source(editor_, nullptr);
    Warn(file_.Open(history_, kHistoryLines));
    return absl::OkStatus();
  }

  bool is_terminal() const override { return true; }

  absl::StatusOr<InputLine> Read() override {
    int size = 0;
    left_out_ = {};
    interrupted_ = changed_ = false;
    signals_.emplace();
    editing_ = true;
    el_resize(editor_);  // nobody looked while an answer was shown
    Write(kPasteOn);
    errno = 0;
    const char* line = el_gets(editor_, &size);
    const int error = errno;
    editing_ = false;
    while (const int signal = signals_->Take()) Handle(signal);
    Write(kPasteOff);
    signals_.reset();
    if (interrupted_ || line == nullptr || size <= 0) {
      std::fputs("\n", stdout);
      std::fflush(stdout);
      if (interrupted_) return InputLine{InputLine::Kind::kInterrupted, "", {}};
      if (size < 0 && error != EIO) return ReadError(error);  // EIO: the terminal is gone
      return InputLine{};
    }
    std::string_view text(line, static_cast<size_t>(size));
    if (text.ends_with('\n')) text.remove_suffix(1);
    InputLine result{InputLine::Kind::kText, std::string(text), left_out_};
    if (text.find_first_not_of(" \t\n") != std::string_view::npos) {
      HistEvent event;
      // 0: the same as the last one.
      if (history(history_, &event, H_ENTER, result.text.c_str()) > 0 && keep_) Warn(file_.Append(result.text));
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
  static int GetKey(EditLine* editor, wchar_t* key) { return Self(editor)->ReadKey(key); }
  int ReadKey(wchar_t* key);
  static ssize_t WriteEditor(void* self, const char* text, size_t size) {
    return static_cast<TerminalReader*>(self)->Write({text, size}) ? static_cast<ssize_t>(size) : 0;
  }
  bool Write(std::string_view text);
  void Handle(int signal);

  // Once: the history goes on in memory.
  void Warn(const absl::Status& status) {
    if (status.ok()) return;
    keep_ = false;
    PrintSentence("octet", absl::StrCat("warning: what you type is not kept for the next time: ", status.message()));
  }

  std::string prompt_;
  HistoryFile file_;
  bool keep_ = true;
  InputLine::LeftOut left_out_;
  struct termios found_ = {};             // the terminal's modes before octet
  int keys_ = STDIN_FILENO;               // the terminal, to read from
  std::optional<PromptSignals> signals_;  // while a line is read
  bool editing_ = false;                  // the terminal is the editor's
  bool interrupted_ = false;              // this line
  bool changed_ = false;                  // the terminal: what it shows has to be drawn again
  History* history_ = nullptr;
  std::unique_ptr<std::FILE, decltype(&std::fclose)> output_{nullptr, &std::fclose};
  EditLine* editor_ = nullptr;
};

// A key is a character, whose bytes may come one by one. Bytes that are no UTF-8 are counted and passed over.
int TerminalReader::ReadKey(wchar_t* key) {
  std::mbstate_t state = {};
  int64_t unfinished = 0;  // bytes of a character
  for (;;) {
    if (interrupted_) break;
    if (std::exchange(changed_, false)) {
      el_resize(editor_);
      el_set(editor_, EL_REFRESH);
    }
    if (const int signal = signals_->Wait(keys_, POLLIN)) {
      Handle(signal);
      continue;
    }
    char byte = 0;
    const ssize_t count = read(keys_, &byte, 1);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count != 1) return static_cast<int>(count);
    size_t bytes = std::mbrtowc(key, &byte, 1, &state);
    if (bytes == kNoCharacter && unfinished > 0) {  // what came before is none; this byte may be the start of one
      left_out_.bad_bytes += std::exchange(unfinished, 0);
      state = {};
      bytes = std::mbrtowc(key, &byte, 1, &state);
    }
    if (bytes == kNoCharacter) {
      ++left_out_.bad_bytes;
      state = {};
      continue;
    }
    if (bytes != kUnfinished) return 1;
    ++unfinished;
  }
  errno = EINTR;
  return -1;
}

// The editor's own way to the terminal: stdout would keep the mark of a write that Ctrl-C cut short while Ctrl-S held
// the terminal, and a held terminal must not hold a signal.
bool TerminalReader::Write(std::string_view text) {
  constexpr size_t kPiece = 256;  // little enough for what a ready terminal has room for
  while (!text.empty()) {
    if (signals_.has_value()) {
      if (const int signal = signals_->Wait(STDOUT_FILENO, POLLOUT)) {
        Handle(signal);
        continue;
      }
    }
    const std::string_view piece = text.substr(0, kPiece);
    if (!WriteAll(STDOUT_FILENO, piece)) return false;
    text.remove_prefix(piece.size());
  }
  return true;
}

// SIGTERM, SIGHUP, SIGQUIT and SIGTSTP find the terminal as it was before octet, and come back from SIGTSTP only.
void TerminalReader::Handle(int signal) {
  if (signal == SIGINT) {
    interrupted_ = true;
    return;
  }
  changed_ = true;
  if (signal == SIGWINCH) return;
  // A terminal that Ctrl-S holds must not hold the end.
  const auto switch_paste = [](const char* text) {
    struct pollfd terminal = {STDOUT_FILENO, POLLOUT, 0};
    if (poll(&terminal, 1, 0) == 1) WriteAll(STDOUT_FILENO, text);
  };
  // SIGCONT alone: whoever stopped the program may have changed the modes, which the editor still thinks are its own.
  el_set(editor_, EL_PREP_TERM, 0);
  if (signal != SIGCONT) {
    switch_paste(kPasteOff);
    tcsetattr(STDIN_FILENO, TCSANOW, &found_);
    signals_->Raise(signal);
    // What came while the program was stopped goes first: a terminal that is not its own any more would stop it again.
    while (const int next = signals_->Take()) {
      if (next == SIGINT) interrupted_ = true;
      if (next == SIGTERM || next == SIGHUP || next == SIGQUIT) signals_->Raise(next);
    }
  }
  if (!editing_) return;
  el_set(editor_, EL_PREP_TERM, 1);
  switch_paste(kPasteOn);
}

// A paste becomes part of the line, with its newlines, instead of a message per line.
unsigned char TerminalReader::InsertPaste(EditLine* editor, int) {
  const std::wstring_view end = kPasteEnd;
  std::wstring text;
  wchar_t c;
  while (!text.ends_with(end)) {
    if (el_wgetc(editor, &c) != 1) return CC_EOF;
    // Carriage return is what terminals send for a newline.
    const bool second_half = c == L'\n' && text.ends_with(L'\r');
    if (!second_half) text += c;
  }
  text.resize(text.size() - end.size());
  std::wstring plain;
  for (wchar_t w : text) {
    if (w == L'\r') w = L'\n';
    if (w >= 0x20 ? w != 0x7f : w == L'\n' || w == L'\t') {
      plain += w;
    } else {
      ++Self(editor)->left_out_.pasted_controls;
    }
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
