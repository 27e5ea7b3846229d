// Asks the backend what it supports and prints the answers as a matrix; computes nothing.
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/conformance/harness.h"
#include "tests/conformance/modes.h"
#include "tests/conformance/report.h"
#include "tests/conformance/scene.h"
#include "tests/conformance/test_cache.h"
#include "tests/reference/gguf.h"

namespace octet::conformance {
namespace {

class Matrix {
 public:
  void Title(const char* title) {
    area_ = title;
    std::printf("\n%-52s %-7s %s\n", title, "level", "kernel, or why not");
  }
  void Row(const std::string& what, const Support& support) {
    const char* levels[] = {"no", "slow", "native"};
    const char* level = support.level >= 0 && support.level <= 2 ? levels[support.level] : "?";
    std::printf("  %-50s %-7s %s\n", what.c_str(), level,
                support.level == 0 ? support.reason.c_str() : support.kernel.c_str());
    nlohmann::json row = {{"area", area_}, {"what", what}, {"level", support.level}};
    if (support.level == 0) {
      row["reason"] = support.reason;
    } else {
      row["kernel"] = support.kernel;
      row["workspace_bytes"] = support.workspace_bytes;
      row["resident_bytes"] = support.resident_bytes;
    }
    rows_.push_back(std::move(row));
  }
  nlohmann::json rows() const { return rows_; }

