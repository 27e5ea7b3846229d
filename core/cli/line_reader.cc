#include "core/cli/line_reader.h"

#include <histedit.h>
#include <langinfo.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/program.h"
#include "core/cli/history_file.h"

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
    return InputLine{InputLine::Kind::kText, std::string(text), 0};
  }

 private:
  char* line_ = nullptr;  // getline's
  size_t capacity_ = 0;
};

// Terminals that know bracketed paste put it between these; others ignore the switch.
constexpr char kPasteOn[] = "\033[?2004h";
constexpr char kPasteOff[] = "\033[?2004l";
constexpr wchar_t kPasteEnd[] = L"\033[201~";

// The editor's own stream: stdout would keep the mark of a write that Ctrl-C cut short while Ctrl-S held the terminal.
ssize_t WriteEditor(void*, const char* text, size_t size) {
  return WriteAll(STDOUT_FILENO, {text, size}) ? static_cast<ssize_t>(size) : 0;
}

unsigned char InsertNewline(EditLine* editor, int) { return el_winsertstr(editor, L"\n") == 0 ? CC_REFRESH : CC_ERROR; }

// Bracketed paste is on while a line is read, and off also when a signal ends or stops the program meanwhile. libedit
// has restored the terminal's mode by then: it calls the handlers that it found, these. It takes its own away with the
// first signal; that a second SIGINT ends the read, too, is seen to here.
class BracketedPaste {
 public:
  BracketedPaste() {
    for (size_t i = 0; i < kSignals.size(); ++i) {
      struct sigaction action = {};
      action.sa_handler = &OnSignal;
      action.sa_flags = SA_RESTART;
      sigemptyset(&action.sa_mask);
      sigaction(kSignals[i], &action, &before_[i]);
      // Who is not to be ended by a signal, as under nohup, stays so.
      if (before_[i].sa_handler == SIG_IGN) sigaction(kSignals[i], &before_[i], nullptr);
    }
    struct sigaction interrupt;
    sigaction(SIGINT, nullptr, &interrupt_);
    interrupt = interrupt_;
    interrupt.sa_flags &= ~SA_RESTART;
    sigaction(SIGINT, &interrupt, nullptr);
    WriteAll(STDOUT_FILENO, kPasteOn);
  }
  ~BracketedPaste() {
    WriteAll(STDOUT_FILENO, kPasteOff);
    for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
    sigaction(SIGINT, &interrupt_, nullptr);
  }
  BracketedPaste(const BracketedPaste&) = delete;
  BracketedPaste& operator=(const BracketedPaste&) = delete;

 private:
  static constexpr std::array<int, 4> kSignals = {SIGTERM, SIGHUP, SIGQUIT, SIGTSTP};

  // Does what the signal does by default. Of these only SIGTSTP comes back, when the program goes on.
  static void OnSignal(int signal) {
    const int error = errno;
    // A terminal that Ctrl-S holds would hold the end as well.
    struct pollfd terminal = {STDOUT_FILENO, POLLOUT, 0};
    if (poll(&terminal, 1, 0) == 1) WriteAll(STDOUT_FILENO, kPasteOff);
    struct sigaction action = {}, ours;
    action.sa_handler = SIG_DFL;
    sigemptyset(&action.sa_mask);
    sigaction(signal, &action, &ours);
    raise(signal);
    sigset_t only, before;
    sigemptyset(&only);
    sigaddset(&only, signal);
    pthread_sigmask(SIG_UNBLOCK, &only, &before);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    sigaction(signal, &ours, nullptr);
    WriteAll(STDOUT_FILENO, kPasteOn);
    errno = error;
  }

  std::array<struct sigaction, kSignals.size()> before_;
  struct sigaction interrupt_;
};

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
    output_.reset(
        fopencookie(nullptr, "w", {.read = nullptr, .write = &WriteEditor, .seek = nullptr, .close = nullptr}));
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
    el_set(editor_, EL_SIGNAL, 1);  // restores the terminal's mode before a signal ends or stops the program
    // The wide form keeps these pointers; the narrow one makes copies that nobody frees.
    el_wset(editor_, EL_ADDFN, L"octet-paste", L"insert pasted text", &InsertPaste);
    el_wset(editor_, EL_ADDFN, L"octet-newline", L"insert a newline", &InsertNewline);
    el_set(editor_, EL_BIND, "\033[200~", "octet-paste", nullptr);
    el_set(editor_, EL_BIND, "\033\r", "octet-newline", nullptr);
    el_set(editor_, EL_BIND, "\033\n", "octet-newline", nullptr);
    el_source(editor_, nullptr);  // the user's ~/.editrc; there need not be one
    Warn(file_.Open(history_, kHistoryLines));
    return absl::OkStatus();
  }

  bool is_terminal() const override { return true; }

  absl::StatusOr<InputLine> Read() override {
    int size = 0;
    left_out_ = 0;
    const char* line = nullptr;
    int error = 0;
    {
      const BracketedPaste paste;
      errno = 0;
      line = el_gets(editor_, &size);
      error = errno;
    }
    if (line == nullptr || size <= 0) {
      std::fputs("\n", stdout);
      std::fflush(stdout);
      if (std::exchange(interrupted_, false) || (size < 0 && error == EINTR)) {
        return InputLine{InputLine::Kind::kInterrupted, "", 0};
      }
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

  // Once: the history goes on in memory.
  void Warn(const absl::Status& status) {
    if (status.ok()) return;
    keep_ = false;
    PrintSentence("octet", absl::StrCat("warning: what you type is not kept for the next time: ", status.message()));
  }

  std::string prompt_;
  HistoryFile file_;
  bool keep_ = true;
  bool interrupted_ = false;  // inside a paste
  int64_t left_out_ = 0;      // of this line's pastes
  History* history_ = nullptr;
  std::unique_ptr<std::FILE, decltype(&std::fclose)> output_{nullptr, &std::fclose};
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
    if (w >= 0x20 ? w != 0x7f : w == L'\n' || w == L'\t') {
      plain += w;
    } else {
      ++Self(editor)->left_out_;
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
