// Small models with random weights of any stored type, and their forward pass in double precision from the formulas:
// what a Runner is compared with. Assumes nothing of core but the file format. Reference: docs/numerics.md.
#ifndef OCTET_TESTS_INTEGRATION_RANDOM_MODEL_H_
#define OCTET_TESTS_INTEGRATION_RANDOM_MODEL_H_

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "octet/kv_cache.h"
#include "tests/unit/gguf_writer.h"

namespace octet {

struct RandomModelSpec {
  std::string name;
  // llama: interleaved RoPE, the others halves; qwen2: biases on Q, K and V; qwen3 and gemma3: QK-norm; gemma3: also
  // norms behind both halves of a layer, GELU, scaled embeddings, and a base of its own where there is a window.
  std::string architecture = "llama";
  int layers = 2, hidden = 64, q_heads = 6, kv_heads = 2, head_dim = 16, v_head_dim = 16, ffn = 96, vocab = 67;
  int context = 256;
  bool tied_head = true;
  std::map<std::string, DType> types;  // of matrices, by "attn_q", "token_embd", ...; f32 where absent
  int window = 0, rotary_dims = 0;     // 0: none; all of head_dim
  int window_period = 1;               // gemma3: every such layer has no window
  float rope_base = 10000, rope_factor = 1;
  int yarn_context = 0;       // rope_factor is YaRN's, over this original context; 0: linear
  bool rope_factors = false;  // rope_freqs.weight: pair p's frequency is divided by 1 + p
  float attention_softcap = 0, logit_softcap = 0, embedding_scale = 1;
  float attention_scale = 0;  // 0: the root of 1 / head_dim
  // Layer 0 gets a K bias of this size on one slow RoPE pair of every KV head (qwen2 only).
  float k_bias = 0;
  // Layer 0 gets one RoPE pair of K rows (or of the K norm's gain) this much larger than the others.
  float k_outlier = 1;
  uint64_t seed = 1;

  bool neox() const { return architecture != "llama"; }
  bool has_bias() const { return architecture == "qwen2"; }
  bool has_qk_norm() const { return architecture == "qwen3" || architecture == "gemma3"; }
  bool gemma() const { return architecture == "gemma3"; }
  int layer_window(int layer) const { return gemma() && (layer + 1) % window_period == 0 ? 0 : window; }
  int pairs() const { return (rotary_dims > 0 ? rotary_dims : head_dim) / 2; }
  // RoPE pair p = (first, second) of a head's channels, and its radians per position.
  int first(int p) const { return neox() ? p : 2 * p; }
  int second(int p) const { return neox() ? p + pairs() : 2 * p + 1; }
  double frequency(int layer, int p) const;
  double magnitude() const;  // factor of the rotated channels
};

// What a cache makes of one row of K or V, in place: by layer, position and KV head.
struct CacheRounding {
  std::function<void(int layer, int position, int kv_head, std::span<float> row)> k, v;
};

class RandomModel {
 public:
  explicit RandomModel(const RandomModelSpec& spec);

  const RandomModelSpec& spec() const { return spec_; }
  // The GGUF file, with `changed` applied to the bytes of the tensor that it is called with the name of.
  std::string File(const std::function<void(const std::string& name, std::string& bytes)>& changed = {}) const;

  // Logits [tokens][vocab] of one sequence; no rounding is an exact cache.
  std::vector<double> Forward(std::span<const int32_t> tokens, const CacheRounding& rounding = {}) const;

  // Rounding to a float type, and to INT8 with K offsets on layer 0 where the spec has a large K bias. A model with
  // QK-norm is evened out at load: its cache holds K divided by factors that the norms' gains give.
  CacheRounding RoundTo(DType type) const;
  CacheRounding RoundToInt8(const CacheSide& k, const CacheSide& v) const;

 private:
  struct Stored {
    DType type;
    int64_t rows, columns;  // rows 0: a vector
    std::string bytes;
  };
  using Vector = std::vector<double>;

  void Add(const std::string& name, int64_t rows, int64_t columns, double size);
  void AddVector(const std::string& name, int64_t n, double centre, double spread);
  const Vector& Values(const std::string& name) const { return values_.at(name); }
  Vector Linear(const Vector& x, const std::string& name, const std::string& bias = "") const;
  void Rope(Vector& x, int heads, int layer) const;
  Vector Norm(const Vector& x, const std::string& gain) const;
  Vector Attention(int layer, const Vector& h, const CacheRounding& rounding) const;
  float KOffset(int position, int kv_head, int channel) const;
  double KFactor(int layer, int channel) const;
  CacheRounding InBalancedK(CacheRounding rounding) const;

  RandomModelSpec spec_;
  std::vector<std::string> order_;
  std::map<std::string, Stored> stored_;
  std::map<std::string, Vector> values_;
};

}  // namespace octet

#endif  // OCTET_TESTS_INTEGRATION_RANDOM_MODEL_H_
