// Reading a model's shape out of GGUF metadata, and finding its tensors.
#include "core/model/config.h"

#include <cmath>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "core/model/model_tensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/tiny_model.h"

namespace octet {
namespace {

using ::testing::HasSubstr;

struct Loaded {
  std::unique_ptr<GgufFile> file;
  ModelConfig config;
  ModelTensors tensors;
};

absl::StatusOr<Loaded> Load(const GgufWriter& writer) {
  const TempFile temporary(writer.Finish());
  Loaded loaded;
  absl::StatusOr<std::unique_ptr<GgufFile>> file = GgufFile::Open(temporary.path());
  if (!file.ok()) return file.status();
  loaded.file = *std::move(file);
  absl::StatusOr<ModelConfig> config = ReadModelConfig(*loaded.file);
  if (!config.ok()) return config.status();
  loaded.config = *std::move(config);
  absl::StatusOr<ModelTensors> tensors = FindModelTensors(*loaded.file, loaded.config);
  if (!tensors.ok()) return tensors.status();
  loaded.tensors = *std::move(tensors);
  return loaded;
}

std::string ErrorOf(const GgufWriter& writer) {
  const absl::StatusOr<Loaded> loaded = Load(writer);
  return loaded.ok() ? "OK" : std::string(loaded.status().message());
}

using Change = std::function<void(GgufWriter&)>;

// The error of a tiny model whose key or tensor `without` is replaced by what `change` adds.
std::string ErrorOf(const std::string& without, const Change& change, const std::string& architecture = "llama") {
  TinyModel model;
  model.architecture = architecture;
  model.without = {without};
  GgufWriter writer = TinyModelFile(model);
  change(writer);
  return ErrorOf(writer);
}

TEST(ModelConfigTest, ReadsLlama) {
  const auto loaded = Load(TinyModelFile({}));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const ModelConfig& config = loaded->config;
  EXPECT_EQ(config.architecture, "llama");
  EXPECT_EQ(config.num_layers(), 2);
  EXPECT_EQ(config.hidden_size, 16);
  EXPECT_EQ(config.q_heads, 4);
  EXPECT_EQ(config.kv_heads, 2);
  EXPECT_EQ(config.head_dim, 4);
  EXPECT_EQ(config.v_head_dim, 4);
  EXPECT_EQ(config.ffn_size, 24);
  EXPECT_EQ(config.vocab_size, 20);
  EXPECT_EQ(config.context_length, 64);
  EXPECT_EQ(config.norm_eps, 1e-5f);
  EXPECT_EQ(config.activation, Activation::kSiluGated);
  ASSERT_EQ(config.rope.bases.size(), 1);
  EXPECT_EQ(config.rope.bases[0].theta, 10000.0);
  EXPECT_EQ(config.rope.bases[0].scaling.kind, RopeScalingKind::kNone);
  EXPECT_EQ(config.rope.rotary_dims, 4);
  EXPECT_TRUE(config.rope.interleaved);
  EXPECT_FALSE(config.rope.has_freqs_tensor);
  EXPECT_EQ(config.attention_scale, 0.5f);
  EXPECT_EQ(config.attention_softcap, 0);
  EXPECT_EQ(config.logit_softcap, 0);
  EXPECT_EQ(config.embedding_scale, 1);
  EXPECT_FALSE(config.qkv_bias);
  EXPECT_FALSE(config.qk_norm);
  EXPECT_TRUE(config.tied_head);
  EXPECT_EQ(config.layers[1].window, 0);
  EXPECT_EQ(config.layers[1].rope, 0);
  EXPECT_EQ(loaded->tensors.layers.size(), 2);
  EXPECT_EQ(loaded->tensors.output, loaded->tensors.token_embd);
  EXPECT_EQ(loaded->tensors.layers[1].ffn_down->name, "blk.1.ffn_down.weight");
  EXPECT_EQ(loaded->tensors.layers[0].attn_q_bias, nullptr);
}

TEST(ModelConfigTest, ReadsQwen2) {
  TinyModel model;
  model.architecture = "qwen2";
  model.tied_head = false;
  const auto loaded = Load(TinyModelFile(model).F32("qwen2.rope.freq_base", 1e6f));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_FALSE(loaded->config.rope.interleaved);
  EXPECT_EQ(loaded->config.rope.bases[0].theta, 1e6);
  EXPECT_TRUE(loaded->config.qkv_bias);
  EXPECT_FALSE(loaded->config.tied_head);
  EXPECT_EQ(loaded->tensors.output->name, "output.weight");
  EXPECT_EQ(loaded->tensors.layers[1].attn_v_bias->name, "blk.1.attn_v.bias");
}

TEST(ModelConfigTest, ReadsQwen3) {
  TinyModel model;
  model.architecture = "qwen3";
  model.head_dim = 8;
  const auto loaded = Load(TinyModelFile(model).F32("qwen3.rope.freq_base", 1e6f));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_FALSE(loaded->config.rope.interleaved);
  EXPECT_TRUE(loaded->config.qk_norm);
  EXPECT_FALSE(loaded->config.qkv_bias);
  EXPECT_FALSE(loaded->config.post_attention_norm);
  EXPECT_EQ(loaded->config.activation, Activation::kSiluGated);
  EXPECT_EQ(loaded->config.embedding_scale, 1);
  EXPECT_EQ(loaded->tensors.layers[1].attn_k_norm->name, "blk.1.attn_k_norm.weight");
}

TinyModel Gemma3() {
  TinyModel model;
  model.architecture = "gemma3";
  model.layers = 12;
  model.head_dim = 8;
  return model;
}

TEST(ModelConfigTest, ReadsGemma3) {
  GgufWriter writer = TinyModelFile(Gemma3());
  writer.F32("gemma3.rope.freq_base", 1e6f).U32("gemma3.attention.sliding_window", 16);
  writer.String("gemma3.rope.scaling.type", "linear").F32("gemma3.rope.scaling.factor", 8);
  const auto loaded = Load(writer);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const ModelConfig& config = loaded->config;
  EXPECT_TRUE(config.qk_norm);
  EXPECT_TRUE(config.post_attention_norm);
  EXPECT_TRUE(config.post_ffn_norm);
  EXPECT_TRUE(config.tied_head);
  EXPECT_FALSE(config.rope.interleaved);
  EXPECT_EQ(config.activation, Activation::kGeluTanhGated);
  EXPECT_EQ(config.embedding_scale, 4);  // the root of 16
  EXPECT_NEAR(config.attention_scale, 1 / std::sqrt(8.0), 1e-7);
  EXPECT_EQ(config.logit_softcap, 0);
  ASSERT_EQ(config.rope.bases.size(), 2);
  EXPECT_EQ(config.rope.bases[0].theta, 1e6);
  EXPECT_EQ(config.rope.bases[0].scaling.kind, RopeScalingKind::kLinear);
  EXPECT_EQ(config.rope.bases[0].scaling.factor, 8);
  EXPECT_EQ(config.rope.bases[1].theta, 1e4);
  EXPECT_EQ(config.rope.bases[1].scaling.kind, RopeScalingKind::kNone);
  for (size_t i = 0; i < 12; ++i) {
    const bool global = i == 5 || i == 11;
    EXPECT_EQ(config.layers[i].window, global ? 0 : 16) << i;
    EXPECT_EQ(config.layers[i].rope, global ? 0 : 1) << i;
  }
}

TEST(ModelConfigTest, Gemma3sPatternAndBasesFollowTheFile) {
  GgufWriter writer = TinyModelFile(Gemma3());
  writer.U32("gemma3.attention.sliding_window", 16).U32("gemma3.attention.sliding_window_pattern", 2);
  const auto patterned = Load(writer.F32("gemma3.rope.freq_base_swa", 5e4f));
  ASSERT_TRUE(patterned.ok()) << patterned.status();
  EXPECT_EQ(patterned->config.layers[0].window, 16);
  EXPECT_EQ(patterned->config.layers[1].window, 0);
  EXPECT_EQ(patterned->config.rope.bases[1].theta, 5e4);
  // A window that hides nothing still marks the layers with the local base.
  const auto wide = Load(TinyModelFile(Gemma3()).U32("gemma3.attention.sliding_window", 64));
  ASSERT_TRUE(wide.ok()) << wide.status();
  EXPECT_EQ(wide->config.layers[0].window, 0);
  EXPECT_EQ(wide->config.layers[0].rope, 1);
  const auto none = Load(TinyModelFile(Gemma3()));
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(none->config.rope.bases.size(), 1);
  EXPECT_EQ(none->config.layers[0].rope, 0);
}

// The 27B size scales scores by hidden / heads instead of the head_dim.
TEST(ModelConfigTest, Gemma3With62LayersScalesScoresByItsHiddenSize) {
  TinyModel model = Gemma3();
  model.layers = 62;
  const auto loaded = Load(TinyModelFile(model));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config.attention_scale, 0.5f);  // hidden 16, 4 heads
}

TEST(ModelConfigTest, ReadsRopeScaling) {
  GgufWriter yarn = TinyModelFile({}).String("llama.rope.scaling.type", "yarn").F32("llama.rope.scaling.factor", 4);
  yarn.U32("llama.rope.scaling.original_context_length", 32).F32("llama.rope.scaling.attn_factor", 1.5f);
  yarn.F32("llama.rope.scaling.yarn_ext_factor", 0.5f).F32("llama.rope.scaling.yarn_beta_fast", 16);
  const auto loaded = Load(yarn.F32("llama.rope.scaling.yarn_beta_slow", 2));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const RopeScaling& scaling = loaded->config.rope.bases[0].scaling;
  EXPECT_EQ(scaling.kind, RopeScalingKind::kYarn);
  EXPECT_EQ(scaling.factor, 4);
  EXPECT_EQ(scaling.original_context_length, 32);
  EXPECT_EQ(scaling.attn_factor, 1.5);
  EXPECT_EQ(scaling.ext_factor, 0.5);
  EXPECT_EQ(scaling.beta_fast, 16);
  EXPECT_EQ(scaling.beta_slow, 2);

  GgufWriter llama3 = TinyModelFile({}).String("llama.rope.scaling.type", "llama3");
  llama3.F32("llama.rope.scaling.factor", 8).F32("llama.rope.scaling.low_freq_factor", 2);
  const auto other = Load(llama3);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(other->config.rope.bases[0].scaling.kind, RopeScalingKind::kLlama3);
  EXPECT_EQ(other->config.rope.bases[0].scaling.low_freq_factor, 2);
  EXPECT_EQ(other->config.rope.bases[0].scaling.high_freq_factor, 4);
  EXPECT_EQ(other->config.rope.bases[0].scaling.original_context_length, 64);  // of the model
  EXPECT_THAT(ErrorOf(llama3.Tensor("rope_freqs.weight", DType::kF32, {2}, FloatBytes({1, 8}))),
              HasSubstr("'llama3' beside a tensor 'rope_freqs.weight'"));
}

TEST(ModelConfigTest, OptionalKeysReplaceTheDefaults) {
  TinyModel model;
  model.hidden = 32;  // head_dim 8
  GgufWriter writer = TinyModelFile(model);
  writer.U32("llama.attention.key_length", 8).U32("llama.attention.value_length", 8).U32("llama.vocab_size", 20);
  writer.U32("llama.rope.dimension_count", 4).F32("llama.attention.scale", 0.25f);
  writer.F32("llama.attn_logit_softcapping", 50).F32("llama.final_logit_softcapping", 30);
  writer.F32("llama.embedding_scale", 2).U32("llama.attention.sliding_window", 16).U32("llama.expert_count", 0);
  writer.F32("llama.rope.scaling.factor", 4).Bool("llama.attention.causal", true);
  writer.Tensor("rope_freqs.weight", DType::kF32, {2}, FloatBytes({1, 8}));
  const auto loaded = Load(writer);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const ModelConfig& config = loaded->config;
  EXPECT_EQ(config.rope.rotary_dims, 4);
  EXPECT_EQ(config.attention_scale, 0.25f);
  EXPECT_EQ(config.attention_softcap, 50);
  EXPECT_EQ(config.logit_softcap, 30);
  EXPECT_EQ(config.embedding_scale, 2);
  EXPECT_EQ(config.layers[0].window, 16);
  EXPECT_EQ(config.rope.bases[0].scaling.kind, RopeScalingKind::kLinear);
  EXPECT_EQ(config.rope.bases[0].scaling.factor, 4);
  EXPECT_TRUE(config.rope.has_freqs_tensor);
  EXPECT_EQ(loaded->tensors.rope_freqs->elements, 2);
}

TEST(ModelConfigTest, KvHeadsDefaultToQueryHeads) {
  TinyModel model;
  model.kv_heads = 4;
  model.without = {"llama.attention.head_count_kv"};
  EXPECT_EQ(Load(TinyModelFile(model)).value().config.kv_heads, 4);
}

TEST(ModelConfigTest, HeadDimsMayDifferFromTheHiddenSizesShare) {
  TinyModel model;
  model.architecture = "qwen2";
  model.q_heads = 6;  // does not divide 16
  model.head_dim = 8;
  model.v_head_dim = 4;
  const auto loaded = Load(TinyModelFile(model));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config.head_dim, 8);
  EXPECT_EQ(loaded->config.v_head_dim, 4);
  EXPECT_EQ(loaded->config.rope.rotary_dims, 8);
  EXPECT_EQ(loaded->tensors.layers[0].attn_output->row_elements(), 24);
}

