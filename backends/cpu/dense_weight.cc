// Weights of the CPU backend: packing into tiles, linear layers and embedding rows.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

#include "backends/cpu/dense.h"
#include "backends/cpu/kernels/tile_format.h"
#include "backends/cpu/onednn_linear.h"
#include "octet/checks.h"
#include "octet/gguf_blocks.h"
#include "octet/host_backend.hpp"
#include "octet/weight_checks.h"

namespace octet_cpu {
namespace {

using octet::DType;
using octet::InvalidArgument;
using octet::LinearArgs;
using octet::OkStatus;
using octet::Status;
using octet::StatusOr;
using octet::Support;
using octet::Tensor;
using octet::Unimplemented;
using octet::WeightDesc;
using octet::WeightPart;

// How x goes to the kernels of a fast weight, where the processor has them.
struct Roundings {
  bool int8 = false;         // up to kIntegerTokens tokens in 16 bits, for integer products: weights with codes
  bool bf16 = false;         // more than that, or than kFewTokens, in bf16
  OneDnn* onednn = nullptr;  // instead of bf16: these go through it
  OneDnn::Panels panels;     // of onednn
};

struct CpuWeight : octet::WeightShape {
  using WeightShape::WeightShape;
  uint64_t bytes = 0;  // counted as held
  Roundings roundings;
  struct Free {
    void operator()(uint8_t* p) const { ::operator delete (p, std::align_val_t{64}); }
  };
  std::unique_ptr<uint8_t[], Free> data;
  std::vector<float> row_scales;
  std::vector<Tile> tiles;  // by first_row
};

const CpuWeight& WeightOf(const octet::Weight& w) { return reinterpret_cast<const CpuWeight&>(w); }

int64_t TilesOf(int64_t rows) { return (rows + kTileRows - 1) / kTileRows; }

// Rows of x in the workspace: whole cache lines, and never a multiple of 4 KiB apart, which would crowd one set of L1.
int64_t PackedStride(int64_t columns) {
  const int64_t stride = (columns + 15) / 16 * 16 + 16;
  return stride % 1024 != 0 ? stride : stride + 16;
}

constexpr uint64_t kAlign = 64;

struct Sizes {
  uint64_t data = 0, scales = 0;  // bytes
  size_t tiles = 0;
};

Sizes SizesOf(const WeightDesc& d) {
  Sizes s;
  for (const WeightPart& part : d.parts) {
    const int64_t tiles = TilesOf(part.rows);
    const uint64_t bytes = static_cast<uint64_t>(tiles * TileBytes(static_cast<int32_t>(part.dtype), d.columns));
    s.data += (bytes + kAlign - 1) / kAlign * kAlign;
    if (part.row_scale != nullptr) s.scales += static_cast<uint64_t>(tiles) * kTileRows * sizeof(float);
    s.tiles += static_cast<size_t>(tiles);
  }
  return s;
}

uint64_t ResidentBytes(const Sizes& s) { return s.data + s.scales + s.tiles * sizeof(Tile) + sizeof(CpuWeight); }

StatusOr<Roundings> RoundingsOf(const Context& context, const WeightDesc& d) {
  Roundings r;
  if (!d.linear || d.exact) return r;
  const KernelTable& kernels = *context.kernels;
  const bool codes = std::any_of(d.parts.begin(), d.parts.end(),
                                 [](const WeightPart& part) { return HasCodes(static_cast<int32_t>(part.dtype)); });
  r.int8 = codes && kernels.linear_int8 != nullptr;
  r.bf16 = context.onednn == nullptr && kernels.linear_bf16 != nullptr;
  if (context.onednn != nullptr) {
    const auto panels = context.onednn->Prepare(d.columns);
    if (!panels.ok()) return panels.status();
    r.onednn = context.onednn.get();
    r.panels = *panels;
  }
  return r;
}

// x in bf16 as linear_bf16 wants it, in floats of the workspace: the operands of 16 tokens, and all.
int64_t Bf16Stride(int64_t columns) { return (columns + 31) / 32 * 16 * kPackedTokens; }
int64_t Bf16Floats(int64_t columns, int64_t tokens) {
  return Bf16Stride(columns) * ((tokens + kPackedTokens - 1) / kPackedTokens);
}

// Rows of x as linear_int8 wants them, in floats of the workspace.
int64_t Int8Stride(int64_t columns) {
  const int64_t stride = columns / 32 * kXBlockBytes;
  return stride % 4096 != 0 ? stride : stride + kXBlockBytes;
}
int64_t Int8Floats(int64_t columns, int64_t tokens) {
  return Int8Stride(columns) / 4 * std::min<int64_t>(tokens, kIntegerTokens);
}

// x as oneDNN wants it, and behind it scratch of every worker, in floats of the workspace.
int64_t OneDnnFloats(const Roundings& r, uint32_t workers, int64_t tokens) {
  return (r.onednn->XBytes(r.panels, tokens) + workers * r.onednn->ScratchBytes(r.panels)) / 4;
}

// Behind x in f32: x in bf16, for oneDNN or in integers.
int64_t RoundedFloats(int64_t columns, const Roundings& r, uint32_t workers, int64_t tokens) {
  return std::max({r.bf16 ? Bf16Floats(columns, tokens) : 0, r.int8 ? Int8Floats(columns, tokens) : 0,
                   r.onednn != nullptr ? OneDnnFloats(r, workers, tokens) : 0});
}

// x as f32, x rounded, and y where that has another type than f32.
uint64_t WorkspaceBytes(int64_t columns, int64_t rows, DType y_type, const Roundings& r, uint32_t workers,
                        int64_t tokens) {
  const int64_t floats = PackedStride(columns) * tokens + RoundedFloats(columns, r, workers, tokens) +
                         (y_type != DType::kF32 ? PackedStride(rows) * tokens : 0);
  return static_cast<uint64_t>(floats) * sizeof(float) + kAlign;
}

void PackPart(const Context& context, const WeightPart& part, int64_t columns, const Tile* tiles, uint8_t* data) {
  const auto type = static_cast<int32_t>(part.dtype);
  const int64_t tile_bytes = TileBytes(type, columns);
  context.For(TilesOf(part.rows), columns * kTileRows, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      uint8_t* tile = data + t * tile_bytes;
      std::memset(tile, 0, static_cast<size_t>(tile_bytes));
      for (int row = 0; row < tiles[t].rows; ++row) {
        const auto* stored = static_cast<const uint8_t*>(part.data) + (t * kTileRows + row) * part.row_stride_bytes;
        PackTileRow(type, stored, columns, row, tile);
      }
    }
  });
}

