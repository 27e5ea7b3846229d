// octet tokenize: text to token ids and back.
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "core/base/command_line.h"
#include "core/base/program.h"
#include "core/base/text_file.h"
#include "core/cli/commands.h"
#include "core/cli/engine.h"
#include "core/text/gguf_tokenizer.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace octet {
namespace {

struct TokenizeFlags {
  std::string model, prompt, file, decode;
  bool no_special = false, add_special = false, json = false;
  bool has_prompt = false, has_file = false, has_decode = false;
};

absl::StatusOr<std::vector<int32_t>> ParseIds(const std::string& text) {
  std::vector<int32_t> ids;
  if (text.empty()) return ids;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const absl::string_view number = absl::StripAsciiWhitespace(part);
    auto id = ParseNumber<int32_t>("a token id of --decode", {number.data(), number.size()}, {.min = 0});
    if (!id.ok()) return id.status();
    ids.push_back(*id);
  }
  return ids;
}

absl::Status Tokenize(const TokenizeFlags& flags) {
  if (flags.has_prompt + flags.has_file + flags.has_decode != 1) {
    return absl::InvalidArgumentError("octet tokenize takes one of --prompt, --file and --decode");
  }
  auto file = OpenModelFile(flags.model);
  if (!file.ok()) return file.status();
  auto spec = TokenizerSpecFromGguf(**file);
  if (!spec.ok()) return spec.status();
  auto tokenizer = Tokenizer::Create(*std::move(spec));
  if (!tokenizer.ok()) return tokenizer.status();
  if (auto status = (*file)->CheckUnchanged(); !status.ok()) return status;

  std::vector<int32_t> ids;
  std::string text;
  if (flags.has_decode) {
    if (flags.no_special || flags.add_special) {
      return absl::InvalidArgumentError("--no-special and --add-special are for text and have no use with --decode");
    }
    auto parsed = ParseIds(flags.decode);
    if (!parsed.ok()) return parsed.status();
    ids = *std::move(parsed);
    auto decoded = tokenizer->Decode(ids);
    if (!decoded.ok()) return decoded.status();
    text = *std::move(decoded);
  } else {
    text = flags.prompt;
    if (flags.has_file) {
      auto read = ReadTextFile(flags.file);
      if (!read.ok()) return read.status();
      text = *std::move(read);
    }
    auto encoded = tokenizer->Encode(text, {.parse_special = !flags.no_special, .add_special = flags.add_special});
    if (!encoded.ok()) return encoded.status();
    ids = *std::move(encoded);
  }
  if (flags.json) {
    const nlohmann::json document = {{"ids", ids}, {"text", text}};
    Print(document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  } else if (flags.has_decode) {
    Print(text + "\n");
  } else {
    Print(fmt::format("{}\n", fmt::join(ids, ",")));
  }
  return absl::OkStatus();
}

}  // namespace

void AddTokenize(CommandLine& program) {
  auto flags = std::make_shared<TokenizeFlags>();
  CommandLine& command = program.AddCommand("tokenize", "text to token ids, or back with --decode");
  command.AddText("-m,--model", &flags->model, "model file (GGUF)", CommandLine::Text::kRequired);
  command.AddText("-p,--prompt", &flags->prompt, "the text");
  command.AddText("-f,--file", &flags->file, "file with the text; - is standard input");
  command.AddText("--decode", &flags->decode, "token ids, separated by commas");
  command.AddFlag("--no-special", &flags->no_special, "special tokens in the text are plain text");
  command.AddFlag("--add-special", &flags->add_special, "add BOS and EOS where the model wants them");
  command.AddFlag("--json", &flags->json, "one JSON document on stdout");
  command.SetRun([flags, &command] {
    flags->has_prompt = command.Has("--prompt");
    flags->has_file = command.Has("--file");
    flags->has_decode = command.Has("--decode");
    return Tokenize(*flags);
  });
}

}  // namespace octet
