// Attention over INT8 rows in integers: the form of attention.cc, with both products of a chunk summed exactly in 32
// bits by a unit for bytes. Included by a file per unit, which passes it as the template argument.
//
//   q   = q_scale (256 h + l), in 16 bits of the row's largest |q|
//   s   = (256 h . codes + l . codes) * q_scale * k_scale, and on as in f32
//   w   = e^(s - m) * v_scale = w_scale (256 h + l), in 16 bits of the row's largest w in the chunk
//   O   = w_scale (256 h . codes + l . codes)
//
// Rounding q costs 2^-16 of its largest element at most and rounding w 2^-17 of the chunk's largest; one plane of 8
// bits would add as much error to a score as the cache has. Sums of 256 products of either fit 2^24, so the only other
// rounding is that of f32.
//
// The lanes of a vector are T keys of 16 / T query rows, a panel: T is 4 for up to 4 rows, 2 for up to 8, 1 for 16.
// Keys go by one vector after the other, so maximum and exponential need no step across lanes. Sums of weights are kept
// by position modulo 4 whatever T, so that a row's bytes depend on its own queries and keys alone. V is taken four
// tokens at a time as 32-bit words (token 0 lowest) by two unpackings, whose order of channels is put right in the
// sums.
#ifndef OCTET_BACKENDS_CPU_KERNELS_ATTENTION_INT8_H_
#define OCTET_BACKENDS_CPU_KERNELS_ATTENTION_INT8_H_

#include <immintrin.h>

#include "backends/cpu/kernels/attention_rows.h"
#include "backends/cpu/kernels/planes.h"

namespace octet_cpu {
namespace OCTET_CPU_ISA {
namespace {

static_assert(kLanes == 16, "a panel is a vector");
constexpr int kPanels = kMaxRows / kLanes;
constexpr int kSegment = 64;    // channels: what one instruction sums, and what unpacking works on
constexpr int kBlock = 16;      // keys that one instruction scores
constexpr int kRun = 64;        // keys whose weights are packed together
constexpr int kWordTokens = 4;  // keys of a word of V

typedef int32_t Sums[16][kLanes];  // what a unit leaves of one product

OCTET_INLINE Vec Permute(Vec v, VecInt from) { return _mm512_permutexvar_ps(reinterpret_cast<__m512i>(from), v); }
OCTET_INLINE __m512i Bits(VecWord v) { return reinterpret_cast<__m512i>(v); }

// Up to 16 rows of queries. A product of theirs with keys has the planes h and l in columns of their own: two products
// of 16 columns where T is 1, else one of h in columns [0, 16 / T) and l behind.
struct alignas(64) QueryPanel {
  int8_t codes[kMaxIntegerDim / kSegment][2][kSegment / 4][kLanes][4];  // [segment][product][channel / 4][column]
  float scale[kLanes];                                                  // of q, times the scale of scores, by lane
  int32_t begin[kLanes], end[kLanes], position[kLanes];                 // what a row may see and where it is, by lane
  float slope[kLanes];
  int first_row, rows, keys;  // keys: T
  int seen_from, seen_to;     // what all rows see
  uint32_t bad;               // rows whose q 16 bits cannot hold
};

// V of 64 keys as words of four tokens.
struct alignas(64) ValueRun {
  uint32_t tiles[kMaxIntegerDim / 16][kRun / kWordTokens][16];
};

// Weights of 64 keys as rows of words: the planes h and l in rows of their own, two products where T is 1, else one.
// Rows that no plane has stay zero.
struct alignas(64) WeightRun {
  uint32_t rows[2][16][kRun / kWordTokens];
};

struct IntegerWork : IntegerItem {
  int panels, k_segments, v_segments;
  bool whole_blocks;  // blocks of K lie in one page and are whole segments
  QueryPanel panel[kPanels];
  alignas(64) float weight[kChunkTokens * kLanes];  // of one panel: scores, then weights; [key / T][lane]
  WeightRun runs[kChunkTokens / kRun];
  ValueRun v[kChunkTokens / kRun];
  alignas(64) int8_t copy[4][kBlock][kMaxIntegerDim];  // K of blocks that are not whole
  alignas(64) int8_t zeros[kMaxIntegerDim];

