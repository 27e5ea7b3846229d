// octet tokenize: text to token ids and back.
#include <CLI/CLI.hpp>
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

void AddTokenize(CLI::App& app, Command& chosen) {
  auto flags = std::make_shared<TokenizeFlags>();
  CLI::App* command = app.add_subcommand("tokenize", "text to token ids, or back with --decode");
  command->add_option("-m,--model", flags->model, "model file (GGUF)")->required();
  CLI::Option* prompt = command->add_option("-p,--prompt", flags->prompt, "the text");
  CLI::Option* file = command->add_option("-f,--file", flags->file, "file with the text; - is standard input");
  CLI::Option* decode = command->add_option("--decode", flags->decode, "token ids, separated by commas");
  command->add_flag("--no-special", flags->no_special, "special tokens in the text are plain text");
  command->add_flag("--add-special", flags->add_special, "add BOS and EOS where the model wants them");
  command->add_flag("--json", flags->json, "one JSON document on stdout");
  command->callback([flags, prompt, file, decode, &chosen] {
    flags->has_prompt = prompt->count() > 0;
    flags->has_file = file->count() > 0;
    flags->has_decode = decode->count() > 0;
    chosen = [flags] { return Tokenize(*flags); };
  });
}

}  // namespace octet
