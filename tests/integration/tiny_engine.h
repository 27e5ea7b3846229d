// A RandomModel, or any GGUF bytes, loaded on the CPU backend of this build. For tests of core over a real backend.
#ifndef OCTET_TESTS_INTEGRATION_TINY_ENGINE_H_
#define OCTET_TESTS_INTEGRATION_TINY_ENGINE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/thread_pool.h"
#include "core/gguf/gguf_file.h"
#include "core/loader/registry.h"
#include "core/model/model.h"
#include "core/model/runner.h"
#include "gtest/gtest.h"
#include "tests/unit/gguf_writer.h"

namespace octet {

// The device and its threads, shared by all tests of a program.
inline Device& CpuDevice() {
  static ThreadPool pool(2);
  static const std::unique_ptr<Device> device = [] {
    auto registry = Registry::Load({.backend_paths = {OCTET_BUILD_DIR "/lib/octet/backends"}, .pool = &pool});
    if (!registry.ok()) throw std::runtime_error(registry.status().ToString());
    auto opened = (*registry)->Open("cpu");
    if (!opened.ok()) throw std::runtime_error(opened.status().ToString());
    return *std::move(opened);
  }();
  return *device;
}

class TinyEngine {
 public:
  explicit TinyEngine(const std::string& gguf_bytes,
                      const ModelOptions& options = {.exact = true, .max_step_tokens = 160},
                      Device& device = CpuDevice())
      : temp_(gguf_bytes) {
    auto file = GgufFile::Open(temp_.path());
    if (!file.ok()) throw std::runtime_error(file.status().ToString());
    file_ = *std::move(file);
    auto model = Model::Prepare(device, *file_, options);
    status_ = model.status();
    if (!status_.ok()) return;
    model_ = *std::move(model);
    status_ = model_->Upload();
  }

  // OK when the model is loaded.
  const absl::Status& status() const { return status_; }
  const Model& model() const { return *model_; }

  RunnerOptions Options(DType dtype, int32_t page_tokens = 16) const {
    RunnerOptions options;
    options.kv.dtype = dtype;
    options.kv.page_tokens = page_tokens;
    options.max_model_len = model_->config().context_length;
    options.max_num_seqs = 5;
    options.max_logit_rows = model_->options().max_step_tokens;
    return options;
  }
  std::unique_ptr<Runner> MakeRunner(const RunnerOptions& options) const {
    auto runner = Runner::Prepare(*model_, options);
    if (!runner.ok()) throw std::runtime_error(runner.status().ToString());
    if (auto status = (*runner)->Allocate(); !status.ok()) throw std::runtime_error(status.ToString());
    return *std::move(runner);
  }
  std::unique_ptr<Runner> MakeRunner(DType dtype, int32_t page_tokens = 16) const {
    return MakeRunner(Options(dtype, page_tokens));
  }

 private:
  TempFile temp_;
  std::unique_ptr<GgufFile> file_;
  std::unique_ptr<Model> model_;
  absl::Status status_;
};

// One sequence on a runner.
class Sequence {
 public:
  Sequence(Runner& runner, std::vector<int32_t> tokens)
      : runner_(&runner), tokens_(std::move(tokens)), pages_(&runner.cache().pool()) {
    const absl::Status status = pages_.Reserve(static_cast<int64_t>(tokens_.size()));
    if (!status.ok()) throw std::runtime_error(status.ToString());
  }
  size_t left() const { return tokens_.size() - done_; }
  size_t done() const { return done_; }

  // The next `n` tokens as a part of a step; they count as cached from then on.
  SequenceInput Next(size_t n, bool all_logits) {
    const SequenceInput input{.tokens = std::span<const int32_t>(tokens_).subspan(done_, n),
                              .cached = static_cast<int64_t>(done_),
                              .pages = &pages_,
                              .all_logits = all_logits};
    done_ += n;
    return input;
  }
  // Feeds all that is left in pieces of `piece` tokens; logits [tokens][vocab] of every one of them.
  std::vector<float> Feed(size_t piece) {
    std::vector<float> all;
    while (left() > 0) {
      const SequenceInput input = Next(std::min(piece, left()), true);
      auto logits = runner_->Step({&input, 1});
      if (!logits.ok()) throw std::runtime_error(logits.status().ToString());
      all.insert(all.end(), logits->begin(), logits->end());
    }
    return all;
  }

 private:
  Runner* runner_;
  std::vector<int32_t> tokens_;
  PageTable pages_;
  size_t done_ = 0;
};

}  // namespace octet

#endif  // OCTET_TESTS_INTEGRATION_TINY_ENGINE_H_
