// Small llama, qwen2, qwen3 and gemma3 models with random float32 weights, as GGUF files in memory. For tests only.
#ifndef OCTET_TESTS_UNIT_TINY_MODEL_H_
#define OCTET_TESTS_UNIT_TINY_MODEL_H_

#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/unit/gguf_writer.h"

namespace octet {

struct TinyModel {
  std::string architecture = "llama";
  uint32_t layers = 2, hidden = 16, q_heads = 4, kv_heads = 2, ffn = 24, vocab = 20, context = 64;
  uint32_t head_dim = 0, v_head_dim = 0;  // 0: hidden / q_heads, and no key in the file
  bool tied_head = true;
  uint32_t seed = 1;
  // Metadata keys (with the architecture's prefix) and tensors that are left out.
  std::set<std::string> without;
};

// The file without its last step, so that a test may add keys and tensors before Finish().
inline GgufWriter TinyModelFile(const TinyModel& model) {
  GgufWriter writer;
  const auto u32 = [&](const std::string& name, uint32_t value) {
    const std::string key = absl::StrCat(model.architecture, ".", name);
    if (!model.without.contains(key)) writer.U32(key, value);
  };
  if (!model.without.contains("general.architecture")) writer.String("general.architecture", model.architecture);
  u32("block_count", model.layers);
  u32("embedding_length", model.hidden);
  u32("feed_forward_length", model.ffn);
  u32("context_length", model.context);
  u32("attention.head_count", model.q_heads);
  u32("attention.head_count_kv", model.kv_heads);
  if (model.head_dim != 0) u32("attention.key_length", model.head_dim);
  if (model.v_head_dim != 0) u32("attention.value_length", model.v_head_dim);
  const std::string eps = absl::StrCat(model.architecture, ".attention.layer_norm_rms_epsilon");
  if (!model.without.contains(eps)) writer.F32(eps, 1e-5f);

  std::mt19937 random(model.seed);
  const auto tensor = [&](const std::string& name, uint64_t columns, uint64_t rows) {
    std::vector<float> values(columns * rows);
    // Uniform from raw bits: the standard distributions differ between libraries.
    for (float& value : values) value = static_cast<float>(static_cast<int32_t>(random())) * 0x1p-32f;
    if (name.ends_with("norm.weight")) {
      for (float& value : values) value += 1.0f;
    }
    if (model.without.contains(name)) return;
    if (rows == 1) {
      writer.Tensor(name, DType::kF32, {columns}, FloatBytes(values));
    } else {
      writer.Tensor(name, DType::kF32, {columns, rows}, FloatBytes(values));
    }
  };
  const uint32_t head_dim = model.head_dim != 0 ? model.head_dim : model.hidden / model.q_heads;
  const uint32_t v_head_dim = model.v_head_dim != 0 ? model.v_head_dim : head_dim;
  tensor("token_embd.weight", model.hidden, model.vocab);
  tensor("output_norm.weight", model.hidden, 1);
  if (!model.tied_head) tensor("output.weight", model.hidden, model.vocab);
  for (uint32_t i = 0; i < model.layers; ++i) {
    const std::string blk = absl::StrCat("blk.", i, ".");
    tensor(blk + "attn_norm.weight", model.hidden, 1);
    tensor(blk + "attn_q.weight", model.hidden, model.q_heads * head_dim);
    tensor(blk + "attn_k.weight", model.hidden, model.kv_heads * head_dim);
    tensor(blk + "attn_v.weight", model.hidden, model.kv_heads * v_head_dim);
    if (model.architecture == "qwen2") {
      tensor(blk + "attn_q.bias", model.q_heads * head_dim, 1);
      tensor(blk + "attn_k.bias", model.kv_heads * head_dim, 1);
      tensor(blk + "attn_v.bias", model.kv_heads * v_head_dim, 1);
    }
    if (model.architecture == "qwen3" || model.architecture == "gemma3") {
      tensor(blk + "attn_q_norm.weight", head_dim, 1);
      tensor(blk + "attn_k_norm.weight", head_dim, 1);
    }
    if (model.architecture == "gemma3") {
      tensor(blk + "post_attention_norm.weight", model.hidden, 1);
      tensor(blk + "post_ffw_norm.weight", model.hidden, 1);
    }
    tensor(blk + "attn_output.weight", model.q_heads * v_head_dim, model.hidden);
    tensor(blk + "ffn_norm.weight", model.hidden, 1);
    tensor(blk + "ffn_gate.weight", model.hidden, model.ffn);
    tensor(blk + "ffn_up.weight", model.hidden, model.ffn);
    tensor(blk + "ffn_down.weight", model.ffn, model.hidden);
  }
  return writer;
}

}  // namespace octet

#endif  // OCTET_TESTS_UNIT_TINY_MODEL_H_
