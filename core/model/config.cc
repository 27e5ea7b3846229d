#include "core/model/config.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace octet {
namespace {

// Reads "<architecture>.<name>" keys and keeps the first error, so that a reader states its keys without a branch each.
class Keys {
 public:
  Keys(const GgufFile& file, std::string architecture) : file_(file), architecture_(std::move(architecture)) {}

  const absl::Status& status() const { return status_; }
  std::string Name(const char* name) const { return absl::StrCat(architecture_, ".", name); }
  bool Has(const char* name) const { return file_.Has(Name(name)); }

  int64_t Int(const char* name, int64_t least, int64_t most) {
    return InRange(name, file_.GetInt(Name(name)), least, most);
  }
  int64_t IntOr(const char* name, int64_t absent, int64_t least, int64_t most) {
    return Has(name) ? Int(name, least, most) : absent;
  }
  double Float(const char* name, double least, double most) {
    return InRange(name, file_.GetFloat(Name(name)), least, most);
  }
  double FloatOr(const char* name, double absent, double least, double most) {
    return Has(name) ? Float(name, least, most) : absent;
  }
  std::string StringOr(const char* name, const char* absent) {
    const absl::StatusOr<std::string_view> text = file_.GetStringOr(Name(name), absent);
    if (!text.ok()) Fail(text.status());
    return text.ok() ? std::string(*text) : "";
  }

  void Fail(const absl::Status& status) {
    if (status_.ok()) status_ = status;
  }
  void FailKey(const char* name, std::string_view what) {
    Fail(absl::InvalidArgumentError(
        absl::StrCat(file_.path(), ": metadata key '", Name(name), "' ", std::string(what))));
  }
  void Refuse(const char* name, std::string_view what) {
    Fail(absl::UnimplementedError(absl::StrCat(file_.path(), ": metadata key '", Name(name), "' ", std::string(what),
                                               ", which octet does not run")));
  }

 private:
  template <typename T>
  T InRange(const char* name, const absl::StatusOr<T>& value, T least, T most) {
    if (!value.ok()) {
      Fail(value.status());
      return least;
    }
    // Written so that NaN fails too.
    if (!(*value >= least && *value <= most)) {
      FailKey(name, absl::StrCat("is ", *value, ", not in the range ", least, " to ", most));
      return least;
    }
    return *value;
  }

