// octet quality: what a quantized KV cache costs on this model and text. Every cache sees the same tokens through the
// same weights, and its predictions are compared with those of a reference cache position by position.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/command_line.h"
#include "core/base/message_text.h"
#include "core/base/program.h"
#include "core/base/text_file.h"
#include "core/cli/cache_list.h"
#include "core/cli/commands.h"
#include "core/cli/engine.h"
#include "core/cli/progress.h"
#include "fmt/format.h"

namespace octet {
namespace {

constexpr int32_t kChunk = 128;            // most tokens of one step, each with its row of logits
constexpr int64_t kLogitBytes = 64 << 20;  // of one step and cache: fewer tokens where the vocabulary is large

struct QualityFlags {
  ModelFlags model;
  std::vector<std::string> files;
  std::string against = "f32";
  std::string caches = "int8,int8:rotation,int8:plain,int8:group32,bf16";
  int64_t tokens = 2048, window = 2048;
  std::optional<double> max_kl, min_top1;
  bool has_window = false, json = false;
};

// One cache that is compared.
struct QualitySubject {
  std::string name;
  std::unique_ptr<Runner> runner;
  std::unique_ptr<PageTable> pages;
  std::vector<double> kl;  // nats per scored position
  int64_t top1_equal = 0;
  double nll = 0;  // of the text's own next tokens
};

// Log of the softmax denominator, and where the largest logit is.
struct Row {
  double log_sum = 0;
  int64_t top = 0;
};

Row ReadRow(const float* logits, int64_t n) {
  Row row;
  for (int64_t i = 1; i < n; ++i) {
    if (logits[i] > logits[row.top]) row.top = i;
  }
  const double max = logits[row.top];
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += std::exp(logits[i] - max);
  row.log_sum = max + std::log(sum);
  return row;
}

// The reference cache's predictions for one step's tokens, kept for all subjects.
struct Reference {
  std::vector<float> logits;        // [tokens][vocab]
  std::vector<double> probability;  // [tokens][vocab]
  std::vector<Row> rows;            // [tokens]
};

struct Scored {
  double kl = 0, nll = 0;
  bool top1_equal = false;
};

// One step's tokens: rows of logits, and each row's true next token.
struct Step {
  int64_t vocab = 0;
  std::span<const int32_t> next;
  const float* logits = nullptr;
  Reference* reference = nullptr;
  std::vector<Scored>* out = nullptr;
};

// Fills reference.rows and probability from its logits.
void ReadReference(void* arg, uint32_t, int64_t begin, int64_t end) {
  const Step& step = *static_cast<Step*>(arg);
  for (int64_t t = begin; t < end; ++t) {
    const float* logits = step.reference->logits.data() + t * step.vocab;
    double* p = step.reference->probability.data() + t * step.vocab;
    const Row row = ReadRow(logits, step.vocab);
    for (int64_t i = 0; i < step.vocab; ++i) p[i] = std::exp(logits[i] - row.log_sum);
    step.reference->rows[static_cast<size_t>(t)] = row;
  }
}

// Compares the step's logits with the reference.
void ScoreRows(void* arg, uint32_t, int64_t begin, int64_t end) {
  const Step& step = *static_cast<Step*>(arg);
  for (int64_t t = begin; t < end; ++t) {
    const float *reference = step.reference->logits.data() + t * step.vocab, *logits = step.logits + t * step.vocab;
    const double* p = step.reference->probability.data() + t * step.vocab;
    const Row &p_row = step.reference->rows[static_cast<size_t>(t)], row = ReadRow(logits, step.vocab);
    double kl = 0;
    for (int64_t i = 0; i < step.vocab; ++i) {
      kl += p[i] * ((reference[i] - p_row.log_sum) - (logits[i] - row.log_sum));
    }
    Scored& scored = (*step.out)[static_cast<size_t>(t)];
    scored.kl = std::isfinite(kl) ? std::max(kl, 0.0) : kl;
    scored.top1_equal = p_row.top == row.top;
    scored.nll = row.log_sum - logits[step.next[static_cast<size_t>(t)]];
  }
}

// `wanted` tokens of the text; every window begins with BOS where the model wants it before a text.
absl::StatusOr<std::vector<int32_t>> ReadTokens(const Engine& engine, const std::vector<std::string>& files,
                                                int64_t wanted, int64_t window) {
  std::string text;
  for (const std::string& path : files) {
    auto read = ReadTextFile(path);
    if (!read.ok()) return read.status();
    text += *read;
  }
  const Tokenizer& tokenizer = engine.tokenizer();
  auto ids = tokenizer.Encode(text);
  if (!ids.ok()) return ids.status();
  if (tokenizer.add_bos()) {
    std::vector<int32_t> with_bos;
    for (const int32_t id : *ids) {
      if (static_cast<int64_t>(with_bos.size()) % window == 0) with_bos.push_back(*tokenizer.bos_id());
      with_bos.push_back(id);
    }
    ids = std::move(with_bos);
  }
  if (static_cast<int64_t>(ids->size()) < wanted) {
    return absl::InvalidArgumentError(absl::StrCat("the text has ", CountOf(static_cast<int64_t>(ids->size()), "token"),
                                                   " and ", wanted,
                                                   " were asked for; give more files or a lower --tokens"));
  }
  ids->resize(static_cast<size_t>(wanted));
  return ids;
}

// `on_step` gets the number of tokens of the window that are done.
absl::Status RunWindow(Engine& engine, std::vector<QualitySubject>& subjects, std::span<const int32_t> window,
                       const std::function<void(size_t)>& on_step) {
  const int64_t vocab = engine.model().config().vocab_size;
  const auto step_tokens = static_cast<size_t>(subjects[0].runner->options().max_logit_rows);
  Reference reference;
  std::vector<Scored> scored;
  for (QualitySubject& subject : subjects) {
    subject.pages->Truncate(0);
    if (auto status = subject.pages->Reserve(static_cast<int64_t>(window.size())); !status.ok()) return status;
  }
  for (size_t begin = 0; begin < window.size(); begin += step_tokens) {
    const auto chunk = window.subspan(begin, std::min(step_tokens, window.size() - begin));
    // The last token of the window predicts what is not in it.
    const auto next = window.subspan(begin + 1, std::min(chunk.size(), window.size() - begin - 1));
    for (size_t s = 0; s < subjects.size(); ++s) {
      const SequenceInput input{
          .tokens = chunk, .cached = static_cast<int64_t>(begin), .pages = subjects[s].pages.get(), .all_logits = true};
      auto logits = subjects[s].runner->Step({&input, 1});
      if (!logits.ok()) return logits.status();
      scored.resize(next.size());
      Step step{.vocab = vocab, .next = next, .logits = logits->data(), .reference = &reference, .out = &scored};
      const int64_t rows = static_cast<int64_t>(next.size());
      if (s == 0) {
        reference.logits.assign(logits->begin(), logits->end());
        reference.probability.resize(logits->size());
        reference.rows.resize(next.size());
        engine.pool().ParallelFor(rows, ReadReference, &step);
      }
      engine.pool().ParallelFor(rows, ScoreRows, &step);
      for (const Scored& row : scored) {
        if (!std::isfinite(row.kl) || !std::isfinite(row.nll)) {
          return absl::DataLossError(absl::StrCat("the logits of the ", subjects[s].name, " cache are not numbers"));
        }
        subjects[s].kl.push_back(row.kl);
        subjects[s].top1_equal += row.top1_equal;
        subjects[s].nll += row.nll;
      }
    }
    on_step(begin + chunk.size());
  }
  return absl::OkStatus();
}

struct Summary {
  double mean_kl = 0, standard_error = 0, p99 = 0, max = 0, top1 = 0, perplexity = 0;
};

Summary Summarize(const QualitySubject& subject) {
  Summary s;
  const double n = static_cast<double>(subject.kl.size());
  for (double kl : subject.kl) s.mean_kl += kl / n;
  double variance = 0;
  for (double kl : subject.kl) variance += (kl - s.mean_kl) * (kl - s.mean_kl) / n;
  s.standard_error = std::sqrt(variance / n);
  std::vector<double> sorted = subject.kl;
  std::sort(sorted.begin(), sorted.end());
  s.p99 = sorted[static_cast<size_t>(0.99 * (n - 1))];
  s.max = sorted.back();
  s.top1 = static_cast<double>(subject.top1_equal) / n;
  s.perplexity = std::exp(subject.nll / n);
  return s;
}

absl::Status Quality(const QualityFlags& flags) {
  auto caches = ParseCaches("--caches", flags.caches, flags.model.block_size);
  if (!caches.ok()) return caches.status();
  auto against = ParseCache("--against", flags.against, flags.model.block_size);
  if (!against.ok()) return against.status();
  caches->insert(caches->begin(), *std::move(against));
  if (flags.has_window && flags.window > flags.tokens) {
    return absl::InvalidArgumentError(absl::StrCat("--window is ", flags.window, " and --tokens is ", flags.tokens,
                                                   "; use a window of no more tokens than are measured"));
  }
  auto opened = Engine::Open(flags.model, kChunk);
  if (!opened.ok()) return opened.status();
  Engine& engine = **opened;
  const int64_t row_bytes = engine.model().config().vocab_size * static_cast<int64_t>(sizeof(float));
  const int32_t step_tokens = static_cast<int32_t>(std::clamp<int64_t>(kLogitBytes / row_bytes, 1, kChunk));
  const int64_t context = engine.model().config().context_length;
  if (flags.has_window && flags.window > context) {
    return absl::InvalidArgumentError(absl::StrCat("--window is ", flags.window, " and the model's context is ",
                                                   context, " tokens; use a window that fits"));
  }
  const int64_t window = std::min({flags.window, flags.tokens, context});
  if (window < 2) {
    return absl::InvalidArgumentError("the model's context is one token, and nothing can be scored in it");
  }
  if (flags.tokens % window == 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tokens is ", flags.tokens, " and a window has ", window,
                     ": the last token would be a window of its own, with nothing to predict it from; use --tokens ",
                     flags.tokens - 1, " or ", flags.tokens + 1));
  }
  auto ids = ReadTokens(engine, flags.files, flags.tokens, window);
  if (!ids.ok()) return ids.status();

