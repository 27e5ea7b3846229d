// octet bench: how fast a model's prompt and decode steps are on a device, for every combination of batch size, depth
// (tokens that are cached before), prompt length and answer length, beside the read bandwidth that the same memory
// gives before and after. Several caches take turns (A, B, A, B), so that a machine that slows down slows all of them.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/command_line.h"
#include "core/base/message_text.h"
#include "core/base/program.h"
#include "core/base/stopwatch.h"
#include "core/cli/cache_list.h"
#include "core/cli/commands.h"
#include "core/cli/engine.h"
#include "core/cli/progress.h"
#include "core/loader/memory_rates.h"
#include "fmt/format.h"

namespace octet {
namespace {

using Json = nlohmann::ordered_json;

constexpr int32_t kBenchStepTokens = 512;  // most tokens of one step
constexpr const char* kBenchRoomAdvice =
    "lower --batch-size, --depth, --input-len or --output-len, or name fewer caches in --compare";
constexpr double kRateSeconds = 0.15;  // of measuring the memory, before and after each case

struct BenchFlags {
  ModelFlags model;
  std::string caches = "int8,bf16", batch_sizes = "1", depths = "0", input_lens = "512", output_lens = "128";
  int32_t repeats = 5, warm_up = 1;
  bool json = false;
};

struct BenchCase {
  int32_t batch_size = 1, depth = 0, input_len = 0, output_len = 0;
  int64_t prompt_end() const { return int64_t{depth} + input_len; }
  int64_t max_len() const { return prompt_end() + output_len; }
};

// Seconds of one run.
struct Timing {
  double prefill = 0, decode = 0;
};

struct BenchSubject {
  std::string name;
  std::unique_ptr<Runner> runner;
  std::vector<PageTable> pages;  // of each sequence of the batch
  std::vector<Timing> timings;
};

// Whole numbers with commas between them, none of them twice.
absl::StatusOr<std::vector<int32_t>> ParseList(const char* flag, const std::string& list, Range<int32_t> range) {
  std::vector<int32_t> values;
  for (const std::string& entry : std::vector<std::string>(absl::StrSplit(list, ','))) {
    auto value = ParseNumber<int32_t>(absl::StrCat("a number of ", flag), entry, range);
    if (!value.ok()) return value.status();
    if (std::find(values.begin(), values.end(), *value) != values.end()) {
      return absl::InvalidArgumentError(absl::StrCat(flag, " has ", *value, " twice; name it once"));
    }
    values.push_back(*value);
  }
  return values;
}

absl::StatusOr<std::vector<BenchCase>> Cases(const BenchFlags& flags) {
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  const auto batch_sizes =
      ParseList("--batch-size", flags.batch_sizes, {1, kBenchStepTokens});  // a step has a token of each
  if (!batch_sizes.ok()) return batch_sizes.status();
  const auto depths = ParseList("--depth", flags.depths, {0, kMost});
  if (!depths.ok()) return depths.status();
  const auto inputs = ParseList("--input-len", flags.input_lens, {1, kMost});
  if (!inputs.ok()) return inputs.status();
  const auto outputs = ParseList("--output-len", flags.output_lens, {1, kMost});
  if (!outputs.ok()) return outputs.status();
  std::vector<BenchCase> cases;
  for (const int32_t batch : *batch_sizes) {
    for (const int32_t depth : *depths) {
      for (const int32_t input : *inputs) {
        for (const int32_t output : *outputs) cases.push_back({batch, depth, input, output});
      }
    }
  }
  return cases;
}

// Any tokens do: the work is the same. They are spread over the vocabulary and the same in every run.
std::vector<int32_t> SomeTokens(int64_t count, int64_t vocab_size) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  uint64_t state = 1;
  for (int32_t& token : tokens) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    token = static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(vocab_size));
  }
  return tokens;
}

// Tokens [begin, end) of every sequence in steps as full as they can be. What is cached behind `begin` is overwritten.
absl::Status RunPrompts(BenchSubject& subject, std::span<const int32_t> tokens, int64_t begin, int64_t end) {
  Runner& runner = *subject.runner;
  std::vector<SequenceInput> batch;
  batch.reserve(subject.pages.size());
  int64_t done = begin;  // of the first sequence whose prompt is not whole
  for (size_t s = 0; s < subject.pages.size() && begin < end;) {
    batch.clear();
    for (int64_t room = runner.max_step_tokens(); s < subject.pages.size() && room > 0;) {
      const int64_t count = std::min(room, end - done);
      batch.push_back({.tokens = tokens.subspan(static_cast<size_t>(done), static_cast<size_t>(count)),
                       .cached = done,
                       .pages = &subject.pages[s]});
      room -= count;
      done += count;
      if (done < end) break;
      done = begin;
      ++s;
    }
    if (auto logits = runner.Step(batch); !logits.ok()) return logits.status();
  }
  return absl::OkStatus();
}