// Items that are large enough to be worth their weights' expansion, and enough of them for the workers. `panel_tiles`:
// of an item whose x is packed; 0: x is not.
void CutLinear(int32_t panel_tiles, int64_t workers, LinearParams* p) {
  if (panel_tiles == 0) {
    p->tiles_per_item = p->tokens <= kFewTokens && p->num_tiles < 64 ? 2 : kTilesPerItem;
    p->tokens_per_item = static_cast<int32_t>(std::min<int64_t>(p->tokens, kMaxTokensPerItem));
    return;
  }
  constexpr int64_t kStep = 2 * kPackedTokens, kLeast = 4 * kStep;
  static_assert(kStep == OneDnn::kTokenStep && kMaxPackedTokensPerItem == OneDnn::kMaxTokensPerItem,
                "one cut for both");
  p->tiles_per_item = panel_tiles;
  const int64_t panels = (p->num_tiles + panel_tiles - 1) / panel_tiles;
  const int64_t wanted = (kItemsPerWorker * workers + panels - 1) / panels;
  const int64_t most = std::max<int64_t>(1, p->tokens / kLeast);
  const int64_t least = (p->tokens + kMaxPackedTokensPerItem - 1) / kMaxPackedTokensPerItem;
  const int64_t runs = std::max(least, std::min(wanted, most));
  p->tokens_per_item = static_cast<int32_t>(((p->tokens + runs - 1) / runs + kStep - 1) / kStep * kStep);
}

