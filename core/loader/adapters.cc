#include "core/loader/adapters.h"

namespace octet {
namespace {

using convert::ToC;

Status NoObject(const std::string& id, const char* what) {
  return Internal(id + ": the backend reported success but made no " + what);
}

// call(octet_support*, octet_error*) -> octet_code, as an answer.
template <typename F>
Support Ask(F&& call) {
  octet_support support = convert::Sized<octet_support>();
  octet_error error = convert::Sized<octet_error>();
  const octet_code code = call(&support, &error);
  return convert::ReadSupport(code, error, support);
}

class PluginQuantOps final : public QuantOps {
 public:
  explicit PluginQuantOps(const DeviceRef& device) : device_(device), ops_(*device.table->quant) {}

  Status ChooseLayout(KvLayout& layout) const override {
    convert::CKvLayout c(layout);
    octet_cache_side* v = layout.v_is_k ? &c.k : &c.v;
    octet_cache_side* extra = layout.has_k_extra ? &c.k_extra : nullptr;
    OCTET_RETURN_IF_ERROR(CallTable(device_.id, [&](octet_error* error) {
      return ops_.choose_layout(device_.handle, &c.layout, &c.k, v, extra, error);
    }));
    return convert::FromC(&c.layout, &c.k, v, extra, &layout);
  }

  Support Supports(const KvLayout& layout, DType input) const override {
    const convert::CKvLayout c(layout);
    return Ask([&](octet_support* out, octet_error* error) {
      return ops_.supports(device_.handle, &c.layout, static_cast<octet_dtype>(input), out, error);
    });
  }

  Status Append(Stream& stream, const KvLayout& layout, const KvLayer& layer, const KvTokens& tokens) override {
    const convert::CKvLayout c(layout);
    const octet_kv_layer y = ToC(layer);
    const octet_kv_tokens t = ToC(tokens);
    return CallTable(device_.id, [&](octet_error* error) { return ops_.append(&stream, &c.layout, &y, &t, error); });
  }

  Status Gather(Stream& stream, const KvLayout& layout, const KvLayer& layer, const KvTokens& tokens) override {
    const convert::CKvLayout c(layout);
    const octet_kv_layer y = ToC(layer);
    const octet_kv_tokens t = ToC(tokens);
    return CallTable(device_.id, [&](octet_error* error) { return ops_.gather(&stream, &c.layout, &y, &t, error); });
  }

  Status CopyPages(Stream& stream, const KvLayout& layout, const KvLayer& layer, const Tensor& pairs) override {
    const convert::CKvLayout c(layout);
    const octet_kv_layer y = ToC(layer);
    return CallTable(device_.id,
                     [&](octet_error* error) { return ops_.copy_pages(&stream, &c.layout, &y, &pairs, error); });
  }

  Status ExportPages(Stream& stream, const KvLayout& layout, const KvLayer& layer, const Tensor& pages,
                     Buffer& canonical, uint64_t offset) override {
    const convert::CKvLayout c(layout);
    const octet_kv_layer y = ToC(layer);
    return CallTable(device_.id, [&](octet_error* error) {
      return ops_.export_pages(&stream, &c.layout, &y, &pages, &canonical, offset, error);
    });
  }

  Status ImportPages(Stream& stream, const KvLayout& layout, const KvLayer& layer, const Tensor& pages,
                     Buffer& canonical, uint64_t offset) override {
    const convert::CKvLayout c(layout);
    const octet_kv_layer y = ToC(layer);
    return CallTable(device_.id, [&](octet_error* error) {
      return ops_.import_pages(&stream, &c.layout, &y, &pages, &canonical, offset, error);
    });
  }

 private:
  const DeviceRef device_;
  const octet_quant_ops& ops_;
};

class PluginPlan final : public AttentionPlan {
 public:
  explicit PluginPlan(void (*release)(octet_plan*)) : release_(release) {}
  ~PluginPlan() override {
    if (plan != nullptr) release_(plan);
  }
  PluginPlan(const PluginPlan&) = delete;
  PluginPlan& operator=(const PluginPlan&) = delete;

  octet_plan* plan = nullptr;

 private:
  void (*release_)(octet_plan*);
};

// Plans that reach these adapters were made by them.
octet_plan* PlanOf(const AttentionPlan& plan) { return static_cast<const PluginPlan&>(plan).plan; }

class PluginAttention final : public AttentionBackend {
 public:
  explicit PluginAttention(const DeviceRef& device) : device_(device), ops_(*device.table->attention) {}