  std::vector<QualitySubject> subjects;
  std::vector<Runner*> runners;
  for (const NamedCache& cache : *caches) {
    auto runner = engine.PrepareRunner(cache.kv, window, step_tokens);
    if (!runner.ok()) return runner.status();
    QualitySubject subject;
    subject.name = cache.name;
    subject.runner = *std::move(runner);
    runners.push_back(subject.runner.get());
    subjects.push_back(std::move(subject));
  }
  if (auto status = engine.Load(runners, "lower --window or name fewer --caches"); !status.ok()) return status;
  for (QualitySubject& subject : subjects) {
    subject.pages = std::make_unique<PageTable>(&subject.runner->cache().pool());
  }

  {
    Progress progress("measuring");
    const std::span<const int32_t> all(*ids);
    for (size_t begin = 0; begin + 1 < all.size(); begin += static_cast<size_t>(window)) {
      const auto piece = all.subspan(begin, std::min(static_cast<size_t>(window), all.size() - begin));
      const auto on_step = [&](size_t done) {
        progress.Update(static_cast<double>(begin + done) / static_cast<double>(all.size()));
      };
      if (auto status = RunWindow(engine, subjects, piece, on_step); !status.ok()) return status;
    }
  }

  nlohmann::ordered_json document = {{"against", flags.against},
                                     {"compute", flags.model.compute},
                                     {"device", engine.device().id()},
                                     {"scored_tokens", subjects[0].kl.size()},
                                     {"window", window},
                                     {"caches", nlohmann::ordered_json::array()}};
  if (!flags.json) {
    Print(fmt::format("{} in windows of {}, against an {} cache, {} compute, on {}\n\n",
                      CountOf(static_cast<int64_t>(subjects[0].kl.size()), "scored token"), window, flags.against,
                      flags.model.compute, engine.device().id()));
    Print(fmt::format("{:<14} {:>12} {:>9} {:>10} {:>10} {:>8} {:>11}\n", "cache", "mean KL", "+-", "p99 KL", "max KL",
                      "top-1", "perplexity"));
  }
  absl::Status verdict;
  for (size_t i = 0; i < subjects.size(); ++i) {
    const Summary s = Summarize(subjects[i]);
    document["caches"].push_back({{"cache", subjects[i].name},
                                  {"mean_kl", s.mean_kl},
                                  {"standard_error", s.standard_error},
                                  {"p99_kl", s.p99},
                                  {"max_kl", s.max},
                                  {"top1_agreement", s.top1},
                                  {"perplexity", s.perplexity}});
    if (!flags.json) {
      Print(fmt::format("{:<14} {:>12.2e} {:>9.1e} {:>10.2e} {:>10.2e} {:>7.2f}% {:>11.4f}\n", subjects[i].name,
                        s.mean_kl, s.standard_error, s.p99, s.max, 100 * s.top1, s.perplexity));
    }
    // The limits are for the first cache after the reference.
    if (i == 1 && flags.max_kl && !(s.mean_kl <= *flags.max_kl)) {
      verdict = absl::FailedPreconditionError(fmt::format(
          "the {} cache has a mean KL of {:.2e}, and --max-kl is {:.2e}", subjects[i].name, s.mean_kl, *flags.max_kl));
    } else if (i == 1 && flags.min_top1 && !(s.top1 >= *flags.min_top1)) {
      verdict = absl::FailedPreconditionError(
          fmt::format("the {} cache agrees with {} on {:.4f} of the first choices, and --min-top1 is {:.4f}",
                      subjects[i].name, flags.against, s.top1, *flags.min_top1));
    }
  }
  if (flags.json) Print(document.dump(2) + "\n");
  return verdict;
}

}  // namespace

