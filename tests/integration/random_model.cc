#include "tests/integration/random_model.h"

#include <cmath>
#include <cstring>

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

uint64_t SeedOf(uint64_t seed, const std::string& name) {
  for (char c : name) seed = seed * 1099511628211u + static_cast<uint8_t>(c);
  return seed;
}

}  // namespace

double RandomModelSpec::frequency(int p) const {
  return std::pow(10000.0, -static_cast<double>(p) / pairs()) / rope_factor;
}

RandomModel::RandomModel(const RandomModelSpec& spec) : spec_(spec) {
  const RandomModelSpec& s = spec_;
  const double in_hidden = 1 / std::sqrt(static_cast<double>(s.hidden));
  Add("token_embd.weight", s.vocab, s.hidden, 1.0);
  AddVector("output_norm.weight", s.hidden, 1.0, 0.3);
  if (!s.tied_head) Add("output.weight", s.vocab, s.hidden, 2 * in_hidden);
  for (int i = 0; i < s.layers; ++i) {
    AddVector(Name(i, "attn_norm.weight"), s.hidden, 1.0, 0.3);
    Add(Name(i, "attn_q.weight"), s.q_heads * s.head_dim, s.hidden, 1.5 * in_hidden);
    Add(Name(i, "attn_k.weight"), s.kv_heads * s.head_dim, s.hidden, 1.5 * in_hidden);
    Add(Name(i, "attn_v.weight"), s.kv_heads * s.v_head_dim, s.hidden, in_hidden);
    if (s.neox()) {
      AddVector(Name(i, "attn_q.bias"), s.q_heads * s.head_dim, 0.0, 0.5);
      AddVector(Name(i, "attn_k.bias"), s.kv_heads * s.head_dim, 0.0, 0.5);
      AddVector(Name(i, "attn_v.bias"), s.kv_heads * s.v_head_dim, 0.0, 0.5);
    }
    Add(Name(i, "attn_output.weight"), s.hidden, s.q_heads * s.v_head_dim, 1 / std::sqrt(s.q_heads * s.v_head_dim));
    AddVector(Name(i, "ffn_norm.weight"), s.hidden, 1.0, 0.3);
    Add(Name(i, "ffn_gate.weight"), s.ffn, s.hidden, 2 * in_hidden);
    Add(Name(i, "ffn_up.weight"), s.ffn, s.hidden, in_hidden);
    Add(Name(i, "ffn_down.weight"), s.hidden, s.ffn, 1 / std::sqrt(s.ffn));
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
  if (s.rope_factor != 1) f32("rope.scaling.factor", s.rope_factor);
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

void RandomModel::Rope(Vector& x, int heads) const {
  const size_t dim = static_cast<size_t>(spec_.head_dim);
  for (size_t row = 0; row < x.size() / dim; ++row) {
    const double position = static_cast<double>(row / static_cast<size_t>(heads));
    for (int p = 0; p < spec_.pairs(); ++p) {
      double &a = x[row * dim + static_cast<size_t>(spec_.first(p))],
             &b = x[row * dim + static_cast<size_t>(spec_.second(p))];
      const double cosine = std::cos(position * spec_.frequency(p)), sine = std::sin(position * spec_.frequency(p));
      const double rotated = a * cosine - b * sine;
      b = a * sine + b * cosine;
      a = rotated;
    }
  }
}

RandomModel::Vector RandomModel::Attention(int layer, const Vector& h, const CacheRounding& rounding) const {
  const RandomModelSpec& s = spec_;
  const auto bias = [&](const char* part) { return s.neox() ? Name(layer, part) : std::string(); };
  Vector q = Linear(h, Name(layer, "attn_q.weight"), bias("attn_q.bias"));
  Vector k = Linear(h, Name(layer, "attn_k.weight"), bias("attn_k.bias"));
  Vector v = Linear(h, Name(layer, "attn_v.weight"), bias("attn_v.bias"));
  Rope(q, s.q_heads);
  Rope(k, s.kv_heads);
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
  spec.window = s.window;
  spec.scale = 1 / std::sqrt(static_cast<double>(s.head_dim));
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
  const auto norm = [&](const Vector& x, const std::string& gain) {
    return reference::Norm(NormKind::kRms, x, Values(gain), {}, kNormEps).value;
  };
  const auto add = [](Vector& x, const Vector& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  };
  Vector x;
  for (int32_t token : tokens) {
    const double* row = &Values("token_embd.weight")[static_cast<size_t>(token) * static_cast<size_t>(s.hidden)];
    for (int c = 0; c < s.hidden; ++c) x.push_back(row[c] * s.embedding_scale);
  }
  for (int i = 0; i < s.layers; ++i) {
    add(x, Attention(i, norm(x, Name(i, "attn_norm.weight")), rounding));
    const Vector h = norm(x, Name(i, "ffn_norm.weight"));
    Vector act = Linear(h, Name(i, "ffn_gate.weight"));
    const Vector up = Linear(h, Name(i, "ffn_up.weight"));
    for (size_t j = 0; j < act.size(); ++j) act[j] *= up[j] / (1 + std::exp(-act[j]));
    add(x, Linear(act, Name(i, "ffn_down.weight")));
  }
  Vector logits = Linear(norm(x, "output_norm.weight"), s.tied_head ? "token_embd.weight" : "output.weight");
  if (s.logit_softcap > 0) {
    for (double& logit : logits) logit = s.logit_softcap * std::tanh(logit / s.logit_softcap);
  }
  return logits;
}

CacheRounding RandomModel::RoundTo(DType type) const {
  const auto round = [type](int, int, int, std::span<float> row) {
    for (float& x : row) x = reference::RoundTo(type, x);
  };
  return {round, round};
}

// The K bias turned to the centre of the position's block, for the pairs that turn little inside a block.
float RandomModel::KOffset(int position, int kv_head, int channel) const {
  const double centre = position / kOffsetBlockTokens * kOffsetBlockTokens + 0.5 * (kOffsetBlockTokens - 1);
  const Vector& bias = Values(Name(0, "attn_k.bias"));
  for (int p = 0; p < spec_.pairs(); ++p) {
    if (channel != spec_.first(p) && channel != spec_.second(p)) continue;
    const double angle = spec_.frequency(p);
    if (angle * kOffsetBlockTokens / 2 > kSlowPair) return 0;
    const double a = bias[static_cast<size_t>(kv_head * spec_.head_dim + spec_.first(p))];
    const double b = bias[static_cast<size_t>(kv_head * spec_.head_dim + spec_.second(p))];
    return static_cast<float>(channel == spec_.first(p) ? a * std::cos(centre * angle) - b * std::sin(centre * angle)
                                                        : a * std::sin(centre * angle) + b * std::cos(centre * angle));
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
  return rounding;
}

}  // namespace octet
