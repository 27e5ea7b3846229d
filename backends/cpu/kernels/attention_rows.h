// What attention over INT8 rows in integers does alike whatever multiplies: finding a chunk's rows and asking memory
// for the next one's, loading scales, rounding queries, and the rows that integers cannot hold. K and V have one scale
// per token.
//
// While a chunk is worked on, the rows of the next one are fetched. A row whose q, or whose weights of a chunk,
// integers cannot hold (not finite, below zero, or so small that a factor would overflow) takes the f32 form for that
// chunk.
#ifndef OCTET_BACKENDS_CPU_KERNELS_ATTENTION_ROWS_H_
#define OCTET_BACKENDS_CPU_KERNELS_ATTENTION_ROWS_H_

#include <immintrin.h>

#include "backends/cpu/kernels/attention_chunk.h"
#include "backends/cpu/kernels/planes.h"

namespace octet_cpu {
namespace OCTET_CPU_ISA {
namespace {

OCTET_INLINE Vec ToFloat(VecInt v) { return __builtin_convertvector(v, Vec); }
OCTET_INLINE VecInt LoadInt(const int32_t* p) {
  VecInt v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

// The cached rows of one chunk's keys.
struct KeyTable {
  int begin = 0, end = 0;  // keys [begin, end) of the chunk that any row sees
  const int8_t *k[kChunkTokens], *v[kChunkTokens];
  const uint8_t *k_scale[kChunkTokens], *v_scale[kChunkTokens];
};

// An item. Scales of the chunk lie in w; a V scale that is not finite or below zero counts as zero there.
struct IntegerItem {
  WorkSpace<kMaxRows> space;
  Work w;
  KeyTable tables[2];
  KeyTable *now = nullptr, *next = nullptr;  // this chunk's, and that of the chunk to fetch, which may be empty
  int lost[kChunkTokens], lost_count = 0;    // keys whose V scale counts as zero

  IntegerItem(const AttentionParams& p, const AttentionItem& item) : w(p, item, space) {}
};

// Pointers only: nothing of the cache is read. Later rows see from and up to later keys.
void FindRows(const Work& w, int chunk_index, KeyTable* table) {
  const int chunk_begin = chunk_index * kChunkTokens, head = w.item.kv_head;
  const Range seen = {Max(VisibleRange(w, 0).begin, chunk_begin),
                      Min(VisibleRange(w, w.rows - 1).end, chunk_begin + kChunkTokens)};
  const Side &k = w.p.k, &v = w.p.v;
  table->begin = seen.begin - chunk_begin;
  table->end = Max(seen.begin, seen.end) - chunk_begin;
  for (int position = seen.begin; position < seen.end;) {
    const Place place = Locate(w, position);
    const int stop = Min(seen.end, position + w.p.page_tokens - place.index);
    const uint8_t* k_data = k.data + RowOffset(k.data_stride, place.page, head, place.index);
    const uint8_t* v_data = v.data + RowOffset(v.data_stride, place.page, head, place.index);
    const uint8_t* k_scale = k.scale + RowOffset(k.scale_stride, place.page, head, place.index);
    const uint8_t* v_scale = v.scale + RowOffset(v.scale_stride, place.page, head, place.index);
    for (int i = position - chunk_begin; i < stop - chunk_begin; ++i) {
      table->k[i] = reinterpret_cast<const int8_t*>(k_data);
      table->v[i] = reinterpret_cast<const int8_t*>(v_data);
      table->k_scale[i] = k_scale;
      table->v_scale[i] = v_scale;
      k_data += k.data_stride[2];
      v_data += v.data_stride[2];
      k_scale += k.scale_stride[2];
      v_scale += v.scale_stride[2];
    }
    position = stop;
  }
}

// Asks for K or V, and scales, of `count` keys of the next chunk. Every stage of a chunk asks for a part, so that
// memory is at work all the time.
OCTET_INLINE void Fetch(const KeyTable& table, const int8_t* const* rows, const uint8_t* const* scales, int key,
                        int count, int dim) {
  const int from = Max(key, table.begin), to = Min(key + count, table.end);
  if (from >= to) return;
  for (int i = from; i < to; ++i) {
    for (int c = 0; c < dim; c += 64) __builtin_prefetch(rows[i] + c, 0, 2);
  }
  __builtin_prefetch(scales[from], 0, 2);
}

// The first chunk's rows, which nobody has asked for yet: they come while the queries are packed.
void FetchFirst(IntegerItem& item) {
  const AttentionParams& p = item.w.p;
  KeyTable& first = item.tables[item.w.item.chunk_begin % 2];
  FindRows(item.w, item.w.item.chunk_begin, &first);
  for (int i = 0; i < kChunkTokens; i += 16) Fetch(first, first.v, first.v_scale, i, 16, p.v.head_dim);
  for (int i = 0; i < kChunkTokens; i += 16) Fetch(first, first.k, first.k_scale, i, 16, p.k.head_dim);
}

// To the next chunk. False when no row sees a key in it.
bool TurnTo(IntegerItem& item, int chunk_index) {
  item.now = &item.tables[chunk_index % 2];
  item.next = &item.tables[(chunk_index + 1) % 2];
  if (chunk_index + 1 < item.w.item.chunk_end) {
    FindRows(item.w, chunk_index + 1, item.next);
  } else {
    item.next->begin = item.next->end = 0;
  }
  return item.now->begin < item.now->end;
}

// A V scale that integers take.
OCTET_INLINE bool Good(float v_scale) { return v_scale >= 0.0f && v_scale < Infinity(); }
OCTET_INLINE bool AllGood(Vec v_scale) {
#if OCTET_CPU_LANES == 16
  return (_mm512_cmp_ps_mask(v_scale, Vec{}, _CMP_GE_OQ) &
          _mm512_cmp_ps_mask(v_scale, Splat(Infinity()), _CMP_LT_OQ)) == 0xffff;
#else
  return _mm256_movemask_ps(_mm256_and_ps(_mm256_cmp_ps(v_scale, Vec{}, _CMP_GE_OQ),
                                          _mm256_cmp_ps(v_scale, Splat(Infinity()), _CMP_LT_OQ))) == 0xff;
#endif
}

// Scales of keys [i, i + kLanes) where they are f32 and lie side by side. False, and nothing done, where that is not
// so.
OCTET_INLINE bool LoadScaleBlock(IntegerItem& item, int i) {
  const KeyTable& now = *item.now;
  const auto side_by_side = [i](const Side& side, const uint8_t* const* scale) {
    bool all = !side.scale_bf16;
    for (int j = 1; j < kLanes; ++j) all &= scale[i + j] == scale[i] + j * int64_t{sizeof(float)};
    return all;
  };
  if (i + kLanes > now.end || !side_by_side(item.w.p.k, now.k_scale) || !side_by_side(item.w.p.v, now.v_scale)) {
    return false;
  }
  Vec k, v;  // at any address
  __builtin_memcpy(&k, now.k_scale[i], sizeof k);
  __builtin_memcpy(&v, now.v_scale[i], sizeof v);
  if (!AllGood(v)) return false;
  Store(item.w.k_scale + i, k);
  Store(item.w.v_scale + i, v);
  return true;
}

// Scales of keys [first, last) of the chunk; zeros outside the table, where what they multiply has no weight.
void LoadScales(IntegerItem& item, int first, int last) {
  Work& w = item.w;
  const KeyTable& now = *item.now;
  item.lost_count = 0;
  for (int i = first; i < now.begin; ++i) w.k_scale[i] = w.v_scale[i] = 0.0f;
  for (int i = now.end; i < last; ++i) w.k_scale[i] = w.v_scale[i] = 0.0f;
  for (int i = now.begin; i < now.end;) {
    if (LoadScaleBlock(item, i)) {
      i += kLanes;
      continue;
    }
    for (const int stop = Min(i + kLanes, now.end); i < stop; ++i) {
      w.k_scale[i] = LoadScale(now.k_scale[i], w.p.k.scale_bf16);
      const float scale = LoadScale(now.v_scale[i], w.p.v.scale_bf16);
      w.v_scale[i] = Good(scale) ? scale : 0.0f;
      if (!Good(scale)) item.lost[item.lost_count++] = i;
    }
  }
}

// How a row of queries becomes integers of at most `most`.
struct Rounding {
  bool holds;            // else scale and inverse are 0
  float scale, inverse;  // inverse is 0 where all of q is
};

Rounding RoundingOf(const float* q, int dim, float most) {
  Vec lanes{};
  int c = 0;
  for (; c + kLanes <= dim; c += kLanes) lanes = VecMax(Load(q + c), VecMax(-Load(q + c), lanes));
  float top = MaxLanes(lanes);
  for (; c < dim; ++c) top = __builtin_fabsf(q[c]) > top ? __builtin_fabsf(q[c]) : top;
  const bool holds = Finite(q, dim) && (top == 0.0f || top >= kLeast);
  return {holds, holds ? top / most : 0.0f, holds && top > 0.0f ? most / top : 0.0f};
}

// e^x for x <= 0 within 2^-22, far finer than a weight; 0 below -87.3, NaN for NaN. 2^f on [-1/2, 1/2] as the sum of
// its Chebyshev series.
OCTET_INLINE Vec ExpDown(Vec x) {
  const Vec t = x * 1.44269504f;
#if OCTET_CPU_LANES == 16
  const Vec n = _mm512_roundscale_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  const Vec n = _mm256_round_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#endif
  const Vec f = t - n;
  Vec p = Splat(1.340043216e-3f);
  p = p * f + 9.676037098e-3f;
  p = p * f + 5.550327214e-2f;
  p = p * f + 2.402210736e-1f;
  p = p * f + 6.931472067e-1f;
  p = p * f + 1.000000075f;
#if OCTET_CPU_LANES == 16
  return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(t, Splat(-126.0f), _CMP_NLT_UQ), p, n);
#else
  // n of a NaN becomes 2^31, of which the shift leaves nothing.
  const __m256i power = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
  const Vec scaled = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), power));
  return _mm256_and_ps(scaled, _mm256_cmp_ps(t, Splat(-126.0f), _CMP_NLT_UQ));
#endif
}

// Row `row` of the chunk in f32.
void FloatRow(Work& w, int row, int chunk_index) {
  AttentionItem item = w.item;
  item.row_begin += row;
  item.row_end = item.row_begin + 1;
  WorkSpace<1> space;
  Work one(w.p, item, space);
  LoadQueries(one);
  const bool any = Chunk<1>(one, chunk_index);
  w.top[row] = any ? one.top[0] : -Infinity();
  w.sum[row] = any ? one.sum[0] : 0.0f;
  if (any) __builtin_memcpy(w.chunk + row * w.v_dim, one.chunk, static_cast<size_t>(w.v_dim) * sizeof(float));
}

// Does a row see a V scale that is lost?
bool SeesLostScale(const IntegerItem& item, int row, int chunk_begin) {
  const Range range = VisibleRange(item.w, row);
  for (int i = 0; i < item.lost_count; ++i) {
    const int position = chunk_begin + item.lost[i];
    if (position >= range.begin && position < range.end && Unmasked(item.w, row, position)) return true;
  }
  return false;
}

}  // namespace
}  // namespace OCTET_CPU_ISA
}  // namespace octet_cpu

#endif  // OCTET_BACKENDS_CPU_KERNELS_ATTENTION_ROWS_H_