  using IntegerItem::IntegerItem;
};

// q in 16 bits, as columns of the panel's products.
void PackQuery(const float* q, int dim, float score_scale, int row, QueryPanel* panel) {
  const Rounding rounding = RoundingOf(q, dim, kPlanesTop);
  if (!rounding.holds) panel->bad |= 1u << row;
  const int keys = panel->keys, rows = kLanes / keys;
  for (int lane = row; lane < kLanes; lane += rows) panel->scale[lane] = rounding.scale * score_scale;
  if (rounding.inverse == 0.0f) return;
  const int low_product = keys == 1 ? 1 : 0, low_column = keys == 1 ? row : rows + row;
  alignas(64) int32_t high[kMaxIntegerDim], low[kMaxIntegerDim];
  for (int c = 0; c < dim; ++c) {
    const int32_t n = RoundToPlanes(q[c] * rounding.inverse);
    high[c] = HighPlane(n);
    low[c] = LowPlane(n);
  }
  for (int c = 0; c < dim; c += 4) {
    const auto word = [c](const int32_t* n) { return BytesOf(n[c], n[c + 1], n[c + 2], n[c + 3]); };
    const int32_t high_word = word(high), low_word = word(low);
    auto& products = panel->codes[c / kSegment];
    __builtin_memcpy(products[0][c % kSegment / 4][row], &high_word, 4);
    __builtin_memcpy(products[low_product][c % kSegment / 4][low_column], &low_word, 4);
  }
}

void PackQueries(IntegerWork& iw) {
  Work& w = iw.w;
  const int dim = w.p.k.head_dim;
  for (int i = 0; i < iw.panels; ++i) {
    QueryPanel& panel = iw.panel[i];
    __builtin_memset(panel.codes, 0, static_cast<size_t>(iw.k_segments) * sizeof panel.codes[0]);
    panel.bad = 0;
    panel.first_row = i * kLanes;
    panel.rows = Min(kLanes, w.rows - panel.first_row);
    panel.keys = panel.rows <= 4 ? 4 : panel.rows <= 8 ? 2 : 1;
    panel.seen_from = 0;
    panel.seen_to = INT32_MAX;
    for (int lane = 0; lane < kLanes; ++lane) {
      const int row = panel.first_row + lane % (kLanes / panel.keys);
      const bool real = row < w.rows;
      const Range range = real ? VisibleRange(w, row) : Range{0, INT32_MAX};
      panel.scale[lane] = 0.0f;
      panel.begin[lane] = range.begin;
      panel.end[lane] = range.end;
      panel.position[lane] = real ? w.QueryPosition(row) : 0;
      panel.slope[lane] = real && w.p.alibi != nullptr ? w.p.alibi[w.QueryHead(row)] : 0.0f;
      panel.seen_from = Max(panel.seen_from, range.begin);
      panel.seen_to = Min(panel.seen_to, range.end);
    }
    for (int r = 0; r < panel.rows; ++r) PackQuery(w.q + (panel.first_row + r) * dim, dim, w.p.scale, r, &panel);
  }
}

struct KeyRows {
  const int8_t* data;
  int64_t stride;
};

// K of keys [i, i + 16) of the chunk as whole segments; zeros outside the table.
KeyRows KeyBlock(const IntegerWork& iw, int i, int8_t (*copy)[kMaxIntegerDim]) {
  const Side& k = iw.w.p.k;
  const int from = Max(i, iw.now->begin), to = Min(i + kBlock, iw.now->end);
  if (iw.whole_blocks) return {iw.now->k[from] - (from - i) * k.data_stride[2], k.data_stride[2]};
  __builtin_memset(copy, 0, static_cast<size_t>(kBlock) * kMaxIntegerDim);
  for (int t = from; t < to; ++t) __builtin_memcpy(copy[t - i], iw.now->k[t], static_cast<size_t>(k.head_dim));
  return {copy[0], kMaxIntegerDim};
}

// V of one run: four rows' bytes side by side. Lane 4 a + b of tile j of a segment is channel 16 a + 4 j + b of it.
void InterleaveV(IntegerWork& iw, int run) {
  const int dim = iw.w.p.v.head_dim;
  const KeyTable& next = *iw.next;
  for (int word = 0; word < kRun / kWordTokens; ++word) {
    if (word % 4 == 0) Fetch(next, next.k, next.k_scale, run * kRun / 2 + word * 2, 8, iw.w.p.k.head_dim);
    const int8_t* rows[kWordTokens];
    for (int t = 0; t < kWordTokens; ++t) {
      const int i = run * kRun + word * kWordTokens + t;
      rows[t] = i >= iw.now->begin && i < iw.now->end ? iw.now->v[i] : iw.zeros;
    }
    for (int s = 0; s < iw.v_segments; ++s) {
      const int left = dim - s * kSegment;
      const __mmask64 mask = left >= kSegment ? ~__mmask64{0} : (__mmask64{1} << left) - 1;
      const auto load = [&](int t) { return _mm512_maskz_loadu_epi8(mask, rows[t] + s * kSegment); };
      const __m512i r0 = load(0), r1 = load(1), r2 = load(2), r3 = load(3);
      const __m512i low01 = _mm512_unpacklo_epi8(r0, r1), high01 = _mm512_unpackhi_epi8(r0, r1);
      const __m512i low23 = _mm512_unpacklo_epi8(r2, r3), high23 = _mm512_unpackhi_epi8(r2, r3);
      auto* tile = iw.v[run].tiles + 4 * s;
      _mm512_store_si512(tile[0][word], _mm512_unpacklo_epi16(low01, low23));
      _mm512_store_si512(tile[1][word], _mm512_unpackhi_epi16(low01, low23));
      _mm512_store_si512(tile[2][word], _mm512_unpacklo_epi16(high01, high23));
      _mm512_store_si512(tile[3][word], _mm512_unpackhi_epi16(high01, high23));
    }
  }
}

// Lane -> key of the vector, and value of key j T + that of 16 that lie in a vector.
template <int T>
struct Spread {
  VecInt key;
  Spread() {
    for (int lane = 0; lane < kLanes; ++lane) key[lane] = lane / (kLanes / T);
  }
  Vec operator()(const float* values, int vector) const {
    if constexpr (T == 1) return Splat(values[vector]);
    return Permute(Load(values), key + vector * T);
  }
};

// q . offset of a panel's rows for each block of positions that a chunk meets, times the scale of scores, by lane.
struct OffsetLanes {
  int first = 0;
  Vec of[kChunkTokens];

