#include "tests/conformance/scene.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "tests/reference/float_types.h"
#include "tests/reference/random.h"

namespace octet::conformance {
namespace {

using reference::Random;

// Row [position][head] of a [..][heads][dim] array.
std::span<float> Row(std::vector<float>& x, int index, int heads, int head, int dim) {
  return std::span<float>(x).subspan(static_cast<size_t>((index * heads + head) * dim), static_cast<size_t>(dim));
}
void Scale(std::span<float> x, float factor) {
  for (float& v : x) v *= factor;
}
void Fill(std::span<float> x, float value) { std::fill(x.begin(), x.end(), value); }

// Shapes normal contents into what the case is about.
class Contents {
 public:
  Contents(const AttentionCase& c, const Sequence& sequence, SequenceData& data, Random& random)
      : c_(c), s_(sequence), d_(data), random_(random), keys_(sequence.kv_len - sequence.kv_begin) {}

  void Shape() {
    switch (c_.data) {
      case Data::kNormal:
        break;
      case Data::kZeros:
        Fill(d_.k, 0), Fill(d_.v, 0), Fill(d_.q, 0);
        break;
      case Data::kZeroRows:
        for (int i = 0; i < keys_; i += 3) ScaleRow(i, 0.0f);
        break;
      case Data::kDenormals:
        for (int i = 0; i < keys_; i += 2) ScaleRow(i, 1e-39f);
        break;
      case Data::kSignedZeros:
        for (size_t i = 0; i < d_.k.size(); i += 2) d_.k[i] = i % 4 == 0 ? 0.0f : -0.0f;
        for (size_t i = 0; i < d_.v.size(); i += 2) d_.v[i] = i % 4 == 0 ? 0.0f : -0.0f;
        break;
      case Data::kEqualKeys:
        for (int i = 1; i < keys_; ++i) {
          for (int h = 0; h < heads(); ++h) std::ranges::copy(K(0, h), K(i, h).begin());
        }
        break;
      case Data::kHugeChannel:
        for (int i = 0; i < keys_; ++i) {
          for (int h = 0; h < heads(); ++h) {
            K(i, h)[3] *= 100.0f;
            V(i, h)[5] *= 100.0f;
          }
        }
        break;
      case Data::kOneHot:
        OneHot();
        break;
      case Data::kLongTail:
        LongTail();
        break;
      case Data::kSaturated:
        for (float& x : d_.k) x = x < 0 ? -1.0f : 1.0f;
        for (float& x : d_.v) x = x < 0 ? -1.0f : 1.0f;
        break;
      case Data::kHeadMagnitudes:
        for (int i = 0; i < keys_; ++i) {
          for (int h = 0; h < heads(); ++h) Scale(K(i, h), Magnitude(h)), Scale(V(i, h), Magnitude(h));
        }
        for (int i = 0; i < s_.queries; ++i) {
          for (int h = 0; h < c_.q_heads; ++h) Scale(Q(i, h), 1.0f / Magnitude(h / group()));
        }
        break;
      case Data::kEdgeValues:
        Fill(d_.k, 0);
        for (int i = 0; i < keys_; ++i) {
          for (int h = 0; h < heads(); ++h) Fill(V(i, h), static_cast<float>(s_.kv_begin + i + 1000 * h + 1));
        }
        break;
      case Data::kNanRow:
        if (s_.id == 0) K(0, heads() - 1)[1] = std::numeric_limits<float>::quiet_NaN();
        break;
      case Data::kInfinityRow:
        if (s_.id == 0) V(0, heads() - 1)[1] = -std::numeric_limits<float>::infinity();
        break;
    }
  }

 private:
  int heads() const { return c_.cache.kv_heads; }
  int group() const { return c_.q_heads / heads(); }
  static float Magnitude(int head) { return static_cast<float>(1 << (3 * head)); }
  std::span<float> K(int i, int h) { return Row(d_.k, i, heads(), h, c_.cache.k_dim); }
  std::span<float> V(int i, int h) { return Row(d_.v, i, heads(), h, c_.cache.v_dim); }
  std::span<float> Q(int i, int h) { return Row(d_.q, i, c_.q_heads, h, c_.cache.k_dim); }
  void ScaleRow(int i, float factor) {
    for (int h = 0; h < heads(); ++h) Scale(K(i, h), factor), Scale(V(i, h), factor);
  }

  // q is along one visible key, long enough that the others vanish.
  void OneHot() {
    for (int i = 0; i < s_.queries; ++i) {
      const int visible = std::max(1, keys_ - s_.queries + i + 1);
      for (int h = 0; h < c_.q_heads; ++h) {
        std::ranges::copy(K((i * 5 + h) % visible, h / group()), Q(i, h).begin());
        Scale(Q(i, h), 4.0f);
      }
    }
  }