Status CheckLinear(const CpuWeight& w, uint32_t workers, const LinearArgs& a) {
  if (!w.linear) return octet::FailedPrecondition("linear: the weight was prepared for embedding only");
  if (a.x == nullptr) return InvalidArgument("x is NULL");
  const int64_t tokens = a.x->shape[0];
  OCTET_RETURN_IF_ERROR(octet::CheckTensorInside("x", a.x, w.x_type, {tokens, w.columns}));
  OCTET_RETURN_IF_ERROR(octet::CheckTensorInside("y", a.y, w.y_type, {tokens, w.rows}));
  if (a.bias != nullptr) OCTET_RETURN_IF_ERROR(octet::CheckTensorInside("bias", a.bias, DType::kF32, {w.rows}));
  if (a.norm_gain != nullptr) {
    OCTET_RETURN_IF_ERROR(octet::CheckTensorInside("norm_gain", a.norm_gain, DType::kF32, {w.columns}));
  }
  if (a.residual != nullptr) {
    OCTET_RETURN_IF_ERROR(octet::CheckTensorInside("residual", a.residual, w.y_type, {tokens, w.rows}));
  }
  if (tokens > w.max_tokens) {
    return InvalidArgument("linear: x has " + std::to_string(tokens) + " rows; the weight was prepared for at most " +
                           std::to_string(w.max_tokens));
  }
  if (a.workspace == nullptr) {
    if (a.norm_gain == nullptr && w.x_type == DType::kF32 && w.y_type == DType::kF32) return OkStatus();
    return InvalidArgument("linear: norm_gain and 16-bit x or y need the workspace that supports_weight asks for");
  }
  return octet::HostBufferOf(*a.workspace)
      .CheckRange("linear workspace", a.workspace_offset,
                  WorkspaceBytes(w.columns, w.rows, w.y_type, w.roundings, workers, tokens));
}

// `packed`: x for oneDNN, and behind it scratch of every worker.
Status MultiplyByOneDnn(const Context& context, const Roundings& r, const LinearParams& p, uint8_t* packed,
                        int64_t items, int64_t flops) {
  uint8_t* const scratch = packed + r.onednn->XBytes(r.panels, p.tokens);
  const int64_t scratch_bytes = r.onednn->ScratchBytes(r.panels);
  std::mutex mutex;
  Status first;  // guarded by mutex, which only failures take
  context.ForWorkers(items, flops, [&](uint32_t worker, int64_t begin, int64_t end) {
    Status s =
        r.onednn->Run(r.panels, *context.kernels, p, packed, worker, scratch + worker * scratch_bytes, begin, end);
    if (s.ok()) return;
    const std::lock_guard<std::mutex> lock(mutex);
    if (first.ok()) first = std::move(s);
  });
  return first;
}

}  // namespace

Support Dense::SupportsWeight(const WeightDesc& d) const {
  if (const Status s = octet::CheckWeightDesc(d); !s.ok()) return Support::No(s.message());
  const bool native = (!d.linear || d.x_type == DType::kF32) && d.y_type == DType::kF32;
  const auto roundings = RoundingsOf(context_, d);
  if (!roundings.ok()) return Support::No(roundings.status().message());
  const Roundings& r = *roundings;
  const char* kind = r.bf16 && r.int8 ? "linear int8 and bf16 "
                     : r.bf16         ? "linear bf16 "
                     : r.int8         ? "linear int8 "
                                      : "linear f32 ";
  Support yes = Support::Yes(
      native ? 2 : 1,
      kind + std::string(context_.kernels->name) +
          (r.onednn == nullptr ? std::string() : std::string(", oneDNN ") + r.onednn->type_name()),
      d.linear ? WorkspaceBytes(d.columns, d.rows(), d.y_type, r, context_.host.max_workers(), d.max_tokens) : 0);
  yes.resident_bytes = ResidentBytes(SizesOf(d));
  return yes;
}