void AddQuality(CommandLine& program) {
  auto flags = std::make_shared<QualityFlags>();
  CommandLine& command = program.AddCommand("quality", "what a quantized KV cache costs on this model and text");
  flags->model.AddTo(command);
  command.AddTexts("-f,--file", &flags->files, "text to measure on; - is standard input",
                   CommandLine::Texts::kManyRequired);
  command.AddText("--caches", &flags->caches, "caches to compare, e.g. int8,int8:plain,bf16",
                  CommandLine::Text::kShowsDefault);
  command.AddText("--against", &flags->against, "the reference cache", CommandLine::Text::kShowsDefault);
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  command.AddNumber<int64_t>("--tokens", {2, kMost}, &flags->tokens,
                             "tokens of the text to use, counting a BOS per window where the model wants one");
  command.AddNumber<int64_t>("--window", {2, kMost}, &flags->window, "tokens of one context at most");
  command.AddNumber<double>(
      "--max-kl", {.min = 0}, [flags](double limit) { flags->max_kl = limit; },
      "fail when the first cache's mean KL is above this");
  command.AddNumber<double>(
      "--min-top1", {0, 1}, [flags](double limit) { flags->min_top1 = limit; },
      "fail when the first cache's top-1 agreement is below this");
  command.AddFlag("--json", &flags->json, "one JSON document on stdout");
  command.SetRun([flags, &command] {
    flags->has_window = command.Has("--window");
    return Quality(*flags);
  });
}

}  // namespace octet