  const GgufFile& file_;
  std::string architecture_;
  absl::Status status_;
};

enum class QkvBias { kNone, kOptional, kAlways };

// What the name of an architecture says beyond the metadata; the rest is read. RMS norm, rotary attention and a gated
// feed-forward layer are common to all.
struct Family {
  std::string_view name;
  bool interleaved_rope = false;
  QkvBias qkv_bias = QkvBias::kNone;
  bool qk_norm = false;
  bool post_norms = false;  // of the outputs of attention and of the feed-forward layer
  Activation activation = Activation::kSiluGated;
  bool scaled_embeddings = false;  // by the root of the hidden size
  // Every window_period-th layer sees all keys, the others have the file's window; 1: all have it; 0: the file does not
  // say which have it.
  int window_period = 0;
  double local_theta = 0;        // RoPE base of layers with a window, unscaled; 0: that of the others
  bool has_rope_factors = true;  // rope_freqs.weight
};

constexpr Family kFamilies[] = {
    {.name = "llama", .interleaved_rope = true, .qkv_bias = QkvBias::kOptional, .window_period = 1},
    {.name = "qwen2", .qkv_bias = QkvBias::kAlways},
    {.name = "qwen3", .qk_norm = true},
    {.name = "gemma3",
     .qk_norm = true,
     .post_norms = true,
     .activation = Activation::kGeluTanhGated,
     .scaled_embeddings = true,
     .window_period = 6,
     .local_theta = 10000,
     .has_rope_factors = false},
};

constexpr int64_t kGemma3With168Scale = 62;  // layers of the one size whose scores are scaled by hidden / heads

constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxHeadDim = 4096;
constexpr int64_t kMaxWidth = 1 << 22;  // of hidden states and of the feed-forward layer
constexpr int64_t kMaxContext = std::numeric_limits<int32_t>::max();

void ReadSizes(Keys& keys, ModelConfig& config) {
  config.layers.resize(static_cast<size_t>(keys.Int("block_count", 1, kMaxLayers)));
  config.hidden_size = keys.Int("embedding_length", 1, kMaxWidth);
  config.ffn_size = keys.Int("feed_forward_length", 1, kMaxWidth);
  config.context_length = keys.Int("context_length", 1, kMaxContext);
  config.q_heads = keys.Int("attention.head_count", 1, kMaxHeads);
  config.kv_heads = keys.IntOr("attention.head_count_kv", config.q_heads, 1, kMaxHeads);
  if (!keys.status().ok()) return;
  if (config.q_heads % config.kv_heads != 0) {
    keys.FailKey("attention.head_count",
                 absl::StrCat("is ", config.q_heads, ", no multiple of the ", config.kv_heads, " KV heads"));
  }
  const int64_t split = config.hidden_size / config.q_heads;
  if (!keys.Has("attention.key_length") && split * config.q_heads != config.hidden_size) {
    keys.FailKey("attention.head_count",
                 absl::StrCat("is ", config.q_heads, ", which does not divide embedding_length ", config.hidden_size,
                              ", and attention.key_length is missing"));
  }
  config.head_dim = keys.IntOr("attention.key_length", split, 1, kMaxHeadDim);
  config.v_head_dim = keys.IntOr("attention.value_length", config.head_dim, 1, kMaxHeadDim);
  if (config.head_dim < 1 || config.head_dim > kMaxHeadDim) {
    keys.FailKey("attention.head_count",
                 absl::StrCat("gives a head_dim of ", config.head_dim, ", not 1 to ", kMaxHeadDim));
  }
}

RopeScaling ReadRopeScaling(Keys& keys, const ModelConfig& config) {
  RopeScaling scaling;
  scaling.attn_factor = keys.FloatOr("rope.scaling.attn_factor", 1.0, 1e-6, 1e6);
  // Without a type, a factor means linear scaling; older files have only rope.scale_linear.
  const bool has_factor = keys.Has("rope.scaling.factor");
  const char* factor_key = has_factor ? "rope.scaling.factor" : "rope.scale_linear";
  const double factor = keys.FloatOr(factor_key, 1.0, 0.0, 1e6);
  const std::string type = keys.StringOr("rope.scaling.type", "linear");
  if (type == "none" || factor == 0 || factor == 1) return scaling;  // 0 is written for "not set"
  if (factor < 1e-6) keys.FailKey(factor_key, absl::StrCat("is ", factor, ", not in the range 1e-06 to 1e+06"));
  scaling.factor = factor;
  scaling.original_context_length =
      keys.IntOr("rope.scaling.original_context_length", config.context_length, 1, kMaxContext);
  if (type == "linear") {
    scaling.kind = RopeScalingKind::kLinear;
  } else if (type == "llama3") {
    scaling.kind = RopeScalingKind::kLlama3;
    scaling.low_freq_factor = keys.FloatOr("rope.scaling.low_freq_factor", 1.0, 1e-6, 1e6);
    scaling.high_freq_factor = keys.FloatOr("rope.scaling.high_freq_factor", 4.0, 1e-6, 1e6);
    if (scaling.high_freq_factor <= scaling.low_freq_factor) {
      keys.FailKey(
          "rope.scaling.high_freq_factor",
          absl::StrCat("is ", scaling.high_freq_factor, ", not above the low_freq_factor ", scaling.low_freq_factor));
    }
  } else if (type == "yarn") {
    scaling.kind = RopeScalingKind::kYarn;
    // Negative is written for "not set".
    scaling.ext_factor = keys.FloatOr("rope.scaling.yarn_ext_factor", 1.0, -1.0, 1.0);
    if (scaling.ext_factor < 0) scaling.ext_factor = 1;
    scaling.beta_fast = keys.FloatOr("rope.scaling.yarn_beta_fast", 32.0, 1e-6, 1e6);
    scaling.beta_slow = keys.FloatOr("rope.scaling.yarn_beta_slow", 1.0, 1e-6, 1e6);
  } else {
    keys.Refuse("rope.scaling.type", absl::StrCat("is ", QuoteName(type)));
  }
  return scaling;
}

void ReadRope(const GgufFile& file, Keys& keys, const Family& family, ModelConfig& config) {
  RopeConfig::Base base;
  base.theta = keys.FloatOr("rope.freq_base", 10000.0, 1.0 + 1e-6, 1e12);
  base.scaling = ReadRopeScaling(keys, config);
  config.rope.bases = {base};
  config.rope.interleaved = family.interleaved_rope;
  config.rope.rotary_dims = static_cast<int>(keys.IntOr("rope.dimension_count", config.head_dim, 1, kMaxHeadDim));
  if (config.rope.rotary_dims % 2 != 0 || config.rope.rotary_dims > config.head_dim) {
    keys.FailKey("rope.dimension_count",
                 absl::StrCat("gives ", config.rope.rotary_dims,
                              " rotated dims, not an even number up to the head_dim ", config.head_dim));
  }
  config.rope.has_freqs_tensor = family.has_rope_factors && file.FindTensor("rope_freqs.weight") != nullptr;
  if (config.rope.has_freqs_tensor && base.scaling.kind == RopeScalingKind::kLlama3) {
    keys.Refuse("rope.scaling.type", "is 'llama3' beside a tensor 'rope_freqs.weight'");
  }
}

// Windows, and the RoPE base of the layers that have one.
void ReadWindows(Keys& keys, const Family& family, ModelConfig& config) {
  const int64_t window = keys.IntOr("attention.sliding_window", 0, 0, kMaxContext);
  const bool hides = window > 0 && window < config.context_length;
  int64_t period = family.window_period;
  if (period > 1) {
    period = keys.IntOr("attention.sliding_window_pattern", period, 1, kMaxLayers);
  } else if (keys.Has("attention.sliding_window_pattern")) {
    keys.Refuse("attention.sliding_window_pattern", "is present");
  }
  if (hides && period == 0) keys.Refuse("attention.sliding_window", absl::StrCat("is ", window));
  if (window == 0 || !keys.status().ok()) return;
  const double local_theta =
      family.local_theta > 0 ? keys.FloatOr("rope.freq_base_swa", family.local_theta, 1.0 + 1e-6, 1e12) : 0;
  if (local_theta > 0) config.rope.bases.push_back({.theta = local_theta, .scaling = {}});
  for (size_t i = 0; i < config.layers.size(); ++i) {
    const bool local = family.window_period == 1 || static_cast<int64_t>(i + 1) % period != 0;
    if (!local) continue;
    if (hides) config.layers[i].window = window;
    if (local_theta > 0) config.layers[i].rope = 1;
  }
}

// Keys that change what a layer computes and have no meaning here except their neutral value.
void RefuseOtherComputation(Keys& keys, const GgufFile& file) {
  struct Neutral {
    const char* name;
    double value;
  };
  constexpr double kLargest = std::numeric_limits<double>::max();
  for (const Neutral& key :
       {Neutral{"expert_count", 0}, Neutral{"attention.clamp_kqv", 0}, Neutral{"attention.max_alibi_bias", 0},
        Neutral{"logit_scale", 1}, Neutral{"residual_scale", 1}, Neutral{"attention.temperature_scale", 0},
        Neutral{"attention.shared_kv_layers", 0}, Neutral{"rope.scaling.alpha", 0},
        Neutral{"rope.scaling.yarn_log_multiplier", 0}, Neutral{"rope.scaling.yarn_attn_factor", 1}}) {
    if (!keys.Has(key.name)) continue;
    const double value = file.GetInt(keys.Name(key.name)).ok()
                             ? static_cast<double>(keys.Int(key.name, 0, std::numeric_limits<int64_t>::max()))
                             : keys.Float(key.name, -kLargest, kLargest);
    if (keys.status().ok() && value != key.value) keys.Refuse(key.name, absl::StrCat("is ", value));
  }
  for (const char* name : {"rope.dimension_sections", "rope.dimension_count_swa", "attention.key_length_swa",
                           "attention.value_length_swa"}) {
    if (keys.Has(name)) keys.Refuse(name, "is present");
  }
  struct Flag {
    const char* name;
    bool neutral;
  };
  for (const Flag& flag : {Flag{"attention.causal", true}, Flag{"use_parallel_residual", false}}) {
    const absl::StatusOr<bool> value = file.GetBoolOr(keys.Name(flag.name), flag.neutral);
    if (!value.ok()) keys.Fail(value.status());
    if (value.ok() && *value != flag.neutral) keys.Refuse(flag.name, *value ? "is true" : "is false");
  }
}

void ReadVocabulary(const GgufFile& file, Keys& keys, ModelConfig& config) {
  const GgufTensor* embedding = file.FindTensor("token_embd.weight");
  if (embedding == nullptr) {
    keys.Fail(absl::NotFoundError(absl::StrCat(file.path(), " has no tensor 'token_embd.weight'")));
    return;
  }
  config.vocab_size = embedding->rows;
  if (config.vocab_size > std::numeric_limits<int32_t>::max()) {
    keys.Fail(absl::InvalidArgumentError(
        absl::StrCat(file.path(), ": tensor 'token_embd.weight' has ", config.vocab_size, " rows, too many tokens")));
  }
  if (embedding->row_elements() != config.hidden_size) {
    keys.FailKey("embedding_length",
                 absl::StrCat("is ", config.hidden_size, ", but tensor 'token_embd.weight' has rows of ",
                              embedding->row_elements()));
  }
  const int64_t stated = keys.IntOr("vocab_size", config.vocab_size, 1, std::numeric_limits<int32_t>::max());
  if (stated != config.vocab_size) {
    keys.FailKey("vocab_size",
                 absl::StrCat("is ", stated, ", but tensor 'token_embd.weight' has ", config.vocab_size, " rows"));
  }
  config.tied_head = file.FindTensor("output.weight") == nullptr;
}

void ReadDecoder(const GgufFile& file, Keys& keys, const Family& family, ModelConfig& config) {
  ReadSizes(keys, config);
  if (!keys.status().ok()) return;
  RefuseOtherComputation(keys, file);
  ReadRope(file, keys, family, config);
  ReadWindows(keys, family, config);
  ReadVocabulary(file, keys, config);
  config.norm_eps = static_cast<float>(keys.Float("attention.layer_norm_rms_epsilon", 1e-12, 1.0));
  const bool by_hidden = config.architecture == "gemma3" && config.num_layers() == kGemma3With168Scale;
  const int64_t scaled_dims = by_hidden ? config.hidden_size / config.q_heads : config.head_dim;
  config.attention_scale =
      static_cast<float>(keys.FloatOr("attention.scale", 1.0 / std::sqrt(static_cast<double>(scaled_dims)), 1e-6, 1e6));
  config.attention_softcap = static_cast<float>(keys.FloatOr("attn_logit_softcapping", 0.0, 0.0, 1e6));
  config.logit_softcap = static_cast<float>(keys.FloatOr("final_logit_softcapping", 0.0, 0.0, 1e6));
  const double embedding_scale = family.scaled_embeddings ? std::sqrt(static_cast<double>(config.hidden_size)) : 1.0;
  config.embedding_scale = static_cast<float>(keys.FloatOr("embedding_scale", embedding_scale, 1e-6, 1e6));
  config.activation = family.activation;
  config.qkv_bias = family.qkv_bias == QkvBias::kAlways ||
                    (family.qkv_bias == QkvBias::kOptional && file.FindTensor("blk.0.attn_q.bias") != nullptr);
  config.qk_norm = family.qk_norm;
  config.post_attention_norm = config.post_ffn_norm = family.post_norms;
}

}  // namespace

absl::StatusOr<ModelConfig> ReadModelConfig(const GgufFile& file) {
  const absl::StatusOr<std::string_view> kind = file.GetStringOr("general.type", "model");
  if (!kind.ok()) return kind.status();
  if (*kind != "model") {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), " holds a GGUF file of type ", QuoteName(*kind), ", not a model"));
  }
  const absl::StatusOr<std::string_view> architecture = file.GetString("general.architecture");
  if (!architecture.ok()) return architecture.status();
  const auto* family = std::find_if(std::begin(kFamilies), std::end(kFamilies),
                                    [&](const Family& f) { return f.name == *architecture; });
  if (family == std::end(kFamilies)) {
    std::string known;
    for (const Family& f : kFamilies) absl::StrAppend(&known, known.empty() ? "" : ", ", std::string(f.name));
    return absl::UnimplementedError(absl::StrCat(file.path(), ": the model's architecture is ",
                                                 QuoteName(*architecture), ", which octet does not run; it runs ",
                                                 known));
  }
  ModelConfig config;
  config.architecture = std::string(*architecture);
  Keys keys(file, config.architecture);
  ReadDecoder(file, keys, *family, config);
  if (!keys.status().ok()) return keys.status();
  return config;
}

}  // namespace octet
