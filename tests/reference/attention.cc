#include "tests/reference/attention.h"

#include <cmath>
#include <limits>

namespace octet::reference {
namespace {

bool Visible(const AttentionSpec& spec, const AttentionInput& in, int query, int key_position) {
  const int first_step_position = in.kv_len - in.queries;
  const int query_position = first_step_position + query;
  if (spec.window > 0 && key_position <= query_position - spec.window) return false;
  if (!in.mask.empty() && key_position >= first_step_position) {
    return in.mask[static_cast<size_t>(query * in.queries + key_position - first_step_position)] != 0;
  }
  return !spec.causal || key_position <= query_position;
}

double Score(const AttentionSpec& spec, const AttentionInput& in, int query, int q_head, int key_position) {
  const int kv_head = q_head / (spec.q_heads / spec.kv_heads);
  const double* q = &in.q[static_cast<size_t>(query * spec.q_heads + q_head) * static_cast<size_t>(spec.k_dim)];
  const double* k = &in.k[static_cast<size_t>((key_position - in.kv_begin) * spec.kv_heads + kv_head) *
                          static_cast<size_t>(spec.k_dim)];
  double dot = 0;
  for (int c = 0; c < spec.k_dim; ++c) dot += q[c] * k[c];
  double s = spec.scale * dot;
  if (spec.softcap > 0) s = spec.softcap * std::tanh(s / spec.softcap);
  if (!spec.alibi_slopes.empty()) {
    const int query_position = in.kv_len - in.queries + query;
    s += static_cast<double>(spec.alibi_slopes[static_cast<size_t>(q_head)]) * (key_position - query_position);
  }
  return s;
}

// One query of one head: out [v_dim]; returns lse.
double AttendRow(const AttentionSpec& spec, const AttentionInput& in, int query, int q_head, double* out) {
  const int kv_head = q_head / (spec.q_heads / spec.kv_heads);
  std::vector<int> positions;
  std::vector<double> scores;
  double top = -std::numeric_limits<double>::infinity();
  for (int p = in.kv_begin; p < in.kv_len; ++p) {
    if (!Visible(spec, in, query, p)) continue;
    positions.push_back(p);
    scores.push_back(Score(spec, in, query, q_head, p));
    if (scores.back() > top) top = scores.back();  // a NaN stays out of it and reaches the sum below
  }
  if (!spec.sinks.empty()) top = std::fmax(top, spec.sinks[static_cast<size_t>(q_head)]);
  if (std::isinf(top) && top < 0) top = 0;

  double sum = spec.sinks.empty() ? 0.0 : std::exp(spec.sinks[static_cast<size_t>(q_head)] - top);
  for (int c = 0; c < spec.v_dim; ++c) out[c] = 0;
  for (size_t i = 0; i < positions.size(); ++i) {
    const double weight = std::exp(scores[i] - top);
    sum += weight;
    const double* v = &in.v[static_cast<size_t>((positions[i] - in.kv_begin) * spec.kv_heads + kv_head) *
                            static_cast<size_t>(spec.v_dim)];
    for (int c = 0; c < spec.v_dim; ++c) out[c] += weight * v[c];
  }
  if (!positions.empty()) {
    for (int c = 0; c < spec.v_dim; ++c) out[c] /= sum;
  }
  return top + std::log(sum);
}

}  // namespace

AttentionOutput Attend(const AttentionSpec& spec, const AttentionInput& in) {
  const size_t rows = static_cast<size_t>(in.queries * spec.q_heads), width = static_cast<size_t>(spec.v_dim);
  AttentionOutput result{std::vector<double>(rows * width), std::vector<double>(rows)};
  for (size_t r = 0; r < rows; ++r) {
    const int query = static_cast<int>(r) / spec.q_heads, q_head = static_cast<int>(r) % spec.q_heads;
    result.lse[r] = AttendRow(spec, in, query, q_head, result.out.data() + r * width);
  }
  return result;
}

}  // namespace octet::reference
