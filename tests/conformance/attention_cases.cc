// Attention against double precision: every option of the descriptor, the inputs that break careless kernels, and the
// lengths, groups, head dims, pages and windows at which tiles and splits end. Bounds: scene_check.cc.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/conformance/harness.h"
#include "tests/conformance/scene.h"

namespace octet::conformance {
namespace {

void Add(const std::string& behaviour, AttentionCase c) {
  AddCase(behaviour + "/" + NameOf(c), [c] { return RunAndCheck(c); });
}

// Decode and prefill of several lengths in one batch.
std::vector<Sequence> Ragged() { return {{1, 37, 0, 0}, {5, 5, 0, 1}, {3, 70, 0, 2}}; }

AttentionCase Default(std::vector<Sequence> sequences = Ragged()) {
  AttentionCase c;
  c.cache = Both(Int8(64));
  c.sequences = std::move(sequences);
  return c;
}

AttentionCase WithCache(const CacheSpec& cache) {
  AttentionCase c = Default();
  c.cache = cache;
  c.q_heads = 2 * cache.kv_heads;
  return c;
}

CacheSpec WithOffsets(SideSpec side, int block = 64, int page_tokens = 16) {
  CacheSpec spec = Both(side, 64, 2, page_tokens);
  spec.offset_block = block;
  return spec;
}

void AddCaches() {
  SideSpec groups = Int8(64), asymmetric = Int8(), coarse = Int8(64);
  groups.group = 32;
  asymmetric.scheme = Scheme::kAsymmetric;
  coarse.scale_type = DType::kBF16;
  std::vector<SideSpec> sides = {Int8(),
                                 Int8(64),
                                 groups,
                                 asymmetric,
                                 coarse,
                                 Float(DType::kF32),
                                 Float(DType::kF16),
                                 Float(DType::kBF16),
                                 Float(DType::kBF16, 64)};
  for (Axis axis : {Axis::kTensor, Axis::kHead, Axis::kChannel}) {
    for (Scheme scheme : {Scheme::kSymmetric, Scheme::kAsymmetric}) {
      SideSpec side = Int8();
      side.axis = axis;
      side.scheme = scheme;
      sides.push_back(side);
    }
  }
  for (const SideSpec& side : sides) {
    AttentionCase c = WithCache(Both(side));
    Add("Attention.Run", c);
    c.exact = true;
    Add("Attention.Run", c);
  }
  CacheSpec mixed = Both(Int8(64));
  mixed.v = Int8();
  Add("Attention.Run", WithCache(mixed));
  mixed.k = Float(DType::kBF16, 64);
  Add("Attention.Run", WithCache(mixed));
  Add("Attention.Run", WithCache(Latent(Int8(64))));
  for (int block : {64, 16}) {
    for (const SideSpec& side : {Int8(), Int8(64), Float(DType::kBF16, 64)}) {
      AttentionCase c = WithCache(WithOffsets(side, block));
      c.sequences = {{1, 200, 0, 0}, {4, 130, 0, 1}, {1, 64, 0, 2}};
      Add("Attention.AddsTheBlocksOffset", c);
      c.exact = true;
      Add("Attention.AddsTheBlocksOffset", c);
    }
  }
  // Pages larger than a block of the offset table, and the other way round.
  for (int page_tokens : {128, 48}) {
    AttentionCase c = WithCache(WithOffsets(Int8(64), 64, page_tokens));
    c.sequences = {{2, 300, 0, 0}};
    Add("Attention.AddsTheBlocksOffset", c);
  }
}

// V is K's row: an MLA latent with rotated channels of another type.
void AddLatents() {
  const std::vector<Sequence> decode = {{1, 37, 0, 0}, {1, 300, 0, 1}, {1, 1, 0, 2}};
  const std::vector<Sequence> prefill = {{40, 40, 0, 0}, {9, 290, 0, 1}};
  SideSpec asymmetric = Int8(), groups = Int8(128), by_head = Int8();
  asymmetric.scheme = Scheme::kAsymmetric;
  groups.group = 128;
  groups.scale_type = DType::kBF16;
  by_head.axis = Axis::kHead;
  std::vector<CacheSpec> caches = {Latent(Int8()),
                                   Latent(Int8(64)),
                                   Latent(Int8(512)),
                                   Latent(asymmetric),
                                   Latent(groups),
                                   Latent(by_head),
                                   Latent(Float(DType::kF32), 512, 64, Float(DType::kF32)),
                                   Latent(Float(DType::kBF16, 64)),
                                   Latent(Int8(64), 512, 64, Int8(64)),
                                   Latent(Int8(64), 64, 576),
                                   Latent(Int8(8), 576, 8)};
  caches.push_back(Latent(Int8(32), 96, 32));
  caches.back().kv_heads = 2;
  for (const CacheSpec& cache : caches) {
    for (const auto& sequences : {decode, prefill}) {
      AttentionCase c = Default(sequences);
      c.cache = cache;
      c.q_heads = 16;
      Add("Attention.Latent", c);
    }
  }
  const auto add = [&](auto change) {
    AttentionCase c = Default({{1, 150, 0, 0}, {6, 70, 0, 1}});
    c.cache = Latent(Int8(64));
    c.q_heads = 16;
    change(c);
    Add("Attention.Latent", c);
  };
  add([](AttentionCase& c) { c.q_heads = 1; });
  add([](AttentionCase& c) { c.exact = true; });
  add([](AttentionCase& c) { c.window = 24; });
  add([](AttentionCase& c) { c.softcap = 2.0f, c.sinks = true; });
  add([](AttentionCase& c) { c.draft_tree = true; });
  add([](AttentionCase& c) { c.q_type = c.out_type = DType::kBF16; });
  add([](AttentionCase& c) { c.data = Data::kNanRow, c.name = "nan_row"; });
  add([](AttentionCase& c) { c.data = Data::kZeroRows, c.name = "zero_rows"; });
}

void AddOptions() {
  for (bool exact : {false, true}) {
    auto add = [&](auto change) {
      AttentionCase c = Default();
      c.exact = exact;
      change(c);
      Add("Attention.Option", c);
    };
    add([](AttentionCase& c) { c.causal = false; });
    add([](AttentionCase& c) { c.softcap = 2.0f; });
    add([](AttentionCase& c) { c.alibi = true; });
    add([](AttentionCase& c) { c.sinks = true; });
    add([](AttentionCase& c) { c.sinks = true, c.window = 8; });
    add([](AttentionCase& c) { c.lse = false, c.name = "no_lse"; });
    add([](AttentionCase& c) { c.softcap = 5.0f, c.window = 24; });
    add([](AttentionCase& c) { c.draft_tree = true, c.sequences = {{8, 40, 0, 0}, {1, 9, 0, 1}, {5, 5, 0, 2}}; });
    add([](AttentionCase& c) { c.draft_tree = true, c.window = 16, c.sequences = {{8, 40, 0, 0}, {6, 70, 0, 1}}; });
    // ALiBi is added to the capped score: capped afterwards, far keys would count alike.
    add([](AttentionCase& c) { c.softcap = 0.5f, c.alibi = true; });
    // Rows that see no key: zeros, and an lse of the sink alone or of nothing. With the window also where keys are
    // cached, in a request short enough to be split.
    for (bool sinks : {false, true}) {
      add([&](AttentionCase& c) {
        c.sinks = sinks, c.draft_tree = c.blind_rows = true, c.sequences = {{5, 5, 0, 0}, {4, 30, 0, 1}, {1, 1, 0, 2}};
      });
      add([&](AttentionCase& c) {
        c.sinks = sinks, c.draft_tree = c.blind_rows = true, c.window = 1,
        c.sequences = {{4, 600, 0, 0}, {7, 70, 0, 1}};
      });
    }
    // The first pages are gone: the window does not reach them.
    add([](AttentionCase& c) {
      c.name = "pages_dropped";
      c.window = 20;
      c.sequences = {{1, 100, 80, 0}, {3, 70, 48, 1}, {1, 30, 0, 2}};
    });
    for (DType type : {DType::kF16, DType::kBF16}) {
      add([&](AttentionCase& c) { c.q_type = type; });
      add([&](AttentionCase& c) { c.out_type = type; });
      add([&](AttentionCase& c) { c.q_type = c.out_type = type; });
    }
  }
}

void AddInputs() {
  const std::vector<std::pair<const char*, Data>> inputs = {{"zeros", Data::kZeros},
                                                            {"zero_rows", Data::kZeroRows},
                                                            {"equal_keys", Data::kEqualKeys},
                                                            {"huge_channel", Data::kHugeChannel},
                                                            {"one_hot", Data::kOneHot},
                                                            {"long_tail", Data::kLongTail},
                                                            {"saturated", Data::kSaturated},
                                                            {"denormals", Data::kDenormals},
                                                            {"signed_zeros", Data::kSignedZeros},
                                                            {"nan_row", Data::kNanRow},
                                                            {"infinity_row", Data::kInfinityRow}};
  for (const auto& [name, data] : inputs) {
    for (const SideSpec& side : {Int8(), Int8(64)}) {
      AttentionCase c = Default({{1, 150, 0, 0}, {1, 33, 0, 1}, {4, 90, 0, 2}});
      c.cache = Both(side);
      c.data = data;
      c.name = name;
      Add("Attention.Adversarial", c);
    }
  }
  // A peak over a tail of a thousand keys.
  AttentionCase tail = Default({{1, 1025, 0, 0}});
  tail.data = Data::kLongTail;
  tail.name = "long_tail";
  Add("Attention.Adversarial", tail);

  for (const SideSpec& side : {Int8(), Int8(64)}) {
    AttentionCase c = Default();
    c.cache = Both(side, 64, 3);
    c.q_heads = 6;
    c.data = Data::kHeadMagnitudes;
    Add("Attention.UsesItsOwnHeadsScale", c);
  }
  for (int block : {64, 16, 8}) {
    AttentionCase c = Default();
    c.cache = Both(Int8(block));
    c.data = Data::kOneHot;
    Add("Attention.RotatesQ", c);
  }
  for (int page_tokens : {1, 16, 64}) {
    AttentionCase c = Default({{1, 100, 0, 0}, {2, 33, 0, 1}});
    c.cache = Both(Int8(64), 64, 2, page_tokens);
    c.data = Data::kEdgeValues;
    Add("Attention.ReadsThePagesListed", c);
  }
  for (int window : {1, 2, 15, 16, 17, 64, 99, 100, 1000}) {
    AttentionCase c = Default({{1, 100, 0, 0}, {20, 70, 0, 1}, {1, 1, 0, 2}});
    c.data = Data::kEdgeValues;
    c.window = window;
    Add("Attention.WindowEdge", c);
  }
  AttentionCase edge = Default({{40, 40, 0, 0}, {17, 81, 0, 1}});
  edge.data = Data::kEdgeValues;
  Add("Attention.CausalEdge", edge);
}

// A batch in which some or all requests bring nothing.
Status RunsEmptyRequests(const std::vector<Sequence>& sequences) {
  AttentionCase c = Default(sequences);
  Scene scene;
  OCTET_RETURN_IF_ERROR(scene.Init(c));
  OCTET_RETURN_IF_ERROR(scene.AppendAll());
  AttentionResult result;
  OCTET_RETURN_IF_ERROR(scene.Run(scene.WholePieces(), &result));
  scene.Check(scene.WholePieces(), result);
  OCTET_RETURN_IF_ERROR(scene.Run({}, &result));
  return OkStatus();
}

}  // namespace

void AddAttentionCases() {
  AddCaches();
  AddLatents();
  AddOptions();
  AddInputs();
}

void AddBoundaryCases() {
  for (int kv_len : {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1025}) {
    Add("Boundary.KvLength", Default({{1, kv_len, 0, 0}}));
  }
  for (int queries : {2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65}) {
    Add("Boundary.PromptLength", Default({{queries, queries, 0, 0}, {queries, queries + 50, 0, 1}}));
  }
  for (int group : {1, 2, 3, 4, 5, 6, 7, 8, 12, 16}) {
    AttentionCase c = Default({{1, 70, 0, 0}, {3, 20, 0, 1}});
    c.q_heads = 2 * group;
    Add("Boundary.GroupSize", c);
  }
  for (int dim : {8, 40, 64, 72, 80, 96, 128, 192, 256, 576}) {
    AttentionCase c = Default({{1, 40, 0, 0}, {3, 20, 0, 1}});
    c.cache = Both(Int8(dim & -dim), dim);
    Add("Boundary.HeadDim", c);
    c.cache = Both(Float(DType::kBF16), dim);
    Add("Boundary.HeadDim", c);
  }
  for (const auto& [k_dim, v_dim] : {std::pair{192, 128}, {64, 128}, {96, 64}, {576, 512}}) {
    AttentionCase c = Default({{1, 40, 0, 0}, {3, 20, 0, 1}});
    c.cache = Both(Int8(32), k_dim);
    c.cache.v_dim = v_dim;
    Add("Boundary.HeadDim", c);
  }
  for (int page_tokens : {1, 8, 16, 32, 48, 64, 128, 256}) {
    AttentionCase c = Default({{1, 2 * page_tokens, 0, 0},
                               {2, page_tokens, 0, 1},
                               {1, page_tokens + 1, 0, 2},
                               {1, 2 * page_tokens - 1, 0, 3}});
    if (page_tokens == 1) c.sequences = {{1, 9, 0, 0}, {2, 2, 0, 1}};
    c.cache = Both(Int8(64), 64, 2, page_tokens);
    Add("Boundary.PageSize", c);
  }
  for (int window : {1, 16, 48, 64, 128, 500}) {
    AttentionCase c = Default({{1, 200, 0, 0}, {30, 100, 0, 1}});
    c.window = window;
    Add("Boundary.Window", c);
  }
  for (int kv_heads : {1, 3, 8}) {
    AttentionCase c = Default();
    c.cache = Both(Int8(64), 64, kv_heads);
    c.q_heads = 2 * kv_heads;
    Add("Boundary.KvHeads", c);
  }
  std::vector<Sequence> many;
  for (int i = 0; i < 33; ++i) many.push_back({1 + i % 3, 3 + 7 * i % 50, 0, i});
  Add("Boundary.ManyRequests", Default(many));
  AddCase("Boundary.EmptyRequests/one_of_three", [] {
    return RunsEmptyRequests({{1, 20, 0, 0}, {0, 0, 0, 1}, {2, 5, 0, 2}});
  });
  AddCase("Boundary.EmptyRequests/no_query_but_keys", [] { return RunsEmptyRequests({{0, 20, 0, 0}, {1, 5, 0, 2}}); });
  AddCase("Boundary.EmptyRequests/all", [] { return RunsEmptyRequests({{0, 0, 0, 0}}); });
}

}  // namespace octet::conformance
