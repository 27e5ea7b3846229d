// A small backend for tests of the tables and the loader: an f32 cache in the canonical layout that append fills and
// gather reads, and attention that records what reached it. Each operation can be told to fail or to throw.
#ifndef OCTET_TESTS_UNIT_PLUGINS_FAKE_BACKEND_H_
#define OCTET_TESTS_UNIT_PLUGINS_FAKE_BACKEND_H_

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "octet/plugin.hpp"

namespace fake {

using octet::AttentionArgs;
using octet::AttentionDesc;
using octet::Batch;
using octet::Buffer;
using octet::DType;
using octet::KvLayer;
using octet::KvLayout;
using octet::KvTokens;
using octet::Status;
using octet::StatusOr;
using octet::Stream;
using octet::Support;
using octet::Tensor;

// What reached the backend last, and what the next call does instead of its work.
struct Log {
  KvLayout layout;
  KvLayer layer;
  KvTokens tokens;
  AttentionDesc desc;
  Batch batch;
  AttentionArgs args;
  std::vector<int32_t> pages;
  int plans_alive = 0;
  std::function<Status()> instead;

  Status Hook() const { return instead ? instead() : octet::OkStatus(); }
};

class Quant final : public octet::QuantOps {
 public:
  explicit Quant(Log* log) : log_(log) {}

  Status ChooseLayout(KvLayout& layout) const override {
    OCTET_RETURN_IF_ERROR(log_->Hook());
    OCTET_RETURN_IF_ERROR(octet::CheckLayout(layout));
    return octet::CanonicalLayout(layout);
  }
  Support Supports(const KvLayout& layout, DType input) const override {
    log_->layout = layout;
    if (Status status = octet::CheckLayout(layout); !status.ok()) return Support::No(status.message());
    if (layout.k.quantized() || input != DType::kF32) return Support::No("this backend keeps f32 caches only");
    return Support::Yes(1, "plain", 64);
  }
  Status Append(Stream&, const KvLayout& layout, const KvLayer& layer, const KvTokens& tokens) override {
    return Move(layout, layer, tokens, false);
  }
  Status Gather(Stream&, const KvLayout& layout, const KvLayer& layer, const KvTokens& tokens) override {
    return Move(layout, layer, tokens, true);
  }
  Status CopyPages(Stream&, const KvLayout&, const KvLayer&, const Tensor&) override { return Refuse(); }
  Status ExportPages(Stream&, const KvLayout&, const KvLayer&, const Tensor&, Buffer&, uint64_t) override {
    return Refuse();
  }
  Status ImportPages(Stream&, const KvLayout&, const KvLayer&, const Tensor&, Buffer&, uint64_t) override {
    return Refuse();
  }

 private:
  Status Refuse() const {
    OCTET_RETURN_IF_ERROR(log_->Hook());
    return octet::Unimplemented("this backend moves no pages");
  }

  Status Move(const KvLayout& layout, const KvLayer& layer, const KvTokens& tokens, bool gather) {
    log_->layout = layout;
    log_->layer = layer;
    log_->tokens = tokens;
    OCTET_RETURN_IF_ERROR(log_->Hook());
    OCTET_RETURN_IF_ERROR(octet::CheckLayerInside(layout, layer, 0));
    OCTET_RETURN_IF_ERROR(octet::CheckHostTokens(layout, layer, tokens, gather));
    uint8_t* cache = octet::HostBufferOf(*layer.cache).data() + layer.cache_offset;
    for (int64_t t = 0; t < tokens.slots->shape[0]; ++t) {
      const int64_t slot = octet::HostData<const int64_t>(*tokens.slots)[t];
      if (slot < 0) continue;
      for (int64_t h = 0; h < layout.kv_heads; ++h) {
        for (const auto& [side, rows] : {std::pair{&layout.k, tokens.k}, std::pair{&layout.v, tokens.v}}) {
          if (rows == nullptr) continue;
          uint8_t* stored = cache + side->data_base + slot / layout.page_tokens * side->data_stride[0] +
                            h * side->data_stride[1] + slot % layout.page_tokens * side->data_stride[2];
          float* row = octet::HostData<float>(*rows) + t * rows->stride[0] + h * rows->stride[1];
          const size_t bytes = static_cast<size_t>(side->head_dim) * sizeof(float);
          gather ? std::memcpy(row, stored, bytes) : std::memcpy(stored, row, bytes);
        }
      }
    }
    return octet::OkStatus();
  }

  Log* log_;
};

class Plan final : public octet::AttentionPlan {
 public:
  explicit Plan(Log* log) : log_(log) { ++log_->plans_alive; }
  ~Plan() override { --log_->plans_alive; }

 private:
  Log* log_;
};

class Attention final : public octet::AttentionBackend {
 public:
  explicit Attention(Log* log) : log_(log) {}

  Support Supports(const AttentionDesc& desc) const override {
    Keep(desc);
    if (Status status = octet::CheckAttentionDesc(desc); !status.ok()) return Support::No(status.message());
    return Support::Yes(2, "recorder", 4096);
  }
  StatusOr<std::unique_ptr<octet::AttentionPlan>> MakePlan(const AttentionDesc& desc, Buffer*, uint64_t) override {
    OCTET_RETURN_IF_ERROR(log_->Hook());
    OCTET_RETURN_IF_ERROR(octet::CheckAttentionDesc(desc));
    Keep(desc);
    return std::unique_ptr<octet::AttentionPlan>(std::make_unique<Plan>(log_));
  }
  Status Refill(Stream&, octet::AttentionPlan&, const Batch& batch) override {
    OCTET_RETURN_IF_ERROR(log_->Hook());
    OCTET_RETURN_IF_ERROR(octet::CheckBatch(log_->layout, log_->desc.limits, log_->desc.window, batch));
    log_->batch = batch;
    log_->pages.assign(batch.pages, batch.pages + batch.page_start[batch.requests]);
    return octet::OkStatus();
  }
  Status Run(Stream&, const octet::AttentionPlan&, const KvLayer& layer, const AttentionArgs& args) override {
    OCTET_RETURN_IF_ERROR(log_->Hook());
    log_->layer = layer;
    log_->args = args;
    return octet::CheckAttentionArgs(log_->desc, log_->layout, args);
  }

 private:
  void Keep(const AttentionDesc& desc) const {
    log_->layout = *desc.kv;
    log_->desc = desc;
    log_->desc.kv = &log_->layout;
  }

  Log* log_;
};

class Backend : public octet::HostMemoryBackend {
 public:
  explicit Backend(std::string name)
      : HostMemoryBackend({.name = std::move(name), .vendor = "tests", .version = "1.2.3"}) {}

  octet::QuantOps* quant() override { return &quant_; }
  octet::AttentionBackend* attention() override { return &attention_; }

 protected:
  Log log_;

 private:
  Quant quant_{&log_};
  Attention attention_{&log_};
};

}  // namespace fake

#endif  // OCTET_TESTS_UNIT_PLUGINS_FAKE_BACKEND_H_