TEST(ModelConfigTest, NormsThatTheConfigAsksForAreFound) {
  GgufWriter writer = TinyModelFile({});
  const auto loaded = Load(writer);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  ModelConfig config = loaded->config;
  config.qk_norm = config.post_attention_norm = config.post_ffn_norm = true;
  EXPECT_THAT(std::string(FindModelTensors(*loaded->file, config).status().message()),
              HasSubstr("no tensor 'blk.0.attn_q_norm.weight'"));
  for (const char* layer : {"blk.0.", "blk.1."}) {
    for (const char* part : {"attn_q_norm", "attn_k_norm", "post_attention_norm", "post_ffw_norm"}) {
      const size_t size = std::string(part).starts_with("attn") ? 4 : 16;
      writer.Tensor(absl::StrCat(layer, part, ".weight"), DType::kF32, {size}, FloatBytes(std::vector<float>(size)));
    }
  }
  const TempFile temporary(writer.Finish());
  const auto file = GgufFile::Open(temporary.path());
  ASSERT_TRUE(file.ok()) << file.status();
  const auto tensors = FindModelTensors(**file, config);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  EXPECT_EQ(tensors->layers[1].attn_k_norm->name, "blk.1.attn_k_norm.weight");
  EXPECT_EQ(tensors->layers[1].post_ffn_norm->name, "blk.1.post_ffw_norm.weight");
}

