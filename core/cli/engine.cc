#include "core/cli/engine.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/command_line.h"
#include "core/base/message_text.h"
#include "core/base/program.h"
#include "core/cli/progress.h"
#include "core/kv/kv_options.h"
#include "core/text/gguf_tokenizer.h"
#include "fmt/format.h"

namespace octet {
namespace {

absl::Status CheckFlags(const ModelFlags& flags) {
  if (flags.compute != "fast" && flags.compute != "exact") {
    return absl::InvalidArgumentError(absl::StrCat("unknown --compute '", flags.compute, "'; use fast or exact"));
  }
  if (flags.kv_scales != "dynamic") {
    return absl::UnimplementedError(
        absl::StrCat("--kv-scales '", flags.kv_scales,
                     "' is not supported; use dynamic, the default, whose scales need no calibration"));
  }
  return absl::OkStatus();
}

}  // namespace

void DeviceFlags::AddTo(CommandLine& line) {
  line.AddText("--device", &device, "auto, cpu, cuda, cuda:1, or any backend's name", CommandLine::Text::kShowsDefault);
  line.AddTexts("--backend-path", &backend_paths, "extra backend library, or folder of them (repeatable)");
  line.AddNumber<int32_t>("--threads", {0, 1024}, &threads, "CPU threads; 0: one per available CPU");
  line.AddFlag("--pin-threads", &pin_threads, "each CPU thread keeps to a CPU of its own");
}

void ModelFlags::AddTo(CommandLine& line) {
  line.AddText("-m,--model", &model, "model file (GGUF)", CommandLine::Text::kRequired);
  device.AddTo(line);
  line.AddText("--kv-scales", &kv_scales, "dynamic: one scale per token and head, no calibration",
               CommandLine::Text::kShowsDefault);
  line.AddText("--compute", &compute, "fast, or exact: float activations and accumulation everywhere",
               CommandLine::Text::kShowsDefault);
  line.AddFlag("--strict", &strict, "an error instead of a warning where the device has no native kernel");
  line.AddNumber<int32_t>("--block-size", {1, 4096}, &block_size, "tokens per KV cache page");
}

void ModelFlags::AddCacheTo(CommandLine& line, int32_t max_step_tokens) {
  line.AddText("--kv-cache-dtype", &kv_cache_dtype, "auto (bf16 for a GGUF model), f32, f16, bf16 or int8",
               CommandLine::Text::kShowsDefault);
  line.AddText("--kv-int8-recipe", &kv_int8_recipe, "how K and V become INT8: default, rotation, plain or group32",
               CommandLine::Text::kShowsDefault);
  line.AddNumber<int64_t>(
      "--max-model-len", {1, std::numeric_limits<int32_t>::max()}, [this](int64_t n) { max_model_len = n; },
      "tokens of one sequence that the KV cache has room for; without it, what the request needs");
  line.AddNumber<int32_t>("--max-num-seqs", {1, max_step_tokens}, &max_num_seqs,
                          "sequences that the KV cache has room for");
}

absl::StatusOr<std::unique_ptr<GgufFile>> OpenModelFile(const std::string& path) {
  if (path.empty()) return absl::InvalidArgumentError("--model is empty; give the path of a GGUF file");
  auto file = GgufFile::Open(path);
  // A file that is cut short is wrong like any other bad file; DataLoss is kept for devices.
  if (file.status().code() == absl::StatusCode::kDataLoss) return absl::InvalidArgumentError(file.status().message());
  return file;
}

absl::StatusOr<std::unique_ptr<Device>> OpenDevice(Registry& registry, const DeviceFlags& flags) {
  // A file that was named and is not used is told even where another backend does.
  for (const BackendReport& report : registry.reports()) {
    const auto& named = flags.backend_paths;
    if (report.state == BackendState::kReady || std::find(named.begin(), named.end(), report.path) == named.end())
      continue;
    PrintSentence("octet",
                  absl::StrCat("warning: ", Printable(report.path), " of --backend-path is not used: ", report.reason));
  }
  auto device = registry.Open(flags.device);
  if (device.status().code() == absl::StatusCode::kNotFound) {
    return absl::UnavailableError(device.status().message());
  }
  return device;
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Open(const ModelFlags& flags, int32_t max_step_tokens) {
  if (auto status = CheckFlags(flags); !status.ok()) return status;
  auto recipe = ParseInt8Recipe(flags.kv_int8_recipe);
  if (!recipe.ok()) return recipe.status();
  // A model stored in GGUF blocks has no 16-bit type of its own: bf16, whose range every K fits.
  auto dtype = ParseKvDType(flags.kv_cache_dtype, DType::kBF16);
  if (!dtype.ok()) return dtype.status();
  if (*recipe != Int8Recipe::kDefault && *dtype != DType::kI8) {
    return absl::InvalidArgumentError(absl::StrCat("--kv-int8-recipe ", flags.kv_int8_recipe, " has no use in a ",
                                                   DTypeName(*dtype),
                                                   " KV cache; add --kv-cache-dtype int8 or leave it out"));
  }

  std::unique_ptr<Engine> engine(new Engine(flags));
  engine->kv_ = {.dtype = *dtype, .recipe = *recipe, .page_tokens = flags.block_size};
  auto file = OpenModelFile(flags.model);
  if (!file.ok()) return file.status();
  engine->file_ = *std::move(file);

  auto registry = Registry::Load({.backend_paths = flags.device.backend_paths, .pool = &engine->pool_});
  if (!registry.ok()) return registry.status();
  engine->registry_ = *std::move(registry);
  auto device = OpenDevice(*engine->registry_, flags.device);
  if (!device.ok()) return device.status();
  engine->device_ = *std::move(device);

  auto model = Model::Prepare(*engine->device_, *engine->file_,
                              {.exact = flags.compute == "exact", .max_step_tokens = max_step_tokens});
  if (!model.ok()) return model.status();
  engine->model_ = *std::move(model);
  auto spec = TokenizerSpecFromGguf(*engine->file_);
  if (!spec.ok()) return spec.status();
  auto tokenizer = Tokenizer::Create(*std::move(spec));
  if (!tokenizer.ok()) return tokenizer.status();
  engine->tokenizer_ = *std::move(tokenizer);
  if (engine->tokenizer_->vocab_size() > engine->model_->config().vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat(flags.model, " has ", engine->tokenizer_->vocab_size(),
                                                   " tokens and embeddings for ", engine->model_->config().vocab_size));
  }
  return engine;
}

absl::StatusOr<std::unique_ptr<Runner>> Engine::PrepareRunner(const KvOptions& kv, int64_t max_model_len,
                                                              int32_t max_logit_rows) {
  RunnerOptions options;
  options.kv = kv;
  options.max_model_len = max_model_len;
  options.max_num_seqs = flags_.max_num_seqs;
  options.max_logit_rows = std::max(max_logit_rows, flags_.max_num_seqs);
  return PrepareRunner(options);
}

absl::StatusOr<std::unique_ptr<Runner>> Engine::PrepareRunner(const RunnerOptions& options) {
  auto runner = Runner::Prepare(*model_, options);
  if (!runner.ok()) return runner.status();
  if (std::min((*runner)->support_level(), model_->support_level()) < 2) {
    const std::string slow = absl::StrCat(device_->id(), " runs this model correctly but without its native kernels");
    if (flags_.strict) {
      return absl::UnimplementedError(absl::StrCat(slow, ", and --strict was given; leave --strict out to run it"));
    }
    if (!std::exchange(warned_, true)) PrintSentence("octet", "warning: " + slow);
  }
  return runner;
}

absl::Status Engine::CheckRoom(const std::vector<Runner*>& runners, std::string_view advice) const {
  uint64_t needed = loaded_ ? 0 : model_->weight_bytes() + model_->constant_bytes();
  for (const Runner* runner : runners) {
    if (__builtin_add_overflow(needed, runner->plan().own_bytes(), &needed)) needed = UINT64_MAX;
  }
  auto memory = device_->memory();
  if (!memory.ok()) return memory.status();
  if (needed > memory->free_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(device_->id(), " has ", HumanBytes(memory->free_bytes),
                                                     " free and this run needs ", HumanBytes(needed), "; ",
                                                     std::string(advice)));
  }
  return absl::OkStatus();
}

absl::Status Engine::Load(const std::vector<Runner*>& runners, std::string_view advice) {
  if (auto status = CheckRoom(runners, advice); !status.ok()) return status;
  if (!loaded_) {
    Progress progress("loading the model");
    if (auto status = model_->Upload(&Progress::Callback, &progress); !status.ok()) return status;
    loaded_ = true;
  }
  for (Runner* runner : runners) {
    if (auto status = runner->Allocate(); !status.ok()) return status;
  }
  return absl::OkStatus();
}

std::string HumanBytes(uint64_t bytes) {
  const double value = static_cast<double>(bytes);
  if (bytes >= 1ull << 30) return fmt::format("{:.2f} GiB", value / (1ull << 30));
  if (bytes >= 1ull << 20) return fmt::format("{:.1f} MiB", value / (1ull << 20));
  if (bytes >= 1ull << 10) return fmt::format("{:.1f} KiB", value / (1ull << 10));
  return fmt::format("{} B", bytes);
}

}  // namespace octet