// Pages for whole sequences, and their first `depth` tokens cached.
absl::Status FillDepth(const BenchCase& c, std::span<const int32_t> tokens, BenchSubject* subject) {
  for (int32_t s = 0; s < c.batch_size; ++s) {
    subject->pages.emplace_back(&subject->runner->cache().pool());
    if (auto status = subject->pages.back().Reserve(c.max_len()); !status.ok()) return status;
  }
  return RunPrompts(*subject, tokens, 0, c.depth);
}

// The prompts behind the depth, then output_len steps of one token of each sequence.
absl::StatusOr<Timing> RunOnce(BenchSubject& subject, const BenchCase& c, std::span<const int32_t> tokens) {
  Timing timing;
  Stopwatch watch;
  if (auto status = RunPrompts(subject, tokens, c.depth, c.prompt_end()); !status.ok()) return status;
  timing.prefill = watch.seconds();
  watch = Stopwatch();
  std::vector<SequenceInput> batch;
  batch.reserve(subject.pages.size());
  for (int64_t at = c.prompt_end(); at < c.max_len(); ++at) {
    batch.clear();
    for (const PageTable& table : subject.pages) {
      batch.push_back({.tokens = tokens.subspan(static_cast<size_t>(at), 1), .cached = at, .pages = &table});
    }
    if (auto logits = subject.runner->Step(batch); !logits.ok()) return logits.status();
  }
  timing.decode = watch.seconds();
  return timing;
}

// Bytes that the decode steps of a case cannot avoid to read: the weights once a step, and each sequence's K and V.
double DecodeBytes(const Model& model, const KvPlan& kv, const BenchCase& c) {
  const double cells = static_cast<double>(kv.layout.num_pages) * kv.layout.page_tokens * kv.layers;
  const double per_token = static_cast<double>(kv.pages.data + kv.pages.scales) / cells;  // and layer
  double tokens = 0;
  for (const LayerConfig& layer : model.config().layers) {
    for (int64_t length = c.prompt_end() + 1; length <= c.max_len(); ++length) {
      tokens += static_cast<double>(layer.window > 0 ? std::min<int64_t>(layer.window, length) : length);
    }
  }
  return static_cast<double>(model.step_weight_bytes()) * c.output_len + per_token * tokens * c.batch_size;
}

struct Spread {
  double median = 0, min = 0, max = 0;
};

Spread SpreadOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return {(values[(n - 1) / 2] + values[n / 2]) / 2, values.front(), values.back()};
}

Json JsonOf(const Spread& s) { return {{"median", s.median}, {"min", s.min}, {"max", s.max}}; }

std::string TextOf(const Spread& s) { return fmt::format("{:.1f} [{:.1f}, {:.1f}]", s.median, s.min, s.max); }

// Bytes per second; none where there is no room for measuring it.
absl::StatusOr<std::optional<double>> ReadRate(Engine& engine) {
  const auto rates = MeasureMemoryRates(engine.device(), &engine.pool(), kRateSeconds);
  if (rates.ok()) return rates->read;
  if (rates.status().code() == absl::StatusCode::kResourceExhausted) return std::nullopt;
  return rates.status();
}

constexpr const char* kRowFormat = "{:>5} {:>6} {:>6} {:>6}  {:<14} {:>26} {:>24} {:>11} {:>16} {:>14} {:>7} {:>6}\n";