TEST(ModelConfigTest, WindowAsWideAsTheContextHidesNothing) {
  const auto loaded = Load(TinyModelFile({}).U32("llama.attention.sliding_window", 64));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config.layers[0].window, 0);
}

TEST(ModelConfigTest, OtherArchitecturesAreRefusedByName) {
  for (const char* name : {"deepseek2", "qwen2moe", "qwen3moe", "t5", "mamba", "gemma", "gemma2", "gemma3n", "phi3",
                           "falcon", "gpt2", "bert", "command-r", "llama4", "rwkv7", "qwen2vl"}) {
    TinyModel model;
    model.architecture = name;
    const auto loaded = Load(TinyModelFile(model));
    EXPECT_EQ(loaded.status().code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(loaded.status().message()),
                HasSubstr(absl::StrCat("the model's architecture is '", name,
                                       "', which octet does not run; it runs llama, qwen2, qwen3, gemma3")));
  }
  EXPECT_THAT(ErrorOf("general.architecture", [](GgufWriter&) {}), HasSubstr("no metadata key 'general.architecture'"));
  EXPECT_THAT(ErrorOf("", [](GgufWriter& w) { w.String("general.type", "adapter"); }),
              HasSubstr("GGUF file of type 'adapter', not a model"));
}

TEST(ModelConfigTest, WhatOctetDoesNotRunIsRefused) {
  const struct {
    Change change;
    const char* error;
  } cases[] = {
      {[](GgufWriter& w) { w.U32("llama.expert_count", 8); }, "'llama.expert_count' is 8, which octet does not run"},
      {[](GgufWriter& w) { w.F32("llama.attention.clamp_kqv", 8); }, "'llama.attention.clamp_kqv' is 8"},
      {[](GgufWriter& w) { w.F32("llama.attention.max_alibi_bias", 8); }, "'llama.attention.max_alibi_bias' is 8"},
      {[](GgufWriter& w) { w.F32("llama.logit_scale", 0.5f); }, "'llama.logit_scale' is 0.5"},
      {[](GgufWriter& w) { w.F32("llama.residual_scale", 0.5f); }, "'llama.residual_scale' is 0.5"},
      {[](GgufWriter& w) { w.F32("llama.residual_scale", NAN); }, "'llama.residual_scale' is nan"},
      {[](GgufWriter& w) { w.Bool("llama.attention.causal", false); }, "'llama.attention.causal' is false"},
      {[](GgufWriter& w) { w.Bool("llama.use_parallel_residual", true); }, "'llama.use_parallel_residual' is true"},
      {[](GgufWriter& w) { w.U32("llama.attention.sliding_window_pattern", 6); }, "sliding_window_pattern' is present"},
      {[](GgufWriter& w) { w.U32("llama.attention.shared_kv_layers", 2); }, "'llama.attention.shared_kv_layers' is 2"},
      {[](GgufWriter& w) { w.U32("llama.attention.key_length_swa", 2); }, "key_length_swa' is present"},
      {[](GgufWriter& w) { w.String("llama.rope.scaling.type", "longrope").F32("llama.rope.scaling.factor", 4); },
       "'llama.rope.scaling.type' is 'longrope', which octet does not run"},
      {[](GgufWriter& w) { w.F32("llama.rope.scaling.yarn_log_multiplier", 0.1f); }, "yarn_log_multiplier' is 0.1"},
      {[](GgufWriter& w) { w.F32("llama.rope.scaling.yarn_attn_factor", 2); }, "yarn_attn_factor' is 2"},
  };
  for (const auto& c : cases) EXPECT_THAT(ErrorOf("", c.change), HasSubstr(c.error));
  EXPECT_THAT(ErrorOf(
                  "", [](GgufWriter& w) { w.U32("qwen2.attention.sliding_window", 8); }, "qwen2"),
              HasSubstr("'qwen2.attention.sliding_window' is 8, which octet does not run"));
  // Neither has a place for what the other family needs.
  EXPECT_THAT(
      ErrorOf(
          "",
          [](GgufWriter& w) { w.Tensor("blk.0.attn_q.bias", DType::kF32, {16}, FloatBytes(std::vector<float>(16))); },
          "qwen3"),
      HasSubstr("tensor 'blk.0.attn_q.bias' has no place in octet's qwen3 model"));
  EXPECT_THAT(ErrorOf(
                  "",
                  [](GgufWriter& w) {
                    w.Tensor("rope_freqs.weight", DType::kF32, {2}, FloatBytes({1, 8}));
                  },
                  "gemma3"),
              HasSubstr("tensor 'rope_freqs.weight' has no place in octet's gemma3 model"));
}