StatusOr<octet::Weight*> Dense::PrepareWeight(octet::Stream&, const WeightDesc& d) {
  OCTET_RETURN_IF_ERROR(octet::CheckWeightDesc(d));
  OCTET_RETURN_IF_ERROR(octet::CheckWeightData(d));
  const auto roundings = RoundingsOf(context_, d);
  if (!roundings.ok()) return roundings.status();
  const Sizes sizes = SizesOf(d);
  auto w = std::make_unique<CpuWeight>(d);
  w->bytes = ResidentBytes(sizes);
  w->roundings = *roundings;
  const uint64_t total = octet::HostMemoryBytes("MemTotal");
  uint8_t* memory = total > 0 && sizes.data > total
                        ? nullptr
                        : static_cast<uint8_t*>(::operator new (sizes.data, std::align_val_t{kAlign}, std::nothrow));
  if (memory == nullptr) {
    return octet::ResourceExhausted("prepare_weight: cannot allocate " + std::to_string(sizes.data) +
                                    " bytes of host memory");
  }
  w->data.reset(memory);
  w->tiles.reserve(sizes.tiles);
  w->row_scales.reserve(sizes.scales / sizeof(float));  // no growth: tiles point into it
  int64_t first_row = 0;
  uint8_t* data = memory;
  for (const WeightPart& part : d.parts) {
    const int64_t tiles = TilesOf(part.rows), tile_bytes = TileBytes(static_cast<int32_t>(part.dtype), d.columns);
    const size_t first_tile = w->tiles.size();
    for (int64_t t = 0; t < tiles; ++t) {
      const auto rows = static_cast<int32_t>(std::min<int64_t>(kTileRows, part.rows - t * kTileRows));
      const float* scales = nullptr;
      if (part.row_scale != nullptr) {
        scales = w->row_scales.data() + w->row_scales.size();
        w->row_scales.insert(w->row_scales.end(), part.row_scale + t * kTileRows,
                             part.row_scale + t * kTileRows + rows);
        w->row_scales.insert(w->row_scales.end(), static_cast<size_t>(kTileRows - rows), 0.0f);
      }
      w->tiles.push_back({data + t * tile_bytes, scales, static_cast<int32_t>(part.dtype), rows, first_row});
      first_row += rows;
    }
    PackPart(context_, part, d.columns, &w->tiles[first_tile], data);
    data += (static_cast<uint64_t>(tiles * tile_bytes) + kAlign - 1) / kAlign * kAlign;
  }
  held_->fetch_add(w->bytes);
  return reinterpret_cast<octet::Weight*>(w.release());
}

void Dense::ReleaseWeight(octet::Weight* weight) {
  auto* w = reinterpret_cast<CpuWeight*>(weight);
  if (w == nullptr) return;
  held_->fetch_sub(w->bytes);
  delete w;
}

