// octet run: generates text from a prompt, streamed as it comes, or holds a conversation.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/base/command_line.h"
#include "core/base/message_text.h"
#include "core/base/program.h"
#include "core/base/text_file.h"
#include "core/cli/chat_format.h"
#include "core/cli/chat_loop.h"
#include "core/cli/chat_session.h"
#include "core/cli/commands.h"
#include "core/cli/engine.h"
#include "core/cli/progress.h"
#include "core/model/generator.h"
#include "fmt/format.h"

namespace octet {
namespace {

constexpr int32_t kRunStepTokens = 256;  // of a prompt, per step
// Of a conversation, where --max-model-len and --max-new-tokens do not say.
constexpr int64_t kChatTokens = 8192, kChatAnswerTokens = 1024;

constexpr const char* kRunRoomAdvice = "lower --max-model-len or --max-num-seqs, or use --kv-cache-dtype int8";

struct RunFlags {
  ModelFlags model;
  std::string prompt, file, system, tools;
  std::vector<std::string> logit_bias;
  bool has_prompt = false, has_file = false, has_system = false, has_max_new_tokens = false;
  bool chat = false, apply_chat_template = false, no_special = false, json = false;
  GenerateOptions generate;
};

absl::StatusOr<std::string> PromptText(const RunFlags& flags, const Tokenizer& tokenizer) {
  if (flags.has_prompt + flags.has_file != 1) {
    return absl::InvalidArgumentError("octet run takes one of --prompt, --file and --chat");
  }
  std::string text = flags.prompt;
  if (flags.has_file) {
    auto read = ReadTextFile(flags.file);
    if (!read.ok()) return read.status();
    text = *std::move(read);
  }
  if (!flags.apply_chat_template) {
    if (flags.has_system) return absl::InvalidArgumentError("--system goes with --apply-chat-template or --chat");
    if (!flags.tools.empty()) return absl::InvalidArgumentError("--tools goes with --apply-chat-template or --chat");
    return text;
  }
  auto format = ChatFormat::Create(tokenizer, flags.tools);
  if (!format.ok()) return format.status();
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  if (flags.has_system) messages.push_back({{"role", "system"}, {"content", flags.system}});
  messages.push_back({{"role", "user"}, {"content", text}});
  return format->Render(messages);
}

// "7=-100,9=2.5"
absl::StatusOr<std::vector<LogitBias>> ParseLogitBias(const std::vector<std::string>& values) {
  std::vector<LogitBias> biases;
  for (const std::string& value : values) {
    const std::vector<std::string> entries = absl::StrSplit(value, ',');
    for (const std::string& entry : entries) {
      const size_t equals = entry.find('=');
      if (equals == std::string::npos) {
        return absl::InvalidArgumentError(
            absl::StrCat("--logit-bias is '", Printable(entry), "'; use TOKEN_ID=BIAS, such as 42=-100"));
      }
      auto id = ParseNumber<int32_t>("the token of --logit-bias", entry.substr(0, equals), {.min = 0});
      if (!id.ok()) return id.status();
      auto bias = ParseNumber<double>("the bias of --logit-bias", entry.substr(equals + 1), {-100, 100});
      if (!bias.ok()) return bias.status();
      biases.push_back({*id, *bias});
    }
  }
  return biases;
}

absl::Status NoRoom(const RunFlags& flags, const std::string& tokens, int64_t room, int64_t context) {
  std::vector<std::string> ways;
  // A prompt has one token at least, and an answer another one.
  if (room > 1) ways.emplace_back("shorten the prompt");
  if (room > 1 && !flags.tools.empty()) ways.emplace_back("offer fewer tools");
  if (room < context) ways.push_back(absl::StrCat("raise --max-model-len (the model's context is ", context, ")"));
  return absl::InvalidArgumentError(
      absl::StrCat(flags.tools.empty() ? "the prompt" : "the prompt with the tools of --tools", " has ", tokens,
                   " and ", flags.model.max_model_len > 0 ? "--max-model-len is " : "the model's context is ", room,
                   ", which leaves no room for an answer; ", absl::StrJoin(ways, " or ")));
}

// None where nothing was measured: an answer's first token comes out of the prompt.
std::optional<double> PerSecond(int64_t tokens, double seconds) {
  if (tokens < 1 || !(seconds > 0)) return std::nullopt;
  return static_cast<double>(tokens) / seconds;
}

std::string SpeedLine(std::string_view what, int64_t tokens, std::optional<double> per_second) {
  return fmt::format("{:<8} {}{}\n", what, CountOf(tokens, "token"),
                     per_second ? fmt::format(", {:.1f} tokens/s", *per_second) : "");
}

nlohmann::json JsonSpeed(std::optional<double> per_second) {
  return per_second ? nlohmann::json(*per_second) : nlohmann::json();
}

// What a bf16 cache of the same pages would take.
uint64_t Bf16Bytes(const KvPlan& plan) {
  const KvLayout& l = plan.layout;
  return 2 * static_cast<uint64_t>(l.num_pages) * static_cast<uint64_t>(l.page_tokens) *
         static_cast<uint64_t>(l.kv_heads) * static_cast<uint64_t>(l.k.head_dim + l.v.head_dim) *
         static_cast<uint64_t>(plan.layers);
}

std::string DeviceLines(const Engine& engine, const Runner& runner) {
  std::string text;
  if (!engine.device_choice().empty()) text += fmt::format("choice   {}\n", Printable(engine.device_choice()));
  return text + fmt::format("device   {} {} ({}), {} compute, {}\n", engine.device().id(),
                            Printable(engine.device().info().name), Printable(engine.device().info().arch),
                            engine.flags().compute, Printable(runner.attention_kernel()));
}

std::string CacheLine(const Engine& engine, Runner& runner) {
  const KvPlan& kv = runner.plan().kv;
  std::string saved;
  const uint64_t bf16 = Bf16Bytes(kv);
  if (kv.total() < bf16) {
    saved = fmt::format("; bf16 would take {}: {:.1f} % saved", HumanBytes(bf16),
                        100.0 * (1.0 - static_cast<double>(kv.total()) / static_cast<double>(bf16)));
  }
  return fmt::format(
      "KV cache {}{} in all {} layers, {}: {} planned, {} allocated (data {}, scales {}, padding {}, K offsets {}){}\n",
      DTypeName(kv.layout.k.data_type), engine.flags().kv_cache_dtype == "auto" ? " (auto)" : "", kv.layers,
      CountOf(static_cast<int64_t>(kv.layout.num_pages) * kv.layout.page_tokens, "token"), kv.total(),
      runner.cache().allocated_bytes(), kv.pages.data, kv.pages.scales, kv.pages.padding, kv.offset_bytes, saved);
}

void PrintJson(Engine& engine, Runner& runner, const std::vector<int32_t>& prompt, const Generation& g,
               bool with_logprobs) {
  const KvPlan& kv = runner.plan().kv;
  nlohmann::ordered_json document = {
      {"prompt_ids", prompt},
      {"ids", g.ids},
      {"text", g.text},
      {"finish_reason", g.finish_reason},
      {"device", engine.device().id()},
      {"kv_cache_dtype", std::vector<std::string>(static_cast<size_t>(kv.layers), DTypeName(kv.layout.k.data_type))},
      {"kv_bytes",
       {{"planned", kv.total()},
        {"allocated", runner.cache().allocated_bytes()},
        {"data", kv.pages.data},
        {"scales", kv.pages.scales},
        {"padding", kv.pages.padding},
        {"k_offsets", kv.offset_bytes}}},
      {"timing",
       {{"prompt_tokens_per_s", JsonSpeed(PerSecond(static_cast<int64_t>(prompt.size()), g.prompt_seconds))},
        {"decode_tokens_per_s", JsonSpeed(PerSecond(g.decode_steps, g.decode_seconds))}}}};
  if (with_logprobs) document["logprobs"] = g.logprobs;
  Print(document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

absl::Status Chat(const RunFlags& flags, Engine& engine, int64_t room) {
  auto format = ChatFormat::Create(engine.tokenizer(), flags.tools);
  if (!format.ok()) return format.status();
  auto runner = engine.PrepareRunner(engine.kv_options(), room, 1);
  if (!runner.ok()) return runner.status();
  if (auto status = engine.Load({runner->get()}, kRunRoomAdvice); !status.ok()) return status;
  PrintToStderr(DeviceLines(engine, **runner) + CacheLine(engine, **runner));
  GenerateOptions options = flags.generate;
  if (!flags.has_max_new_tokens) options.max_new_tokens = kChatAnswerTokens;
  ChatSession session(*format, engine.tokenizer(), **runner,
                      flags.has_system ? std::optional(flags.system) : std::nullopt);
  return RunChat(session, format->has_tools(), options);
}

// One prompt, one answer; `room` is for both.
absl::Status Complete(const RunFlags& flags, Engine& engine, int64_t room) {
  const int64_t context = engine.model().config().context_length;
  auto text = PromptText(flags, engine.tokenizer());
  if (!text.ok()) return text.status();
  if (const int64_t fewest = FewestTokens(engine.tokenizer(), *text); fewest >= room) {
    return NoRoom(flags, "at least " + CountOf(fewest, "token"), room, context);
  }
  auto prompt =
      engine.tokenizer().Encode(*text, {.parse_special = !flags.no_special, .add_special = !flags.apply_chat_template});
  if (!prompt.ok()) return prompt.status();
  if (prompt->empty()) return absl::InvalidArgumentError("the prompt is empty: it has no token to continue from");

  const int64_t prompt_len = static_cast<int64_t>(prompt->size());
  if (prompt_len >= room) return NoRoom(flags, CountOf(prompt_len, "token"), room, context);
  // The cache is sized for this request unless more was asked for.
  const int64_t wanted = prompt_len + std::min(room - prompt_len, flags.generate.max_new_tokens);
  auto runner = engine.PrepareRunner(engine.kv_options(), flags.model.max_model_len > 0 ? room : wanted, 1);
  if (!runner.ok()) return runner.status();
  if (auto status = engine.Load({runner->get()}, kRunRoomAdvice); !status.ok()) return status;

  const auto print = [&flags](std::string_view piece) {
    if (flags.json) return;
    Print(piece);
    std::fflush(stdout);
  };
  Progress progress("reading the prompt");
  auto result = Generate(**runner, engine.tokenizer(), *prompt, flags.generate, print,
                         [&progress](double share) { progress.Update(share); });
  if (!result.ok()) return result.status();
  if (flags.json) {
    PrintJson(engine, **runner, *prompt, *result, flags.generate.logprobs > 0);
  } else {
    Print("\n");
    std::fflush(stdout);
    const int64_t ids = static_cast<int64_t>(result->ids.size());
    PrintToStderr(DeviceLines(engine, **runner) +
                  SpeedLine("prompt", prompt_len, PerSecond(prompt_len, result->prompt_seconds)) +
                  SpeedLine("decode", ids, PerSecond(result->decode_steps, result->decode_seconds)) +
                  CacheLine(engine, **runner));
  }
  return absl::OkStatus();
}

// Flags that --chat leaves no room for.
absl::Status CheckChatFlags(const RunFlags& flags) {
  const char* other = nullptr;
  if (flags.has_prompt) other = "--prompt";
  if (flags.has_file) other = "--file";
  if (flags.json) other = "--json";
  if (flags.no_special) other = "--no-special";
  if (flags.tools == "-") other = "--tools -";
  if (other == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--chat reads messages from stdin and prints answers; leave ", other, " out"));
}

absl::Status CheckTokenIds(const RunFlags& flags, int64_t vocab_size) {
  const auto check = [vocab_size](const char* flag, int32_t id) {
    if (id < vocab_size) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        flag, " names token ", id, ", which is outside the model's vocabulary of ", vocab_size, " tokens"));
  };
  for (const int32_t id : flags.generate.stop_token_ids) {
    if (auto status = check("--stop-token-id", id); !status.ok()) return status;
  }
  for (const LogitBias& bias : flags.generate.sampling.logit_bias) {
    if (auto status = check("--logit-bias", bias.id); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Run(RunFlags& flags) {
  auto biases = ParseLogitBias(flags.logit_bias);
  if (!biases.ok()) return biases.status();
  flags.generate.sampling.logit_bias = *std::move(biases);
  if (flags.chat) {
    if (auto status = CheckChatFlags(flags); !status.ok()) return status;
  }
  if (auto status = flags.generate.sampling.Validate(); !status.ok()) return status;
  if (flags.generate.logprobs > 0 && !flags.json) {
    return absl::InvalidArgumentError("--logprobs are part of the JSON document; add --json");
  }
  auto opened = Engine::Open(flags.model, kRunStepTokens);
  if (!opened.ok()) return opened.status();
  Engine& engine = **opened;
  const int64_t context = engine.model().config().context_length;
  if (flags.model.max_model_len > context) {
    return absl::InvalidArgumentError(absl::StrCat("--max-model-len is ", flags.model.max_model_len,
                                                   " and the model's context is ", context, " tokens"));
  }
  if (auto status = CheckTokenIds(flags, engine.model().config().vocab_size); !status.ok()) return status;
  if (flags.chat) {
    return Chat(flags, engine,
                flags.model.max_model_len > 0 ? flags.model.max_model_len : std::min<int64_t>(context, kChatTokens));
  }
  return Complete(flags, engine, flags.model.max_model_len > 0 ? flags.model.max_model_len : context);
}

}  // namespace

void AddRun(CommandLine& program) {
  auto flags = std::make_shared<RunFlags>();
  CommandLine& command = program.AddCommand("run", "generate text from a prompt");
  flags->model.AddTo(command);
  flags->model.AddCacheTo(command, kRunStepTokens);
  GenerateOptions& g = flags->generate;
  command.AddText("-p,--prompt", &flags->prompt, "the prompt");
  command.AddText("-f,--file", &flags->file, "file with the prompt; - is standard input");
  command.AddFlag("--chat", &flags->chat,
                  "a conversation: messages from stdin, with line editing on a terminal; room for 8192 tokens and "
                  "answers of 1024 unless --max-model-len and -n say otherwise");
  command.AddFlag("--apply-chat-template", &flags->apply_chat_template,
                  "the prompt is a user's message, put into the model's chat template");
  command.AddText("--system", &flags->system, "system message of the chat template");
  command.AddText("--tools", &flags->tools, "JSON file with the tools (OpenAI form) that the chat template lists");
  command.AddFlag("--no-special", &flags->no_special, "special tokens in the prompt are plain text");
  command.AddNumber<int64_t>("-n,--max-new-tokens", {.min = 1}, &g.max_new_tokens, "tokens to generate at most");
  command.AddNumber<double>("--temperature", {.min = 0}, &g.sampling.temperature, "0: always the likeliest token");
  command.AddNumber<int64_t>("--top-k", {.min = 0}, &g.sampling.top_k, "draw from the k likeliest tokens; 0: all");
  command.AddNumber<double>("--top-p", {0, 1, true}, &g.sampling.top_p,
                            "draw from the likeliest tokens of this total probability");
  command.AddNumber<double>("--min-p", {0, 1}, &g.sampling.min_p,
                            "draw from tokens of this share of the likeliest one's probability");
  command.AddNumber<double>("--repetition-penalty", {.min = 0, .above_min = true}, &g.sampling.repetition_penalty,
                            "weakens tokens that stand in the text; 1: off");
  command.AddNumber<double>("--presence-penalty", {-2, 2}, &g.sampling.presence_penalty,
                            "weakens tokens that the answer has already");
  command.AddNumber<double>("--frequency-penalty", {-2, 2}, &g.sampling.frequency_penalty,
                            "the same for every time that the answer has them");
  command.AddTexts("--logit-bias", &flags->logit_bias, "TOKEN_ID=BIAS,... : -100 (never) to 100 (repeatable)");
  command.AddNumber<uint64_t>("--seed", {}, &g.sampling.seed, "same seed, same text");
  command.AddTexts("--stop", &g.stop, "end before this text (repeatable)");
  command.AddNumber<int32_t>(
      "--stop-token-id", {.min = 0}, [&g](int32_t id) { g.stop_token_ids.push_back(id); },
      "end at this token (repeatable)", CommandLine::Numbers::kRepeatable);
  command.AddFlag("--ignore-eos", &g.ignore_eos, "go on past the model's end tokens");
  command.AddNumber<int32_t>("--logprobs", {0, 1000}, &g.logprobs, "with --json: this many likeliest tokens per step");
  command.AddFlag("--json", &flags->json, "one JSON document on stdout instead of the text");
  command.SetRun([flags, &command] {
    flags->has_prompt = command.Has("--prompt");
    flags->has_file = command.Has("--file");
    flags->has_system = command.Has("--system");
    flags->has_max_new_tokens = command.Has("--max-new-tokens");
    return Run(*flags);
  });
}

}  // namespace octet
