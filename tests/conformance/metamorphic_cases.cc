// One question asked in several ways: other pages, batches, orders and chunks must give the same bytes where the
// contract promises it (rule A15), and the same answer within the accuracy bound elsewhere.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/conformance/harness.h"
#include "tests/conformance/scene.h"

namespace octet::conformance {
namespace {

AttentionCase Ragged(const CacheSpec& cache) {
  AttentionCase c;
  c.cache = cache;
  c.sequences = {{1, 70, 0, 0}, {9, 33, 0, 1}, {1, 5, 0, 2}, {3, 130, 0, 3}};
  return c;
}

Status RunScene(const AttentionCase& c, Scene& scene, AttentionResult* result) {
  OCTET_RETURN_IF_ERROR(scene.Init(c));
  OCTET_RETURN_IF_ERROR(scene.AppendAll());
  return scene.Run(scene.WholePieces(), result);
}

void ExpectSameBytes(const AttentionResult& a, const AttentionResult& b) {
  EXPECT_EQ(a.out_bytes, b.out_bytes);
  EXPECT_EQ(a.lse_bytes, b.lse_bytes);
}

void Join(AttentionResult& all, const AttentionResult& part) {
  all.out.insert(all.out.end(), part.out.begin(), part.out.end());
  all.lse.insert(all.lse.end(), part.lse.begin(), part.lse.end());
}

Status RepeatedRunIsBitEqual(const AttentionCase& c) {
  Scene scene;
  AttentionResult first, again;
  OCTET_RETURN_IF_ERROR(RunScene(c, scene, &first));
  for (int i = 0; i < 3; ++i) {
    OCTET_RETURN_IF_ERROR(scene.Run(scene.WholePieces(), &again));
    ExpectSameBytes(first, again);
  }
  return OkStatus();
}

Status PermutedPagesGiveTheSameBytes(AttentionCase c) {
  AttentionResult in_order, permuted;
  c.page_seed = 0;
  Scene a, b;
  OCTET_RETURN_IF_ERROR(RunScene(c, a, &in_order));
  c.page_seed = 77;
  c.spare_pages = 9;
  OCTET_RETURN_IF_ERROR(RunScene(c, b, &permuted));
  ExpectSameBytes(in_order, permuted);
  return OkStatus();
}

Status OtherPageSizesAgree(AttentionCase c) {
  Scene contiguous;
  AttentionResult whole, paged;
  c.cache.page_tokens = 256;  // every sequence in one page
  OCTET_RETURN_IF_ERROR(RunScene(c, contiguous, &whole));
  contiguous.Check(contiguous.WholePieces(), whole);
  int tried = 0;
  for (int page_tokens : {1, 16, 48, 64}) {
    c.cache.page_tokens = page_tokens;
    Scene scene;
    const Status status = RunScene(c, scene, &paged);
    if (status.code() == Code::kUnimplemented) continue;
    OCTET_RETURN_IF_ERROR(status);
    ++tried;
    contiguous.CheckSame(contiguous.WholePieces(), whole, paged);
  }
  return tried > 0 ? OkStatus() : Unimplemented("no other page size is supported");
}

Status SplitBatchesAgree(const AttentionCase& c) {
  Scene scene;
  AttentionResult joined, part, split;
  OCTET_RETURN_IF_ERROR(RunScene(c, scene, &joined));
  for (const Piece& piece : scene.WholePieces()) {
    OCTET_RETURN_IF_ERROR(scene.Run({piece}, &part));
    Join(split, part);
  }
  scene.CheckSame(scene.WholePieces(), joined, split);
  return OkStatus();
}

Status RequestOrderDoesNotMatter(const AttentionCase& c) {
  Scene scene;
  AttentionResult straight, reversed, turned;
  OCTET_RETURN_IF_ERROR(RunScene(c, scene, &straight));
  std::vector<Piece> pieces = scene.WholePieces();
  std::reverse(pieces.begin(), pieces.end());
  OCTET_RETURN_IF_ERROR(scene.Run(pieces, &reversed));
  // Back into the straight order.
  const int64_t out_width = c.q_heads * c.cache.v_dim, lse_width = c.q_heads;
  int64_t end = static_cast<int64_t>(reversed.lse.size()) / lse_width;
  std::reverse(pieces.begin(), pieces.end());
  for (const Piece& piece : pieces) {
    const int64_t begin = end - (piece.end - piece.begin);
    turned.out.insert(turned.out.end(), reversed.out.begin() + begin * out_width,
                      reversed.out.begin() + end * out_width);
    turned.lse.insert(turned.lse.end(), reversed.lse.begin() + begin * lse_width,
                      reversed.lse.begin() + end * lse_width);
    end = begin;
  }
  scene.CheckSame(pieces, straight, turned);
  return OkStatus();
}

// A prompt in chunks, each appended just before it runs, against the whole prompt at once.
Status ChunkedPrefillEqualsWhole(AttentionCase c, int chunk) {
  Scene whole, chunked;
  AttentionResult once, part, pieces;
  c.sequences = {{45, 45, 0, 0}};
  OCTET_RETURN_IF_ERROR(RunScene(c, whole, &once));
  OCTET_RETURN_IF_ERROR(chunked.Init(c));
  for (int begin = 0; begin < 45; begin += chunk) {
    const int end = std::min(45, begin + chunk);
    OCTET_RETURN_IF_ERROR(chunked.Append(0, begin, end));
    OCTET_RETURN_IF_ERROR(chunked.Run({{0, begin, end}}, &part));
    Join(pieces, part);
  }
  whole.CheckSame(whole.WholePieces(), once, pieces);
  whole.Check(whole.WholePieces(), pieces);
  EXPECT_EQ(whole.cache().memory().Bytes(), chunked.cache().memory().Bytes()) << "other codes in chunks";
  return OkStatus();
}

// One plan, refilled for steps of other shapes, answers as a fresh plan does.
Status RefilledPlanForgetsTheLastStep(const AttentionCase& c) {
  Scene scene;
  AttentionResult first, between, again;
  OCTET_RETURN_IF_ERROR(RunScene(c, scene, &first));
  OCTET_RETURN_IF_ERROR(scene.Run({{3, 127, 128}}, &between));
  OCTET_RETURN_IF_ERROR(scene.Run({{1, 30, 33}, {0, 69, 70}}, &between));
  OCTET_RETURN_IF_ERROR(scene.Run(scene.WholePieces(), &again));
  ExpectSameBytes(first, again);
  return OkStatus();
}

}  // namespace

void AddMetamorphicCases() {
  SideSpec asymmetric = Int8();
  asymmetric.scheme = Scheme::kAsymmetric;
  const std::vector<std::pair<std::string, CacheSpec>> caches = {{NameOf(Int8(64)), Both(Int8(64))},
                                                                 {NameOf(asymmetric), Both(asymmetric)},
                                                                 {"f32", Both(Float(DType::kF32))},
                                                                 {"bf16", Both(Float(DType::kBF16))},
                                                                 {"latent_i8_token_rot64", Latent(Int8(64))}};
  for (const auto& [name, cache] : caches) {
    for (bool exact : {false, true}) {
      AttentionCase c = Ragged(cache);
      c.exact = exact;
      const std::string details = name + (exact ? "_exact" : "");
      AddCase("Metamorphic.RepeatedRunIsBitEqual/" + details, [c] { return RepeatedRunIsBitEqual(c); });
      AddCase("Metamorphic.PermutedPagesGiveTheSameBytes/" + details, [c] { return PermutedPagesGiveTheSameBytes(c); });
      AddCase("Metamorphic.PagedEqualsContiguous/" + details, [c] { return OtherPageSizesAgree(c); });
      AddCase("Metamorphic.SplitBatchesAgree/" + details, [c] { return SplitBatchesAgree(c); });
      AddCase("Metamorphic.RequestOrderDoesNotMatter/" + details, [c] { return RequestOrderDoesNotMatter(c); });
      AddCase("Metamorphic.RefilledPlanForgetsTheLastStep/" + details,
              [c] { return RefilledPlanForgetsTheLastStep(c); });
      for (int chunk : {1, 16, 17}) {
        AddCase("Metamorphic.ChunkedPrefillEqualsWhole/" + details + "_c" + std::to_string(chunk),
                [c, chunk] { return ChunkedPrefillEqualsWhole(c, chunk); });
      }
    }
  }
}

}  // namespace octet::conformance
