// Finds every weight tensor that a ModelConfig asks for and checks its shape.
//
// Assumes the tensor names of GGUF (gguf-py, constants.py, TENSOR_NAMES). A tensor that octet would not use is an error
// too: leaving out a weight gives a model that talks, and talks wrong.
#ifndef OCTET_CORE_MODEL_MODEL_TENSORS_H_
#define OCTET_CORE_MODEL_MODEL_TENSORS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "core/gguf/gguf_file.h"
#include "core/model/config.h"

namespace octet {

// Shapes are [rows][row elements]. Pointers belong to the GgufFile; nullptr where the config says there is none.
struct LayerTensors {
  const GgufTensor* attn_norm = nullptr;            // f32 [hidden]
  const GgufTensor* attn_q = nullptr;               // [q_heads * head_dim][hidden]
  const GgufTensor* attn_k = nullptr;               // [kv_heads * head_dim][hidden]
  const GgufTensor* attn_v = nullptr;               // [kv_heads * v_head_dim][hidden]
  const GgufTensor* attn_q_bias = nullptr;          // f32 [q_heads * head_dim]
  const GgufTensor* attn_k_bias = nullptr;          // f32 [kv_heads * head_dim]
  const GgufTensor* attn_v_bias = nullptr;          // f32 [kv_heads * v_head_dim]
  const GgufTensor* attn_q_norm = nullptr;          // f32 [head_dim]
  const GgufTensor* attn_k_norm = nullptr;          // f32 [head_dim]
  const GgufTensor* attn_output = nullptr;          // [hidden][q_heads * v_head_dim]
  const GgufTensor* post_attention_norm = nullptr;  // f32 [hidden]
  const GgufTensor* ffn_norm = nullptr;             // f32 [hidden]
  const GgufTensor* ffn_gate = nullptr;             // [ffn][hidden]
  const GgufTensor* ffn_up = nullptr;               // [ffn][hidden]
  const GgufTensor* ffn_down = nullptr;             // [hidden][ffn]
  const GgufTensor* post_ffn_norm = nullptr;        // f32 [hidden]
};

struct ModelTensors {
  const GgufTensor* token_embd = nullptr;   // [vocab][hidden]
  const GgufTensor* output_norm = nullptr;  // f32 [hidden]
  const GgufTensor* output = nullptr;       // [vocab][hidden]; token_embd when the head is tied
  const GgufTensor* rope_freqs = nullptr;   // f32 [rotary_dims / 2]
  std::vector<LayerTensors> layers;
};

// NotFound for a missing tensor, InvalidArgument for another shape or type, Unimplemented for one that has no place.
// `config` must come from the same file.
absl::StatusOr<ModelTensors> FindModelTensors(const GgufFile& file, const ModelConfig& config);

}  // namespace octet

#endif  // OCTET_CORE_MODEL_MODEL_TENSORS_H_
