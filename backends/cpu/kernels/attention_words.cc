// Attention over INT8 rows in integers on processors without a tile unit: the form of attention.cc with both products
// of a chunk summed exactly in 32 bits from pairs of 16-bit words.
//
//   q = q_scale n, |n| <= 32767          s = sum of n codes, times q_scale * k_scale, and on as in f32
//   w = e^(s - m) * v_scale = w_scale n  O = w_scale sum of n codes
//
// q is rounded to 2^-16 of the row's largest element at most and w to 2^-16 of its largest in the chunk, far finer than
// the cache; 32767 * 128 * 256 fits 31 bits, so sums need no order. Codes become words in tiles of pairs that all rows
// of the item share. Tiles of K have lanes of keys: four keys' pieces of 16 channels are transposed as words of four
// bytes, whose bytes 0 and 2, and 1 and 3, are two pairs. Tiles of V have lanes of channels: four keys' rows are
// interleaved to such words. Up to kBlockRows rows keep the sums of a tile in registers, their own words are splat over
// all lanes. A row's sum of weights is taken in one order of positions, so its bytes depend on its own queries and keys
// alone.
#include "backends/cpu/kernels/attention_rows.h"
#include "backends/cpu/kernels/words.h"

namespace octet_cpu {
namespace OCTET_CPU_ISA {
namespace {

constexpr float kWordTop = 32767.0f;
constexpr int kTileVectors = 4;                    // vectors of a tile
constexpr int kTileWidth = kTileVectors * kLanes;  // keys or channels of a tile, and bytes of a vector
constexpr int kSteps = kChunkTokens / 2;           // pairs of a tile at most
constexpr int kPackKeys = 2 * kLanes;              // keys whose weights PackWords takes together
constexpr int kBlockRows = 6;                      // rows whose sums of a tile fit the registers
static_assert(kMaxIntegerDim <= kChunkTokens, "tiles of K and V are alike");

typedef int32_t WordTile[kSteps][kTileVectors][kLanes];  // pairs of words

struct WordsWork : IntegerItem {
  int k_dim;                // padded to 16
  float factor[kMaxRows];   // of q, times the scale of scores
  float most[kMaxRows];     // the largest weight of this chunk
  float w_scale[kMaxRows];  // of the weights
  uint64_t bad = 0;         // rows whose q words cannot hold
  uint64_t lost_weights;    // rows whose weights of this chunk words cannot hold
  int fetched, spent;       // rows of the next chunk asked for, K's then V's, and work done on this one
  float rows_per_work;
  alignas(64) float top[kMaxRows][kLanes];
  alignas(64) int16_t q[kMaxRowFloats];  // [rows][k_dim], channels 1 and 2 of each four swapped
  alignas(64) int16_t weight[kMaxRows][kChunkTokens];
  alignas(64) WordTile tile;
  alignas(64) int32_t sums[kBlockRows][kTileVectors][kLanes];
  alignas(64) int8_t zeros[kMaxIntegerDim] = {};

