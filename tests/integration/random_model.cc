#include "tests/integration/random_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "tests/reference/attention.h"
#include "tests/reference/dense.h"
#include "tests/reference/float_types.h"
#include "tests/reference/gguf.h"
#include "tests/reference/quantize.h"
#include "tests/reference/random.h"

namespace octet {
namespace {

constexpr float kNormEps = 1e-5f;
constexpr int kOffsetBlockTokens = 64;
constexpr double kSlowPair = 0.35;  // radians over half a block

std::string Name(int layer, const char* part) { return absl::StrCat("blk.", layer, ".", part); }

// "blk.3.attn_q.weight" -> "attn_q"
std::string Kind(std::string name) {
  name = name.substr(0, name.rfind('.'));
  return name.substr(name.rfind('.') + 1);
}

double Silu(double x) { return x / (1 + std::exp(-x)); }

double GeluTanh(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

uint64_t SeedOf(uint64_t seed, const std::string& name) {
  for (char c : name) seed = seed * 1099511628211u + static_cast<uint8_t>(c);
  return seed;
}

}  // namespace

double RandomModelSpec::frequency(int layer, int p) const {
  const double share = static_cast<double>(p) / pairs();
  if (gemma() && layer_window(layer) > 0) return std::pow(10000.0, -share);
  const double own = std::pow(static_cast<double>(rope_base), -share) / (rope_factors ? 1 + p : 1);
  if (yarn_context == 0) return own / rope_factor;
  // The pairs that turn 32 times and once inside the original context bound the mix.
  const auto pair = [&](double turns) {
    return pairs() * std::log(yarn_context / (2 * std::numbers::pi * turns)) / std::log(static_cast<double>(rope_base));
  };
  const double low = std::max(0.0, std::floor(pair(32))), high = std::min(2.0 * pairs() - 1, std::ceil(pair(1)));
  const double stretched = std::clamp((p - low) / (high - low), 0.0, 1.0);
  return own * (1 - stretched) + own / rope_factor * stretched;
}

double RandomModelSpec::magnitude() const {
  return yarn_context > 0 ? 1 + 0.1 * std::log(static_cast<double>(rope_factor)) : 1;
}

RandomModel::RandomModel(const RandomModelSpec& spec) : spec_(spec) {
  const RandomModelSpec& s = spec_;
  const double in_hidden = 1 / std::sqrt(static_cast<double>(s.hidden));
  Add("token_embd.weight", s.vocab, s.hidden, s.gemma() ? in_hidden : 1.0);
  AddVector("output_norm.weight", s.hidden, 1.0, 0.3);
  if (!s.tied_head) Add("output.weight", s.vocab, s.hidden, 2 * in_hidden);
  for (int i = 0; i < s.layers; ++i) {
    AddVector(Name(i, "attn_norm.weight"), s.hidden, 1.0, 0.3);
    Add(Name(i, "attn_q.weight"), s.q_heads * s.head_dim, s.hidden, 1.5 * in_hidden);
    Add(Name(i, "attn_k.weight"), s.kv_heads * s.head_dim, s.hidden, 1.5 * in_hidden);
    Add(Name(i, "attn_v.weight"), s.kv_heads * s.v_head_dim, s.hidden, in_hidden);
    if (s.has_bias()) {
      AddVector(Name(i, "attn_q.bias"), s.q_heads * s.head_dim, 0.0, 0.5);
      AddVector(Name(i, "attn_k.bias"), s.kv_heads * s.head_dim, 0.0, 0.5);
      AddVector(Name(i, "attn_v.bias"), s.kv_heads * s.v_head_dim, 0.0, 0.5);
    }
    if (s.has_qk_norm()) {
      AddVector(Name(i, "attn_q_norm.weight"), s.head_dim, 1.0, 0.3);
      AddVector(Name(i, "attn_k_norm.weight"), s.head_dim, 1.0, 0.3);
    }
    Add(Name(i, "attn_output.weight"), s.hidden, s.q_heads * s.v_head_dim, 1 / std::sqrt(s.q_heads * s.v_head_dim));
    if (s.gemma()) {
      AddVector(Name(i, "post_attention_norm.weight"), s.hidden, 1.0, 0.3);
      AddVector(Name(i, "post_ffw_norm.weight"), s.hidden, 1.0, 0.3);
    }
    AddVector(Name(i, "ffn_norm.weight"), s.hidden, 1.0, 0.3);
    Add(Name(i, "ffn_gate.weight"), s.ffn, s.hidden, 2 * in_hidden);
    Add(Name(i, "ffn_up.weight"), s.ffn, s.hidden, in_hidden);
    Add(Name(i, "ffn_down.weight"), s.hidden, s.ffn, 1 / std::sqrt(s.ffn));
  }
  if (s.rope_factors) {
    AddVector("rope_freqs.weight", s.pairs(), 0.0, 0.0);
    Stored& factors = stored_["rope_freqs.weight"];
    std::vector<float> values;
    for (int p = 0; p < s.pairs(); ++p) values.push_back(static_cast<float>(1 + p));
    factors.bytes = FloatBytes(values);
  }
}

void RandomModel::Add(const std::string& name, int64_t rows, int64_t columns, double size) {
  reference::Random random(SeedOf(spec_.seed, name));
  const auto found = spec_.types.find(Kind(name));
  Stored stored{found == spec_.types.end() ? DType::kF32 : found->second, rows, columns, {}};
  Vector values;
  for (int64_t r = 0; r < rows; ++r) {
    double row_size = size;
    if (spec_.k_outlier != 1 && name == Name(0, "attn_k.weight")) {
      const int channel = static_cast<int>(r % spec_.head_dim);
      if (channel == spec_.first(1) || channel == spec_.second(1)) row_size *= spec_.k_outlier;
    }
    const std::vector<uint8_t> row = reference::RandomWeightRow(stored.type, columns, row_size, random);
    stored.bytes.append(row.begin(), row.end());
    for (int64_t c = 0; c < columns; ++c) values.push_back(reference::WeightElement(stored.type, row.data(), c));
  }
  order_.push_back(name);
  stored_[name] = std::move(stored);
  values_[name] = std::move(values);
}

void RandomModel::AddVector(const std::string& name, int64_t n, double centre, double spread) {
  reference::Random random(SeedOf(spec_.seed, name));
  std::vector<float> values;
  for (int64_t i = 0; i < n; ++i) values.push_back(random.Uniform(centre - spread, centre + spread));
  if (spec_.k_bias > 0 && name == Name(0, "attn_k.bias")) {
    const int slow = spec_.pairs() * 3 / 4;
    for (int head = 0; head < spec_.kv_heads; ++head) {
      values[static_cast<size_t>(head * spec_.head_dim + spec_.first(slow))] = spec_.k_bias;
      values[static_cast<size_t>(head * spec_.head_dim + spec_.second(slow))] = -0.5f * spec_.k_bias;
    }
  }
  if (spec_.k_outlier != 1 && name == Name(0, "attn_k_norm.weight")) {
    values[static_cast<size_t>(spec_.first(1))] *= spec_.k_outlier;
    values[static_cast<size_t>(spec_.second(1))] *= spec_.k_outlier;
  }
  order_.push_back(name);
  stored_[name] = {DType::kF32, 0, n, FloatBytes(values)};
  values_[name] = Vector(values.begin(), values.end());
}

std::string RandomModel::File(const std::function<void(const std::string&, std::string&)>& changed) const {
  const RandomModelSpec& s = spec_;
  GgufWriter writer;
  const auto u32 = [&](const char* key, int value) {
    writer.U32(absl::StrCat(s.architecture, ".", key), static_cast<uint32_t>(value));
  };
  const auto f32 = [&](const char* key, float value) { writer.F32(absl::StrCat(s.architecture, ".", key), value); };
  writer.String("general.architecture", s.architecture);
  u32("block_count", s.layers);
  u32("embedding_length", s.hidden);
  u32("feed_forward_length", s.ffn);
  u32("context_length", s.context);
  u32("attention.head_count", s.q_heads);
  u32("attention.head_count_kv", s.kv_heads);
  u32("attention.key_length", s.head_dim);
  u32("attention.value_length", s.v_head_dim);
  f32("attention.layer_norm_rms_epsilon", kNormEps);
  if (s.rotary_dims > 0) u32("rope.dimension_count", s.rotary_dims);
  if (s.window > 0) u32("attention.sliding_window", s.window);
  if (s.gemma()) u32("attention.sliding_window_pattern", s.window_period);
  if (s.rope_base != 10000) f32("rope.freq_base", s.rope_base);
  if (s.rope_factor != 1) f32("rope.scaling.factor", s.rope_factor);
  if (s.yarn_context > 0) {
    writer.String(absl::StrCat(s.architecture, ".rope.scaling.type"), "yarn");
    u32("rope.scaling.original_context_length", s.yarn_context);
  }
  if (s.attention_scale > 0) f32("attention.scale", s.attention_scale);
  if (s.attention_softcap > 0) f32("attn_logit_softcapping", s.attention_softcap);
  if (s.logit_softcap > 0) f32("final_logit_softcapping", s.logit_softcap);
  if (s.embedding_scale != 1) f32("embedding_scale", s.embedding_scale);
  for (const std::string& name : order_) {
    const Stored& tensor = stored_.at(name);
    std::string bytes = tensor.bytes;
    if (changed) changed(name, bytes);
    std::vector<uint64_t> shape = {static_cast<uint64_t>(tensor.columns)};
    if (tensor.rows > 0) shape.push_back(static_cast<uint64_t>(tensor.rows));
    writer.Tensor(name, tensor.type, shape, bytes);
  }
  return writer.Finish();
}

RandomModel::Vector RandomModel::Linear(const Vector& x, const std::string& name, const std::string& bias) const {
  const Vector& w = Values(name);
  const size_t columns = static_cast<size_t>(stored_.at(name).columns), rows = w.size() / columns;
  Vector y(x.size() / columns * rows);
  for (size_t i = 0; i < y.size(); ++i) {
    const double *a = &x[i / rows * columns], *b = &w[i % rows * columns];
    double sum = bias.empty() ? 0 : Values(bias)[i % rows];
    for (size_t c = 0; c < columns; ++c) sum += a[c] * b[c];
    y[i] = sum;
  }
  return y;
}

RandomModel::Vector RandomModel::Norm(const Vector& x, const std::string& gain) const {
  return reference::Norm(NormKind::kRms, x, Values(gain), {}, kNormEps).value;
}

void RandomModel::Rope(Vector& x, int heads, int layer) const {
  const size_t dim = static_cast<size_t>(spec_.head_dim);
  for (size_t row = 0; row < x.size() / dim; ++row) {
    const double position = static_cast<double>(row / static_cast<size_t>(heads));
    for (int p = 0; p < spec_.pairs(); ++p) {
      double &a = x[row * dim + static_cast<size_t>(spec_.first(p))],
             &b = x[row * dim + static_cast<size_t>(spec_.second(p))];
      const double angle = position * spec_.frequency(layer, p);
      const double cosine = spec_.magnitude() * std::cos(angle), sine = spec_.magnitude() * std::sin(angle);
      const double rotated = a * cosine - b * sine;
      b = a * sine + b * cosine;
      a = rotated;
    }
  }
}

RandomModel::Vector RandomModel::Attention(int layer, const Vector& h, const CacheRounding& rounding) const {
  const RandomModelSpec& s = spec_;
  const auto bias = [&](const char* part) { return s.has_bias() ? Name(layer, part) : std::string(); };
  Vector q = Linear(h, Name(layer, "attn_q.weight"), bias("attn_q.bias"));
  Vector k = Linear(h, Name(layer, "attn_k.weight"), bias("attn_k.bias"));
  Vector v = Linear(h, Name(layer, "attn_v.weight"), bias("attn_v.bias"));
  if (s.has_qk_norm()) {
    q = Norm(q, Name(layer, "attn_q_norm.weight"));
    k = Norm(k, Name(layer, "attn_k_norm.weight"));
  }
  Rope(q, s.q_heads, layer);
  Rope(k, s.kv_heads, layer);
  const auto round = [&](Vector& x, int dim, const auto& to) {
    if (!to) return;
    const size_t n = static_cast<size_t>(dim);
    for (size_t row = 0; row < x.size() / n; ++row) {
      std::vector<float> values(x.begin() + static_cast<std::ptrdiff_t>(row * n),
                                x.begin() + static_cast<std::ptrdiff_t>((row + 1) * n));
      const int index = static_cast<int>(row);
      to(layer, index / s.kv_heads, index % s.kv_heads, std::span<float>(values));
      for (size_t c = 0; c < n; ++c) x[row * n + c] = values[c];
    }
  };
  round(k, s.head_dim, rounding.k);
  round(v, s.v_head_dim, rounding.v);

  reference::AttentionSpec spec;
  spec.q_heads = s.q_heads;
  spec.kv_heads = s.kv_heads;
  spec.k_dim = s.head_dim;
  spec.v_dim = s.v_head_dim;
  spec.window = s.layer_window(layer);
  spec.scale = s.attention_scale > 0 ? s.attention_scale : 1 / std::sqrt(static_cast<double>(s.head_dim));
  spec.softcap = s.attention_softcap;
  reference::AttentionInput input;
  input.queries = input.kv_len = static_cast<int>(h.size() / static_cast<size_t>(s.hidden));
  input.q = std::move(q);
  input.k = std::move(k);
  input.v = std::move(v);
  return Linear(reference::Attend(spec, input).out, Name(layer, "attn_output.weight"));
}

std::vector<double> RandomModel::Forward(std::span<const int32_t> tokens, const CacheRounding& rounding) const {
  const RandomModelSpec& s = spec_;
  const auto add = [](Vector& x, const Vector& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  };
  Vector x;
  for (int32_t token : tokens) {
    const double* row = &Values("token_embd.weight")[static_cast<size_t>(token) * static_cast<size_t>(s.hidden)];
    const double scale = s.gemma() ? std::sqrt(static_cast<double>(s.hidden)) : s.embedding_scale;
    for (int c = 0; c < s.hidden; ++c) x.push_back(row[c] * scale);
  }
  const auto behind = [&](Vector y, const std::string& gain) { return s.gemma() ? Norm(y, gain) : y; };
  for (int i = 0; i < s.layers; ++i) {
    add(x, behind(Attention(i, Norm(x, Name(i, "attn_norm.weight")), rounding), Name(i, "post_attention_norm.weight")));
    const Vector h = Norm(x, Name(i, "ffn_norm.weight"));
    Vector act = Linear(h, Name(i, "ffn_gate.weight"));
    const Vector up = Linear(h, Name(i, "ffn_up.weight"));
    for (size_t j = 0; j < act.size(); ++j) act[j] = up[j] * (s.gemma() ? GeluTanh(act[j]) : Silu(act[j]));
    add(x, behind(Linear(act, Name(i, "ffn_down.weight")), Name(i, "post_ffw_norm.weight")));
  }
  Vector logits = Linear(Norm(x, "output_norm.weight"), s.tied_head ? "token_embd.weight" : "output.weight");
  if (s.logit_softcap > 0) {
    for (double& logit : logits) logit = s.logit_softcap * std::tanh(logit / s.logit_softcap);
  }
  return logits;
}

CacheRounding RandomModel::RoundTo(DType type) const {
  const auto round = [type](int, int, int, std::span<float> row) {
    for (float& x : row) x = reference::RoundTo(type, x);
  };
  return InBalancedK({round, round});
}

// Of RoPE pair (i, j) of the channel: the root of K's gain over Q's, relative to the (upper) median channel.
double RandomModel::KFactor(int layer, int channel) const {
  if (!spec_.has_qk_norm()) return 1;
  const Vector &k = Values(Name(layer, "attn_k_norm.weight")), &q = Values(Name(layer, "attn_q_norm.weight"));
  std::vector<double> all(k.size());
  for (int p = 0; p < spec_.pairs(); ++p) {
    const auto i = static_cast<size_t>(spec_.first(p)), j = static_cast<size_t>(spec_.second(p));
    all[i] = all[j] = std::sqrt(std::hypot(k[i], k[j]) / std::hypot(q[i], q[j]));
  }
  std::vector<double> sorted = all;
  std::sort(sorted.begin(), sorted.end());
  return std::clamp(all[static_cast<size_t>(channel)] / sorted[sorted.size() / 2], 0.125, 8.0);
}

CacheRounding RandomModel::InBalancedK(CacheRounding rounding) const {
  rounding.k = [this, round = rounding.k](int layer, int position, int kv_head, std::span<float> row) {
    for (size_t c = 0; c < row.size(); ++c) row[c] /= static_cast<float>(KFactor(layer, static_cast<int>(c)));
    round(layer, position, kv_head, row);
    for (size_t c = 0; c < row.size(); ++c) row[c] *= static_cast<float>(KFactor(layer, static_cast<int>(c)));
  };
  return rounding;
}

// The K bias turned to the centre of the position's block, for the pairs that turn little inside a block.
float RandomModel::KOffset(int position, int kv_head, int channel) const {
  const double centre = position / kOffsetBlockTokens * kOffsetBlockTokens + 0.5 * (kOffsetBlockTokens - 1);
  const Vector& bias = Values(Name(0, "attn_k.bias"));
  for (int p = 0; p < spec_.pairs(); ++p) {
    if (channel != spec_.first(p) && channel != spec_.second(p)) continue;
    const double angle = spec_.frequency(0, p), size = spec_.magnitude();
    if (angle * kOffsetBlockTokens / 2 > kSlowPair) return 0;
    const double a = bias[static_cast<size_t>(kv_head * spec_.head_dim + spec_.first(p))];
    const double b = bias[static_cast<size_t>(kv_head * spec_.head_dim + spec_.second(p))];
    return static_cast<float>(size * (channel == spec_.first(p)
                                          ? a * std::cos(centre * angle) - b * std::sin(centre * angle)
                                          : a * std::sin(centre * angle) + b * std::cos(centre * angle)));
  }
  return static_cast<float>(bias[static_cast<size_t>(kv_head * spec_.head_dim + channel)]);
}

CacheRounding RandomModel::RoundToInt8(const CacheSide& k_side, const CacheSide& v_side) const {
  const auto through = [](const CacheSide& side, int kv_head, std::span<float> row) {
    const std::vector<float> decoded =
        reference::DecodeRow<float>(side, reference::EncodeRow(side, row, {}, kv_head), {}, kv_head);
    std::copy(decoded.begin(), decoded.end(), row.begin());
  };
  CacheRounding rounding;
  rounding.k = [this, k_side, through](int layer, int position, int kv_head, std::span<float> row) {
    const bool offsets = layer == 0 && spec_.k_bias > 0;
    const auto shift = [&](float sign) {
      for (size_t c = 0; offsets && c < row.size(); ++c) {
        row[c] += sign * KOffset(position, kv_head, static_cast<int>(c));
      }
    };
    shift(-1);
    through(k_side, kv_head, row);
    shift(1);
  };
  rounding.v = [v_side, through](int, int, int kv_head, std::span<float> row) { through(v_side, kv_head, row); };
  return InBalancedK(rounding);
}

}  // namespace octet