  Support Supports(const AttentionDesc& desc) const override {
    if (desc.kv == nullptr) return Support::No("the attention descriptor has no KV layout");
    const convert::CAttentionDesc c(desc);
    return Ask(
        [&](octet_support* out, octet_error* error) { return ops_.supports(device_.handle, &c.desc, out, error); });
  }

  StatusOr<std::unique_ptr<AttentionPlan>> MakePlan(const AttentionDesc& desc, Buffer* workspace,
                                                    uint64_t offset) override {
    if (desc.kv == nullptr) return InvalidArgument(device_.id + ": the attention descriptor has no KV layout");
    const convert::CAttentionDesc c(desc);
    auto made = std::make_unique<PluginPlan>(ops_.release_plan);  // first: the plan has an owner from its making on
    OCTET_RETURN_IF_ERROR(CallTable(device_.id, [&](octet_error* error) {
      return ops_.make_plan(device_.handle, &c.desc, workspace, offset, &made->plan, error);
    }));
    if (made->plan == nullptr) return NoObject(device_.id, "plan");
    return std::unique_ptr<AttentionPlan>(std::move(made));
  }

  Status Refill(Stream& stream, AttentionPlan& plan, const Batch& batch) override {
    const octet_batch b = ToC(batch);
    return CallTable(device_.id, [&](octet_error* error) { return ops_.refill(&stream, PlanOf(plan), &b, error); });
  }

  Status Run(Stream& stream, const AttentionPlan& plan, const KvLayer& layer, const AttentionArgs& args) override {
    const octet_kv_layer y = ToC(layer);
    const octet_attention_args a = ToC(args);
    return CallTable(device_.id, [&](octet_error* error) { return ops_.run(&stream, PlanOf(plan), &y, &a, error); });
  }

 private:
  const DeviceRef device_;
  const octet_attention_ops& ops_;
};

class PluginDenseOps final : public DenseOps {
 public:
  explicit PluginDenseOps(const DeviceRef& device) : device_(device), ops_(*device.table->dense) {}

  Support SupportsWeight(const WeightDesc& desc) const override {
    const convert::CWeightDesc c(desc);
    return Ask([&](octet_support* out, octet_error* error) {
      return ops_.supports_weight(device_.handle, &c.desc, out, error);
    });
  }

  StatusOr<Weight*> PrepareWeight(Stream& stream, const WeightDesc& desc) override {
    const convert::CWeightDesc c(desc);
    Weight* weight = nullptr;
    OCTET_RETURN_IF_ERROR(CallTable(
        device_.id, [&](octet_error* error) { return ops_.prepare_weight(&stream, &c.desc, &weight, error); }));
    if (weight == nullptr) return NoObject(device_.id, "weight");
    return weight;
  }

  void ReleaseWeight(Weight* weight) override { ops_.release_weight(weight); }

  Status Linear(Stream& stream, const LinearArgs& args) override {
    const octet_linear_args a = ToC(args);
    return CallTable(device_.id, [&](octet_error* error) { return ops_.linear(&stream, &a, error); });
  }
  Status Embed(Stream& stream, const Weight& weight, const Tensor& ids, float scale, const Tensor& y) override {
    return CallTable(device_.id,
                     [&](octet_error* error) { return ops_.embed(&stream, &weight, &ids, scale, &y, error); });
  }
  Status Norm(Stream& stream, NormKind kind, const Tensor& x, const Tensor& gain, const Tensor* bias, float eps,
              const Tensor& y) override {
    return CallTable(device_.id, [&](octet_error* error) {
      return ops_.norm(&stream, static_cast<int32_t>(kind), &x, &gain, bias, eps, &y, error);
    });
  }
  Status Rope(Stream& stream, const Tensor& x, const Tensor& positions, const Tensor& cos_sin,
              bool interleaved) override {
    return CallTable(device_.id, [&](octet_error* error) {
      return ops_.rope(&stream, &x, &positions, &cos_sin, interleaved ? 1 : 0, error);
    });
  }
  Status Activate(Stream& stream, Activation kind, const Tensor& x, const Tensor& y) override {
    return CallTable(device_.id, [&](octet_error* error) {
      return ops_.activation(&stream, static_cast<int32_t>(kind), &x, &y, error);
    });
  }
  Status Add(Stream& stream, const Tensor& x, const Tensor& y) override {
    return CallTable(device_.id, [&](octet_error* error) { return ops_.add(&stream, &x, &y, error); });
  }
  Status GatherRows(Stream& stream, const Tensor& x, const Tensor& rows, const Tensor& y) override {
    return CallTable(device_.id, [&](octet_error* error) { return ops_.gather_rows(&stream, &x, &rows, &y, error); });
  }