// One row of the table and of the document.
void Report(const Engine& engine, const BenchCase& c, BenchSubject& subject, std::optional<double> read, bool text,
            Json* rows) {
  std::vector<double> prefill, decode, total;
  for (const Timing& t : subject.timings) {
    prefill.push_back(static_cast<double>(c.batch_size) * c.input_len / t.prefill);
    decode.push_back(static_cast<double>(c.batch_size) * c.output_len / t.decode);
    total.push_back((t.prefill + t.decode) * 1e3);
  }
  const Spread prefill_rate = SpreadOf(prefill), decode_rate = SpreadOf(decode), total_ms = SpreadOf(total);
  const KvPlan& kv = subject.runner->plan().kv;
  const double steps_per_s = decode_rate.median / c.batch_size;
  const double share = DecodeBytes(engine.model(), kv, c) / c.output_len * steps_per_s / read.value_or(1);
  const uint64_t allocated = subject.runner->cache().allocated_bytes();
  if (text) {
    Print(fmt::format(kRowFormat, c.batch_size, c.depth, c.input_len, c.output_len, subject.name, TextOf(prefill_rate),
                      TextOf(decode_rate), fmt::format("{:.1f}", total_ms.median), kv.total(), allocated,
                      read ? fmt::format("{:.1f}", *read * 1e-9) : "-", read ? fmt::format("{:.3f}", share) : "-"));
    std::fflush(stdout);
  }
  rows->push_back({{"batch_size", c.batch_size},
                   {"depth", c.depth},
                   {"input_len", c.input_len},
                   {"output_len", c.output_len},
                   {"cache", subject.name},
                   {"kv_cache_dtype", DTypeName(kv.layout.k.data_type)},
                   {"attention_kernel", subject.runner->attention_kernel()},
                   {"prefill_tokens_per_s", JsonOf(prefill_rate)},
                   {"decode_tokens_per_s", JsonOf(decode_rate)},
                   {"total_ms", JsonOf(total_ms)},
                   {"kv_bytes", {{"planned", kv.total()}, {"allocated", allocated}}},
                   {"read_bytes_per_s", read ? Json(*read) : Json()},
                   {"read_bandwidth_share", read ? Json(share) : Json()}});
}

// What a case runs; nothing is allocated yet.
absl::StatusOr<std::vector<BenchSubject>> Prepare(Engine& engine, const BenchCase& c,
                                                  const std::vector<NamedCache>& caches) {
  std::vector<BenchSubject> subjects;
  for (const NamedCache& cache : caches) {
    auto runner = engine.PrepareRunner(
        {.kv = cache.kv, .max_model_len = c.max_len(), .max_num_seqs = c.batch_size, .max_logit_rows = c.batch_size});
    if (!runner.ok()) return runner.status();
    subjects.push_back({cache.name, *std::move(runner), {}, {}});
  }
  return subjects;
}

std::vector<Runner*> RunnersOf(const std::vector<BenchSubject>& subjects) {
  std::vector<Runner*> runners;
  for (const BenchSubject& subject : subjects) runners.push_back(subject.runner.get());
  return runners;
}

absl::Status RunCase(Engine& engine, const BenchFlags& flags, const BenchCase& c, const std::vector<NamedCache>& caches,
                     const std::vector<int32_t>& tokens, Json* rows) {
  auto subjects = Prepare(engine, c, caches);
  if (!subjects.ok()) return subjects.status();
  // Before the caches are there: measuring takes memory of its own.
  auto read = ReadRate(engine);
  if (!read.ok()) return read.status();
  if (auto status = engine.Load(RunnersOf(*subjects), kBenchRoomAdvice); !status.ok()) return status;
  {
    Progress progress(
        fmt::format("batch {}, depth {}, input {}, output {}", c.batch_size, c.depth, c.input_len, c.output_len));
    for (BenchSubject& subject : *subjects) {
      if (auto status = FillDepth(c, tokens, &subject); !status.ok()) return status;
    }
    const int32_t rounds = flags.warm_up + flags.repeats;
    for (int32_t round = 0; round < rounds; ++round) {
      for (BenchSubject& subject : *subjects) {
        auto timing = RunOnce(subject, c, tokens);
        if (!timing.ok()) return timing.status();
        if (round >= flags.warm_up) subject.timings.push_back(*timing);
      }
      progress.Update(static_cast<double>(round + 1) / rounds);
    }
  }
  // The faster of two measurements is nearer to what the memory can do.
  const auto again = ReadRate(engine);
  if (!again.ok()) return again.status();
  *read = std::max(*read, *again);  // none is the least
  if (!*read)
    PrintSentence("octet", "warning: no room for measuring the read bandwidth, which takes 512 MiB for a moment");
  for (BenchSubject& subject : *subjects) Report(engine, c, subject, *read, !flags.json, rows);
  return absl::OkStatus();
}

