// What a decoder model is made of, as data: one struct for every architecture, read from a GGUF file's metadata.
//
// The numbers have been checked against each other and against the token embeddings before anyone allocates from them;
// the other tensors' shapes are model_tensors.h's matter. Reference: docs/gguf.md of ggml (metadata keys),
// llama-arch.cpp of llama.cpp.
#ifndef OCTET_CORE_MODEL_CONFIG_H_
#define OCTET_CORE_MODEL_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/gguf/gguf_file.h"
#include "octet/dense_ops.h"

namespace octet {

enum class RopeScalingKind { kNone, kLinear, kLlama3, kYarn };

struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::kNone;
  double factor = 1;                    // positions are divided by it (linear); stretch of the context (the others)
  double attn_factor = 1;               // factor of cos and sin, beside yarn's own
  int64_t original_context_length = 0;  // llama3 and yarn: tokens before the stretch
  double low_freq_factor = 1, high_freq_factor = 4;      // llama3: turns inside the original context
  double ext_factor = 1, beta_fast = 32, beta_slow = 1;  // yarn: the same, fast to slow
};

struct RopeConfig {
  // Layers with windowed attention may use another base than the others: LayerConfig::rope picks one.
  struct Base {
    double theta = 10000;
    RopeScaling scaling;
  };
  std::vector<Base> bases;   // at least one
  int rotary_dims = 0;       // even, at most the key head_dim; the dims beyond it are not rotated
  bool interleaved = false;  // pairs (2i, 2i + 1), as GGUF permutes llama's Q and K; otherwise (i, i + rotary_dims / 2)
  bool has_freqs_tensor = false;  // rope_freqs.weight [rotary_dims / 2]: divides each pair's frequency
};

struct LayerConfig {
  int64_t window = 0;  // keys a token sees, itself included; 0: all
  int rope = 0;        // index into RopeConfig::bases
};

struct ModelConfig {
  std::string architecture;
  int64_t hidden_size = 0;
  int64_t q_heads = 0;  // a multiple of kv_heads
  int64_t kv_heads = 0;
  int64_t head_dim = 0;  // of Q and K
  int64_t v_head_dim = 0;
  int64_t ffn_size = 0;
  int64_t vocab_size = 0;
  int64_t context_length = 0;  // tokens it was trained for
  std::vector<LayerConfig> layers;

  float norm_eps = 0;  // of the RMS norms
  RopeConfig rope;
  Activation activation = Activation::kSiluGated;
  float attention_scale = 0;    // factor of q·k
  float attention_softcap = 0;  // c: scores become c·tanh(score / c); 0: none
  float logit_softcap = 0;      // the same for the logits
  float embedding_scale = 1;    // factor of the token embeddings
  bool qkv_bias = false;
  bool qk_norm = false;  // RMS norm of each head of Q and K before RoPE
  bool post_attention_norm = false;
  bool post_ffn_norm = false;
  bool tied_head = false;  // no output.weight: the token embeddings serve as the output matrix

  int64_t num_layers() const { return static_cast<int64_t>(layers.size()); }
};

// Unimplemented when the architecture, or something this model asks of it, is not one that octet runs; InvalidArgument
// or NotFound when a key is missing, absurd, or contradicts another or the tensors. Messages name the key.
absl::StatusOr<ModelConfig> ReadModelConfig(const GgufFile& file);

}  // namespace octet

#endif  // OCTET_CORE_MODEL_CONFIG_H_
