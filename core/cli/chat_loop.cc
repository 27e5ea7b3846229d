#include "core/cli/chat_loop.h"

#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "core/base/message_text.h"
#include "core/base/program.h"
#include "core/cli/interrupt.h"
#include "core/cli/line_reader.h"
#include "core/cli/progress.h"
#include "fmt/format.h"

namespace octet {
namespace {

constexpr char kHelp[] =
    "/reset   starts a new conversation (a system message stays)\n"
    "/exit    ends the program, as Ctrl-D does\n"
    "/help    prints this\n"
    "Ctrl-C stops an answer, or empties the line. A line that starts with a space is always a message.\n"
    "On a terminal Alt-Enter puts a newline into the message, and pasted text stays one message.\n";
constexpr char kToolHelp[] = "/tool RESULT   gives the model what a tool that it called returned\n";

struct Totals {
  int64_t answers = 0, not_asked = 0, prompt_tokens = 0, reused_tokens = 0, answer_tokens = 0, decode_steps = 0;
  double decode_seconds = 0;
};

// Of the status: this one message could not be asked, and the next one may be.
bool OnlyThisMessage(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsUnimplemented(status) || absl::IsResourceExhausted(status);
}

class Loop {
 public:
  Loop(ChatSession& session, bool has_tools, const GenerateOptions& options)
      : session_(session), has_tools_(has_tools), options_(options) {}

  absl::Status Run() {
    auto reader = LineReader::Create("> ");
    if (!reader.ok()) return reader.status();
    const bool terminal = (*reader)->is_terminal();
    std::optional<IgnoreInterrupts> at_prompt;
    if (terminal) {
      at_prompt.emplace();
      Note("/help lists the commands, /exit or Ctrl-D ends");
    }
    absl::Status status;
    while (status.ok() && !done_) {
      auto line = (*reader)->Read();
      if (!line.ok()) return line.status();
      if (line->kind == InputLine::Kind::kEnd) break;
      const auto [pasted_controls, bad_bytes] = line->left_out;
      if (pasted_controls > 0) Note(absl::StrCat(CountOf(pasted_controls, "pasted control character"), " left out"));
      if (bad_bytes > 0)
        Note(absl::StrCat(CountOf(bad_bytes, "byte"), " that ", bad_bytes == 1 ? "is" : "are", " not UTF-8 left out"));
      if (line->kind == InputLine::Kind::kText) status = Take(line->text);
    }
    if (totals_.answers > 0) PrintTotals();
    if (status.ok() && !terminal && totals_.not_asked > 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(CountOf(totals_.not_asked, "line"), " could not be used; the sentences above say why"));
    }
    return status;
  }

 private:
  absl::Status Take(const std::string& line) {
    constexpr char kBlanks[] = " \t\r\n";
    const size_t last = line.find_last_not_of(kBlanks);
    if (last == std::string::npos) return absl::OkStatus();
    if (!line.starts_with('/')) return Ask("user", line);
    const std::string text = line.substr(0, last + 1);
    if (text == "/exit") {
      done_ = true;
    } else if (text == "/reset") {
      session_.Reset();
      Note("this is a new conversation");
    } else if (text == "/help") {
      PrintToStderr(absl::StrCat(kHelp, has_tools_ ? kToolHelp : ""));
    } else if (has_tools_ && text.starts_with("/tool ")) {
      if (!session_.answered()) {
        NotAsked(
            absl::InvalidArgumentError("/tool gives the result of a call, and there is no answer yet that could "
                                       "have called a tool; ask for something first"));
        return absl::OkStatus();
      }
      return Ask("tool", text.substr(6));
    } else {
      NotAsked(absl::InvalidArgumentError(absl::StrCat(
          "there is no command '", text, "'; /help lists them, and a space before the slash makes it a message")));
    }
    return absl::OkStatus();
  }

  absl::Status Ask(std::string_view role, const std::string& text) {
    const auto print = [](std::string_view piece) {
      Print(piece);
      std::fflush(stdout);
    };
    const CatchInterrupts interrupts;
    options_.cancel = interrupts.flag();
    Progress progress("reading the message");
    auto answer = session_.Ask(role, text, options_, print, [&progress](double share) { progress.Update(share); });
    if (!answer.ok()) {
      if (!OnlyThisMessage(answer.status())) return answer.status();
      NotAsked(answer.status());
      return absl::OkStatus();
    }
    Print("\n");
    std::fflush(stdout);
    if (std::ferror(stdout) != 0) return absl::UnknownError("the output could not be written to stdout in full");
    Count(*answer);
    if (answer->finish_reason == "cancelled") {
      Note(answer->text.empty() ? "stopped before the answer; the message is forgotten" : "the answer is stopped");
    } else if (answer->finish_reason == "length") {
      Note(session_.tokens() >= session_.room()
               ? absl::StrCat("the answer is cut off: the conversation fills its ", session_.room(),
                              " tokens; start a new one with /reset, or octet with a larger --max-model-len")
               : absl::StrCat("the answer is cut off after ",
                              CountOf(static_cast<int64_t>(answer->ids.size()), "token"), " (--max-new-tokens)"));
    }
    return absl::OkStatus();
  }

  void Count(const Generation& answer) {
    ++totals_.answers;
    const int64_t ids = static_cast<int64_t>(answer.ids.size());
    totals_.prompt_tokens += session_.tokens() - ids;
    totals_.reused_tokens += answer.reused_tokens;
    totals_.answer_tokens += ids;
    totals_.decode_steps += answer.decode_steps;
    totals_.decode_seconds += answer.decode_seconds;
  }

  void PrintTotals() const {
    std::string text = fmt::format("chat     {}; prompts of {}, {} of them in the cache already\ndecode   {}",
                                   CountOf(totals_.answers, "answer"), CountOf(totals_.prompt_tokens, "token"),
                                   totals_.reused_tokens, CountOf(totals_.answer_tokens, "token"));
    if (totals_.decode_steps > 0 && totals_.decode_seconds > 0) {
      text += fmt::format(", {:.1f} tokens/s", static_cast<double>(totals_.decode_steps) / totals_.decode_seconds);
    }
    PrintToStderr(text + "\n");
  }

  void NotAsked(const absl::Status& status) {
    ++totals_.not_asked;
    PrintSentence("octet", std::string(status.message()));
  }

  static void Note(const std::string& text) { PrintToStderr(absl::StrCat("(", text, ")\n")); }

  ChatSession& session_;
  const bool has_tools_;
  GenerateOptions options_;
  Totals totals_;
  bool done_ = false;
};

}  // namespace

absl::Status RunChat(ChatSession& session, bool has_tools, GenerateOptions options) {
  return Loop(session, has_tools, options).Run();
}

}  // namespace octet