  void Fill(const Work& w, const QueryPanel& panel, int begin, int end) {
    first = begin / w.p.offset.block_tokens;
    for (int block = first; block <= (end - 1) / w.p.offset.block_tokens; ++block) {
      for (int lane = 0; lane < kLanes; ++lane) {
        const int row = lane % (kLanes / panel.keys);
        of[block - first][lane] = row < panel.rows ? OffsetScore(w, panel.first_row + row, block) * w.p.scale : 0.0f;
      }
    }
  }
};

// What one vector's scores are before their masks: of T keys from row `t` of the block's sums on.
template <int T>
OCTET_INLINE Vec SumOfPlanes(const Sums* sums, int t) {
  if constexpr (T == 1) return ToFloat(LoadInt(sums[0][t])) * 256.0f + ToFloat(LoadInt(sums[1][t]));
  const auto load = [&](int i) { return _mm512_load_si512(sums[0][t + i]); };
  __m512i high, low;
  if constexpr (T == 2) {
    high = _mm512_shuffle_i64x2(load(0), load(1), 0x44);
    low = _mm512_shuffle_i64x2(load(0), load(1), 0xee);
  } else {
    const __m512i a = _mm512_shuffle_i32x4(load(0), load(1), 0x44), b = _mm512_shuffle_i32x4(load(2), load(3), 0x44);
    high = _mm512_shuffle_i32x4(a, b, 0x88);
    low = _mm512_shuffle_i32x4(a, b, 0xdd);
  }
  return _mm512_cvtepi32_ps(high) * 256.0f + _mm512_cvtepi32_ps(low);
}

// One block's sums become scores; the maximum of each lane so far.
template <int T>
OCTET_INLINE Vec Scores(const IntegerWork& iw, const QueryPanel& panel, const Sums* sums, int chunk_begin, int i,
                        const OffsetLanes& offsets, float* score, Vec top) {
  const AttentionParams& p = iw.w.p;
  const int position = chunk_begin + i;
  const Spread<T> spread;
  const Vec q_scale = Load(panel.scale);
  const int offset_block = p.offset.data != nullptr ? p.offset.block_tokens : INT32_MAX;
  const bool one_offset = position / offset_block == (position + kBlock - 1) / offset_block;
  const Vec offset = p.offset.data != nullptr ? offsets.of[position / offset_block - offsets.first] : Vec{};
  const bool plain = one_offset && panel.seen_from <= position && panel.seen_to >= position + kBlock &&
                     p.softcap <= 0.0f && p.alibi == nullptr && p.mask == nullptr;
  if (plain) {
#pragma GCC unroll 16
    for (int j = 0; j < kBlock / T; ++j) {
      const Vec v = SumOfPlanes<T>(sums, j * T) * q_scale * spread(iw.w.k_scale + i, j) + offset;
      Store(score + j * kLanes, v);
      top = VecMax(v, top);
    }
    return top;
  }
  for (int j = 0; j < kBlock / T; ++j) {
    const VecInt at = position + j * T + spread.key;
    Vec shift = offset;
    if (!one_offset) {
      for (int lane = 0; lane < kLanes; ++lane) {
        const int block = at[lane] / offset_block - offsets.first;
        shift[lane] =
            at[lane] < chunk_begin + iw.now->end ? offsets.of[block][lane] : 0.0f;  // of keys behind there may be none
      }
    }
    Vec v = SumOfPlanes<T>(sums, j * T) * q_scale * spread(iw.w.k_scale + i, j) + shift;
    if (p.softcap > 0.0f) v = p.softcap * Tanh(v / p.softcap);
    if (p.alibi != nullptr) v += Load(panel.slope) * ToFloat(at - LoadInt(panel.position));
    VecInt visible = (at >= LoadInt(panel.begin)) & (at < LoadInt(panel.end));
    if (p.mask != nullptr) {
      for (int lane = 0; lane < kLanes; ++lane) {
        const int row = lane % (kLanes / T);
        if (row < panel.rows && visible[lane] != 0 && !Unmasked(iw.w, panel.first_row + row, at[lane])) {
          visible[lane] = 0;
        }
      }
    }
    v = Select(visible, v, Splat(-Infinity()));
    Store(score + j * kLanes, v);
    top = VecMax(v, top);
  }
  return top;
}

// The largest of each row's T lanes, in all of them.
template <int T>
OCTET_INLINE Vec MaxOfKeys(Vec v) {
  static_assert(T == 1 || T == 2 || T == 4, "a row's lanes are 16 / T apart");
  if constexpr (T == 4) v = VecMax(v, SwapLanes<4>(v));
  if constexpr (T >= 2) v = VecMax(v, SwapLanes<8>(v));
  return v;
}

struct RowSums {
  Vec top, sum, most;  // sum in lanes [0, 16 / T), the others in all
};

// Scores of keys [first, last) of the chunk become weights.
template <int T>
RowSums Weights(IntegerWork& iw, Vec top, int first, int last, bool fetch) {
  const Spread<T> spread;
  RowSums result;
  result.top = MaxOfKeys<T>(top);
  const Vec shift = Select(result.top == Splat(-Infinity()), Vec{}, result.top);
  constexpr int kSums = 4 / T;  // one for each position modulo 4
  Vec sum[kSums] = {}, most{};
  for (int i = first; i < last; i += kBlock) {
    if (fetch) Fetch(*iw.next, iw.next->v, iw.next->v_scale, i / 2, kBlock / 2, iw.w.p.v.head_dim);
#pragma GCC unroll 16
    for (int j = 0; j < kBlock / T; ++j) {
      float* at = iw.weight + (i / T + j) * kLanes;
      const Vec e = ExpDown(Load(at) - shift);
      sum[j % kSums] += e;
      const Vec weight = e * spread(iw.w.v_scale + i, j);
      most = VecMax(weight, most);
      Store(at, weight);
    }
  }
  result.most = MaxOfKeys<T>(most);
  float by_position[4][kLanes] = {};
  for (int k = 0; k < 4; ++k) {
    for (int row = 0; row < kLanes / T; ++row) by_position[k][row] = sum[k / T][k % T * (kLanes / T) + row];
  }
  result.sum = (Load(by_position[0]) + Load(by_position[1])) + (Load(by_position[2]) + Load(by_position[3]));
  return result;
}

// words[i][j] <-> words[j][i].
OCTET_INLINE void Transpose(const __m512i* in, uint32_t (*words)[16]) {
  __m512i r[16], s[16];
  for (int i = 0; i < 16; i += 2) {
    s[i] = _mm512_unpacklo_epi32(in[i], in[i + 1]);
    s[i + 1] = _mm512_unpackhi_epi32(in[i], in[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(s[i], s[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(s[i], s[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(s[i + 1], s[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(s[i + 1], s[i + 3]);
  }
  // r[4 g + c] holds column 4 l + c of rows 4 g to 4 g + 3 in its quarter l.
  for (int c = 0; c < 4; ++c) {
    const __m512i low01 = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x88);
    const __m512i high01 = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xdd);
    const __m512i low23 = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x88);
    const __m512i high23 = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xdd);
    _mm512_store_si512(words[c], _mm512_shuffle_i32x4(low01, low23, 0x88));
    _mm512_store_si512(words[8 + c], _mm512_shuffle_i32x4(low01, low23, 0xdd));
    _mm512_store_si512(words[4 + c], _mm512_shuffle_i32x4(high01, high23, 0x88));
    _mm512_store_si512(words[12 + c], _mm512_shuffle_i32x4(high01, high23, 0xdd));
  }
}

// Weights of 64 keys in 16 bits, as words of four keys' bytes by plane.
template <int T>
OCTET_INLINE void PackWeights(const float* weight, Vec inverse, WeightRun* run) {
  const auto rounded = [&](int vector) {
    const Vec magic = Splat(8388608.0f);  // 2^23: adding it rounds to an integer
    return reinterpret_cast<VecWord>(Load(weight + vector * kLanes) * inverse + magic) & 0xffffu;
  };
  constexpr int kWords = kRun / kWordTokens;
  if constexpr (T == 1) {
    __m512i high[kWords], low[kWords];
    for (int word = 0; word < kWords; ++word) {
      VecWord n[kWordTokens];
      for (int t = 0; t < kWordTokens; ++t) n[t] = rounded(word * kWordTokens + t);
      const VecWord even = n[0] | n[2] << 16, odd = n[1] | n[3] << 16;
      low[word] = Bits((even & 0x00ff00ffu) | (odd & 0x00ff00ffu) << 8);
      high[word] = Bits((even >> 8 & 0x00ff00ffu) | (odd & 0xff00ff00u));
    }
    Transpose(high, run->rows[0]);
    Transpose(low, run->rows[1]);
  } else if constexpr (T == 2) {
    __m512i words[kWords];  // h of 8 rows, l of 8 rows
    for (int word = 0; word < kWords; ++word) {
      // Keys 0 and 2 in the lower lanes, 1 and 3 in the upper ones.
      const VecWord pairs = rounded(word * 2) | rounded(word * 2 + 1) << 16;
      const VecWord other = reinterpret_cast<VecWord>(_mm512_shuffle_i64x2(Bits(pairs), Bits(pairs), 0x4e));
      const VecWord low = (pairs & 0x00ff00ffu) | (other & 0x00ff00ffu) << 8;
      const VecWord high = (pairs >> 8 & 0x00ff00ffu) | (other & 0xff00ff00u);
      words[word] = _mm512_shuffle_i64x2(Bits(high), Bits(low), 0x44);
    }
    Transpose(words, run->rows[0]);
  } else {
    __m512i by_row[kWords];  // quarter r: h and l of row r
    const __m512i gather = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i planes = _mm512_set4_epi32(-1, -1, 0x0c080400, 0x0d090501);
    for (int word = 0; word < kWords; ++word) {
      by_row[word] = _mm512_shuffle_epi8(_mm512_permutexvar_epi32(gather, Bits(rounded(word))), planes);
    }
    __m512i high[4], low[4];  // quarter r: words 4 g to 4 g + 3 of row r
    for (int g = 0; g < 4; ++g) {
      const __m512i first = _mm512_unpacklo_epi64(by_row[4 * g], by_row[4 * g + 1]);
      const __m512i second = _mm512_unpacklo_epi64(by_row[4 * g + 2], by_row[4 * g + 3]);
      high[g] = _mm512_castps_si512(_mm512_shuffle_ps(_mm512_castsi512_ps(first), _mm512_castsi512_ps(second), 0x88));
      low[g] = _mm512_castps_si512(_mm512_shuffle_ps(_mm512_castsi512_ps(first), _mm512_castsi512_ps(second), 0xdd));
    }
    const auto store = [&](const __m512i* quarters, uint32_t(*rows)[kWords]) {
      const __m512i even01 = _mm512_shuffle_i32x4(quarters[0], quarters[1], 0x88);
      const __m512i odd01 = _mm512_shuffle_i32x4(quarters[0], quarters[1], 0xdd);
      const __m512i even23 = _mm512_shuffle_i32x4(quarters[2], quarters[3], 0x88);
      const __m512i odd23 = _mm512_shuffle_i32x4(quarters[2], quarters[3], 0xdd);
      _mm512_store_si512(rows[0], _mm512_shuffle_i32x4(even01, even23, 0x88));
      _mm512_store_si512(rows[2], _mm512_shuffle_i32x4(even01, even23, 0xdd));
      _mm512_store_si512(rows[1], _mm512_shuffle_i32x4(odd01, odd23, 0x88));
      _mm512_store_si512(rows[3], _mm512_shuffle_i32x4(odd01, odd23, 0xdd));
    };
    store(high, run->rows[0]);
    store(low, run->rows[0] + 4);
  }
}

// The sums of one tile of channels into the chunk's output. high and low: rows of the planes.
OCTET_INLINE void StoreValues(Work& w, const QueryPanel& panel, int tile, const int32_t (*high)[kLanes],
                              const int32_t (*low)[kLanes], Vec w_scale) {
  const int first = tile / 4 * kSegment + tile % 4 * 4;
  for (int r = 0; r < panel.rows; ++r) {
    alignas(64) float values[16];
    Store(values, (ToFloat(LoadInt(high[r])) * 256.0f + ToFloat(LoadInt(low[r]))) * w_scale[r]);
    float* out = w.chunk + (panel.first_row + r) * w.v_dim;
    for (int a = 0; a < 4 && first + 16 * a < w.v_dim; ++a) __builtin_memcpy(out + first + 16 * a, values + 4 * a, 16);
  }
}

template <typename Unit, int T>
void PanelChunk(IntegerWork& iw, const QueryPanel& panel, int chunk_index) {
  Work& w = iw.w;
  const int chunk_begin = chunk_index * kChunkTokens;
  const int first = iw.now->begin / kBlock * kBlock, last = iw.now->end;
  OffsetLanes offsets;
  if (w.p.offset.data != nullptr) offsets.Fill(w, panel, chunk_begin + first, chunk_begin + last);
  Vec top = Splat(-Infinity());
  // Sums are asked for one step before they are used: a unit takes its time.
  alignas(64) Sums sums[2][4];
  constexpr int kProducts = T == 1 ? 2 : 1, kBlocks = 4 / kProducts;  // four products a step
  const auto blocks_of = [&](int i) { return Min(kBlocks, (last - i + kBlock - 1) / kBlock); };
  const auto multiply = [&](int i, Sums* out) {
    KeyRows keys[kBlocks];
    for (int b = 0; b < blocks_of(i); ++b) keys[b] = KeyBlock(iw, i + b * kBlock, iw.copy[b]);
    Unit::template Keys<kProducts>(panel, iw.k_segments, keys, blocks_of(i), out);
  };
  multiply(first, sums[0]);
  for (int i = first, step = 0; i < last; i += kBlocks * kBlock, ++step) {
    if (i + kBlocks * kBlock < last) multiply(i + kBlocks * kBlock, sums[(step + 1) % 2]);
    for (int b = 0; b < blocks_of(i); ++b) {
      const int at = i + b * kBlock;
      if (panel.first_row == 0) {
        Fetch(*iw.next, iw.next->k, iw.next->k_scale, (kChunkTokens + at) / 2, kBlock / 2, w.p.k.head_dim);
      }
      top = Scores<T>(iw, panel, sums[step % 2] + b * kProducts, chunk_begin, at, offsets, iw.weight + at / T * kLanes,
                      top);
    }
  }
  // Whole runs: the keys around those that were scored have no weight.
  const int scored = first + (last - first + kBlock - 1) / kBlock * kBlock;
  const int run_begin = first / kRun, run_end = (last + kRun - 1) / kRun;
  const RowSums row = Weights<T>(iw, top, first, scored, panel.first_row == 0);
  __builtin_memset(iw.weight + run_begin * kRun / T * kLanes, 0,
                   static_cast<size_t>((first - run_begin * kRun) / T * kLanes) * sizeof(float));
  __builtin_memset(iw.weight + scored / T * kLanes, 0,
                   static_cast<size_t>((run_end * kRun - scored) / T * kLanes) * sizeof(float));
  const VecInt usable = (row.most >= Splat(kLeast)) & (row.most < Splat(Infinity()));
  const Vec inverse = Select(usable, 65535.0f / row.most, Vec{}), w_scale = Select(usable, row.most / 65535.0f, Vec{});
  for (int run = run_begin; run < run_end; ++run) {
    if (panel.first_row == 0) {
      Fetch(*iw.next, iw.next->v, iw.next->v_scale, (kChunkTokens + run * kRun) / 2, kRun / 2, w.p.v.head_dim);
    }
    PackWeights<T>(iw.weight + run * kRun / T * kLanes, inverse, &iw.runs[run]);
  }
  constexpr int kTiles = 4 / kProducts;
  const auto add_up = [&](int tile, Sums* out) {
    Unit::template Values<kProducts>(iw.runs, iw.v, run_begin, run_end, tile, out);
  };
  add_up(0, sums[0]);
  for (int tile = 0, step = 0; tile < 4 * iw.v_segments; tile += kTiles, ++step) {
    if (tile + kTiles < 4 * iw.v_segments) add_up(tile + kTiles, sums[(step + 1) % 2]);
    for (int t = 0; t < kTiles; ++t) {
      const Sums* of_tile = sums[step % 2] + t * kProducts;
      StoreValues(w, panel, tile + t, of_tile[0], kProducts == 2 ? of_tile[1] : of_tile[0] + kLanes / T, w_scale);
    }
  }
  for (int r = 0; r < panel.rows; ++r) {
    const int at = panel.first_row + r;
    w.top[at] = row.top[r];
    w.sum[at] = row.sum[r];
    const bool holds = row.sum[r] < Infinity() && (row.most[r] == 0.0f || usable[r] != 0) && (panel.bad >> r & 1) == 0;
    if (!holds || SeesLostScale(iw, at, chunk_begin)) FloatRow(w, at, chunk_index);
  }
}

template <typename Unit>
bool IntegerChunk(IntegerWork& iw, int chunk_index) {
  if (!TurnTo(iw, chunk_index)) return false;
  const int run_begin = iw.now->begin / kRun, run_end = (iw.now->end + kRun - 1) / kRun;
  LoadScales(iw, run_begin * kRun, run_end * kRun);
  for (int run = run_begin; run < run_end; ++run) InterleaveV(iw, run);
  for (int i = 0; i < iw.panels; ++i) {
    const QueryPanel& panel = iw.panel[i];
    if (panel.keys == 4) {
      PanelChunk<Unit, 4>(iw, panel, chunk_index);
    } else if (panel.keys == 2) {
      PanelChunk<Unit, 2>(iw, panel, chunk_index);
    } else {
      PanelChunk<Unit, 1>(iw, panel, chunk_index);
    }
  }
  return true;
}

template <typename Unit>
void IntegerAttention(const AttentionParams& p, const AttentionItem& item) {
  IntegerWork iw(p, item);
  iw.panels = (iw.w.rows + kLanes - 1) / kLanes;
  iw.k_segments = (p.k.head_dim + kSegment - 1) / kSegment;
  iw.v_segments = (p.v.head_dim + kSegment - 1) / kSegment;
  iw.whole_blocks = p.page_tokens % kBlock == 0 && iw.w.kv_begin % kBlock == 0 && p.k.head_dim % kSegment == 0;
  FetchFirst(iw);
  __builtin_memset(iw.zeros, 0, sizeof iw.zeros);
  __builtin_memset(iw.runs, 0, sizeof iw.runs);
  LoadQueries(iw.w);
  PackQueries(iw);
  const Unit unit;
  RunItem(iw.w, [&iw](int c) { return IntegerChunk<Unit>(iw, c); });
}

}  // namespace
}  // namespace OCTET_CPU_ISA
}  // namespace octet_cpu

#endif  // OCTET_BACKENDS_CPU_KERNELS_ATTENTION_INT8_H_
