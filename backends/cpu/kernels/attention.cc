// Attention over a paged cache, in f32.
//
//   s = scale * (q_rot . codes * k_scale + q . offset), softcap, + alibi, mask; per chunk of 256 positions
//   m = max s, p = e^(s - m), l = sum p, O = sum (p * v_scale) * codes; chunks merge in order; V's rotation is undone
//   once.
//
// Chunks and the steps inside them are cut by position, so a row's bytes depend neither on the other rows, nor on the
// split over threads, nor on pages. An item reads each key and value once for all its rows (heads of a group, queries
// of a prefill) and expands 32 tokens at a time to f32 on the stack: K transposed to [channel][16 tokens], V as it
// lies. Extra K channels of another type (MLA) continue each score's sum, both sides with their scales applied to
// elements. What a row may not see reaches it neither as a score (selected away) nor through 0 * NaN (rows of V that
// are not finite are added row by row, where they are visible). Rabe and Staats, "Self-attention does not need O(n^2)
// memory" (2021).
#include "backends/cpu/kernels/attention_chunk.h"

namespace octet_cpu {
namespace OCTET_CPU_ISA {
namespace {

void Attention(const AttentionParams& p, const AttentionItem& item) {
  WorkSpace<kMaxRows> space;
  Work w(p, item, space);
  LoadQueries(w);
  RunItem(w, [&w](int c) { return Chunk<kMaxRows>(w, c); });
}

}  // namespace

void FillAttention(KernelTable* table) {
  table->attention = Attention;
  table->attention_merge = MergePartials;
}

}  // namespace OCTET_CPU_ISA
}  // namespace octet_cpu
