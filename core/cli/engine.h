// What every command that runs a model needs: the flags, and from them the device, the model and the tokenizer.
#ifndef OCTET_CORE_CLI_ENGINE_H_
#define OCTET_CORE_CLI_ENGINE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/thread_pool.h"
#include "core/gguf/gguf_file.h"
#include "core/loader/registry.h"
#include "core/model/model.h"
#include "core/model/runner.h"
#include "core/text/tokenizer.h"

namespace octet {

class CommandLine;

struct DeviceFlags {
  std::string device = "auto";
  std::vector<std::string> backend_paths;
  int32_t threads = 0;       // 0: one per available CPU
  bool pin_threads = false;  // to a CPU each

  void AddTo(CommandLine& line);
};

struct ModelFlags {
  DeviceFlags device;
  std::string model;
  std::string kv_cache_dtype = "auto";
  std::string kv_int8_recipe = "default";
  std::string kv_scales = "dynamic";
  std::string compute = "fast";
  bool strict = false;
  int64_t max_model_len = 0;  // 0: what the command needs
  int32_t block_size = 64;
  int32_t max_num_seqs = 1;

  void AddTo(CommandLine& line);  // all but the next
  // Dtype, recipe and size of a command's one cache; a step has a token of each sequence.
  void AddCacheTo(CommandLine& line, int32_t max_step_tokens);
};

// Owns everything; members end in reverse order. Open loads nothing onto the device: commands first check the request
// against the description and the plan, then call Load.
class Engine {
 public:
  static absl::StatusOr<std::unique_ptr<Engine>> Open(const ModelFlags& flags, int32_t max_step_tokens);

  const ModelFlags& flags() const { return flags_; }
  ThreadPool& pool() { return pool_; }
  Device& device() const { return *device_; }
  const std::string& device_choice() const { return registry_->choice(); }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const Model& model() const { return *model_; }
  DType kv_dtype() const { return kv_.dtype; }
  const KvOptions& kv_options() const { return kv_; }

  // A runner for sequences of max_model_len tokens; nothing is allocated yet.
  absl::StatusOr<std::unique_ptr<Runner>> PrepareRunner(const KvOptions& kv, int64_t max_model_len,
                                                        int32_t max_logit_rows);

  // The same with room for more sequences than the flags say.
  absl::StatusOr<std::unique_ptr<Runner>> PrepareRunner(const RunnerOptions& options);

  // ResourceExhausted where the device has no room for the runners and, before Load, the weights; `advice` ends the
  // sentence.
  absl::Status CheckRoom(const std::vector<Runner*>& runners, std::string_view advice) const;

  // Checks the room; then packs the weights, the first time, and takes the runners' memory.
  absl::Status Load(const std::vector<Runner*>& runners, std::string_view advice);

 private:
  explicit Engine(const ModelFlags& flags)
      : flags_(flags), pool_(flags.device.threads, flags.device.pin_threads ? Pinning::kOn : Pinning::kOff) {}

  ModelFlags flags_;
  ThreadPool pool_;
  std::unique_ptr<Registry> registry_;
  std::unique_ptr<GgufFile> file_;
  std::optional<Tokenizer> tokenizer_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Model> model_;
  bool loaded_ = false;  // the weights are on the device
  bool warned_ = false;  // that a kernel is not native
  KvOptions kv_;
};

// The model file; InvalidArgument for any damage, Unimplemented for what octet does not read.
absl::StatusOr<std::unique_ptr<GgufFile>> OpenModelFile(const std::string& path);

// Opens the device that the flags name; a device that is not there is Unavailable.
absl::StatusOr<std::unique_ptr<Device>> OpenDevice(Registry& registry, const DeviceFlags& flags);

// "1.50 GiB", "12.3 MiB", "640 B".
std::string HumanBytes(uint64_t bytes);

}  // namespace octet

#endif  // OCTET_CORE_CLI_ENGINE_H_
