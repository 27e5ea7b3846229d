#include "core/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include "fmt/format.h"

namespace octet {
namespace {

uint64_t Mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

// More likely first, then the lower id: a total order, so every selection has one answer.
constexpr auto kBetter = [](const auto& a, const auto& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
};

// The largest logit, or why there is none to choose.
absl::StatusOr<float> CheckedMax(std::span<const float> logits) {
  float largest = -std::numeric_limits<float>::infinity();
  for (size_t id = 0; id < logits.size(); ++id) {
    const float logit = logits[id];
    if (std::isnan(logit) || logit == std::numeric_limits<float>::infinity()) {
      return absl::InvalidArgumentError(
          fmt::format("the model answered {} for token {}, so no next token can be chosen", logit, id));
    }
    largest = std::max(largest, logit);
  }
  if (largest == -std::numeric_limits<float>::infinity()) {
    return absl::InvalidArgumentError(logits.empty() ? "there are no logits to choose a token from"
                                                     : "every token is excluded, so no next token can be chosen");
  }
  return largest;
}

// log(sum(exp(logits - largest))): nothing overflows, and large logits lose no digits.
double LogSumExp(std::span<const float> logits, float largest) {
  double sum = 0;
  for (float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return std::log(sum);
}

// What a bias or penalty makes of a logit: an excluded token stays excluded, and nothing overflows to infinity.
float ChangedLogit(float logit, double changed) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  if (logit == -std::numeric_limits<float>::infinity()) return logit;
  return static_cast<float>(std::clamp(changed, -kLargest, kLargest));
}

absl::Status CheckId(int32_t id, size_t vocab_size) {
  if (id >= 0 && static_cast<size_t>(id) < vocab_size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("the token id {} is outside the vocabulary of {} tokens", id, vocab_size));
}

}  // namespace

absl::Status SamplingParams::Validate() const {
  // Written so that NaN fails every test.
  if (!(temperature >= 0 && std::isfinite(temperature))) {
    return absl::InvalidArgumentError(fmt::format("temperature is {}; it must be 0 or a positive number", temperature));
  }
  if (top_k < 0) {
    return absl::InvalidArgumentError(fmt::format("top_k is {}; it must be 0 (keep all) or positive", top_k));
  }
  if (!(top_p > 0 && top_p <= 1)) {
    return absl::InvalidArgumentError(fmt::format("top_p is {}; it must be above 0 and at most 1", top_p));
  }
  if (!(min_p >= 0 && min_p <= 1)) {
    return absl::InvalidArgumentError(fmt::format("min_p is {}; it must be between 0 and 1", min_p));
  }
  if (!(repetition_penalty > 0 && std::isfinite(repetition_penalty))) {
    return absl::InvalidArgumentError(
        fmt::format("repetition_penalty is {}; it must be a positive number (1: no penalty)", repetition_penalty));
  }
  for (const auto& [name, penalty] :
       {std::pair("presence_penalty", presence_penalty), std::pair("frequency_penalty", frequency_penalty)}) {
    if (!(penalty >= -2 && penalty <= 2)) {
      return absl::InvalidArgumentError(fmt::format("{} is {}; it must be between -2 and 2 (0: none)", name, penalty));
    }
  }
  std::vector<int32_t> biased;
  for (const LogitBias& entry : logit_bias) {
    if (entry.id < 0) {
      return absl::InvalidArgumentError(fmt::format("logit_bias names token {}; token ids start at 0", entry.id));
    }
    if (!(entry.bias >= -100 && entry.bias <= 100)) {
      return absl::InvalidArgumentError(
          fmt::format("logit_bias of token {} is {}; it must be between -100 and 100", entry.id, entry.bias));
    }
    biased.push_back(entry.id);
  }
  std::sort(biased.begin(), biased.end());
  if (const auto twice = std::adjacent_find(biased.begin(), biased.end()); twice != biased.end()) {
    return absl::InvalidArgumentError(fmt::format("logit_bias names token {} twice; give it one bias", *twice));
  }
  return absl::OkStatus();
}

absl::StatusOr<Sampler> Sampler::Create(const SamplingParams& params) {
  if (absl::Status status = params.Validate(); !status.ok()) return status;
  return Sampler(params);
}

absl::Status Sampler::Load(std::span<const float> logits, std::span<const int32_t> history,
                           std::span<const int32_t> sampled) {
  if (absl::StatusOr<float> largest = CheckedMax(logits); !largest.ok()) return largest.status();
  for (const std::span<const int32_t> ids : {history, sampled}) {
    for (int32_t id : ids) {
      if (absl::Status status = CheckId(id, logits.size()); !status.ok()) return status;
    }
  }
  for (const LogitBias& entry : params_.logit_bias) {
    if (absl::Status status = CheckId(entry.id, logits.size()); !status.ok()) return status;
  }
  candidates_.resize(logits.size());
  for (size_t id = 0; id < logits.size(); ++id) candidates_[id] = {logits[id], static_cast<int32_t>(id), 0};
  for (const LogitBias& entry : params_.logit_bias) {
    float& logit = candidates_[static_cast<size_t>(entry.id)].logit;
    logit = ChangedLogit(logit, logit + entry.bias);
  }
  if (params_.repetition_penalty != 1) PenalizeRepetition(history);
  if (params_.presence_penalty != 0 || params_.frequency_penalty != 0) PenalizeSampled(sampled);
  return absl::OkStatus();
}

void Sampler::PenalizeRepetition(std::span<const int32_t> history) {
  for (int32_t id : history) {
    Candidate& candidate = candidates_[static_cast<size_t>(id)];
    if (candidate.weight != 0) continue;  // penalized already
    candidate.weight = 1;
    const double logit = candidate.logit;
    candidate.logit = ChangedLogit(candidate.logit,
                                   logit > 0 ? logit / params_.repetition_penalty : logit * params_.repetition_penalty);
  }
}

void Sampler::PenalizeSampled(std::span<const int32_t> sampled) {
  for (int32_t id : sampled) candidates_[static_cast<size_t>(id)].weight = 0;
  for (int32_t id : sampled) candidates_[static_cast<size_t>(id)].weight += 1;
  for (int32_t id : sampled) {
    Candidate& candidate = candidates_[static_cast<size_t>(id)];
    if (candidate.weight == 0) continue;  // penalized already
    candidate.logit = ChangedLogit(
        candidate.logit, candidate.logit - candidate.weight * params_.frequency_penalty - params_.presence_penalty);
    candidate.weight = 0;
  }
}

void Sampler::KeepTopK() {
  const auto count = static_cast<int64_t>(candidates_.size());
  if (params_.top_k == 0 || params_.top_k >= count) return;
  std::nth_element(candidates_.begin(), candidates_.begin() + params_.top_k, candidates_.end(), kBetter);
  candidates_.resize(static_cast<size_t>(params_.top_k));
}

void Sampler::KeepTopP() {
  if (params_.top_p == 1) return;
  double total = 0;
  for (const Candidate& candidate : candidates_) total += candidate.weight;
  // Sorted in growing blocks: usually a few tokens hold the probability, and a vocabulary has a hundred thousand.
  double sum = 0;
  size_t sorted = 0;
  size_t block = 64;
  while (sorted < candidates_.size()) {
    const size_t end = std::min(candidates_.size(), sorted + block);
    const auto from = candidates_.begin() + static_cast<std::ptrdiff_t>(sorted);
    const auto to = candidates_.begin() + static_cast<std::ptrdiff_t>(end);
    if (end < candidates_.size()) std::nth_element(from, to, candidates_.end(), kBetter);
    std::sort(from, to, kBetter);
    for (; sorted < end; ++sorted) {
      sum += candidates_[sorted].weight;
      if (sum >= params_.top_p * total) {
        candidates_.resize(sorted + 1);
        return;
      }
    }
    block *= 4;
  }
}

double Sampler::NextUniform() {
  constexpr uint64_t kGamma = 0x9E3779B97F4A7C15u;
  const uint64_t bits = Mix(Mix(params_.seed + kGamma) + ++draws_ * kGamma);
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

absl::StatusOr<int32_t> Sampler::Sample(std::span<const float> logits, std::span<const int32_t> history,
                                        std::span<const int32_t> sampled) {
  if (absl::Status status = Load(logits, history, sampled); !status.ok()) return status;
  const Candidate best = *std::min_element(candidates_.begin(), candidates_.end(), kBetter);
  if (params_.temperature == 0) return best.id;
  KeepTopK();
  for (Candidate& candidate : candidates_) {
    candidate.weight = std::exp((static_cast<double>(candidate.logit) - best.logit) / params_.temperature);
  }
  KeepTopP();
  std::erase_if(candidates_, [this](const Candidate& candidate) { return candidate.weight < params_.min_p; });
  // By id, so that a filter which removes nothing does not change the draw.
  if (!std::is_sorted(candidates_.begin(), candidates_.end(),
                      [](const auto& a, const auto& b) { return a.id < b.id; })) {
    std::sort(candidates_.begin(), candidates_.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  }
  double total = 0;
  for (const Candidate& candidate : candidates_) total += candidate.weight;
  const double target = NextUniform() * total;
  double sum = 0;
  int32_t chosen = best.id;
  for (const Candidate& candidate : candidates_) {
    if (candidate.weight == 0) continue;
    chosen = candidate.id;
    sum += candidate.weight;
    if (sum > target) break;
  }
  return chosen;
}

absl::Status TopLogprobs(std::span<const float> logits, int64_t n, std::vector<TokenLogprob>* out) {
  out->clear();
  const absl::StatusOr<float> largest = CheckedMax(logits);
  if (!largest.ok()) return largest.status();
  if (n <= 0) return absl::OkStatus();
  const auto better = [](const TokenLogprob& a, const TokenLogprob& b) {
    return a.logprob > b.logprob || (a.logprob == b.logprob && a.id < b.id);
  };
  // A heap of the best n so far, the worst of them in front.
  const size_t count = static_cast<size_t>(std::min<int64_t>(n, static_cast<int64_t>(logits.size())));
  for (size_t id = 0; id < logits.size(); ++id) {
    const TokenLogprob next = {static_cast<int32_t>(id), logits[id]};
    if (out->size() == count) {
      if (!better(next, out->front())) continue;
      std::pop_heap(out->begin(), out->end(), better);
      out->pop_back();
    }
    out->push_back(next);
    std::push_heap(out->begin(), out->end(), better);
  }
  std::sort(out->begin(), out->end(), better);
  const double log_sum = LogSumExp(logits, *largest);
  for (TokenLogprob& token : *out) token.logprob = token.logprob - *largest - log_sum;
  return absl::OkStatus();
}

absl::StatusOr<double> Logprob(std::span<const float> logits, int32_t id) {
  const absl::StatusOr<float> largest = CheckedMax(logits);
  if (!largest.ok()) return largest.status();
  if (absl::Status status = CheckId(id, logits.size()); !status.ok()) return status;
  return static_cast<double>(logits[static_cast<size_t>(id)]) - *largest - LogSumExp(logits, *largest);
}

}  // namespace octet