absl::Status Bench(const BenchFlags& flags) {
  const auto caches = ParseCaches("--compare", flags.caches, flags.model.block_size);
  if (!caches.ok()) return caches.status();
  const auto cases = Cases(flags);
  if (!cases.ok()) return cases.status();
  auto opened = Engine::Open(flags.model, kBenchStepTokens);
  if (!opened.ok()) return opened.status();
  Engine& engine = **opened;
  const int64_t context = engine.model().config().context_length;
  int64_t longest = 0;
  for (const BenchCase& c : *cases) longest = std::max(longest, c.max_len());
  if (longest > context) {
    return absl::InvalidArgumentError(absl::StrCat("--depth, --input-len and --output-len come to ", longest,
                                                   " tokens, and the model's context is ", context));
  }
  // Every case is looked at before the first one runs. Each takes its caches and gives them back.
  for (const BenchCase& c : *cases) {
    const auto subjects = Prepare(engine, c, *caches);
    if (!subjects.ok()) return subjects.status();
    if (auto status = engine.CheckRoom(RunnersOf(*subjects), kBenchRoomAdvice); !status.ok()) return status;
  }
  if (auto status = engine.Load({}, kBenchRoomAdvice); !status.ok()) return status;
  const std::vector<int32_t> tokens = SomeTokens(longest, engine.model().config().vocab_size);

  const DeviceInfo& device = engine.device().info();
  Json document = {{"model", flags.model.model},
                   {"device", engine.device().id()},
                   {"device_name", device.name},
                   {"arch", device.arch},
                   {"compute", flags.model.compute},
                   {"threads", engine.pool().threads()},
                   {"repeats", flags.repeats},
                   {"warm_up", flags.warm_up},
                   {"step_weight_bytes", engine.model().step_weight_bytes()},
                   {"cases", Json::array()}};
  if (!flags.json) {
    Print(fmt::format("{}\n{} {} ({}), {} compute, {}; median [min, max] of {} each, caches in turn\n\n",
                      Printable(flags.model.model), engine.device().id(), Printable(device.name),
                      Printable(device.arch), flags.model.compute, CountOf(engine.pool().threads(), "thread"),
                      CountOf(flags.repeats, "run")));
    Print(fmt::format(kRowFormat, "batch", "depth", "input", "output", "cache", "prompt tokens/s", "decode tokens/s",
                      "total ms", "KV bytes planned", "KV bytes taken", "GB/s", "share"));
  }
  // What was measured before an error is told.
  absl::Status status;
  for (const BenchCase& c : *cases) {
    status = RunCase(engine, flags, c, *caches, tokens, &document["cases"]);
    if (!status.ok()) break;
  }
  if (flags.json) {
    if (!document["cases"].empty()) Print(document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  } else {
    const bool host = device.kind == DeviceInfo::Kind::kCpu;
    Print(
        fmt::format("\ntokens/s: of all sequences of the batch together. GB/s: what the device's memory gave before "
                    "and after the case, {}. share: of it, by the weights and the\n"
                    "K and V that the decode steps have to read.\n",
                    host ? "read by all threads" : "copied, reads and writes counted"));
  }
  return status;
}

}  // namespace

void AddBench(CommandLine& program) {
  auto flags = std::make_shared<BenchFlags>();
  CommandLine& command = program.AddCommand("bench", "how fast a model's prompts and decode steps are");
  flags->model.AddTo(command);
  command.AddText("--compare", &flags->caches, "caches that take turns: dtypes, or int8 with a recipe (int8:plain)",
                  CommandLine::Text::kShowsDefault);
  command.AddText("--batch-size", &flags->batch_sizes, "sequences at once; several with commas between them",
                  CommandLine::Text::kShowsDefault);
  command.AddText("--depth", &flags->depths,
                  "tokens that are cached before each prompt, not timed; several with commas between them",
                  CommandLine::Text::kShowsDefault);
  command.AddText("--input-len", &flags->input_lens, "tokens of each prompt; several with commas between them",
                  CommandLine::Text::kShowsDefault);
  command.AddText("--output-len", &flags->output_lens,
                  "decode steps after the prompts; several with commas between them", CommandLine::Text::kShowsDefault);
  command.AddNumber<int32_t>("--repeats", {1, 1000}, &flags->repeats, "measured runs of each case");
  command.AddNumber<int32_t>("--warm-up", {0, 1000}, &flags->warm_up, "runs before them, not measured");
  command.AddFlag("--json", &flags->json, "one JSON document on stdout");
  command.SetRun([flags] { return Bench(*flags); });
}

}  // namespace octet