  // Scores of ln 600 on one key and nearly 0 on all others: the tail's weights are 1/600 of the peak's.
  void LongTail() {
    for (int h = 0; h < heads(); ++h) {
      for (int i = 0; i < keys_; ++i) Scale(K(i, h), 0.01f);
      const std::vector<float> direction = random_.Normals(static_cast<size_t>(c_.cache.k_dim));
      double norm = 0;
      for (float x : direction) norm += static_cast<double>(x) * x;
      const float unit = static_cast<float>(1 / std::sqrt(norm));
      for (size_t c = 0; c < direction.size(); ++c) {
        K(keys_ / 3, h)[c] = direction[c] * unit * static_cast<float>(std::log(600.0));
        for (int i = 0; i < s_.queries; ++i) {
          for (int g = 0; g < group(); ++g) {
            Q(i, h * group() + g)[c] = direction[c] * unit * std::sqrt(static_cast<float>(c_.cache.k_dim));
          }
        }
      }
    }
  }

  const AttentionCase& c_;
  const Sequence& s_;
  SequenceData& d_;
  Random& random_;
  int keys_;
};

// Each draft token sees itself and its ancestors.
std::vector<int8_t> DraftTree(int n, Random& random) {
  std::vector<int8_t> mask(static_cast<size_t>(n * n));
  for (int i = 0; i < n; ++i) {
    if (i > 0) {
      const int parent = random.Int(std::max(0, i - 3), i - 1);
      for (int j = 0; j < n; ++j) mask[static_cast<size_t>(i * n + j)] = mask[static_cast<size_t>(parent * n + j)];
    }
    mask[static_cast<size_t>(i * n + i)] = 1;
  }
  return mask;
}

SequenceData Make(const AttentionCase& c, const Sequence& s, const std::vector<float>& offsets) {
  Random random(1000003 * static_cast<uint64_t>(s.id) + 17);
  const CacheSpec& cache = c.cache;
  const size_t keys = static_cast<size_t>((s.kv_len - s.kv_begin) * cache.kv_heads);
  SequenceData d;
  d.k = random.Normals(keys * static_cast<size_t>(cache.k_dim));
  d.v = random.Normals(keys * static_cast<size_t>(cache.v_dim));
  d.q = random.Normals(static_cast<size_t>(s.queries * c.q_heads * cache.k_dim));
  Contents(c, s, d, random).Shape();
  if (!offsets.empty()) {
    for (int p = s.kv_begin; p < s.kv_len; ++p) {
      for (int i = 0; i < cache.kv_heads * cache.k_dim; ++i) {
        d.k[static_cast<size_t>((p - s.kv_begin) * cache.kv_heads * cache.k_dim + i)] +=
            offsets[static_cast<size_t>(p / cache.offset_block * cache.kv_heads * cache.k_dim + i)];
      }
    }
  }
  if (cache.latent) {
    // V is the first v_dim channels of K.
    for (size_t row = 0; row < keys; ++row) {
      std::copy_n(&d.k[row * static_cast<size_t>(cache.k_dim)], cache.v_dim,
                  &d.v[row * static_cast<size_t>(cache.v_dim)]);
    }
  }
  for (float& x : d.q) x = reference::RoundTo(c.q_type, x);
  if (c.draft_tree) d.mask = DraftTree(s.queries, random);
  for (int i = 0; i < s.queries && c.blind_rows; i += 3)
    std::fill_n(d.mask.begin() + i * s.queries, s.queries, int8_t{0});
  return d;
}

}  // namespace

std::string NameOf(const AttentionCase& c) {
  std::string name = c.name.empty() ? "" : c.name + "_";
  name += NameOf(c.cache) + "_h" + std::to_string(c.q_heads);
  name += "_b" + std::to_string(c.sequences.size());
  int queries = 0, kv_len = 0;
  bool ragged = false;
  for (const Sequence& s : c.sequences) {
    ragged = ragged || s.kv_len != c.sequences[0].kv_len || s.queries != c.sequences[0].queries;
    queries = std::max(queries, s.queries);
    kv_len = std::max(kv_len, s.kv_len);
  }
  name += ragged ? "_ragged" : "";
  name += "_q" + std::to_string(queries) + "_n" + std::to_string(kv_len) + "_w" + std::to_string(c.window);
  if (!c.causal) name += "_full";
  if (c.softcap > 0) name += "_softcap";
  if (c.alibi) name += "_alibi";
  if (c.sinks) name += "_sinks";
  if (c.draft_tree) name += "_tree";
  if (c.blind_rows) name += "_blind";
  if (c.exact) name += "_exact";
  if (c.q_type != DType::kF32 || c.out_type != DType::kF32) {
    name += std::string("_") + DTypeName(c.q_type) + "to" + DTypeName(c.out_type);
  }
  return name;
}

Status Scene::Init(const AttentionCase& c) {
  case_ = c;
  scale_ = 1.0f / std::sqrt(static_cast<float>(c.cache.k_dim));
  int positions = 1, num_pages = c.spare_pages;
  AttentionLimits limits{1, 1, 1, 1};
  int listed_pages = 0, query_tokens = 0;
  for (const Sequence& s : c.sequences) {
    const int pages = (s.kv_len - s.kv_begin + c.cache.page_tokens - 1) / c.cache.page_tokens;
    positions = std::max(positions, s.kv_len);
    num_pages += pages;
    listed_pages += pages;
    query_tokens += s.queries;
    limits.kv_len = std::max<int64_t>(limits.kv_len, s.kv_len);
  }
  limits.requests = static_cast<int32_t>(c.sequences.size());
  limits.query_tokens = std::max(1, query_tokens);
  limits.pages = std::max(1, listed_pages);
  OCTET_RETURN_IF_ERROR(cache_.Init(c.cache, num_pages, positions, c.garbage));

  Random random(3);
  if (c.sinks) sinks_ = random.Normals(static_cast<size_t>(c.q_heads));
  cache_.SetSinks(sinks_);
  AttentionDesc desc;
  desc.q_heads = c.q_heads;
  desc.causal = c.causal;
  desc.window = c.window;
  desc.scale = scale_;
  desc.softcap = c.softcap;
  desc.q_type = c.q_type;
  desc.out_type = c.out_type;
  desc.exact = c.exact;
  desc.kv = &cache_.layout();
  desc.limits = limits;
  if (c.alibi) {
    for (int h = 0; h < c.q_heads; ++h)
      slopes_.push_back(std::exp2(-8.0f * static_cast<float>(h + 1) / static_cast<float>(c.q_heads)));
    slopes_block_ = std::make_unique<Block>(slopes_);
    slopes_tensor_ = slopes_block_->View(DType::kF32, {c.q_heads});
    desc.alibi_slopes = &slopes_tensor_;
  }
  AttentionBackend& attention = TheSubject().device->attention();
  const Support support = attention.Supports(desc);
  if (support.level == 0) return Unimplemented(support.reason);
  workspace_.emplace(support.workspace_bytes, c.garbage);
  auto plan = attention.MakePlan(desc, workspace_->buffer(), workspace_->offset());
  OCTET_RETURN_IF_ERROR(Promised("make_plan", plan.status()));
  plan_ = std::move(*plan);

  std::vector<int32_t> pages(static_cast<size_t>(num_pages));
  for (int i = 0; i < num_pages; ++i) pages[static_cast<size_t>(i)] = i;
  if (c.page_seed != 0) pages = Random(c.page_seed).Permutation(num_pages);
  size_t next = 0;
  for (const Sequence& s : c.sequences) {
    data_.push_back(Make(c, s, OffsetTable(c.cache, positions)));
    const size_t count = static_cast<size_t>((s.kv_len - s.kv_begin + c.cache.page_tokens - 1) / c.cache.page_tokens);
    data_.back().pages.assign(pages.begin() + static_cast<int64_t>(next),
                              pages.begin() + static_cast<int64_t>(next + count));
    next += count;
  }
  return OkStatus();
}

Status Scene::Append(int sequence, int begin, int end) {
  const Sequence& s = case_.sequences[static_cast<size_t>(sequence)];
  const SequenceData& d = data(sequence);
  const CacheSpec& spec = case_.cache;
  begin = std::max(begin, s.kv_begin);
  Rows rows;
  for (int p = begin; p < end; ++p) {
    const int index = p - s.kv_begin;
    rows.slots.push_back(static_cast<int64_t>(d.pages[static_cast<size_t>(index / spec.page_tokens)]) *
                             spec.page_tokens +
                         index % spec.page_tokens);
    rows.positions.push_back(p);
  }
  auto copy = [&](const std::vector<float>& from, int dim, std::vector<float>& to) {
    const int64_t width = spec.kv_heads * dim;
    to.assign(from.begin() + (begin - s.kv_begin) * width, from.begin() + (end - s.kv_begin) * width);
  };
  if (begin < end) {
    copy(d.k, spec.k_dim, rows.k);
    copy(d.v, spec.v_dim, rows.v);
  }
  return cache_.Append(rows);
}

Status Scene::AppendAll() {
  for (size_t i = 0; i < data_.size(); ++i) {
    OCTET_RETURN_IF_ERROR(Append(static_cast<int>(i), 0, case_.sequences[i].kv_len));
  }
  return OkStatus();
}

std::vector<Piece> Scene::WholePieces() const {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < case_.sequences.size(); ++i) {
    const Sequence& s = case_.sequences[i];
    pieces.push_back({static_cast<int>(i), s.kv_len - s.queries, s.kv_len});
  }
  return pieces;
}