TEST(ModelConfigTest, PlainScalingIsNoScaling) {
  for (const char* type : {"none", "linear", "yarn"}) {
    const auto loaded =
        Load(TinyModelFile({}).String("llama.rope.scaling.type", type).F32("llama.rope.scaling.factor", 1));
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(loaded->config.rope.bases[0].scaling.kind, RopeScalingKind::kNone);
  }
}

TEST(ModelConfigTest, MissingKeysAreNamed) {
  for (const char* key : {"block_count", "embedding_length", "feed_forward_length", "context_length",
                          "attention.head_count", "attention.layer_norm_rms_epsilon"}) {
    const std::string name = absl::StrCat("llama.", key);
    EXPECT_THAT(ErrorOf(name, [](GgufWriter&) {}), HasSubstr("no metadata key '" + name + "'"));
  }
}

TEST(ModelConfigTest, AbsurdValuesNameTheirKey) {
  for (const char* key : {"llama.block_count", "llama.embedding_length", "llama.feed_forward_length",
                          "llama.context_length", "llama.attention.head_count", "llama.attention.head_count_kv"}) {
    for (uint32_t value : {0u, 0xffffffffu}) {
      EXPECT_THAT(ErrorOf(key, [&](GgufWriter& w) { w.U32(key, value); }),
                  HasSubstr(absl::StrCat("metadata key '", key, "' is ", value, ", not in the range 1 to")));
    }
    EXPECT_THAT(ErrorOf(key, [&](GgufWriter& w) { w.I32(key, -1); }), HasSubstr("is -1, not in the range"));
    EXPECT_THAT(ErrorOf(key, [&](GgufWriter& w) { w.F32(key, 2); }),
                HasSubstr(absl::StrCat("'", key, "' is of type float32, not an integer")));
  }
  const std::string eps = "llama.attention.layer_norm_rms_epsilon";
  for (float value : {0.0f, -1e-5f, 2.0f, NAN, INFINITY}) {
    EXPECT_THAT(ErrorOf(eps, [&](GgufWriter& w) { w.F32(eps, value); }), HasSubstr("'" + eps + "' is "));
    EXPECT_THAT(ErrorOf("", [&](GgufWriter& w) { w.F32("llama.rope.freq_base", value < 1 ? value : NAN); }),
                HasSubstr("'llama.rope.freq_base' is "));
  }
}

