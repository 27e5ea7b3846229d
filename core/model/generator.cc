#include "core/model/generator.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/base/stopwatch.h"
#include "core/text/stream_decoder.h"

namespace octet {
namespace {

// A failure of the draw is a failure of the request: its logits are no numbers.
absl::Status LogitsError(const absl::Status& status) {
  return absl::DataLossError(absl::StrCat("the model's answer is no longer numbers, so this request ends here: ",
                                          std::string(status.message())));
}

}  // namespace

void CachedSequence::Truncate(size_t tokens) {
  if (tokens < tokens_.size()) tokens_.resize(tokens);
  pages_.Truncate(static_cast<int64_t>(tokens_.size()));
}

absl::Status CachedSequence::Reserve(int64_t tokens) {
  tokens_.reserve(static_cast<size_t>(tokens));
  return pages_.Reserve(tokens);
}

absl::StatusOr<Generation> Generate(Runner& runner, const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                                    const GenerateOptions& options,
                                    const std::function<void(std::string_view)>& on_text,
                                    const std::function<void(double)>& on_prompt) {
  CachedSequence sequence(runner);
  return Generate(sequence, tokenizer, prompt, options, on_text, on_prompt);
}

absl::StatusOr<Generation> Generate(CachedSequence& sequence, const Tokenizer& tokenizer,
                                    std::span<const int32_t> prompt, const GenerateOptions& options,
                                    const std::function<void(std::string_view)>& on_text,
                                    const std::function<void(double)>& on_prompt) {
  Runner& runner = sequence.runner();
  const int64_t max_len = runner.options().max_model_len;
  if (prompt.empty()) return absl::InvalidArgumentError("the prompt is empty: it has no token to continue from");
  if (static_cast<int64_t>(prompt.size()) > max_len) {
    return absl::InvalidArgumentError(
        absl::StrCat("the prompt has ", prompt.size(), " tokens and there is room for ", max_len));
  }
  if (options.max_new_tokens < 1) return absl::InvalidArgumentError("at least one new token must be asked for");
  auto sampler = Sampler::Create(options.sampling);
  if (!sampler.ok()) return sampler.status();
  auto decoder = StreamDecoder::Create(options.stop);
  if (!decoder.ok()) return decoder.status();

  Generation result;
  std::vector<int32_t> history(prompt.begin(), prompt.end());
  const int64_t prompt_len = static_cast<int64_t>(prompt.size());
  const int64_t limit = prompt_len + std::min(max_len - prompt_len, options.max_new_tokens);
  history.reserve(static_cast<size_t>(limit));
  result.ids.reserve(static_cast<size_t>(limit));

  // At least the prompt's last token is computed: its logits choose the first new one.
  const std::span<const int32_t> held = sequence.tokens();
  size_t done = 0;
  while (done < held.size() && done + 1 < prompt.size() && held[done] == prompt[done]) ++done;
  sequence.Truncate(done);
  if (auto status = sequence.Reserve(limit); !status.ok()) return status;
  result.reused_tokens = static_cast<int64_t>(done);

  const auto cancelled = [&options] { return options.cancel != nullptr && options.cancel->load(); };
  std::span<const float> logits;
  // The next tokens of the sequence, at most one step's.
  const auto step = [&](std::span<const int32_t> tokens) {
    const SequenceInput input{
        .tokens = tokens, .cached = static_cast<int64_t>(sequence.tokens().size()), .pages = &sequence.pages()};
    auto row = runner.Step({&input, 1});
    if (!row.ok()) return row.status();
    logits = *row;
    sequence.Add(tokens);
    return absl::OkStatus();
  };

  const auto emit = [&](const std::string& text) {
    if (text.empty()) return;
    result.text += text;
    if (on_text) on_text(text);
  };
  const auto is_end = [&](int32_t id) {
    return (!options.ignore_eos && tokenizer.IsEndOfGeneration(id)) ||
           std::find(options.stop_token_ids.begin(), options.stop_token_ids.end(), id) != options.stop_token_ids.end();
  };

  Stopwatch watch;
  const size_t piece = static_cast<size_t>(runner.max_step_tokens());
  while (done < prompt.size() && !cancelled()) {
    const size_t count = std::min(piece, prompt.size() - done);
    if (auto status = step(prompt.subspan(done, count)); !status.ok()) return status;
    done += count;
    if (on_prompt) on_prompt(static_cast<double>(done) / static_cast<double>(prompt.size()));
  }
  result.prompt_seconds = watch.seconds();

  watch = Stopwatch();
  result.finish_reason = "length";
  std::vector<TokenLogprob> top;
  for (;;) {
    if (done < prompt.size() || cancelled()) {
      result.finish_reason = "cancelled";
      break;
    }
    if (options.logprobs > 0) {
      if (auto status = TopLogprobs(logits, options.logprobs, &top); !status.ok()) return LogitsError(status);
      auto& row = result.logprobs.emplace_back();
      for (const TokenLogprob& t : top) row.emplace_back(t.id, t.logprob);
    }
    auto id = sampler->Sample(logits, history, result.ids);
    if (!id.ok()) return LogitsError(id.status());
    result.ids.push_back(*id);
    history.push_back(*id);
    if (is_end(*id)) {
      result.finish_reason = "stop";
      break;
    }
    if (!tokenizer.IsControl(*id)) emit(decoder->Push(tokenizer.Piece(*id)));
    if (decoder->stopped()) {
      result.finish_reason = "stop";
      break;
    }
    if (static_cast<int64_t>(history.size()) >= limit) break;
    if (cancelled()) continue;
    if (auto status = step({&history.back(), 1}); !status.ok()) return status;
    ++result.decode_steps;
  }
  if (!decoder->stopped()) emit(decoder->Finish());
  result.decode_seconds = watch.seconds();
  return result;
}

}  // namespace octet
