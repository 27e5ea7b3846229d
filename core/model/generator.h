// Generates the continuation of one prompt: prefill in pieces, then token by token. What a conversation has in the
// cache already is not computed again.
#ifndef OCTET_CORE_MODEL_GENERATOR_H_
#define OCTET_CORE_MODEL_GENERATOR_H_

#include <atomic>
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
  // Borrowed, may be null. Once it is true, no further step is computed and what there is comes back; any thread or
  // signal handler may set it.
  const std::atomic<bool>* cancel = nullptr;
};

struct Generation {
  std::vector<int32_t> ids;   // an end token that stopped it is the last one; it has no text
  std::string text;           // whole UTF-8 characters; control tokens have none
  std::string finish_reason;  // "stop", "length" or "cancelled"
  std::vector<std::vector<std::pair<int32_t, double>>> logprobs;  // per id
  double prompt_seconds = 0, decode_seconds = 0;
  int64_t decode_steps = 0;   // steps inside decode_seconds
  int64_t reused_tokens = 0;  // of the prompt, found in the cache
};

// A sequence whose K and V stay in a runner's cache between calls of Generate. Thread-compatible; the runner must
// outlive it, and its pages go back to the pool with it.
class CachedSequence {
 public:
  explicit CachedSequence(Runner& runner) : runner_(runner), pages_(&runner.cache().pool()) {}

  Runner& runner() const { return runner_; }
  // The tokens whose K and V are in the cache, from position 0 on.
  std::span<const int32_t> tokens() const { return tokens_; }
  const PageTable& pages() const { return pages_; }

  // Forgets all but the first `tokens` tokens and gives back the pages that they do not need.
  void Truncate(size_t tokens);
  // Makes room for `tokens` tokens in all; ResourceExhausted when the pool has too few pages, with nothing taken.
  absl::Status Reserve(int64_t tokens);
  // These tokens have been put into the cache behind the others, where Reserve made room.
  void Add(std::span<const int32_t> tokens) { tokens_.insert(tokens_.end(), tokens.begin(), tokens.end()); }

 private:
  Runner& runner_;
  std::vector<int32_t> tokens_;
  PageTable pages_;
};

// Continues `prompt`, the whole sequence from its first token on. The longest prefix of it that `sequence` holds is
// used as it is and the rest of the sequence forgotten; afterwards it holds the prompt and the answer without its last
// token, or, after an error, what was computed before. `on_text` (may be empty) gets the text as it comes. `on_prompt`
// (may be empty) the share of the prompt that is done. InvalidArgument for bad options; DataLoss when the logits are
// not numbers: the sequence's cache is damaged or the model is.
absl::StatusOr<Generation> Generate(CachedSequence& sequence, const Tokenizer& tokenizer,
                                    std::span<const int32_t> prompt, const GenerateOptions& options,
                                    const std::function<void(std::string_view)>& on_text = {},
                                    const std::function<void(double)>& on_prompt = {});

// The same for a sequence that ends with the call.
absl::StatusOr<Generation> Generate(Runner& runner, const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                                    const GenerateOptions& options,
                                    const std::function<void(std::string_view)>& on_text = {},
                                    const std::function<void(double)>& on_prompt = {});

}  // namespace octet

#endif  // OCTET_CORE_MODEL_GENERATOR_H_