TEST(ModelConfigTest, AbsurdRopeScalingNamesItsKey) {
  for (const char* key : {"factor", "attn_factor", "yarn_beta_fast", "yarn_beta_slow", "yarn_ext_factor"}) {
    for (const float value : {-2.0f, NAN, 1e9f}) {
      const std::string error = ErrorOf("", [&](GgufWriter& w) {
        w.String("llama.rope.scaling.type", "yarn").F32(absl::StrCat("llama.rope.scaling.", key), value);
        if (std::string(key) != "factor") w.F32("llama.rope.scaling.factor", 4);
      });
      EXPECT_THAT(error, HasSubstr(absl::StrCat("'llama.rope.scaling.", key, "' is "))) << value;
    }
  }
  EXPECT_THAT(ErrorOf("",
                      [](GgufWriter& w) {
                        w.String("llama.rope.scaling.type", "llama3").F32("llama.rope.scaling.factor", 4);
                        w.F32("llama.rope.scaling.low_freq_factor", 4);
                      }),
              HasSubstr("'llama.rope.scaling.high_freq_factor' is 4, not above the low_freq_factor 4"));
  EXPECT_THAT(ErrorOf(
                  "", [](GgufWriter& w) { w.String("gemma3.attention.sliding_window_pattern", "6"); }, "gemma3"),
              HasSubstr("'gemma3.attention.sliding_window_pattern' is of type string"));
}