 private:
  std::string area_;
  nlohmann::json rows_ = nlohmann::json::array();
};

std::vector<SideSpec> Sides() {
  std::vector<SideSpec> sides = {Int8(64), Int8()};
  SideSpec groups = Int8(64), coarse = Int8(64);
  groups.group = 32;
  coarse.scale_type = DType::kBF16;
  sides.insert(sides.end(), {groups, coarse});
  for (Axis axis : {Axis::kToken, Axis::kTensor, Axis::kHead, Axis::kChannel}) {
    for (Scheme scheme : {Scheme::kSymmetric, Scheme::kAsymmetric}) {
      SideSpec side = Int8();
      side.axis = axis;
      side.scheme = scheme;
      if (axis != Axis::kToken || scheme != Scheme::kSymmetric) sides.push_back(side);
    }
  }
  for (DType type : {DType::kBF16, DType::kF16, DType::kF32}) sides.push_back(Float(type));
  return sides;
}

std::vector<CacheSpec> Caches() {
  std::vector<CacheSpec> caches;
  for (const SideSpec& side : Sides()) caches.push_back(Both(side));
  for (int dim : {72, 80, 96, 128, 192, 256, 576}) caches.push_back(Both(Int8(dim & -dim), dim));
  for (int page_tokens : {1, 32, 48, 128}) caches.push_back(Both(Int8(64), 64, 2, page_tokens));
  CacheSpec offsets = Both(Int8(64)), mixed = Both(Int8(64));
  offsets.offset_block = 64;
  mixed.k = Float(DType::kBF16, 64);
  caches.insert(caches.end(), {offsets, mixed, Latent(Int8(64))});
  return caches;
}

// The backend's own layout, or the plain rows that it would have to refuse.
KvLayout Layout(const CacheSpec& spec) {
  KvLayout layout = LayoutOf(spec, 64);
  if (!TheSubject().device->quant().ChooseLayout(layout).ok()) FillRowStrides(layout);
  return layout;
}

void Attention(Matrix& matrix) {
  AttentionBackend& attention = TheSubject().device->attention();
  auto ask = [&](const std::string& what, const CacheSpec& spec, int q_heads, auto change) {
    const KvLayout layout = Layout(spec);
    AttentionDesc desc;
    desc.q_heads = q_heads;
    desc.scale = 0.125f;
    desc.kv = &layout;
    desc.limits = {4, 16, 256, 64};
    change(desc);
    matrix.Row(what, attention.Supports(desc));
  };
  const auto as_it_is = [](AttentionDesc&) {};
  for (const CacheSpec& spec : Caches()) ask(NameOf(spec), spec, 4 * spec.kv_heads, as_it_is);
  const CacheSpec spec = Both(Int8(64));
  for (int group : {1, 3, 8, 16}) ask("group of " + std::to_string(group) + " query heads", spec, 2 * group, as_it_is);
  ask("window", spec, 8, [](AttentionDesc& d) { d.window = 64; });
  ask("softcap", spec, 8, [](AttentionDesc& d) { d.softcap = 30.0f; });
  ask("not causal", spec, 8, [](AttentionDesc& d) { d.causal = false; });
  ask("exact", spec, 8, [](AttentionDesc& d) { d.exact = true; });
  const Block slopes(std::vector<float>(8, 0.5f));
  const Tensor alibi = slopes.View(DType::kF32, {8});
  ask("ALiBi", spec, 8, [&](AttentionDesc& d) { d.alibi_slopes = &alibi; });
  for (DType q : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (DType out : {DType::kF32, DType::kF16, DType::kBF16}) {
      ask(std::string("q ") + DTypeName(q) + " to out " + DTypeName(out), spec, 8, [=](AttentionDesc& d) {
        d.q_type = q;
        d.out_type = out;
      });
    }
  }
}

void Fused(Matrix& matrix) {
  FusedOps* fused = TheSubject().device->fused();
  if (fused == nullptr) {
    matrix.Row("any", Support::No("the backend has no fused table"));
    return;
  }
  for (const CacheSpec& spec : Caches()) {
    const KvLayout layout = Layout(spec);
    AttentionDesc desc;
    desc.q_heads = 4 * spec.kv_heads;
    desc.kv = &layout;
    desc.limits = {4, 16, 256, 64};
    matrix.Row(NameOf(spec), fused->Supports(FusedEntry::kQkvAppend, desc));
  }
}

void Weights(Matrix& matrix) {
  DenseOps* dense = TheSubject().device->dense();
  if (dense == nullptr) {
    matrix.Row("any", Support::No("the backend has no dense table"));
    return;
  }
  const std::vector<uint8_t> data(1 << 14);
  for (int type : {1, 2, 3, 16, 17, 18, 19, 20, 24, 25, 26}) {
    const DType dtype = static_cast<DType>(type);
    const reference::BlockShape block = reference::BlockOf(dtype);
    const WeightPart part{dtype, 4, 256 / block.elements * block.bytes, data.data(), nullptr};
    auto ask = [&](const std::string& how, DType x, DType y, bool exact, bool embed) {
      WeightDesc desc;
      desc.columns = 256;
      desc.parts = {&part, 1};
      desc.max_tokens = 4;
      desc.linear = !embed;
      desc.embed = embed;
      desc.exact = exact;
      desc.x_type = x;
      desc.y_type = y;
      matrix.Row(std::string(DTypeName(dtype)) + " " + how, dense->SupportsWeight(desc));
    };
    ask("linear f32 to f32", DType::kF32, DType::kF32, false, false);
    ask("linear f32 to f32 exact", DType::kF32, DType::kF32, true, false);
    ask("linear bf16 to bf16", DType::kBF16, DType::kBF16, false, false);
    ask("embed to f32", DType::kF32, DType::kF32, false, true);
  }
}

}  // namespace

absl::Status RunSupport(JsonFile* json) {
  const octet_backend_v1& table = *TheSubject().table();
  std::printf("%s\nbuild %s\ntables: device memory stream quant attention%s%s%s\n", TextOfSubject().c_str(),
              table.build, table.dense != nullptr ? " dense" : "", table.fused != nullptr ? " fused" : "",
              table.graph != nullptr ? " graph" : "");
  Matrix matrix;
  matrix.Title("cache (append, gather, pages)");
  for (const CacheSpec& spec : Caches()) {
    matrix.Row(NameOf(spec), TheSubject().device->quant().Supports(Layout(spec), DType::kF32));
  }
  matrix.Title("attention");
  Attention(matrix);
  matrix.Title("fused append of a packed QKV");
  Fused(matrix);
  matrix.Title("weights");
  Weights(matrix);
  if (json == nullptr) return absl::OkStatus();
  nlohmann::json all = JsonOfSubject();
  all["build"] = table.build;
  all["support"] = matrix.rows();
  return json->Write(all);
}

}  // namespace octet::conformance
