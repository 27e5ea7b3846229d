// Chooses the next token of one sequence from the model's logits.
// Order: repetition penalty, temperature, top-k, top-p, min-p, draw; each filter works on what the one before has left.
// References: repetition penalty, https://arxiv.org/abs/1909.05858 section 4.1; top-p,
// https://arxiv.org/abs/1904.09751; min-p, https://arxiv.org/abs/2407.01082; generator, SplitMix64,
// https://doi.org/10.1145/2714064.2660195.
#ifndef OCTET_CORE_SAMPLING_SAMPLER_H_
#define OCTET_CORE_SAMPLING_SAMPLER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace octet {

struct SamplingParams {
  double temperature = 0;  // 0: the most likely token, the lowest id of equal ones; nothing is drawn
  int64_t top_k = 0;       // keep the k most likely tokens; 0 keeps all
  double top_p = 1;        // keep the fewest most likely tokens that together have this probability, at least one
  double min_p = 0;        // keep tokens with at least this share of the most likely one's probability
  double repetition_penalty = 1;  // divides positive and multiplies negative logits of tokens in the history; 1: none
  uint64_t seed = 0;

  // InvalidArgument with one sentence about the first bad value.
  absl::Status Validate() const;
};

// Keeps its buffers between calls: after the first, a call allocates nothing while the vocabulary keeps its size.
// One per sequence; not for several threads at once.
class Sampler {
 public:
  static absl::StatusOr<Sampler> Create(const SamplingParams& params);

  // `logits`: [vocab_size], -inf for a token that must not be chosen. `history`: ids that the repetition penalty
  // counts, in any order. The n-th draw is a pure function of seed, n, logits and history. InvalidArgument when a logit
  // is NaN or +inf, when all are -inf, or when the history has an id outside the vocabulary; nothing is drawn then.
  absl::StatusOr<int32_t> Sample(std::span<const float> logits, std::span<const int32_t> history);

  // Draws so far. Setting it continues a stored sequence, or repeats a draw.
  uint64_t draws() const { return draws_; }
  void set_draws(uint64_t draws) { draws_ = draws; }

 private:
  struct Candidate {
    float logit;
    int32_t id;
    double weight;  // probability up to a common factor; the most likely token has 1
  };

  explicit Sampler(const SamplingParams& params) : params_(params) {}
  absl::Status Load(std::span<const float> logits, std::span<const int32_t> history);
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