TEST(ModelConfigTest, ContradictionsNameTheirKey) {
  const struct {
    const char* key;
    uint32_t value;
    const char* error;
  } cases[] = {
      {"llama.attention.head_count_kv", 3, "'llama.attention.head_count' is 4, no multiple of the 3 KV heads"},
      {"llama.attention.head_count", 6, "'llama.attention.head_count' is 6, which does not divide embedding_length 16"},
      {"llama.attention.head_count", 32, "'llama.attention.head_count' is 32, which does not divide"},
      {"llama.embedding_length", 32, "'llama.embedding_length' is 32, but tensor 'token_embd.weight' has rows of 16"},
      {"llama.vocab_size", 21, "'llama.vocab_size' is 21, but tensor 'token_embd.weight' has 20 rows"},
      {"llama.rope.dimension_count", 3, "'llama.rope.dimension_count' gives 3 rotated dims"},
      {"llama.rope.dimension_count", 6, "not an even number up to the head_dim 4"},
      {"llama.block_count", 3, "no tensor 'blk.2.attn_norm.weight'"},
      {"llama.block_count", 1, "tensor 'blk.1.attn_norm.weight' has no place in octet's llama model"},
      {"llama.feed_forward_length", 25,
       "tensor 'blk.0.ffn_gate.weight' has 24 rows of 16, but the metadata asks for 25"},
      {"llama.attention.key_length", 8, "tensor 'blk.0.attn_q.weight' has 16 rows of 16, but the metadata asks for 32"},
      {"llama.attention.value_length", 2, "tensor 'blk.0.attn_v.weight' has 8 rows of 16, but the metadata asks for 4"},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(ErrorOf(c.key, [&](GgufWriter& w) { w.U32(c.key, c.value); }), HasSubstr(c.error)) << c.key;
  }
}

