#include "core/model/model_tensors.h"

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace octet {
namespace {

// Looks tensors up, keeps the first error, and remembers which tensors were asked for.
class Finder {
 public:
  explicit Finder(const GgufFile& file) : file_(file), used_(file.tensors().size(), false) {}

  const absl::Status& status() const { return status_; }

  const GgufTensor* Matrix(const std::string& name, int64_t rows, int64_t columns) { return Find(name, rows, columns); }

  const GgufTensor* Vector(const std::string& name, int64_t size) {
    const GgufTensor* tensor = Find(name, 1, size);
    if (tensor != nullptr && tensor->type != DType::kF32) {
      Fail(absl::UnimplementedError(absl::StrCat(file_.path(), ": tensor '", name, "' has type ",
                                                 DTypeName(tensor->type),
                                                 ", which octet does not read for a vector; it reads f32")));
    }
    return tensor;
  }

  // Unimplemented for the first tensor that nothing asked for.
  absl::Status RefuseUnused(const std::string& architecture) const {
    for (size_t i = 0; i < used_.size(); ++i) {
      const std::string_view name = file_.tensors()[i].name;
      // Old converters stored the rotation's frequencies, which follow from the metadata.
      if (used_[i] || name.ends_with(".attn_rot_embd") || name.ends_with(".rotary.inv_freq")) continue;
      return absl::UnimplementedError(absl::StrCat(file_.path(), ": tensor ", QuoteName(name),
                                                   " has no place in octet's ", architecture, " model"));
    }
    return absl::OkStatus();
  }

 private:
  void Fail(const absl::Status& status) {
    if (status_.ok()) status_ = status;
  }

  const GgufTensor* Find(const std::string& name, int64_t rows, int64_t columns) {
    const GgufTensor* tensor = file_.FindTensor(name);
    if (tensor == nullptr) {
      Fail(absl::NotFoundError(absl::StrCat(file_.path(), " has no tensor '", name, "'")));
      return nullptr;
    }
    used_[static_cast<size_t>(tensor - file_.tensors().data())] = true;
    if (tensor->rows != rows || tensor->row_elements() != columns) {
      Fail(absl::InvalidArgumentError(absl::StrCat(file_.path(), ": tensor '", name, "' has ", tensor->rows,
                                                   " rows of ", tensor->row_elements(), ", but the metadata asks for ",
                                                   rows, " rows of ", columns)));
    }
    return tensor;
  }

  const GgufFile& file_;
  absl::Status status_;
  std::vector<bool> used_;
};

LayerTensors FindLayer(Finder& find, const ModelConfig& config, size_t layer) {
  const auto name = [layer](const char* part) { return absl::StrCat("blk.", layer, ".", part); };
  const int64_t hidden = config.hidden_size;
  const int64_t q_rows = config.q_heads * config.head_dim;
  const int64_t k_rows = config.kv_heads * config.head_dim;
  const int64_t v_rows = config.kv_heads * config.v_head_dim;
  LayerTensors tensors;
  tensors.attn_norm = find.Vector(name("attn_norm.weight"), hidden);
  tensors.attn_q = find.Matrix(name("attn_q.weight"), q_rows, hidden);
  tensors.attn_k = find.Matrix(name("attn_k.weight"), k_rows, hidden);
  tensors.attn_v = find.Matrix(name("attn_v.weight"), v_rows, hidden);
  tensors.attn_output = find.Matrix(name("attn_output.weight"), hidden, config.q_heads * config.v_head_dim);
  tensors.ffn_norm = find.Vector(name("ffn_norm.weight"), hidden);
  tensors.ffn_gate = find.Matrix(name("ffn_gate.weight"), config.ffn_size, hidden);
  tensors.ffn_up = find.Matrix(name("ffn_up.weight"), config.ffn_size, hidden);
  tensors.ffn_down = find.Matrix(name("ffn_down.weight"), hidden, config.ffn_size);
  if (config.qkv_bias) {
    tensors.attn_q_bias = find.Vector(name("attn_q.bias"), q_rows);
    tensors.attn_k_bias = find.Vector(name("attn_k.bias"), k_rows);
    tensors.attn_v_bias = find.Vector(name("attn_v.bias"), v_rows);
  }
  if (config.qk_norm) {
    tensors.attn_q_norm = find.Vector(name("attn_q_norm.weight"), config.head_dim);
    tensors.attn_k_norm = find.Vector(name("attn_k_norm.weight"), config.head_dim);
  }
  if (config.post_attention_norm) {
    tensors.post_attention_norm = find.Vector(name("post_attention_norm.weight"), hidden);
  }
  if (config.post_ffn_norm) tensors.post_ffn_norm = find.Vector(name("post_ffw_norm.weight"), hidden);
  return tensors;
}

}  // namespace

absl::StatusOr<ModelTensors> FindModelTensors(const GgufFile& file, const ModelConfig& config) {
  Finder find(file);
  ModelTensors tensors;
  tensors.token_embd = find.Matrix("token_embd.weight", config.vocab_size, config.hidden_size);
  tensors.output_norm = find.Vector("output_norm.weight", config.hidden_size);
  tensors.output =
      config.tied_head ? tensors.token_embd : find.Matrix("output.weight", config.vocab_size, config.hidden_size);
  if (config.rope.has_freqs_tensor) {
    tensors.rope_freqs = find.Vector("rope_freqs.weight", config.rope.rotary_dims / 2);
  }
  for (size_t i = 0; i < config.layers.size() && find.status().ok(); ++i) {
    tensors.layers.push_back(FindLayer(find, config, i));
  }
  if (!find.status().ok()) return find.status();
  if (absl::Status status = find.RefuseUnused(config.architecture); !status.ok()) return status;
  return tensors;
}

}  // namespace octet