 private:
  const DeviceRef device_;
  const octet_dense_ops& ops_;
};

class PluginFusedOps final : public FusedOps {
 public:
  explicit PluginFusedOps(const DeviceRef& device) : device_(device), ops_(*device.table->fused) {}

  Support Supports(FusedEntry entry, const AttentionDesc& desc) const override {
    const bool present = entry == FusedEntry::kQkvAppend ? ops_.qkv_append != nullptr
                         : entry == FusedEntry::kSample  ? ops_.sample != nullptr
                                                         : false;
    if (!present) return Support::No("the backend has no such fused operation");
    if (desc.kv == nullptr) return Support::No("the attention descriptor has no KV layout");
    const convert::CAttentionDesc c(desc);
    return Ask([&](octet_support* out, octet_error* error) {
      return ops_.supports(device_.handle, static_cast<int32_t>(entry), &c.desc, out, error);
    });
  }

  Status QkvAppend(Stream& stream, const KvLayout& layout, const KvLayer& layer, const QkvAppendArgs& args) override {
    if (ops_.qkv_append == nullptr) return Unimplemented(device_.id + ": the backend has no fused QKV append");
    const convert::CKvLayout c(layout);
    const octet_kv_layer y = ToC(layer);
    const octet_qkv_append_args a = ToC(args);
    return CallTable(device_.id,
                     [&](octet_error* error) { return ops_.qkv_append(&stream, &c.layout, &y, &a, error); });
  }

  Status Sample(Stream& stream, const SampleArgs& args) override {
    if (ops_.sample == nullptr) return Unimplemented(device_.id + ": the backend has no fused sampling");
    const octet_sample_args a = ToC(args);
    return CallTable(device_.id, [&](octet_error* error) { return ops_.sample(&stream, &a, error); });
  }

 private:
  const DeviceRef device_;
  const octet_fused_ops& ops_;
};

class PluginGraphOps final : public GraphOps {
 public:
  explicit PluginGraphOps(const DeviceRef& device) : device_(device), ops_(*device.table->graph) {}

  Status Begin(Stream& stream) override {
    return CallTable(device_.id, [&](octet_error* error) { return ops_.begin(&stream, error); });
  }
  StatusOr<octet_graph*> End(Stream& stream) override {
    octet_graph* graph = nullptr;
    OCTET_RETURN_IF_ERROR(CallTable(device_.id, [&](octet_error* error) { return ops_.end(&stream, &graph, error); }));
    if (graph == nullptr) return NoObject(device_.id, "graph");
    return graph;
  }
  Status Launch(Stream& stream, octet_graph* graph) override {
    return CallTable(device_.id, [&](octet_error* error) { return ops_.launch(&stream, graph, error); });
  }
  void Release(octet_graph* graph) override { ops_.release(graph); }

 private:
  const DeviceRef device_;
  const octet_graph_ops& ops_;
};

}  // namespace

std::unique_ptr<QuantOps> MakeQuantOps(const DeviceRef& device) { return std::make_unique<PluginQuantOps>(device); }

std::unique_ptr<AttentionBackend> MakeAttention(const DeviceRef& device) {
  return std::make_unique<PluginAttention>(device);
}

std::unique_ptr<DenseOps> MakeDenseOps(const DeviceRef& device) {
  return device.table->dense != nullptr ? std::make_unique<PluginDenseOps>(device) : nullptr;
}

std::unique_ptr<FusedOps> MakeFusedOps(const DeviceRef& device) {
  return device.table->fused != nullptr ? std::make_unique<PluginFusedOps>(device) : nullptr;
}

std::unique_ptr<GraphOps> MakeGraphOps(const DeviceRef& device) {
  return device.table->graph != nullptr ? std::make_unique<PluginGraphOps>(device) : nullptr;
}

}  // namespace octet
