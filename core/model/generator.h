// Generates the continuation of one prompt: prefill in pieces, then token by token.
#ifndef OCTET_CORE_MODEL_GENERATOR_H_
#define OCTET_CORE_MODEL_GENERATOR_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/model/runner.h"
#include "core/sampling/sampler.h"
#include "core/text/tokenizer.h"

namespace octet {

struct GenerateOptions {
  SamplingParams sampling;
  int64_t max_new_tokens = 256;
  std::vector<std::string> stop;        // the text ends before the first of these
  std::vector<int32_t> stop_token_ids;  // besides the model's own end tokens
  bool ignore_eos = false;
  int32_t logprobs = 0;  // per step, the likeliest tokens with their log-probabilities
};

struct Generation {
  std::vector<int32_t> ids;   // an end token that stopped it is the last one; it has no text
  std::string text;           // whole UTF-8 characters; control tokens have none
  std::string finish_reason;  // "stop" or "length"
  std::vector<std::vector<std::pair<int32_t, double>>> logprobs;  // per id
  double prompt_seconds = 0, decode_seconds = 0;
  int64_t decode_steps = 0;  // steps inside decode_seconds
};

// `on_text` (may be empty) gets the text as it comes. `on_prompt` (may be empty) the share of the prompt that is done.
// InvalidArgument for bad options; DataLoss when the logits are not numbers: the sequence's cache is damaged or the
// model is.
absl::StatusOr<Generation> Generate(Runner& runner, const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                                    const GenerateOptions& options,
                                    const std::function<void(std::string_view)>& on_text = {},
                                    const std::function<void(double)>& on_prompt = {});

}  // namespace octet

#endif  // OCTET_CORE_MODEL_GENERATOR_H_
