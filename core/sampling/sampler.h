// Chooses the next token of one sequence from the model's logits.
// Order: logit bias, repetition penalty, presence and frequency penalties, temperature, top-k, top-p, min-p, draw; each
// works on what the one before has left. Temperature 0 takes the likeliest token behind the penalties.
// References: presence and frequency penalties, the OpenAI API's "Parameter details": "mu[j] -> mu[j] - c[j] *
// alpha_frequency - float(c[j] > 0) * alpha_presence", where c[j] is how often token j was sampled before, so the
// prompt's tokens do not count; their ranges and logit bias,
// https://platform.openai.com/docs/api-reference/chat/create; repetition penalty, which counts the prompt, too,
// https://arxiv.org/abs/1909.05858 section 4.1; top-p, https://arxiv.org/abs/1904.09751; min-p,
// https://arxiv.org/abs/2407.01082; generator, SplitMix64, https://doi.org/10.1145/2714064.2660195.
#ifndef OCTET_CORE_SAMPLING_SAMPLER_H_
#define OCTET_CORE_SAMPLING_SAMPLER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace octet {

struct LogitBias {
  int32_t id;
  double bias;
};

struct SamplingParams {
  double temperature = 0;  // 0: the most likely token, the lowest id of equal ones; nothing is drawn
  int64_t top_k = 0;       // keep the k most likely tokens; 0 keeps all
  double top_p = 1;        // keep the fewest most likely tokens that together have this probability, at least one
  double min_p = 0;        // keep tokens with at least this share of the most likely one's probability
  double repetition_penalty = 1;  // divides positive and multiplies negative logits of tokens in the history; 1: none
  double presence_penalty = 0;    // -2 to 2, taken off the logits of tokens that were sampled before
  double frequency_penalty = 0;   // -2 to 2, the same once per time that the token was sampled
  std::vector<LogitBias> logit_bias = {};  // -100 to 100, added to the logits; each id once
  uint64_t seed = 0;

  // InvalidArgument with one sentence about the first bad value. Ids of logit_bias are only checked against the
  // vocabulary where it is known: in Sample.
  absl::Status Validate() const;
};

// Keeps its buffers between calls: after the first, a call allocates nothing while the vocabulary keeps its size.
// One per sequence; not for several threads at once.
class Sampler {
 public:
  static absl::StatusOr<Sampler> Create(const SamplingParams& params);

  // `logits`: [vocab_size], -inf for a token that must not be chosen. `history`: ids that the repetition penalty
  // counts, in any order. `sampled`: ids that the presence and frequency penalties count, in any order; usually the end
  // of the history. The n-th draw is a pure function of seed, n and the arguments. InvalidArgument when a logit is NaN
  // or +inf, when all are -inf, or when an id or a biased id is outside the vocabulary; nothing is drawn then.
  absl::StatusOr<int32_t> Sample(std::span<const float> logits, std::span<const int32_t> history,
                                 std::span<const int32_t> sampled = {});

  // Draws so far. Setting it continues a stored sequence, or repeats a draw.
  uint64_t draws() const { return draws_; }
  void set_draws(uint64_t draws) { draws_ = draws; }

 private:
  struct Candidate {
    float logit;
    int32_t id;
    // Probability up to a common factor, 1 for the most likely token; before that, counts of the penalties.
    double weight;
  };

  explicit Sampler(const SamplingParams& params) : params_(params) {}
  absl::Status Load(std::span<const float> logits, std::span<const int32_t> history, std::span<const int32_t> sampled);
  void PenalizeRepetition(std::span<const int32_t> history);
  void PenalizeSampled(std::span<const int32_t> sampled);
  void KeepTopK();
  void KeepTopP();
  double NextUniform();  // [0, 1), 53 bits

  SamplingParams params_;
  uint64_t draws_ = 0;
  std::vector<Candidate> candidates_;
};

struct TokenLogprob {
  int32_t id;
  double logprob;  // natural logarithm
};

// The n most likely tokens of the unchanged logits, best first, the lower id first of equal ones; fewer when the
// vocabulary is smaller. Log-softmax in double. Errors for the logits as in Sampler::Sample. Reuses `out`'s memory.
absl::Status TopLogprobs(std::span<const float> logits, int64_t n, std::vector<TokenLogprob>* out);

// The same for one token; InvalidArgument for an id outside the vocabulary.
absl::StatusOr<double> Logprob(std::span<const float> logits, int32_t id);

}  // namespace octet

#endif  // OCTET_CORE_SAMPLING_SAMPLER_H_
