// octet info: which backends were found, refused or unavailable and why, and what a model needs on each device.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/command_line.h"
#include "core/base/message_text.h"
#include "core/base/program.h"
#include "core/cli/commands.h"
#include "core/cli/engine.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace octet {
namespace {

using Json = nlohmann::ordered_json;

struct InfoFlags {
  DeviceFlags device;
  std::string model;
  bool has_model = false, has_device = false, backends = false, json = false;
};

// Columns padded to their widest cell; the last one is left as it is.
std::string Table(std::vector<std::vector<std::string>> rows) {
  std::vector<size_t> width;
  for (auto& row : rows) {
    for (std::string& cell : row) cell = Printable(cell);
    width.resize(std::max(width.size(), row.size()));
    for (size_t i = 0; i + 1 < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      text += i + 1 < row.size() ? fmt::format("{:<{}}  ", row[i], width[i]) : row[i];
    }
    text += '\n';
  }
  return text;
}

std::string DeviceLine(const BackendReport& report, size_t index) {
  const DeviceInfo& device = report.devices[index];
  return fmt::format("{}:{} {}, {}, {}", report.name, index, device.name, device.arch, HumanBytes(device.memory_bytes));
}

std::string BackendsText(const Registry& registry) {
  std::vector<std::vector<std::string>> rows = {{"backend", "file", "abi", "state", "devices / reason"}};
  for (const BackendReport& report : registry.reports()) {
    std::string what = report.reason;
    for (size_t i = 0; i < report.devices.size(); ++i) {
      what += absl::StrCat(what.empty() ? "" : "; ", DeviceLine(report, i));
    }
    rows.push_back({report.name, report.path, report.abi, BackendStateName(report.state), what});
  }
  std::string searched;
  for (const std::string& place : registry.searched()) absl::StrAppend(&searched, searched.empty() ? "" : ", ", place);
  return fmt::format("{}searched: {}\n", Table(rows), searched);
}

Json BackendsJson(const Registry& registry) {
  Json list = Json::array();
  for (const BackendReport& report : registry.reports()) {
    Json devices = Json::array();
    for (size_t i = 0; i < report.devices.size(); ++i) {
      const DeviceInfo& device = report.devices[i];
      devices.push_back({{"id", absl::StrCat(report.name, ":", i)},
                         {"name", device.name},
                         {"arch", device.arch},
                         {"memory_bytes", device.memory_bytes}});
    }
    list.push_back({{"name", report.name},
                    {"file", report.path},
                    {"abi", report.abi},
                    {"state", BackendStateName(report.state)},
                    {"reason", report.reason},
                    {"devices", devices}});
  }
  return list;
}

struct DTypeRow {
  std::string name;
  uint64_t bytes_per_token = 0;  // data and scales of all layers
  std::string support;
};

absl::StatusOr<std::vector<DTypeRow>> KvRows(const Model& model) {
  constexpr int32_t kPageTokens = 64;
  const ModelConfig& c = model.config();
  std::vector<DTypeRow> rows;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kI8}) {
    RunnerOptions options;
    options.kv = {.dtype = dtype, .recipe = Int8Recipe::kDefault, .page_tokens = kPageTokens};
    options.max_model_len = std::min<int64_t>(kPageTokens, c.context_length);
    auto runner = Runner::Prepare(model, options);
    DTypeRow row{.name = DTypeName(dtype), .bytes_per_token = 0, .support = {}};
    if (runner.ok()) {
      const KvBytes& bytes = (*runner)->plan().kv.pages;
      row.bytes_per_token = (bytes.data + bytes.scales) / kPageTokens;
      row.support =
          absl::StrCat((*runner)->support_level() == 2 ? "native" : "slow", ", ", (*runner)->attention_kernel());
    } else if (runner.status().code() == absl::StatusCode::kUnimplemented) {
      row.support = std::string(runner.status().message());
    } else {
      return runner.status();
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

absl::Status ModelInfo(const InfoFlags& flags, Registry& registry, Json& document, std::string& text) {
  auto file = OpenModelFile(flags.model);
  if (!file.ok()) return file.status();
  auto device = OpenDevice(registry, flags.device);
  if (!device.ok()) return device.status();
  auto model = Model::Prepare(**device, **file, {});
  if (!model.ok()) return model.status();
  auto rows = KvRows(**model);
  if (!rows.ok()) return rows.status();

  const ModelConfig& c = (*model)->config();
  Json kv = Json::array();
  for (const DTypeRow& row : *rows) {
    kv.push_back({{"dtype", row.name}, {"bytes_per_token", row.bytes_per_token}, {"support", row.support}});
  }
  document["model"] = {{"file", flags.model},
                       {"architecture", c.architecture},
                       {"layers", c.num_layers()},
                       {"hidden_size", c.hidden_size},
                       {"q_heads", c.q_heads},
                       {"kv_heads", c.kv_heads},
                       {"k_head_dim", c.head_dim},
                       {"v_head_dim", c.v_head_dim},
                       {"vocab_size", c.vocab_size},
                       {"context_length", c.context_length},
                       {"weight_bytes", (*model)->weight_bytes()},
                       {"k_offset_layers", (*model)->k_offset_layers()},
                       {"balanced_layers", (*model)->balanced_layers()},
                       {"device", (*device)->id()},
                       {"kv_cache", kv}};

  text += fmt::format("\nmodel    {}\n", flags.model);
  text += fmt::format(
      "shape    {}: {} layers, hidden {}, {} query / {} KV heads, head dim {}, vocabulary {}, context {}\n",
      c.architecture, c.num_layers(), c.hidden_size, c.q_heads, c.kv_heads, c.head_dim, c.vocab_size, c.context_length);
  text += fmt::format("weights  {} on {}\n", HumanBytes((*model)->weight_bytes()), (*device)->id());
  if (const auto layers = (*model)->k_offset_layers(); !layers.empty()) {
    text += fmt::format("K bias   INT8 keeps K offsets on layers {}\n", fmt::join(layers, ","));
  }
  text += '\n';
  std::vector<std::vector<std::string>> table = {{"KV dtype", "bytes/token", (*device)->id()}};
  for (const DTypeRow& row : *rows) {
    table.push_back({row.name, row.bytes_per_token > 0 ? absl::StrCat(row.bytes_per_token) : "-", row.support});
  }
  text += Table(table);
  return absl::OkStatus();
}

absl::Status Info(const InfoFlags& flags) {
  if (flags.backends && flags.has_model) {
    return absl::InvalidArgumentError("--backends lists backends only and --model asks for more; give one of them");
  }
  if (flags.has_device && !flags.has_model) {
    return absl::InvalidArgumentError(
        "--device picks the device that --model is described for, and without --model all devices are listed; add "
        "--model or leave --device out");
  }
  ThreadPool pool(flags.device.threads);
  auto registry = Registry::Load({.backend_paths = flags.device.backend_paths, .pool = &pool});
  if (!registry.ok()) return registry.status();
  Json document;
  document["backends"] = BackendsJson(**registry);
  document["searched"] = (*registry)->searched();
  std::string text = BackendsText(**registry);
  if (flags.has_model) {
    if (auto status = ModelInfo(flags, **registry, document, text); !status.ok()) return status;
  }
  Print(flags.json ? document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n" : text);
  return absl::OkStatus();
}

}  // namespace

void AddInfo(CommandLine& program) {
  auto flags = std::make_shared<InfoFlags>();
  CommandLine& command = program.AddCommand("info", "backends and devices found here, and what a model needs");
  command.AddText("-m,--model", &flags->model, "model file (GGUF): its shape and its KV bytes per token");
  flags->device.AddTo(command);
  command.AddFlag("--backends", &flags->backends, "the backends only");
  command.AddFlag("--json", &flags->json, "one JSON document on stdout");
  command.SetRun([flags, &command] {
    flags->has_model = command.Has("--model");
    flags->has_device = command.Has("--device");
    return Info(*flags);
  });
}

}  // namespace octet
