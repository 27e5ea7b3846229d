// One item of attention, chunk by chunk, in f32; attention.cc says how. Included by the kernels that are built on it:
// those in f32 throughout and those in integers, which take from here what is the same and the rows that integers
// cannot hold.
#ifndef OCTET_BACKENDS_CPU_KERNELS_ATTENTION_CHUNK_H_
#define OCTET_BACKENDS_CPU_KERNELS_ATTENTION_CHUNK_H_

#include "backends/cpu/kernels/gemm.h"
#include "backends/cpu/kernels/row.h"

namespace octet_cpu {
namespace OCTET_CPU_ISA {
namespace {

constexpr int kStep = 32;      // tokens expanded at a time
constexpr int kWideStep = 16;  // where a row is longer than kStepDim
constexpr int kStepDim = 256;
constexpr int kStepFloats = kStep * kStepDim > kWideStep* kMaxHeadDim ? kStep* kStepDim : kWideStep* kMaxHeadDim;

OCTET_INLINE int Min(int a, int b) { return a < b ? a : b; }
OCTET_INLINE int Max(int a, int b) { return a > b ? a : b; }
OCTET_INLINE float Infinity() { return __builtin_inff(); }
OCTET_INLINE float ExpOne(float x) { return Exp(Splat(x))[0]; }
OCTET_INLINE int Round16(int n) { return (n + 15) / 16 * 16; }

// One scale per row or none: it is applied to scores or weights instead of to elements.
OCTET_INLINE bool Folded(const Side& side) {
  return side.scales == Scales::kNone ||
         (side.scales == Scales::kToken && side.group == side.head_dim && !side.asymmetric);
}

// A score of two sides has two scales, so neither is applied to it.
OCTET_INLINE bool FoldedK(const AttentionParams& p, const Side& side) {
  return p.k_extra.head_dim > 0 ? side.scales == Scales::kNone : Folded(side);
}

OCTET_INLINE int KRow(const AttentionParams& p) { return p.k.head_dim + p.k_extra.head_dim; }

// Memory of an item of up to `Rows` rows. A host's threads may have a stack of OCTET_MIN_STACK_BYTES, half a MiB.
template <int Rows>
struct WorkSpace {
  static constexpr int kFloats = Rows == kMaxRows ? kMaxRowFloats : Rows * kMaxHeadDim;
  alignas(64) float q[kFloats];      // [rows][KRow], rotated
  alignas(64) float q_raw[kFloats];  // the same before rotation, where there is an offset table
  alignas(64) float score[Rows * kChunkTokens];
  alignas(64) float out[kFloats];       // [rows][v_dim]: the merged chunks
  alignas(64) float chunk[kFloats];     // [rows][v_dim]: this chunk
  alignas(64) float tile[kStepFloats];  // K or V of one step
};

// What one item works on.
struct Work {
  const AttentionParams& p;
  const AttentionItem& item;
  int group, rows, queries, kv_len, kv_begin, step_begin;  // step_begin: position of the request's first query
  int v_dim;                                               // padded to 16

  float *q, *q_raw, *score, *out, *chunk, *tile;  // WorkSpace's
  float top[kMaxRows], sum[kMaxRows];
  alignas(64) float k_scale[kChunkTokens];
  alignas(64) float v_scale[kChunkTokens];
  alignas(64) float offset[kChunkTokens];  // q . offset of one row, by key
  alignas(64) int32_t seen[kChunkTokens];  // mask of one row, by key