Status Scene::Run(const std::vector<Piece>& pieces, AttentionResult* result) {
  const CacheSpec& spec = case_.cache;
  std::vector<int32_t> q_start = {0}, kv_len, kv_begin, page_start = {0}, pages;
  std::vector<float> q;
  std::vector<int8_t> mask;
  int columns = 1;
  for (const Piece& piece : pieces) columns = std::max(columns, piece.end - piece.begin);
  for (const Piece& piece : pieces) {
    const Sequence& s = case_.sequences[static_cast<size_t>(piece.sequence)];
    const SequenceData& d = data(piece.sequence);
    const int first = piece.begin - (s.kv_len - s.queries), n = piece.end - piece.begin;
    const int64_t width = case_.q_heads * spec.k_dim;
    q.insert(q.end(), d.q.begin() + first * width, d.q.begin() + (first + n) * width);
    for (int i = 0; i < n && case_.draft_tree; ++i) {
      for (int j = 0; j < columns; ++j) {
        mask.push_back(j < n ? d.mask[static_cast<size_t>((first + i) * s.queries + first + j)] : int8_t{0});
      }
    }
    q_start.push_back(q_start.back() + n);
    kv_len.push_back(piece.end);
    kv_begin.push_back(s.kv_begin);
    const int used = (piece.end - s.kv_begin + spec.page_tokens - 1) / spec.page_tokens;
    pages.insert(pages.end(), d.pages.begin(), d.pages.begin() + used);
    page_start.push_back(static_cast<int32_t>(pages.size()));
  }
  const int tokens = q_start.back();
  const bool from_zero = std::ranges::all_of(kv_begin, [](int32_t b) { return b == 0; });
  Batch batch{static_cast<int32_t>(pieces.size()),   q_start.data(),    kv_len.data(),
              from_zero ? nullptr : kv_begin.data(), page_start.data(), pages.data()};
  AttentionBackend& attention = TheSubject().device->attention();
  OCTET_RETURN_IF_ERROR(Promised("refill", attention.Refill(TheSubject().s(), *plan_, batch)));
  // Host arrays are borrowed for the call only (rule A18).
  for (std::vector<int32_t>* array : {&q_start, &kv_len, &kv_begin, &page_start, &pages}) {
    std::fill(array->begin(), array->end(), -1);
  }

  const Block q_block(case_.q_type, q), mask_block(mask);
  Block out(static_cast<uint64_t>(tokens * case_.q_heads * spec.v_dim * ElementBytes(case_.out_type)));
  Block lse(static_cast<uint64_t>(tokens * case_.q_heads) * 4);
  const Tensor qt = q_block.View(case_.q_type, {tokens, case_.q_heads, spec.k_dim});
  const Tensor ot = out.View(case_.out_type, {tokens, case_.q_heads, spec.v_dim});
  const Tensor lt = lse.View(DType::kF32, {tokens, case_.q_heads});
  const Tensor mt = mask_block.View(DType::kI8, {tokens, columns});
  const AttentionArgs args{&qt, &ot, case_.lse ? &lt : nullptr, case_.draft_tree ? &mt : nullptr};
  const Status status = attention.Run(TheSubject().s(), *plan_, cache_.layer(), args);
  Sync();
  result->out_bytes = out.Bytes();
  result->out = out.Floats(case_.out_type);
  result->lse_bytes.clear();
  result->lse.clear();
  if (case_.lse) {
    result->lse_bytes = lse.Bytes();
    result->lse = lse.Floats(DType::kF32);
  } else {
    Untouched(lse, "lse, which was not wanted,");
  }
  return Promised("run", status);
}

Status RunAndCheck(const AttentionCase& c) {
  Scene scene;
  OCTET_RETURN_IF_ERROR(scene.Init(c));
  OCTET_RETURN_IF_ERROR(scene.AppendAll());
  AttentionResult result;
  OCTET_RETURN_IF_ERROR(scene.Run(scene.WholePieces(), &result));
  scene.Check(scene.WholePieces(), result);
  return OkStatus();
}

Status StillWorks() {
  AttentionCase c;
  c.cache = Both(Int8(64));
  c.sequences = {{1, 37, 0, 0}, {5, 20, 0, 1}};
  const Status status = RunAndCheck(c);
  if (status.code() != Code::kUnimplemented) return status;
  c.cache = Both(Float(DType::kF32));
  return RunAndCheck(c);
}

}  // namespace octet::conformance
