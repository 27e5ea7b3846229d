// Descriptors of the C contract that are longer or shorter than ours, with fields that nobody knows, and with unknown
// enumeration values. Calls the raw tables. Rules: abi.h, A1 to A5.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "octet/convert.h"
#include "tests/conformance/harness.h"
#include "tests/conformance/test_cache.h"

namespace octet::conformance {
namespace {

enum class Probe { kZeroTail, kUnknownField, kTooShort };

template <typename T>
struct Grown {
  explicit Grown(const T& value) : base(value) {}
  T base;
  unsigned char tail[64] = {};
  void Apply(Probe probe) {
    base.struct_size = probe == Probe::kTooShort ? 8 : sizeof(T) + sizeof(tail);
    if (probe == Probe::kUnknownField) tail[40] = 1;
  }
};

// Zero tail: works. Unknown field set: UNIMPLEMENTED. Too short: refused. `output` is untouched by both refusals.
void Judge(Probe probe, const std::string& what, octet_code code, const octet_error& error, const Block* output) {
  if (probe == Probe::kZeroTail) {
    EXPECT_EQ(code, OCTET_OK) << what << " with a zero tail (rule A3): " << error.message;
    return;
  }
  ExpectRefusal(code, error, what.c_str());
  if (probe == Probe::kUnknownField) {
    EXPECT_EQ(code, OCTET_UNIMPLEMENTED) << what << " with an unknown field set (rule A3)";
  }
  if (output != nullptr) Untouched(*output, what.c_str());
}

Status ProbeAppend(const std::string& which, Probe probe) {
  const CacheSpec spec = Both(Int8(64));
  TestCache cache;
  OCTET_RETURN_IF_ERROR(cache.Init(spec, 3));
  const DeviceRows rows(spec, NormalRows(spec, {1, 2}, 31));
  convert::CKvLayout c(cache.layout());
  Grown<octet_cache_side> side(c.k);
  Grown<octet_kv_layout> layout(c.layout);
  Grown<octet_kv_layer> layer(convert::ToC(cache.layer()));
  Grown<octet_kv_tokens> tokens(convert::ToC(rows.tokens()));
  layout.base.k = &side.base;
  if (which == "octet_cache_side") side.Apply(probe);
  if (which == "octet_kv_layout") layout.Apply(probe);
  if (which == "octet_kv_layer") layer.Apply(probe);
  if (which == "octet_kv_tokens") tokens.Apply(probe);
  octet_error error = Error();
  const octet_code code =
      TheSubject().table()->quant->append(&TheSubject().s(), &layout.base, &layer.base, &tokens.base, &error);
  Sync();
  Judge(probe, which, code, error, &cache.memory());
  return OkStatus();
}

Status ProbeAttention(const std::string& which, Probe probe) {
  const CacheSpec spec = Both(Int8(64));
  TestCache cache;
  OCTET_RETURN_IF_ERROR(cache.Init(spec, 3));
  OCTET_RETURN_IF_ERROR(cache.Append(NormalRows(spec, {0, 1, 2}, 31)));
  AttentionDesc d;
  d.q_heads = 4;
  d.kv = &cache.layout();
  d.limits = {1, 4, 32, 2};
  const Support support = TheSubject().device->attention().Supports(d);
  if (support.level == 0) return Unimplemented(support.reason);
  const Block workspace(support.workspace_bytes);
  convert::CAttentionDesc c(d);
  Grown<octet_attention_desc> desc(c.desc);
  Grown<octet_limits> limits(c.limits);
  desc.base.limits = &limits.base;
  if (which == "octet_attention_desc") desc.Apply(probe);
  if (which == "octet_limits") limits.Apply(probe);
  const octet_attention_ops& ops = *TheSubject().table()->attention;
  octet_plan* plan = nullptr;
  octet_error error = Error();
  octet_code code =
      ops.make_plan(TheSubject().device->handle(), &desc.base, workspace.buffer(), workspace.offset(), &plan, &error);
  const Owned<octet_plan> owned(plan, ops.release_plan);
  if (code != OCTET_OK || which == "octet_attention_desc" || which == "octet_limits") {
    Judge(probe, which, code, error, &workspace);
    EXPECT_EQ(plan != nullptr, code == OCTET_OK) << "a plan and an error, or neither";
    return OkStatus();
  }
  const int32_t q_start[] = {0, 1}, kv_len[] = {3}, page_start[] = {0, 1}, pages[] = {0};
  Grown<octet_batch> batch(convert::ToC(Batch{1, q_start, kv_len, nullptr, page_start, pages}));
  if (which == "octet_batch") batch.Apply(probe);
  error = Error();
  code = ops.refill(&TheSubject().s(), plan, &batch.base, &error);
  if (code != OCTET_OK || which == "octet_batch") {
    Judge(probe, which, code, error, nullptr);
    return OkStatus();
  }
  const Block q(std::vector<float>(4 * 64, 0.5f)), out(4 * 64 * 4);
  const Tensor qt = q.View(DType::kF32, {1, 4, 64}), ot = out.View(DType::kF32, {1, 4, 64});
  Grown<octet_kv_layer> layer(convert::ToC(cache.layer()));
  Grown<octet_attention_args> args(convert::ToC(AttentionArgs{&qt, &ot, nullptr, nullptr}));
  if (which == "octet_kv_layer") layer.Apply(probe);
  if (which == "octet_attention_args") args.Apply(probe);
  error = Error();
  code = ops.run(&TheSubject().s(), plan, &layer.base, &args.base, &error);
  Sync();
  Judge(probe, which, code, error, &out);
  return OkStatus();
}

Status ProbeDense(const std::string& which, Probe probe) {
  const octet_dense_ops* ops = TheSubject().table()->dense;
  if (ops == nullptr) return Unimplemented("the backend has no dense table");
  const FloatWeight host(4, 32, 1, std::vector<float>(4 * 32, 0.5f));
  const Support support = TheSubject().device->dense()->SupportsWeight(host.desc);
  if (support.level == 0) return Unimplemented(support.reason);
  convert::CWeightDesc c(host.desc);
  Grown<octet_weight_part> part(*c.desc.parts[0]);
  Grown<octet_weight_desc> desc(c.desc);
  const octet_weight_part* const parts[] = {&part.base};
  desc.base.parts = parts;
  if (which == "octet_weight_part") part.Apply(probe);
  if (which == "octet_weight_desc") desc.Apply(probe);
  octet_weight* weight = nullptr;
  octet_error error = Error();
  octet_code code = ops->prepare_weight(&TheSubject().s(), &desc.base, &weight, &error);
  const Owned<octet_weight> owned(weight, ops->release_weight);
  if (code != OCTET_OK || which != "octet_linear_args") {
    Judge(probe, which, code, error, nullptr);
    return OkStatus();
  }
  const Block x(std::vector<float>(32, 1.0f)), y(4 * 4);
  const Workspace workspace(support.workspace_bytes);
  const Tensor xt = x.View(DType::kF32, {1, 32}), yt = y.View(DType::kF32, {1, 4});
  Grown<octet_linear_args> grown(convert::ToC(ArgsOf(xt, yt, weight, workspace)));
  grown.Apply(probe);
  error = Error();
  code = ops->linear(&TheSubject().s(), &grown.base, &error);
  Sync();
  Judge(probe, which, code, error, &y);
  if (probe == Probe::kZeroTail) {
    EXPECT_EQ(y.Floats(DType::kF32), std::vector<float>(4, 16.0f));
  }
  return OkStatus();
}

Status ProbeFused(Probe probe) {
  const octet_fused_ops* ops = TheSubject().table()->fused;
  if (ops == nullptr) return Unimplemented("the backend has no fused table");
  TestCache cache;
  OCTET_RETURN_IF_ERROR(cache.Init(Both(Int8(64), 64, 1), 3));
  AttentionDesc d;
  d.q_heads = 1;
  d.kv = &cache.layout();
  d.limits = {1, 1, 32, 2};
  const Support support = TheSubject().device->fused()->Supports(FusedEntry::kQkvAppend, d);
  if (support.level == 0) return Unimplemented(support.reason);
  const Block qkv(std::vector<float>(3 * 64, 0.5f)), cos_sin(std::vector<float>{1.0f, 0.0f}),
      positions(std::vector<int32_t>{0}), slots(std::vector<int64_t>{1}), q(64 * 4);
  const Tensor qkv_t = qkv.View(DType::kF32, {1, 3 * 64}), cos_sin_t = cos_sin.View(DType::kF32, {1, 1, 2}),
               positions_t = positions.View(DType::kI32, {1}), slots_t = slots.View(DType::kI64, {1}),
               q_t = q.View(DType::kF32, {1, 1, 64});
  const convert::CKvLayout layout(cache.layout());
  const octet_kv_layer layer = convert::ToC(cache.layer());
  QkvAppendArgs args;
  args.qkv = &qkv_t;
  args.cos_sin = &cos_sin_t;
  args.positions = &positions_t;
  args.slots = &slots_t;
  args.q_out = &q_t;
  Grown<octet_qkv_append_args> grown(convert::ToC(args));
  grown.Apply(probe);
  octet_error error = Error();
  const octet_code code = ops->qkv_append(&TheSubject().s(), &layout.layout, &layer, &grown.base, &error);
  Sync();
  Judge(probe, "octet_qkv_append_args", code, error, &cache.memory());
  if (probe == Probe::kZeroTail) {
    EXPECT_EQ(q.Floats(DType::kF32), std::vector<float>(64, 0.5f));
  } else {
    Untouched(q, "q");
  }
  return OkStatus();
}

// ---- Unknown enumeration values (rule A5)

Status RefusesUnknownCacheEnums() {
  const octet_quant_ops& ops = *TheSubject().table()->quant;
  octet_device* device = TheSubject().device->handle();
  const std::vector<std::pair<const char*, std::function<void(octet_cache_side&)>>> changes = {
      {"data_type 99", [](octet_cache_side& s) { s.data_type = 99; }},
      {"data_type i64", [](octet_cache_side& s) { s.data_type = OCTET_I64; }},
      {"scheme 7", [](octet_cache_side& s) { s.scheme = 7; }},
      {"scheme -1", [](octet_cache_side& s) { s.scheme = -1; }},
      {"axis 9", [](octet_cache_side& s) { s.axis = 9; }},
      {"scale_type 77", [](octet_cache_side& s) { s.scale_type = 77; }},
      {"scale_type f16", [](octet_cache_side& s) { s.scale_type = OCTET_F16; }},
      {"order 12345", [](octet_cache_side& s) { s.order = 12345; }}};
  for (const auto& [what, change] : changes) {
    KvLayout layout = LayoutOf(Both(Int8(64)), 3);
    FillRowStrides(layout);
    convert::CKvLayout c(layout);
    change(c.k);
    octet_support support = convert::Sized<octet_support>();
    octet_error error = Error();
    const octet_code code = ops.supports(device, &c.layout, OCTET_F32, &support, &error);
    EXPECT_TRUE(code == OCTET_UNIMPLEMENTED || (code == OCTET_OK && support.level == 0))
        << what << ": supports answers code " << code << ", level " << support.level;
    EXPECT_TRUE(error.message[0] != '\0' || support.reason[0] != '\0') << what << ": no reason";

    const Block memory(layout.layer_bytes), k(std::vector<float>(128, 1.0f)), slots(std::vector<int64_t>{0}),
        positions(std::vector<int32_t>{0});
    KvLayer layer;
    layer.cache = memory.buffer();
    layer.cache_offset = memory.offset();
    const Tensor kt = k.View(DType::kF32, {1, 2, 64}), st = slots.View(DType::kI64, {1}),
                 pt = positions.View(DType::kI32, {1});
    const octet_kv_layer y = convert::ToC(layer);
    const octet_kv_tokens t = convert::ToC(KvTokens{&kt, &kt, &st, &pt});
    error = Error();
    const octet_code refused = ops.append(&TheSubject().s(), &c.layout, &y, &t, &error);
    Sync();
    ExpectRefusal(refused, error, what);
    EXPECT_EQ(refused, OCTET_UNIMPLEMENTED) << what;
    Untouched(memory, "the cache");
  }
  return OkStatus();
}

Status RefusesUnknownAttentionEnums() {
  const octet_attention_ops& ops = *TheSubject().table()->attention;
  octet_device* device = TheSubject().device->handle();
  TestCache cache;
  OCTET_RETURN_IF_ERROR(cache.Init(Both(Int8(64)), 3));
  AttentionDesc d;
  d.q_heads = 4;
  d.kv = &cache.layout();
  d.limits = {1, 4, 32, 2};
  const std::vector<std::pair<const char*, std::function<void(octet_attention_desc&)>>> changes = {
      {"q_type 99", [](octet_attention_desc& c) { c.q_type = 99; }},
      {"out_type 99", [](octet_attention_desc& c) { c.out_type = 99; }},
      {"out_type i8", [](octet_attention_desc& c) { c.out_type = OCTET_I8; }},
      {"compute 7", [](octet_attention_desc& c) { c.compute = 7; }},
      {"causal 2", [](octet_attention_desc& c) { c.causal = 2; }}};
  for (const auto& [what, change] : changes) {
    convert::CAttentionDesc c(d);
    change(c.desc);
    octet_support support = convert::Sized<octet_support>();
    octet_error error = Error();
    const octet_code code = ops.supports(device, &c.desc, &support, &error);
    EXPECT_TRUE(code == OCTET_UNIMPLEMENTED || (code == OCTET_OK && support.level == 0))
        << what << ": supports answers code " << code << ", level " << support.level;
    octet_plan* plan = nullptr;
    error = Error();
    const octet_code refused = ops.make_plan(device, &c.desc, nullptr, 0, &plan, &error);
    const Owned<octet_plan> owned(plan, ops.release_plan);
    ExpectRefusal(refused, error, what);
    EXPECT_EQ(refused, OCTET_UNIMPLEMENTED) << what;
    EXPECT_EQ(plan, nullptr) << what;
  }
  return OkStatus();
}

Status RefusesUnknownDenseEnums() {
  const octet_dense_ops* ops = TheSubject().table()->dense;
  if (ops == nullptr) return Unimplemented("the backend has no dense table");
  const Block x(std::vector<float>(32, 1.0f)), y(32 * 4), gain(std::vector<float>(32, 1.0f));
  const Tensor xt = x.View(DType::kF32, {1, 32}), yt = y.View(DType::kF32, {1, 32}), gt = gain.View(DType::kF32, {32});
  for (int32_t kind : {0, 99, -1}) {
    octet_error error = Error();
    octet_code code = ops->norm(&TheSubject().s(), kind, &xt, &gt, nullptr, 1e-5f, &yt, &error);
    Sync();
    ExpectRefusal(code, error, "norm of an unknown kind");
    EXPECT_EQ(code, OCTET_UNIMPLEMENTED);
    error = Error();
    code = ops->activation(&TheSubject().s(), kind, &xt, &yt, &error);
    Sync();
    ExpectRefusal(code, error, "activation of an unknown kind");
    EXPECT_EQ(code, OCTET_UNIMPLEMENTED);
  }
  Untouched(y, "the output");
  const FloatWeight host(4, 32, 1, std::vector<float>(4 * 32, 0.5f));
  const std::vector<std::pair<const char*, std::function<void(octet_weight_desc&, octet_weight_part&)>>> changes = {
      {"weight of type 99", [](octet_weight_desc&, octet_weight_part& p) { p.dtype = 99; }},
      {"weight of type 21", [](octet_weight_desc&, octet_weight_part& p) { p.dtype = 21; }},
      {"use 0x80", [](octet_weight_desc& c, octet_weight_part&) { c.use |= 0x80; }},
      {"x_type 99", [](octet_weight_desc& c, octet_weight_part&) { c.x_type = 99; }},
      {"y_type 99", [](octet_weight_desc& c, octet_weight_part&) { c.y_type = 99; }}};
  for (const auto& [what, change] : changes) {
    convert::CWeightDesc c(host.desc);
    octet_weight_part part = *c.desc.parts[0];
    const octet_weight_part* const parts[] = {&part};
    c.desc.parts = parts;
    change(c.desc, part);
    octet_support support = convert::Sized<octet_support>();
    octet_error error = Error();
    const octet_code code = ops->supports_weight(TheSubject().device->handle(), &c.desc, &support, &error);
    EXPECT_TRUE(code == OCTET_UNIMPLEMENTED || (code == OCTET_OK && support.level == 0))
        << what << ": supports_weight answers code " << code << ", level " << support.level;
    octet_weight* weight = nullptr;
    error = Error();
    const octet_code refused = ops->prepare_weight(&TheSubject().s(), &c.desc, &weight, &error);
    const Owned<octet_weight> owned(weight, ops->release_weight);
    ExpectRefusal(refused, error, what);
    EXPECT_EQ(refused, OCTET_UNIMPLEMENTED) << what;
    EXPECT_EQ(weight, nullptr) << what;
  }
  return OkStatus();
}

}  // namespace

void AddStructCases() {
  const std::pair<Probe, const char*> probes[] = {{Probe::kZeroTail, "Abi.AcceptsALongerStructWithAZeroTail/"},
                                                  {Probe::kUnknownField, "Abi.RefusesAnUnknownField/"},
                                                  {Probe::kTooShort, "Abi.RefusesAStructThatIsTooShort/"}};
  for (const auto& [kind, name] : probes) {
    const Probe probe = kind;
    for (const char* which : {"octet_cache_side", "octet_kv_layout", "octet_kv_layer", "octet_kv_tokens"}) {
      AddCase(name + std::string("append_") + which, [=] { return ProbeAppend(which, probe); });
    }
    for (const char* which :
         {"octet_attention_desc", "octet_limits", "octet_batch", "octet_kv_layer", "octet_attention_args"}) {
      AddCase(name + std::string("attention_") + which, [=] { return ProbeAttention(which, probe); });
    }
    for (const char* which : {"octet_weight_desc", "octet_weight_part", "octet_linear_args"}) {
      AddCase(name + std::string("dense_") + which, [=] { return ProbeDense(which, probe); });
    }
    AddCase(name + std::string("fused_octet_qkv_append_args"), [=] { return ProbeFused(probe); });
  }
  AddCase("Abi.RefusesUnknownEnums/cache", RefusesUnknownCacheEnums);
  AddCase("Abi.RefusesUnknownEnums/attention", RefusesUnknownAttentionEnums);
  AddCase("Abi.RefusesUnknownEnums/dense", RefusesUnknownDenseEnums);
}

}  // namespace octet::conformance