TEST(ModelConfigTest, EveryTensorIsNeededAndChecked) {
  TinyModel model;
  model.architecture = "qwen2";
  model.tied_head = false;
  const auto whole = Load(TinyModelFile(model));
  ASSERT_TRUE(whole.ok()) << whole.status();
  ASSERT_EQ(whole->file->tensors().size(), 27);
  for (const GgufTensor& tensor : whole->file->tensors()) {
    const std::string name(tensor.name);
    model.without = {name};
    if (name != "output.weight") {  // without it the head is tied
      EXPECT_THAT(ErrorOf(TinyModelFile(model)), HasSubstr("has no tensor '" + name + "'"));
    }
    GgufWriter reshaped = TinyModelFile(model);
    reshaped.Tensor(name, DType::kF32, {7, 3}, std::string(84, '\0'));
    EXPECT_THAT(ErrorOf(reshaped), HasSubstr("tensor '" + std::string(tensor.name)));
  }
}

TEST(ModelConfigTest, TensorsWithoutAPlaceAreRefused) {
  const std::string bias = FloatBytes(std::vector<float>(16));
  EXPECT_THAT(ErrorOf("", [&](GgufWriter& w) { w.Tensor("blk.1.attn_output.bias", DType::kF32, {16}, bias); }),
              HasSubstr("tensor 'blk.1.attn_output.bias' has no place in octet's llama model"));
  EXPECT_EQ(ErrorOf("", [&](GgufWriter& w) { w.Tensor("blk.1.attn_rot_embd", DType::kF32, {16}, bias); }), "OK");
  EXPECT_THAT(
      ErrorOf("blk.1.ffn_norm.weight",
              [](GgufWriter& w) { w.Tensor("blk.1.ffn_norm.weight", DType::kF16, {16}, std::string(32, '\0')); }),
      HasSubstr("tensor 'blk.1.ffn_norm.weight' has type f16"));
}

struct RealModel {
  const char* file;
  int64_t layers, hidden, q_heads, kv_heads, head_dim, ffn, vocab, context;
  double theta;
  bool tied, bias;
};

TEST(ModelConfigTest, ReadsTheRealModels) {
  const RealModel models[] = {
      {"SmolLM2-135M-Instruct.Q4_1.gguf", 30, 576, 9, 3, 64, 1536, 49152, 8192, 1e5, true, false},
      {"qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", 24, 896, 14, 2, 64, 4864, 151936, 32768, 1e6, false, true},
      {"gemma-3-270m-q4_k_m.gguf", 18, 640, 4, 1, 256, 2048, 262144, 32768, 1e6, true, false},
  };
  int seen = 0;
  for (const RealModel& model : models) {
    const std::filesystem::path path = ModelsDir() / model.file;
    if (!std::filesystem::exists(path)) continue;
    ++seen;
    const auto file = GgufFile::Open(path);
    ASSERT_TRUE(file.ok()) << file.status();
    const auto config = ReadModelConfig(**file);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->num_layers(), model.layers);
    EXPECT_EQ(config->hidden_size, model.hidden);
    EXPECT_EQ(config->q_heads, model.q_heads);
    EXPECT_EQ(config->kv_heads, model.kv_heads);
    EXPECT_EQ(config->head_dim, model.head_dim);
    EXPECT_EQ(config->ffn_size, model.ffn);
    EXPECT_EQ(config->vocab_size, model.vocab);
    EXPECT_EQ(config->context_length, model.context);
    EXPECT_EQ(config->rope.bases[0].theta, model.theta);
    EXPECT_EQ(config->tied_head, model.tied);
    EXPECT_EQ(config->qkv_bias, model.bias);
    const auto tensors = FindModelTensors(**file, *config);
    EXPECT_TRUE(tensors.ok()) << tensors.status();
  }
  if (seen == 0) GTEST_SKIP() << "no model in " << ModelsDir();
}

}  // namespace
}  // namespace octet
