// A model on a device: its description, its weights as the backend packed them, and the small tensors beside them.
// Shared by every runner that uses it.
#ifndef OCTET_CORE_MODEL_MODEL_H_
#define OCTET_CORE_MODEL_MODEL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/gguf/gguf_file.h"
#include "core/kv/k_offsets.h"
#include "core/kv/paged_cache.h"
#include "core/loader/device.h"
#include "core/model/config.h"
#include "core/model/model_tensors.h"
#include "core/model/rope.h"

namespace octet {

struct ModelOptions {
  bool exact = false;             // float activations and accumulation everywhere
  int32_t max_step_tokens = 256;  // rows of x in one step
};

// A matrix that the backend packed, and where its bias and norms stand.
struct LayerWeights {
  OwnedWeight qkv, o, gate_up, down;
  std::optional<Tensor> attn_norm, qkv_bias, q_norm, k_norm, post_attn_norm;
  std::optional<Tensor> balanced_q_norm, balanced_k_norm;  // the same product q·k, for the default INT8 recipe
  std::optional<Tensor> ffn_norm, post_ffn_norm;
};

// Immutable after Upload; then safe to use from several runners, each on its own stream. The device and the file must
// outlive it.
class Model {
 public:
  // Reads the description and decides everything on the host: nothing is allocated on the device. InvalidArgument for a
  // file whose tensors do not fit its description, Unimplemented for a model or weight type that is not covered.
  static absl::StatusOr<std::unique_ptr<Model>> Prepare(Device& device, const GgufFile& file,
                                                        const ModelOptions& options);

  // Packs the weights on the device. `progress` (may be null) is called with the share done. The file is not read any
  // more afterwards; DataLoss when it has changed since it was opened.
  absl::Status Upload(void (*progress)(double share, void* arg) = nullptr, void* arg = nullptr);

  const ModelConfig& config() const { return config_; }
  const ModelOptions& options() const { return options_; }
  Device& device() const { return *device_; }

  // Bytes on the device, known after Prepare. Workspace is shared by all linear layers of a step.
  uint64_t weight_bytes() const { return weight_bytes_; }
  // Of these, what every step reads: all but an embedding that is not the head too.
  uint64_t step_weight_bytes() const { return step_weight_bytes_; }
  uint64_t constant_bytes() const { return constants_.size() * sizeof(float); }
  uint64_t linear_workspace_bytes() const { return linear_workspace_bytes_; }
  // The lowest support level of the weights on the device: 1 correct but slow, 2 native.
  int32_t support_level() const { return support_level_; }

  // Layers whose K bias asks for an offset table, ascending.
  std::vector<int32_t> k_offset_layers() const;
  // Layers whose K channels were evened out, ascending.
  const std::vector<int32_t>& balanced_layers() const { return balanced_layers_; }
  // One table per layer for positions below max_len, empty where none is needed.
  KOffsetTables MakeKOffsetTables(int64_t max_len) const;
  // Of base number `base` of the config.
  const RopeAngles& rope_angles(size_t base) const { return rope_angles_[base]; }
  RopePairs rope_pairs() const;

  // Valid after Upload.
  const LayerWeights& layer(int32_t index) const { return layers_[static_cast<size_t>(index)]; }
  const Weight& embedding() const { return *embedding_.get(); }
  const Weight& head() const { return head_ ? *head_.get() : *embedding_.get(); }
  const Tensor& output_norm() const { return *output_norm_; }

 private:
  // One matrix to pack: rows of several stored tensors, each possibly with row scales.
  struct Packed {
    std::vector<WeightPart> parts;
    int64_t columns = 0;
    bool linear = true, embed = false;
    OwnedWeight* target = nullptr;
    std::string name;
  };

  Model(Device& device, const GgufFile& file, ModelConfig config, const ModelOptions& options)
      : device_(&device), file_(&file), config_(std::move(config)), options_(options) {}

  absl::Status PrepareLayer(int32_t index, const LayerTensors& tensors);
  absl::Status PrepareGlobals(const ModelTensors& tensors);
  absl::Status PlanWeights();
  absl::Status UploadOn(octet_stream* stream, void (*progress)(double share, void* arg), void* arg);
  WeightDesc Describe(const Packed& packed) const;

  // Host copy of a 1-D tensor; empty for none.
  absl::StatusOr<std::vector<float>> Vector(const GgufTensor* tensor) const;
  // Appends to the constants; the tensor's buffer is set by Upload.
  Tensor AddConstant(const std::vector<float>& values);
  const float* KeepRowScale(std::vector<float> scale);

  Device* device_;
  const GgufFile* file_;
  ModelConfig config_;
  ModelOptions options_;

  std::vector<LayerWeights> layers_;
  OwnedWeight embedding_, head_;
  std::optional<Tensor> output_norm_;
  std::vector<Packed> packed_;
  std::vector<std::unique_ptr<std::vector<float>>> row_scales_;
  std::vector<float> constants_;  // host image of constant_buffer_
  OwnedBuffer constant_buffer_;
  uint64_t weight_bytes_ = 0, step_weight_bytes_ = 0, linear_workspace_bytes_ = 0;
  int32_t support_level_ = 2;

  std::vector<std::vector<float>> k_bias_;  // per layer, as the cache sees it; empty without bias
  std::vector<bool> needs_k_offsets_;       // per layer
  std::vector<int32_t> balanced_layers_;
  std::vector<RopeAngles> rope_angles_;  // per RoPE base
};

}  // namespace octet

#endif  // OCTET_CORE_MODEL_MODEL_H_