Status Dense::Linear(octet::Stream&, const LinearArgs& a) {
  const CpuWeight& w = WeightOf(*a.w);
  const uint32_t workers = context_.host.max_workers();
  OCTET_RETURN_IF_ERROR(CheckLinear(w, workers, a));
  const int64_t tokens = a.x->shape[0];
  if (tokens == 0) return OkStatus();
  LinearParams p{};
  p.tiles = w.tiles.data();
  p.num_tiles = static_cast<int64_t>(w.tiles.size());
  p.columns = w.columns;
  p.tokens = tokens;
  p.x = octet::HostData<const float>(*a.x);
  p.x_stride = a.x->stride[0];
  p.y = octet::HostData<float>(*a.y);
  p.y_stride = a.y->stride[0];
  p.bias = a.bias != nullptr ? octet::HostData<const float>(*a.bias) : nullptr;
  p.residual = a.residual != nullptr ? octet::HostData<const float>(*a.residual) : nullptr;
  p.residual_stride = a.residual != nullptr ? a.residual->stride[0] : 0;

  const KernelTable& kernels = *context_.kernels;
  const FloatRows x(kernels, *a.x), y(kernels, *a.y);
  float* packed = nullptr;
  if (a.workspace != nullptr) {
    auto address = reinterpret_cast<uintptr_t>(octet::HostBufferOf(*a.workspace).data() + a.workspace_offset);
    packed = reinterpret_cast<float*>((address + kAlign - 1) / kAlign * kAlign);
  }
  uint32_t* bf16 = nullptr;
  uint8_t *int8 = nullptr, *onednn = nullptr;
  const int64_t bf16_stride = Bf16Stride(w.columns);
  const bool prompt = packed != nullptr && tokens > (w.roundings.int8 ? kIntegerTokens : kFewTokens);
  if (prompt && w.roundings.bf16) {
    bf16 = reinterpret_cast<uint32_t*>(packed + PackedStride(w.columns) * tokens);
    p.x_bf16 = bf16;
    p.x_bf16_stride = bf16_stride;
  }
  if (prompt && w.roundings.onednn != nullptr) {
    onednn = reinterpret_cast<uint8_t*>(packed + PackedStride(w.columns) * tokens);
  }
  if (w.roundings.int8 && packed != nullptr && tokens <= kIntegerTokens) {
    int8 = reinterpret_cast<uint8_t*>(packed + PackedStride(w.columns) * tokens);
    p.x_int8 = int8;
    p.x_int8_stride = Int8Stride(w.columns);
    p.sum_tile = kernels.sum_tile;
  }
  // Integer products do not read x again, but for tiles of floats, and those of a few tokens read it where it lies.
  const bool pack =
      packed != nullptr && (a.norm_gain != nullptr || !x.f32() || (tokens > kFewTokens && int8 == nullptr));
  if (pack || int8 != nullptr) {
    const int64_t stride = PackedStride(w.columns);
    NormParams norm{};
    norm.n = w.columns;
    norm.gain = a.norm_gain != nullptr ? octet::HostData<const float>(*a.norm_gain) : nullptr;
    norm.eps = a.norm_eps;
    context_.For(tokens, 4 * w.columns, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        // What is packed is not read again: one row is enough for all of them.
        float* to = packed + (bf16 != nullptr || onednn != nullptr ? begin : t) * stride;
        const float* from = x.Read(t, to);
        if (norm.gain != nullptr) {
          kernels.norm(norm, from, to);
          from = to;
        }
        if (bf16 != nullptr) {
          kernels.pack_x(from, w.columns, t, bf16 + t / kPackedTokens * bf16_stride);
        } else if (onednn != nullptr) {
          w.roundings.onednn->PackX(w.roundings.panels, kernels, from, t, tokens, onednn);
        } else if (pack && from != to) {
          std::memcpy(to, from, static_cast<size_t>(w.columns) * sizeof(float));
        }
        if (int8 != nullptr) kernels.quantize_x(from, w.columns, int8 + t * Int8Stride(w.columns));
      }
    });
    if (pack) {
      p.x = packed;
      p.x_stride = stride;
    }
  }
  if (!y.f32()) {
    p.y = packed + PackedStride(w.columns) * tokens + RoundedFloats(w.columns, w.roundings, workers, tokens);
    p.y_stride = PackedStride(w.rows);
    if (a.residual != nullptr) {
      const FloatRows residual(kernels, *a.residual);
      context_.For(tokens, w.rows, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) residual.Read(t, p.y + t * p.y_stride);
      });
      p.residual = p.y;
      p.residual_stride = p.y_stride;
    }
  }
  CutLinear(bf16 != nullptr ? kPackedTilesPerItem : onednn != nullptr ? kPanelTiles : 0, workers, &p);
  const int64_t panels = (p.num_tiles + p.tiles_per_item - 1) / p.tiles_per_item;
  const int64_t runs = (tokens + p.tokens_per_item - 1) / p.tokens_per_item;
  const int64_t flops = 2 * w.columns * kTileRows * p.tiles_per_item * p.tokens_per_item;
  if (onednn != nullptr) {
    OCTET_RETURN_IF_ERROR(MultiplyByOneDnn(context_, w.roundings, p, onednn, panels * runs, flops));
  } else {
    const auto kernel = bf16 != nullptr ? kernels.linear_bf16 : int8 != nullptr ? kernels.linear_int8 : kernels.linear;
    context_.For(panels * runs, flops, [&](int64_t begin, int64_t end) { kernel(p, begin, end); });
  }
  if (!y.f32()) {
    context_.For(tokens, w.rows, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) y.Write(t, p.y + t * p.y_stride);
    });
  }
  return OkStatus();
}

Status Dense::Embed(octet::Stream&, const octet::Weight& weight, const Tensor& ids, float scale, const Tensor& y) {
  const CpuWeight& w = WeightOf(weight);
  if (!w.embed) return octet::FailedPrecondition("embed: the weight was prepared for linear layers only");
  OCTET_RETURN_IF_ERROR(octet::CheckTensorInside("ids", &ids, DType::kI32, {-1}));
  const int64_t tokens = ids.shape[0];
  OCTET_RETURN_IF_ERROR(octet::CheckTensorInside("y", &y, w.y_type, {tokens, w.columns}));
  const auto* id = octet::HostData<const int32_t>(ids);
  const KernelTable& kernels = *context_.kernels;
  return ForRows(context_, scratch_, 16 * w.columns, nullptr, FloatRows(kernels, y), false,
                 [&](int64_t t, const float*, float* row) {
                   if (id[t] < 0 || id[t] >= w.rows) {
                     std::fill(row, row + w.columns, std::numeric_limits<float>::quiet_NaN());
                     return;
                   }
                   const auto after = std::upper_bound(w.tiles.begin(), w.tiles.end(), int64_t{id[t]},
                                                       [](int64_t r, const Tile& tile) { return r < tile.first_row; });
                   const Tile& tile = *(after - 1);
                   kernels.embed(&tile, id[t] - tile.first_row, w.columns, scale, row);
                 });
}

}  // namespace octet_cpu