  using IntegerItem::IntegerItem;
};

void PackQueries(WordsWork& ww) {
  const Work& w = ww.w;
  const int dim = w.p.k.head_dim;
  __builtin_memset(ww.q, 0, static_cast<size_t>(w.rows * ww.k_dim) * sizeof(int16_t));
  for (int r = 0; r < w.rows; ++r) {
    const float* q = w.q + r * dim;
    const Rounding rounding = RoundingOf(q, dim, kWordTop);
    if (!rounding.holds) ww.bad |= uint64_t{1} << r;
    ww.factor[r] = rounding.scale * w.p.scale;
    if (rounding.inverse == 0.0f) continue;
    int16_t* out = ww.q + r * ww.k_dim;
    for (int c = 0; c < dim; c += 4) {
      const auto word = [&](int i) { return static_cast<int16_t>(RoundToPlanes(q[c + i] * rounding.inverse)); };
      out[c] = word(0);
      out[c + 1] = word(2);
      out[c + 2] = word(1);
      out[c + 3] = word(3);
    }
  }
}

// Work in vector instructions, about: of packing 16 channels of a vector of keys of K or a vector of channels of four
// keys of V, and of one row's weights of a vector of keys.
constexpr int kPackWork = 20, kWeightWork = 30;

// What a chunk of keys [first, last) will take.
int WorkOf(const WordsWork& ww, int first, int last) {
  const int v_tiles = (ww.w.p.v.head_dim + kTileWidth - 1) / kTileWidth, vectors = (last - first) / kLanes;
  const int k_work = vectors * (ww.k_dim / 16 * kPackWork + ww.w.rows * ww.k_dim / 2);
  const int v_work = v_tiles * (last - first) / 4 * (kPackWork + ww.w.rows * 2 * kTileVectors);
  return k_work + v_work + vectors * ww.w.rows * kWeightWork;
}

// Asks for as much of the next chunk as has been done of this one, so that memory is at work all the time.
OCTET_INLINE void Spend(WordsWork& ww, int work) {
  ww.spent += work;
  const int target = static_cast<int>(static_cast<float>(ww.spent) * ww.rows_per_work);
  const KeyTable& next = *ww.next;
  const AttentionParams& p = ww.w.p;
  if (ww.fetched < Min(target, kChunkTokens)) {
    Fetch(next, next.k, next.k_scale, ww.fetched, Min(target, kChunkTokens) - ww.fetched, p.k.head_dim);
    ww.fetched = Min(target, kChunkTokens);
  }
  if (ww.fetched < target) {
    Fetch(next, next.v, next.v_scale, ww.fetched - kChunkTokens, target - ww.fetched, p.v.head_dim);
    ww.fetched = target;
  }
}

// K of keys [at, at + kTileWidth) of the chunk: step 8 p + 2 j holds channels 16 p + 4 j and the second behind, the
// next step those in between.
void PackKeys(WordsWork& ww, int at) {
  const int dim = ww.w.p.k.head_dim;
  for (int n = 0; n < kTileVectors; ++n) {
    Spend(ww, ww.k_dim / 16 * kPackWork);
    const int8_t* const* rows = ww.now->k + at + n * kLanes;
    for (int c = 0; c < dim; c += 16) {
      const bool half = c + 16 > dim;
      const Bits r0 = LoadPieces(rows, c, half), r1 = LoadPieces(rows + 1, c, half);
      const Bits r2 = LoadPieces(rows + 2, c, half), r3 = LoadPieces(rows + 3, c, half);
      const Bits low01 = InterleaveLow32(r0, r1), high01 = InterleaveHigh32(r0, r1);
      const Bits low23 = InterleaveLow32(r2, r3), high23 = InterleaveHigh32(r2, r3);
      const Bits words[4] = {InterleaveLow64(low01, low23), InterleaveHigh64(low01, low23),
                             InterleaveLow64(high01, high23), InterleaveHigh64(high01, high23)};
      for (int j = 0; j < 4; ++j) {
        StoreBits(ww.tile[c / 2 + 2 * j][n], EvenBytes(words[j]));
        StoreBits(ww.tile[c / 2 + 2 * j + 1][n], OddBytes(words[j]));
      }
    }
  }
}

// kTileWidth channels of V from `channel` on, keys [first, last): two steps for each four keys in the order in which
// PackWords leaves weights. Lane 4 a + b of vector n is channel 16 a + 4 n + b.
void PackValues(WordsWork& ww, int channel, int first, int last) {
  const int dim = ww.w.p.v.head_dim, left = Min(dim - channel, kTileWidth);
  const auto load = [&](const int8_t* row) {
#if OCTET_CPU_LANES == 16
    const __mmask64 mask = left == kTileWidth ? ~__mmask64{0} : (__mmask64{1} << left) - 1;
    return _mm512_maskz_loadu_epi8(mask, row + channel);
#else
    if (left == kTileWidth) return LoadBits(row + channel);
    alignas(64) int8_t copy[kTileWidth] = {};
    __builtin_memcpy(copy, row + channel, static_cast<size_t>(left));
    return LoadBits(copy);
#endif
  };
  auto* step = ww.tile;
  for (int at = first; at < last; at += kPackKeys) {
    Spend(ww, kPackKeys / 4 * kPackWork);
    for (int four = 0; four < kPackKeys / 4; ++four, step += 2) {
      const int8_t* const* rows = ww.now->v + at + four % 2 * kLanes + four / 2 * 4;
      const Bits r0 = load(rows[0]), r1 = load(rows[1]), r2 = load(rows[2]), r3 = load(rows[3]);
      const Bits low02 = InterleaveLow8(r0, r2), high02 = InterleaveHigh8(r0, r2);
      const Bits low13 = InterleaveLow8(r1, r3), high13 = InterleaveHigh8(r1, r3);
      const Bits words[4] = {InterleaveLow16(low02, low13), InterleaveHigh16(low02, low13),
                             InterleaveLow16(high02, high13), InterleaveHigh16(high02, high13)};
      for (int n = 0; n < kTileVectors; ++n) {
        StoreBits(step[0][n], EvenBytes(words[n]));
        StoreBits(step[1][n], OddBytes(words[n]));
      }
    }
  }
}

// sums = words of M rows, `stride` apart, times `steps` steps of the tile.
template <int M>
void Multiply(const int16_t* words, int stride, int steps, WordsWork& ww) {
  constexpr int kVecs = kLanes == 16 || M <= 3 ? kTileVectors : kTileVectors / 2;  // 24 and 12 sums
  for (int from = 0; from < kTileVectors; from += kVecs) {
    Bits sums[M][kVecs];
#pragma GCC unroll 6
    for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
      for (int n = 0; n < kVecs; ++n) sums[m][n] = SplatBits(0);
    }
    for (int step = 0; step < steps; ++step) {
      Bits pairs[kVecs];
#pragma GCC unroll 4
      for (int n = 0; n < kVecs; ++n) pairs[n] = LoadBits(ww.tile[step][from + n]);
#pragma GCC unroll 6
      for (int m = 0; m < M; ++m) {
        int32_t pair;
        __builtin_memcpy(&pair, words + m * stride + 2 * step, sizeof pair);
        const Bits splat = SplatBits(pair);
#pragma GCC unroll 4
        for (int n = 0; n < kVecs; ++n) sums[m][n] = AddPairs(sums[m][n], splat, pairs[n]);
      }
    }
#pragma GCC unroll 6
    for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
      for (int n = 0; n < kVecs; ++n) StoreBits(ww.sums[m][from + n], sums[m][n]);
    }
  }
}

// All rows by blocks of about the same size; `use` gets the first row of each and how many they are.
template <typename Use>
OCTET_INLINE void MultiplyRows(WordsWork& ww, const int16_t* words, int stride, int steps, Use use) {
  for (int row = 0, blocks = (ww.w.rows + kBlockRows - 1) / kBlockRows; blocks > 0; --blocks) {
    const int rows = (ww.w.rows - row + blocks - 1) / blocks;
    const int16_t* from = words + row * stride;
    switch (rows) {
      case 1:
        Multiply<1>(from, stride, steps, ww);
        break;
      case 2:
        Multiply<2>(from, stride, steps, ww);
        break;
      case 3:
        Multiply<3>(from, stride, steps, ww);
        break;
      case 4:
        Multiply<4>(from, stride, steps, ww);
        break;
      case 5:
        Multiply<5>(from, stride, steps, ww);
        break;
      default:
        Multiply<kBlockRows>(from, stride, steps, ww);
        break;
    }
    use(row, rows);
    row += rows;
    Spend(ww, rows * steps * kTileVectors);
  }
}

// Scores of keys [first, last), in whole tiles, and the maximum of each lane.
void Scores(WordsWork& ww, int first, int last) {
  Work& w = ww.w;
  for (int r = 0; r < w.rows; ++r) Store(ww.top[r], Splat(-Infinity()));
  for (int at = first; at < last; at += kTileWidth) {
    PackKeys(ww, at);
    MultiplyRows(ww, ww.q, ww.k_dim, ww.k_dim / 2, [&](int row, int rows) {
      for (int r = 0; r < rows; ++r) {
        Vec top = Load(ww.top[row + r]);
        for (int n = 0; n < kTileVectors; ++n) {
          const int i = at + n * kLanes;
          const Vec v = ToVec(LoadBits(ww.sums[r][n])) * ww.factor[row + r] * Load(w.k_scale + i);
          Store(w.score + (row + r) * kChunkTokens + i, v);
          top = VecMax(v, top);
        }
        Store(ww.top[row + r], top);
      }
    });
  }
}

// What comes to one row's scores after their scales, where something does.
void EndRow(WordsWork& ww, int row, int chunk_begin, int first, int last) {
  Work& w = ww.w;
  const AttentionParams& p = w.p;
  const Range range = VisibleRange(w, row);
  const bool plain = range.begin <= chunk_begin + first && range.end >= chunk_begin + last && p.softcap <= 0.0f &&
                     p.alibi == nullptr && p.mask == nullptr && p.offset.data == nullptr;
  if (plain) return;
  const int begin = chunk_begin + ww.now->begin, end = chunk_begin + ww.now->end;
  if (p.offset.data != nullptr) OffsetScores(w, row, chunk_begin, begin, end);
  const ScoreEnd score_end(w, row, chunk_begin, begin, end);
  float* s = w.score + row * kChunkTokens;
  Vec top = Splat(-Infinity());
  for (int i = first; i < last; i += kLanes) {
    Vec v = Load(s + i);
    if (p.offset.data != nullptr) v += Load(w.offset + i) * p.scale;
    v = EndScores(score_end, v, i);
    Store(s + i, v);
    top = VecMax(v, top);
  }
  Store(ww.top[row], top);
}

// Scores become weights. By stages over all rows: a row's steps across lanes then have other rows' work to hide in.
void Weights(WordsWork& ww, int chunk_begin, int first, int last) {
  Work& w = ww.w;
  for (int r = 0; r < w.rows; ++r) {
    EndRow(ww, r, chunk_begin, first, last);
    w.top[r] = MaxLanes(Load(ww.top[r]));
  }
  for (int r = 0; r < w.rows; ++r) {
    float* s = w.score + r * kChunkTokens;
    const Vec shift = Splat(w.top[r] == -Infinity() ? 0.0f : w.top[r]);
    Vec sum{}, most{};
    for (int i = first; i < last; i += kLanes) {
      const Vec e = ExpDown(Load(s + i) - shift);
      sum += e;
      const Vec weight = e * Load(w.v_scale + i);
      most = VecMax(weight, most);
      Store(s + i, weight);
    }
    w.sum[r] = SumLanes(sum);
    ww.most[r] = MaxLanes(most);
    Spend(ww, (last - first) / kLanes * kWeightWork);
  }
  ww.lost_weights = 0;
  for (int r = 0; r < w.rows; ++r) {
    const float* s = w.score + r * kChunkTokens;
    const float most = ww.most[r];
    const bool usable = most >= kLeast && most < Infinity();
    ww.w_scale[r] = usable ? most / kWordTop : 0.0f;
    const float inverse = usable ? kWordTop / most : 0.0f;
    for (int i = first; i < last; i += kPackKeys) {
      StoreBits(ww.weight[r] + i, PackWords(Round(Load(s + i) * inverse), Round(Load(s + i + kLanes) * inverse)));
    }
    const bool holds = w.sum[r] < Infinity() && (most == 0.0f || usable) && (ww.bad >> r & 1) == 0;
    if (!holds || SeesLostScale(ww, r, chunk_begin)) ww.lost_weights |= uint64_t{1} << r;
  }
}

// Sums of the channels of one tile into the chunk's output.
void StoreValues(WordsWork& ww, int channel, int row, int rows) {
  Work& w = ww.w;
  const int pieces = Min(w.v_dim - channel, kTileWidth) / 16;
  for (int r = 0; r < rows; ++r) {
    float* out = w.chunk + (row + r) * w.v_dim + channel;
    const float scale = ww.w_scale[row + r];
    for (int n = 0; n < kTileVectors; ++n) {
      alignas(64) float values[kLanes];
      Store(values, ToVec(LoadBits(ww.sums[r][n])) * scale);
      for (int a = 0; a < pieces; ++a) __builtin_memcpy(out + 16 * a + 4 * n, values + 4 * a, 16);
    }
  }
}

bool WordsChunk(WordsWork& ww, int chunk_index) {
  if (!TurnTo(ww, chunk_index)) return false;
  Work& w = ww.w;
  KeyTable& now = *ww.now;
  const int first = now.begin / kTileWidth * kTileWidth;
  const int last = (now.end + kTileWidth - 1) / kTileWidth * kTileWidth;
  LoadScales(ww, first, last);
  for (int i = first; i < now.begin; ++i) now.k[i] = now.v[i] = ww.zeros;
  for (int i = now.end; i < last; ++i) now.k[i] = now.v[i] = ww.zeros;
  ww.fetched = ww.spent = 0;
  ww.rows_per_work = (2 * kChunkTokens + 0.5f) / static_cast<float>(WorkOf(ww, first, last));
  Scores(ww, first, last);
  Weights(ww, chunk_index * kChunkTokens, first, last);
  for (int channel = 0; channel < w.p.v.head_dim; channel += kTileWidth) {
    PackValues(ww, channel, first, last);
    MultiplyRows(ww, ww.weight[0] + first, kChunkTokens, (last - first) / 2,
                 [&](int row, int rows) { StoreValues(ww, channel, row, rows); });
  }
  for (int r = 0; ww.lost_weights >> r != 0; ++r) {
    if ((ww.lost_weights >> r & 1) != 0) FloatRow(w, r, chunk_index);
  }
  return true;
}

void AttentionWords(const AttentionParams& p, const AttentionItem& item) {
  WordsWork ww(p, item);
  ww.k_dim = Round16(p.k.head_dim);
  FetchFirst(ww);
  LoadQueries(ww.w);
  PackQueries(ww);
  RunItem(ww.w, [&ww](int c) { return WordsChunk(ww, c); });
}

}  // namespace

void FillAttentionWords(KernelTable* table) {
  table->attention_int8 = AttentionWords;
  table->attention_int8_merge = MergePartials;
}

}  // namespace OCTET_CPU_ISA
}  // namespace octet_cpu