  template <int Rows>
  Work(const AttentionParams& params, const AttentionItem& i, WorkSpace<Rows>& space)
      : p(params),
        item(i),
        group(params.q_heads / params.kv_heads),
        rows(i.row_end - i.row_begin),
        queries(params.q_start[i.request + 1] - params.q_start[i.request]),
        kv_len(params.kv_len[i.request]),
        kv_begin(params.kv_begin[i.request]),
        step_begin(kv_len - queries),
        v_dim(Round16(params.v.head_dim)),
        q(space.q),
        q_raw(space.q_raw),
        score(space.score),
        out(space.out),
        chunk(space.chunk),
        tile(space.tile) {}
  int QueryPosition(int row) const { return step_begin + (item.row_begin + row) / group; }
  int64_t Token(int row) const { return p.q_start[item.request] + (item.row_begin + row) / group; }
  int QueryHead(int row) const { return item.kv_head * group + (item.row_begin + row) % group; }
};

struct Range {
  int begin, end;  // positions
};

// Positions that a row may see, before the mask.
Range VisibleRange(const Work& w, int row) {
  const int position = w.QueryPosition(row);
  const int begin = w.p.window > 0 ? Max(w.kv_begin, position - w.p.window + 1) : w.kv_begin;
  return {begin, w.p.causal && w.p.mask == nullptr ? Min(position + 1, w.kv_len) : w.kv_len};
}

// Is a key inside the row's range visible? Only a mask can say no.
bool Unmasked(const Work& w, int row, int position) {
  if (w.p.mask == nullptr) return true;
  if (position < w.step_begin) return true;
  return w.p.mask[w.Token(row) * w.p.mask_token_stride + position - w.step_begin] != 0;
}

struct Place {
  int64_t page;
  int index;
};

Place Locate(const Work& w, int position) {
  const int i = position - w.kv_begin;
  return {w.p.pages[w.p.page_start[w.item.request] + i / w.p.page_tokens], i % w.p.page_tokens};
}

void LoadQueries(Work& w) {
  const AttentionParams& p = w.p;
  const int dim = KRow(p);
  const int64_t size = ElementSize(p.q_element);
  for (int r = 0; r < w.rows; ++r) {
    const uint8_t* q =
        static_cast<const uint8_t*>(p.q) + (w.Token(r) * p.q_token_stride + w.QueryHead(r) * p.q_head_stride) * size;
    LoadRow(p.q_element, q, dim, w.q + r * dim);
    if (p.offset.data != nullptr) {
      __builtin_memcpy(w.q_raw + r * dim, w.q + r * dim, static_cast<size_t>(dim) * sizeof(float));
    }
    Hadamard(w.q + r * dim, p.k.head_dim, p.k.rotation);
    Hadamard(w.q + r * dim + p.k.head_dim, p.k_extra.head_dim, p.k_extra.rotation);
  }
}

// w.tile = K^T of one side as tiles [channel][16] from position `at` on; zero where a token is outside [begin, end).
// Scales to k_scale.
void ExpandK(Work& w, const Side& side, int chunk_begin, int at, int begin, int end) {
  const int dim = side.head_dim;
  const bool folded = FoldedK(w.p, side), scaled = folded && side.scales == Scales::kToken;
  const bool codes = folded && side.element == Element::kI8;
  alignas(64) float row[kMaxHeadDim];
  alignas(64) int32_t words[kMaxHeadDim / 4 * kTileRows];
  for (int first = at; first < end; first += kTileRows) {
    float* __restrict tile = w.tile + (first - at) * dim;
    const int from = Max(first, begin), to = Min(first + kTileRows, end);
    if (to - from < kTileRows) {
      __builtin_memset(tile, 0, static_cast<size_t>(dim) * kTileRows * sizeof(float));
      __builtin_memset(words, 0, static_cast<size_t>(dim) / 4 * kTileRows * sizeof(int32_t));
    }
    for (int position = from; position < to; ++position) {
      const int i = position - first;
      const Place place = Locate(w, position);
      const uint8_t* data = side.data + RowOffset(side.data_stride, place.page, w.item.kv_head, place.index);
      if (scaled) {
        const uint8_t* scale = side.scale + RowOffset(side.scale_stride, place.page, w.item.kv_head, place.index);
        w.k_scale[position - chunk_begin] = LoadScale(scale, side.scale_bf16);
      }
      if (codes) {  // four channels of a token move as one word
        for (int d = 0; d < dim / 4; ++d) __builtin_memcpy(&words[d * kTileRows + i], data + 4 * d, 4);
        continue;
      }
      if (folded) {
        LoadRow(side.element, data, dim, row);
      } else {
        DecodeRow(side, place.page, w.item.kv_head, place.index, row);
      }
      for (int d = 0; d < dim; ++d) tile[d * kTileRows + i] = row[d];
    }
    for (int d = 0; codes && d < dim / 4; ++d) {
      for (int b = 0; b < 4; ++b) {
        for (int i = 0; i < kTileRows; ++i) {
          const uint32_t word = static_cast<uint32_t>(words[d * kTileRows + i]);
          tile[(4 * d + b) * kTileRows + i] = static_cast<float>(static_cast<int32_t>(word << (24 - 8 * b)) >> 24);
        }
      }
    }
  }
}

// q . offset of one row in one block of positions.
float OffsetScore(const Work& w, int row, int block) {
  const OffsetTable& table = w.p.offset;
  const int dim = KRow(w.p);
  const float* q = w.q_raw + row * dim;
  const float* offset = table.data + block * table.block_stride + w.item.kv_head * table.head_stride;
  float lanes[16] = {};
  int c = 0;
  for (; c + 16 <= dim; c += 16) {
    for (int i = 0; i < 16; ++i) lanes[i] += q[c + i] * offset[c + i];
  }
  for (int i = 0; c < dim; ++c, ++i) lanes[i] += q[c] * offset[c];
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

// The same for each block that the chunk meets, spread over the block's keys.
void OffsetScores(Work& w, int row, int chunk_begin, int begin, int end) {
  const int block_tokens = w.p.offset.block_tokens;
  for (int position = begin; position < end;) {
    const int block = position / block_tokens;
    const int64_t block_end = (static_cast<int64_t>(block) + 1) * block_tokens;
    const int stop = block_end < end ? static_cast<int>(block_end) : end;
    const float score = OffsetScore(w, row, block);
    for (; position < stop; ++position) w.offset[position - chunk_begin] = score;
  }
}

// What comes to the scores of one row after their scales: softcap, ALiBi, and -infinity where a key is not visible.
struct ScoreEnd {
  const AttentionParams& p;
  const int32_t* seen;
  Range range;
  float slope;
  int chunk_begin, position;

  // For keys [begin, end).
  ScoreEnd(Work& w, int row, int chunk, int begin, int end)
      : p(w.p),
        seen(w.seen),
        range(VisibleRange(w, row)),
        slope(w.p.alibi != nullptr ? w.p.alibi[w.QueryHead(row)] : 0.0f),
        chunk_begin(chunk),
        position(w.QueryPosition(row)) {
    if (p.mask == nullptr) return;
    for (int i = begin; i < end; ++i) w.seen[i - chunk_begin] = Unmasked(w, row, i) ? -1 : 0;
  }
};

// Of keys [i, i + kLanes) of the chunk.
OCTET_INLINE Vec EndScores(const ScoreEnd& e, Vec v, int i) {
  const AttentionParams& p = e.p;
  VecInt key;
  for (int lane = 0; lane < kLanes; ++lane) key[lane] = e.chunk_begin + i + lane;
  if (p.softcap > 0.0f) v = p.softcap * Tanh(v / p.softcap);
  if (p.alibi != nullptr) v += e.slope * __builtin_convertvector(key - e.position, Vec);
  VecInt visible = (key >= e.range.begin) & (key < e.range.end);
  if (p.mask != nullptr) {
    VecInt seen;
    __builtin_memcpy(&seen, e.seen + i, sizeof seen);
    visible &= seen;
  }
  return Select(visible, v, Splat(-Infinity()));
}

// Scores of positions [begin, end) of the chunk become weights; top and sum of the row.
void Softmax(Work& w, int row, int chunk_begin, int begin, int end) {
  const AttentionParams& p = w.p;
  const bool scaled = p.k.scales == Scales::kToken && FoldedK(p, p.k);
  const bool weighted = p.v.scales == Scales::kToken && Folded(p.v);
  if (p.offset.data != nullptr) OffsetScores(w, row, chunk_begin, begin, end);
  const ScoreEnd score_end(w, row, chunk_begin, begin, end);
  float* s = w.score + row * kChunkTokens;
  const int first = (begin - chunk_begin) / kLanes * kLanes, last = (end - chunk_begin + kLanes - 1) / kLanes * kLanes;
  Vec top = Splat(-Infinity());
  for (int i = first; i < last; i += kLanes) {
    Vec v = Load(s + i);
    if (scaled) v *= Load(w.k_scale + i);
    if (p.offset.data != nullptr) v += Load(w.offset + i);
    v = EndScores(score_end, v * p.scale, i);
    Store(s + i, v);
    top = VecMax(v, top);
  }
  w.top[row] = MaxLanes(top);
  const Vec shift = Splat(w.top[row] == -Infinity() ? 0.0f : w.top[row]);
  Vec sum{};
  for (int i = first; i < last; i += kLanes) {
    const Vec e = Exp(Load(s + i) - shift);
    sum += e;
    Store(s + i, weighted ? e * Load(w.v_scale + i) : e);
  }
  w.sum[row] = SumLanes(sum);
}

bool Finite(const float* x, int n) {
  uint32_t top = 0;
  for (int i = 0; i < n; ++i) {
    const uint32_t bits = octet::FloatBits(x[i]) & 0x7fffffff;
    top = bits > top ? bits : top;
  }
  return top < 0x7f800000;
}

// V scales of positions [begin, end). One that is not finite counts as 1 here; ExpandV deals with its row.
void LoadVScales(Work& w, int chunk_begin, int begin, int end) {
  const Side& side = w.p.v;
  __builtin_memset(w.v_scale, 0, sizeof w.v_scale);
  for (int i = begin; i < end; ++i) {
    const Place at = Locate(w, i);
    const float scale =
        LoadScale(side.scale + RowOffset(side.scale_stride, at.page, w.item.kv_head, at.index), side.scale_bf16);
    w.v_scale[i - chunk_begin] = Finite(&scale, 1) ? scale : 1.0f;
  }
}

// w.tile = V of positions [begin, end), [token][v_dim]. A row that is not finite is added to the rows that see it and
// then counts as zeros.
void ExpandV(Work& w, int chunk_begin, int begin, int end) {
  const Side& side = w.p.v;
  const bool folded = Folded(side), scaled = side.scales == Scales::kToken;
  for (int i = begin; i < end; ++i) {
    const Place at = Locate(w, i);
    float* row = w.tile + (i - begin) * w.v_dim;
    bool finite = true;
    if (folded) {
      LoadRow(side.element, side.data + RowOffset(side.data_stride, at.page, w.item.kv_head, at.index), side.head_dim,
              row);
      if (scaled) {
        const float scale =
            LoadScale(side.scale + RowOffset(side.scale_stride, at.page, w.item.kv_head, at.index), side.scale_bf16);
        finite = Finite(&scale, 1);
      }
    }
    if (!folded || !finite) DecodeRow(side, at.page, w.item.kv_head, at.index, row);
    for (int d = side.head_dim; d < w.v_dim; ++d) row[d] = 0.0f;
    if (side.element == Element::kI8 && folded && finite) continue;
    if (Finite(row, side.head_dim)) continue;
    for (int r = 0; r < w.rows; ++r) {
      const Range range = VisibleRange(w, r);
      if (i < range.begin || i >= range.end || !Unmasked(w, r, i)) continue;
      const float weight = w.score[r * kChunkTokens + i - chunk_begin];
      for (int d = 0; d < w.v_dim; ++d) w.chunk[r * w.v_dim + d] += weight * row[d];
    }
    __builtin_memset(row, 0, static_cast<size_t>(w.v_dim) * sizeof(float));
  }
}

// O, m and l of one chunk into (out, top, sum); the order of chunks is the order of calls.
void Merge(float* out, float* top, float* sum, const float* chunk, float chunk_top, float chunk_sum, int n) {
  if (chunk_sum == 0.0f) return;  // no key of it is visible
  if (*sum == 0.0f) {
    __builtin_memcpy(out, chunk, static_cast<size_t>(n) * sizeof(float));
    *top = chunk_top;
    *sum = chunk_sum;
    return;
  }
  const float high = *top > chunk_top ? *top : chunk_top;
  const float a = ExpOne(*top - high), b = ExpOne(chunk_top - high);
  for (int d = 0; d < n; ++d) out[d] = out[d] * a + chunk[d] * b;
  *sum = *sum * a + chunk_sum * b;
  *top = high;
}

void Finish(const AttentionParams& p, float* out, float top, float sum, int64_t token, int q_head) {
  const int dim = p.v.head_dim;
  if (p.sinks != nullptr) {
    const float sink = p.sinks[q_head];
    const float high = top > sink ? top : sink;
    const float shift = high == -Infinity() ? 0.0f : high;
    const float factor = ExpOne(top - shift);
    for (int d = 0; d < dim; ++d) out[d] *= factor;
    sum = sum * factor + ExpOne(sink - shift);
    top = high;
  }
  const bool empty = sum == 0.0f;
  const float inverse = empty ? 0.0f : 1.0f / sum;
  for (int d = 0; d < dim; ++d) out[d] = empty ? 0.0f : out[d] * inverse;
  Hadamard(out, dim, p.v.rotation);
  uint8_t* to = static_cast<uint8_t*>(p.out) +
                (token * p.out_token_stride + q_head * p.out_head_stride) * ElementSize(p.out_element);
  StoreRow(p.out_element, out, dim, to);
  if (p.lse != nullptr) {
    p.lse[token * p.lse_token_stride + q_head] = empty ? -Infinity() : top + __builtin_logf(sum);
  }
}

// One chunk for all rows, up to `Rows`: w.chunk, w.top, w.sum. False when no row sees a key in it.
template <int Rows>
bool Chunk(Work& w, int chunk_index) {
  const AttentionParams& p = w.p;
  const int chunk_begin = chunk_index * kChunkTokens;
  int begin = w.kv_len, end = 0;
  for (int r = 0; r < w.rows; ++r) {
    const Range range = VisibleRange(w, r);
    begin = Min(begin, range.begin);
    end = Max(end, range.end);
  }
  begin = Max(begin, chunk_begin);
  end = Min(end, chunk_begin + kChunkTokens);
  if (begin >= end) return false;
  const auto multiply = [&](const GemmArgs& args, int tiles, Sum mode) {
    if constexpr (Rows == 1) {
      GemmRow(args, tiles, mode);
    } else {
      Gemm(args, w.rows, tiles, mode);
    }
  };
  const int k_step = Max(p.k.head_dim, p.k_extra.head_dim) <= kStepDim ? kStep : kWideStep;
  const int v_step = w.v_dim <= kStepDim ? kStep : kWideStep;
  // Steps start at multiples of their length within the chunk, whatever the first visible key.
  const auto step_floor = [chunk_begin](int position, int step) {
    return chunk_begin + (position - chunk_begin) / step * step;
  };

  for (int at = step_floor(begin, k_step); at < end; at += k_step) {
    const int to = Min(at + k_step, end);
    const int lead = Max(0, begin - at) / kTileRows * kTileRows;  // whole tiles before the first key
    const int tiles = (to - at - lead + kTileRows - 1) / kTileRows;
    GemmArgs args{};
    args.x = w.q;
    args.x_stride = KRow(p);
    args.w_stride = kTileRows;
    args.out = w.score + (at + lead - chunk_begin);
    args.out_stride = kChunkTokens;
    const auto add = [&](const Side& side, Sum mode) {
      ExpandK(w, side, chunk_begin, at + lead, begin, to);
      args.k = side.head_dim;
      for (int t = 0; t < tiles; ++t) args.w[t] = w.tile + t * side.head_dim * kTileRows;
      multiply(args, tiles, mode);
      args.x += side.head_dim;
    };
    add(p.k, Sum::kStore);
    if (p.k_extra.head_dim > 0) add(p.k_extra, Sum::kContinue);
  }

  if (p.v.scales == Scales::kToken && Folded(p.v)) LoadVScales(w, chunk_begin, begin, end);
  for (int r = 0; r < w.rows; ++r) Softmax(w, r, chunk_begin, begin, end);

  __builtin_memset(w.chunk, 0, static_cast<size_t>(w.rows * w.v_dim) * sizeof(float));
  for (int at = step_floor(begin, v_step); at < end; at += v_step) {
    const int from = Max(at, begin), to = Min(at + v_step, end);
    ExpandV(w, chunk_begin, from, to);
    GemmArgs args{};
    args.x = w.score + (from - chunk_begin);
    args.x_stride = kChunkTokens;
    args.w_stride = args.out_stride = w.v_dim;
    args.k = to - from;
    for (int d = 0; d < w.v_dim; d += 4 * kTileRows) {
      const int tiles = Min(4, (w.v_dim - d) / kTileRows);
      for (int t = 0; t < tiles; ++t) args.w[t] = w.tile + d + t * kTileRows;
      args.out = w.chunk + d;
      multiply(args, tiles, Sum::kAdd);
    }
  }
  return true;
}

void MergePartials(const AttentionParams& p, int64_t partial, int64_t chunks, int64_t token, int32_t q_head) {
  const int dim = p.v.head_dim;
  alignas(64) float out[kMaxHeadDim] = {};
  float top = -Infinity(), sum = 0.0f;
  for (int64_t c = 0; c < chunks; ++c) {
    const float* from = p.partials + (partial + c) * (dim + 2);
    Merge(out, &top, &sum, from, from[dim], from[dim + 1], dim);
  }
  Finish(p, out, top, sum, token, q_head);
}

// The item, with `chunk` doing what Chunk does.
template <typename ChunkFn>
void RunItem(Work& w, ChunkFn chunk) {
  const AttentionItem& item = w.item;
  const int dim = w.p.v.head_dim;
  float top[kMaxRows], sum[kMaxRows];
  for (int r = 0; r < w.rows; ++r) {
    top[r] = -Infinity();
    sum[r] = 0.0f;
  }
  __builtin_memset(w.out, 0, static_cast<size_t>(w.rows * w.v_dim) * sizeof(float));
  for (int c = item.chunk_begin; c < item.chunk_end; ++c) {
    const bool any = chunk(c);
    for (int r = 0; r < w.rows; ++r) {
      const float* from = w.chunk + r * w.v_dim;
      if (item.partial < 0) {
        if (any) Merge(w.out + r * w.v_dim, &top[r], &sum[r], from, w.top[r], w.sum[r], dim);
        continue;
      }
      float* partial = w.p.partials + (item.partial + r * item.partial_stride + c - item.chunk_begin) * (dim + 2);
      if (any) __builtin_memcpy(partial, from, static_cast<size_t>(dim) * sizeof(float));
      partial[dim] = any ? w.top[r] : -Infinity();
      partial[dim + 1] = any ? w.sum[r] : 0.0f;
    }
  }
  if (item.partial >= 0) return;
  for (int r = 0; r < w.rows; ++r) Finish(w.p, w.out + r * w.v_dim, top[r], sum[r], w.Token(r), w.QueryHead(r));
}

}  // namespace
}  // namespace OCTET_CPU_ISA
}  // namespace octet_cpu

#endif  // OCTET_BACKENDS_CPU_KERNELS_ATTENTION_CHUNK_H_
