// What a host may hand to a backend, and a backend to a host: descriptors that are shorter or longer than this side
// knows, with unknown tails and any values, given to the CPU backend's tables. Every call answers; what it refuses has
// a sentence; nothing outside a descriptor or a buffer is touched. Rules A2 to A5 of abi.h.
//
// Each descriptor lies in an allocation of exactly struct_size bytes. Tensors of indices never share a buffer with
// tensors that are written: their values are the caller's promise (abi.h, octet_tensor).

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "core/loader/table_check.h"
#include "octet/convert.h"
#include "octet/gguf_blocks.h"
#include "octet/tensor.h"
#include "tests/fuzz/checks.h"
#include "tests/fuzz/fuzz_input.h"

namespace octet {
namespace {

using fuzz::FuzzInput;
using fuzz::Require;

constexpr uint64_t kFloatBytes = 16 << 10, kIndexBytes = 1 << 10, kCacheBytes = 16 << 10, kWorkspaceBytes = 64 << 10;

// One open CPU device with a buffer of each use, made once.
struct Rig {
  Rig() {
    octet_error error = convert::Sized<octet_error>();
    table = octet_backend_query_v1(nullptr, &error);
    Require(table != nullptr && table->device->open(0, nullptr, &device, &error) == OCTET_OK &&
                table->stream->create(device, &stream, &error) == OCTET_OK,
            error.message);
    floats = Alloc(kFloatBytes);
    indices = Alloc(kIndexBytes);
    cache = Alloc(kCacheBytes);
    workspace = Alloc(kWorkspaceBytes);
  }
  octet_buffer* Alloc(uint64_t bytes) const {
    octet_buffer* buffer = nullptr;
    Require(table->memory->alloc(device, bytes, OCTET_MEMORY_DEVICE, &buffer, nullptr) == OCTET_OK, "no memory");
    std::memset(Map(buffer), 0, bytes);
    return buffer;
  }
  uint8_t* Map(octet_buffer* buffer) const {
    void* host = nullptr;
    Require(table->memory->map(buffer, &host, nullptr) == OCTET_OK, "no mapping");
    return static_cast<uint8_t*>(host);
  }

  const octet_backend_v1* table = nullptr;
  octet_device* device = nullptr;
  octet_stream* stream = nullptr;
  octet_buffer *floats = nullptr, *indices = nullptr, *cache = nullptr, *workspace = nullptr;
};

const Rig& TheRig() {
  static const Rig* const rig = new Rig;
  return *rig;
}

// Fills the rig's tensors. Its loops are no news to the fuzzer, and counting them takes a third of its time.
#if defined(__clang__)
__attribute__((no_sanitize("coverage")))
#endif
void Fill(uint8_t seed, int32_t* index, float* value) {
  for (size_t i = 0; i < kIndexBytes / 4; ++i) index[i] = static_cast<int32_t>(i % 7) - (seed == 255 ? 1 : 0);
  constexpr float kValues[] = {0.0f, 1.0f, -2.5f, 1e-30f, 65504.0f, 3e38f};
  for (size_t i = 0; i < kFloatBytes / 4; ++i) value[i] = kValues[(i * 7 + seed) % std::size(kValues)];
  if (seed > 200) value[seed] = std::numeric_limits<float>::quiet_NaN();
}

class Caller {
 public:
  Caller(const uint8_t* data, size_t size) : in_(data, size), rig_(TheRig()) {
    const auto seed = in_.Take<uint8_t>();
    Fill(seed, reinterpret_cast<int32_t*>(rig_.Map(rig_.indices)), reinterpret_cast<float*>(rig_.Map(rig_.floats)));
    std::memset(rig_.Map(rig_.cache), seed & 0x7f, kCacheBytes);
  }

  void Run() {
    using Operation = void (Caller::*)();
    constexpr Operation kOperations[] = {&Caller::ChooseLayout, &Caller::QuantSupports, &Caller::AttentionSupports,
                                         &Caller::Attend,       &Caller::Rows,          &Caller::Pages,
                                         &Caller::Weights,      &Caller::Elementwise,   &Caller::Tables,
                                         &Caller::Answers,      &Caller::Memory,        &Caller::Query};
    (this->*kOperations[in_.Below(std::size(kOperations))])();
  }

 private:
  // ---- Values

  // Mostly small, sometimes anything.
  template <typename T>
  T Number() {
    const uint8_t kind = in_.Take<uint8_t>();
    if (kind < 192) return static_cast<T>(kind % 65);
    if (kind < 224) return in_.Take<T>();
    constexpr T kEdges[] = {std::numeric_limits<T>::max(), std::numeric_limits<T>::min(), static_cast<T>(-1),
                            static_cast<T>(std::numeric_limits<T>::max() / 2 + 1)};
    return kEdges[kind % std::size(kEdges)];
  }
  int32_t Int() { return Number<int32_t>(); }
  template <typename T, size_t n>
  T OneOf(const T (&values)[n]) {
    return values[static_cast<size_t>(in_.Below(static_cast<int>(n)))];
  }
  // One of the listed, or anything.
  template <size_t n>
  int32_t Mostly(const int32_t (&values)[n]) {
    return in_.Below(16) == 0 ? Int() : OneOf(values);
  }
  bool Rarely() { return in_.Take<uint8_t>() >= 250; }

  // ---- Descriptors

  // `value` as the other side might have it: nullptr, too short, as here, longer with a zero or an unknown tail, or
  // with a size that cannot be.
  template <typename T>
  T* Given(T value) {
    const uint8_t kind = in_.Take<uint8_t>();
    size_t size = sizeof(T), memory = sizeof(T);
    uint8_t tail = 0;
    if (kind >= 250) {
      return nullptr;
    } else if (kind >= 240) {
      size = in_.Take<uint16_t>() % sizeof(T);
      memory = std::max(size, sizeof(uint32_t));
    } else if (kind >= 220) {
      size = memory = sizeof(T) + 1 + in_.Take<uint16_t>() % (convert::kLargestStruct - sizeof(T));
      tail = kind >= 230 ? 1 : 0;
    } else if (kind >= 215) {
      size = convert::kLargestStruct + 1 + in_.Take<uint32_t>() % 1'000'000'000;
    }
    value.struct_size = static_cast<uint32_t>(size);
    auto& bytes = memory_.emplace_back(std::make_unique<uint8_t[]>(memory));
    std::memcpy(bytes.get(), &value, std::min(memory, sizeof(T)));
    if (tail != 0) bytes[sizeof(T) + in_.Take<uint16_t>() % (memory - sizeof(T))] = tail;
    return reinterpret_cast<T*>(bytes.get());
  }
  octet_error* Error() { return error_ = Given(octet_error{}); }

  // What every call promises.
  void Check(octet_code code) {
    constexpr octet_code kCodes[] = {OCTET_OK,           OCTET_INVALID_ARGUMENT,   OCTET_NOT_FOUND,
                                     OCTET_OUT_OF_RANGE, OCTET_RESOURCE_EXHAUSTED, OCTET_FAILED_PRECONDITION,
                                     OCTET_UNIMPLEMENTED};
    Require(std::find(std::begin(kCodes), std::end(kCodes), code) != std::end(kCodes),
            "a bad descriptor is answered with code " + std::to_string(code));
    if (code == OCTET_OK || error_ == nullptr || error_->struct_size < offsetof(octet_error, message) + 2) return;
    Require(error_->code == code && error_->message_len > 0 && error_->message[0] != 0, "an error without a sentence");
  }
  // Braces fix the order in which the arguments take their bytes of the input.
  template <typename... P>
  octet_code Call(octet_code (*function)(P...), std::type_identity_t<std::tuple<P...>> args) {
    const octet_code code = std::apply(function, args);
    Check(code);
    return code;
  }
  void CheckSupport(octet_code code, const octet_support* support) {
    if (code != OCTET_OK) return;
    Require(support->level >= 0 && support->level <= 2, "a level that does not exist");
    Require(support->level > 0 || support->reason[0] != 0, "a no without a reason");
  }

  octet_cache_side Side() {
    constexpr int32_t kFloat[] = {OCTET_F32, OCTET_F16, OCTET_BF16};
    octet_cache_side side{};
    const bool quantized = in_.Flag();
    side.data_type = quantized ? Mostly({OCTET_I8, OCTET_I8, OCTET_I8, OCTET_Q8_0}) : Mostly(kFloat);
    side.scheme = quantized ? Mostly({1, 1, 2, 3}) : Mostly({0, 0, 0, 1});
    side.axis = Mostly({0, 1, 2, 3, 3, 3});
    side.head_dim = Mostly({8, 16, 24, 32, 64});
    side.group = Mostly({0, 0, 8, 16, 32});
    side.scale_type = quantized ? Mostly({OCTET_F32, OCTET_F32, OCTET_BF16}) : 0;
    side.zero_type = side.scheme == 2 ? side.scale_type : Mostly({0, 0, 0, OCTET_F32});
    side.rotation = Mostly({0, 0, 0, 2, 8, 16, 32});
    return side;
  }
  void Place(octet_cache_side& side) {
    side.order = Mostly({0, 0, 0, 0, 1});
    uint64_t* const bases[] = {&side.data_base, &side.scale_base, &side.zero_base};
    int64_t* const strides[] = {side.data_stride, side.scale_stride, side.zero_stride};
    if (in_.Flag()) *OneOf(bases) = Number<uint64_t>();
    if (in_.Flag()) OneOf(strides)[in_.Below(3)] = Number<int64_t>();
  }

  // A layout with its sides; placed by the backend and then, sometimes, changed.
  octet_kv_layout* Layout(bool placed) {
    octet_kv_layout layout{};
    layout.page_tokens = Mostly({1, 2, 4, 8, 16});
    layout.kv_heads = Mostly({1, 1, 2, 3});
    layout.num_pages = Mostly({1, 2, 3, 5});
    layout.offset_block = Mostly({0, 0, 1, 4});
    layout.layer_bytes = kCacheBytes;
    octet_cache_side k = Side(), v = Side(), extra = Side();
    const bool latent = in_.Below(8) == 0, has_extra = in_.Below(8) == 0;
    if (placed) {
      for (octet_cache_side* side : {&k, &v, &extra}) side->struct_size = sizeof *side;
      octet_kv_layout full = layout;
      full.struct_size = sizeof full;
      full.k = &k;
      full.v = latent ? &k : &v;
      full.k_extra = has_extra ? &extra : nullptr;
      rig_.table->quant->choose_layout(rig_.device, &full, &k, latent ? &k : &v, has_extra ? &extra : nullptr, nullptr);
      layout.layer_bytes = full.layer_bytes;
      if (in_.Below(4) == 0) {
        Place(k);
        Place(v);
        layout.layer_bytes = in_.Flag() ? kCacheBytes : layout.layer_bytes;
      }
    } else {
      Place(k);
      Place(v);
      Place(extra);
    }
    layout.reserved = Rarely() ? 1 : 0;
    side_k_ = Given(k);
    side_v_ = latent ? side_k_ : Given(v);
    side_extra_ = has_extra ? Given(extra) : nullptr;
    layout.k = side_k_;
    layout.v = side_v_;
    layout.k_extra = side_extra_;
    const auto known = [](int32_t n) { return std::clamp(n, 0, 1 << 12); };
    head_dim_ = known(k.head_dim) + (has_extra ? known(extra.head_dim) : 0);
    v_head_dim_ = known(latent ? k.head_dim : v.head_dim);
    kv_heads_ = known(layout.kv_heads);
    return Given(layout);
  }

  // A tensor of about this shape in a buffer of this use. Huge ones have strides that leave any buffer, so that no call
  // is long.
  octet_tensor* Tensor(octet_buffer* buffer, octet_dtype type, std::initializer_list<int64_t> shape) {
    if (Rarely()) return nullptr;
    octet_tensor t = MakeTensor(buffer, static_cast<DType>(type), shape, static_cast<uint64_t>(in_.Below(8)) * 4);
    switch (in_.Below(16)) {
      case 0:
        t.dtype = Int();
        break;
      case 1:
        t.shape[in_.Below(5)] = Number<int64_t>();
        break;
      case 2:
        t.stride[in_.Below(5)] = Number<int64_t>();
        break;
      case 3:
        t.offset = Number<uint64_t>();
        break;
      case 4:
        t.rank = Int();
        break;
      case 5:
        t.buffer = nullptr;
        break;
      default:
        break;
    }
    uint64_t elements = 1;
    for (const int64_t n : t.shape) {
      if (n < 0 || n > 1 << 14 || elements > 1 << 14) elements = 1 << 20;
      if (n > 0) elements *= static_cast<uint64_t>(n);
    }
    if (elements > 1 << 14) std::fill_n(t.stride, 4, int64_t{1} << 32);
    return tensors_.emplace_back(std::make_unique<octet_tensor>(t)).get();
  }
  octet_tensor* Floats(std::initializer_list<int64_t> shape) {
    return Tensor(rig_.floats, Mostly({OCTET_F32, OCTET_F32, OCTET_F32, OCTET_F16, OCTET_BF16}), shape);
  }
  octet_tensor* F32(std::initializer_list<int64_t> shape) { return Tensor(rig_.floats, OCTET_F32, shape); }
  octet_tensor* Indices(octet_dtype type, std::initializer_list<int64_t> shape) {
    return Tensor(rig_.indices, type, shape);
  }
  octet_tensor* Sometimes(octet_tensor* tensor) { return in_.Below(4) == 0 ? tensor : nullptr; }

  octet_kv_layer* Layer() {
    octet_kv_layer layer{};
    layer.layer = Int();
    layer.cache = Rarely() ? nullptr : rig_.cache;
    layer.cache_offset = in_.Below(8) == 0 ? Number<uint64_t>() : 0;
    layer.k_offset = Sometimes(F32({4, kv_heads_, head_dim_}));
    const auto scale = [&](int64_t dim) -> octet_tensor* {
      switch (in_.Below(6)) {
        case 0:
          return F32({1});
        case 1:
          return F32({kv_heads_});
        case 2:
          return F32({kv_heads_, dim});
        default:
          return nullptr;
      }
    };
    layer.k_scale = scale(head_dim_);
    layer.k_zero = scale(head_dim_);
    layer.v_scale = scale(v_head_dim_);
    layer.v_zero = scale(v_head_dim_);
    layer.sinks = Sometimes(F32({q_heads_}));
    return Given(layer);
  }

  octet_attention_desc* AttentionDesc(const octet_kv_layout* layout, bool small) {
    const auto limit = [&]() -> int32_t { return small ? in_.Below(64) - (Rarely() ? 64 : 0) : Int(); };
    octet_limits limits{};
    limits.requests = limit();
    limits.query_tokens = limit();
    limits.kv_len = small ? limit() : Number<int64_t>();
    limits.pages = small ? limit() : Number<int64_t>();
    limits.reserved = Rarely() ? 1 : 0;
    octet_attention_desc desc{};
    q_heads_ = kv_heads_ > 0 && kv_heads_ < 8 ? kv_heads_ * (1 + in_.Below(4)) : 4;
    desc.q_heads = in_.Below(16) == 0 && !small ? Int() : q_heads_;
    desc.causal = Mostly({0, 1});
    desc.window = Mostly({0, 0, 1, 5});
    desc.scale = Rarely() ? in_.Take<float>() : 0.25f;
    desc.softcap = in_.Below(4) == 0 ? in_.Take<float>() : 0.0f;
    desc.q_type = Mostly({OCTET_F32, OCTET_F32, OCTET_F16, OCTET_BF16, OCTET_OPAQUE});
    desc.out_type = Mostly({OCTET_F32, OCTET_F32, OCTET_F16, OCTET_BF16});
    desc.compute = Mostly({0, 1});
    desc.reserved = Rarely() ? 1 : 0;
    desc.kv = layout;
    desc.limits = Given(limits);
    desc.alibi_slopes = Sometimes(F32({q_heads_}));
    return Given(desc);
  }

  octet_support* Support() { return Given(octet_support{}); }

  // ---- Calls

  void ChooseLayout() {
    octet_kv_layout* layout = Layout(in_.Flag());
    Call(rig_.table->quant->choose_layout, {rig_.device, layout, side_k_, side_v_, side_extra_, Error()});
  }

  void QuantSupports() {
    const octet_kv_layout* layout = Layout(in_.Flag());
    octet_support* support = Support();
    CheckSupport(
        Call(rig_.table->quant->supports, {rig_.device, layout, Mostly({OCTET_F32, OCTET_BF16}), support, Error()}),
        support);
  }

  void AttentionSupports() {
    const octet_kv_layout* layout = Layout(in_.Flag());
    const octet_attention_desc* desc = AttentionDesc(layout, in_.Flag());
    octet_support* support = Support();
    CheckSupport(Call(rig_.table->attention->supports, {rig_.device, desc, support, Error()}), support);
  }

  // Plan, steps and runs.
  void Attend() {
    const octet_attention_desc* desc = AttentionDesc(Layout(true), true);
    octet_plan* plan = nullptr;
    octet_buffer* workspace = Rarely() ? nullptr : rig_.workspace;
    const uint64_t offset = in_.Below(8) == 0 ? Number<uint64_t>() : 0;
    const octet_code made =
        Call(rig_.table->attention->make_plan, {rig_.device, desc, workspace, offset, &plan, Error()});
    Require((made == OCTET_OK) == (plan != nullptr), "a plan and an error, or neither");
    if (plan == nullptr) return;
    int64_t tokens = 0;
    if (in_.Below(8) != 0) tokens = Step(plan);
    const octet_kv_layer* layer = Layer();
    octet_attention_args args{};
    args.reserved = Rarely() ? 1 : 0;
    args.q = Tensor(rig_.floats, desc->q_type, {tokens, q_heads_, head_dim_});
    args.out = Tensor(rig_.floats, desc->out_type, {tokens, q_heads_, v_head_dim_});
    args.lse = Sometimes(F32({tokens, q_heads_}));
    args.mask = Sometimes(Indices(OCTET_I8, {tokens, 8}));
    Call(rig_.table->attention->run, {rig_.stream, plan, layer, Given(args), Error()});
    rig_.table->attention->release_plan(plan);
  }

  // Fills a plan with a batch; the number of its query tokens.
  int64_t Step(octet_plan* plan) {
    octet_batch batch{};
    const size_t listed = static_cast<size_t>(in_.Below(6));
    batch.requests = Rarely() ? -1 : static_cast<int32_t>(listed);
    const auto array = [&](size_t n) {
      auto& bytes = memory_.emplace_back(std::make_unique<uint8_t[]>(n * sizeof(int32_t)));
      return reinterpret_cast<int32_t*>(bytes.get());
    };
    int32_t *q_start = array(listed + 1), *kv_len = array(listed), *kv_begin = array(listed),
            *page_start = array(listed + 1);
    for (size_t r = 0; r < listed; ++r) {
      q_start[r + 1] = q_start[r] + in_.Below(6) - (Rarely() ? 6 : 0);
      kv_len[r] = in_.Below(32) == 0 ? Int() : q_start[r + 1] - q_start[r] + in_.Below(24);
      kv_begin[r] = in_.Below(4) == 0 ? Int() : 0;
      page_start[r + 1] = std::clamp(page_start[r] + in_.Below(8) - (Rarely() ? 8 : 0), -1, 64);
    }
    const int32_t pages = page_start[listed];
    int32_t* page = array(static_cast<size_t>(std::max(pages, 0)));
    for (int32_t i = 0; i < pages; ++i) page[i] = in_.Below(32) == 0 ? Int() : in_.Below(3);
    batch.q_start = Rarely() ? nullptr : q_start;
    batch.kv_len = Rarely() ? nullptr : kv_len;
    batch.kv_begin = in_.Flag() ? kv_begin : nullptr;
    batch.page_start = Rarely() ? nullptr : page_start;
    batch.pages = Rarely() ? nullptr : page;
    Call(rig_.table->attention->refill, {rig_.stream, plan, Given(batch), Error()});
    return std::max(0, q_start[listed]);
  }

  void Rows() {
    const octet_kv_layout* layout = Layout(true);
    const octet_kv_layer* layer = Layer();
    const int64_t rows = in_.Below(8);
    octet_kv_tokens tokens{};
    tokens.reserved = Rarely() ? 1 : 0;
    tokens.k = F32({rows, kv_heads_, head_dim_});
    tokens.v = side_v_ == side_k_ ? nullptr : F32({rows, kv_heads_, v_head_dim_});
    if (in_.Below(8) == 0) std::swap(tokens.k, tokens.v);
    tokens.slots = Indices(OCTET_I64, {rows});
    // As 64-bit numbers: small where every second 32-bit one is zero.
    auto* slot = reinterpret_cast<int64_t*>(rig_.Map(rig_.indices));
    for (size_t i = 0; i < 16; ++i) slot[i] = in_.Below(32) == 0 ? Number<int64_t>() : in_.Below(8) - 1;
    tokens.positions = in_.Flag() ? Indices(OCTET_I32, {rows}) : nullptr;
    const auto& quant = *rig_.table->quant;
    Call(in_.Flag() ? quant.append : quant.gather, {rig_.stream, layout, layer, Given(tokens), Error()});
  }

  void Pages() {
    const octet_kv_layout* layout = Layout(true);
    const octet_kv_layer* layer = Layer();
    const int64_t pages = in_.Below(4);
    const auto& quant = *rig_.table->quant;
    const uint64_t offset = in_.Below(4) == 0 ? Number<uint64_t>() : 0;
    octet_buffer* outside = Rarely() ? nullptr : rig_.workspace;
    switch (in_.Below(3)) {
      case 0:
        Call(quant.copy_pages, {rig_.stream, layout, layer, Indices(OCTET_I32, {pages, 2}), Error()});
        break;
      case 1:
        Call(quant.export_pages, {rig_.stream, layout, layer, Indices(OCTET_I32, {pages}), outside, offset, Error()});
        break;
      default:
        Call(quant.import_pages, {rig_.stream, layout, layer, Indices(OCTET_I32, {pages}), outside, offset, Error()});
        break;
    }
  }

  void Weights() {
    constexpr int32_t kTypes[] = {OCTET_F32,  OCTET_F16,  OCTET_BF16, OCTET_Q4_0, OCTET_Q4_1, OCTET_Q5_0,
                                  OCTET_Q5_1, OCTET_Q8_0, OCTET_Q4_K, OCTET_Q5_K, OCTET_Q6_K};
    octet_weight_desc desc{};
    desc.columns = Mostly({32, 64, 256, 8});
    desc.use = in_.Below(16) == 0 ? static_cast<uint32_t>(Int()) : static_cast<uint32_t>(in_.Below(8));
    desc.max_tokens = Mostly({1, 4, 7});
    desc.x_type = Mostly({OCTET_F32, OCTET_F32, OCTET_BF16, OCTET_F16});
    desc.y_type = Mostly({OCTET_F32, OCTET_F32, OCTET_BF16, OCTET_F16});
    const size_t listed = static_cast<size_t>(in_.Below(4));
    desc.num_parts = Rarely() ? (in_.Flag() ? -1 : 1 << 20) : static_cast<int32_t>(listed);
    std::vector<const octet_weight_part*> parts;
    int64_t rows = 0;
    bool readable = true;  // every part's rows are in memory
    for (size_t i = 0; i < listed; ++i) {
      octet_weight_part part{};
      part.dtype = Mostly(kTypes);
      part.rows = in_.Below(16) == 0 ? Number<int64_t>() : 1 + in_.Below(20);
      const bool usual = desc.columns > 0 && desc.columns <= 256 && part.rows > 0 && part.rows <= 64;
      const int64_t row_bytes = usual ? GgufRowBytes(static_cast<DType>(part.dtype), desc.columns) : 0;
      part.row_stride_bytes = in_.Below(16) == 0 ? Number<int64_t>() : row_bytes + in_.Below(2) * 32;
      readable = readable && usual && part.row_stride_bytes >= 0 && part.row_stride_bytes <= 2048;
      const size_t bytes = readable ? static_cast<size_t>((part.rows - 1) * part.row_stride_bytes + row_bytes) : 1;
      part.data = Rarely() ? nullptr : memory_.emplace_back(std::make_unique<uint8_t[]>(bytes)).get();
      if (usual && in_.Below(4) == 0) {
        const size_t scale_bytes = static_cast<size_t>(part.rows) * sizeof(float);
        part.row_scale = reinterpret_cast<float*>(memory_.emplace_back(std::make_unique<uint8_t[]>(scale_bytes)).get());
      }
      rows += usual ? part.rows : 1;
      parts.push_back(Given(part));
    }
    // The list has as many entries as num_parts says, or is not looked at.
    desc.parts = Rarely() ? nullptr : parts.data();
    const octet_weight_desc* given = Given(desc);
    const auto& dense = *rig_.table->dense;
    octet_support* support = Support();
    CheckSupport(Call(dense.supports_weight, {rig_.device, given, support, Error()}), support);
    if (!readable) return;
    octet_weight* weight = nullptr;
    const octet_code made = Call(dense.prepare_weight, {rig_.stream, given, &weight, Error()});
    Require((made == OCTET_OK) == (weight != nullptr), "a weight and an error, or neither");
    if (weight == nullptr) return;
    const int64_t tokens = in_.Below(8);
    octet_linear_args args{};
    args.norm_eps = 1e-5f;
    args.x = Tensor(rig_.floats, desc.x_type, {tokens, desc.columns});
    args.y = Tensor(rig_.floats, desc.y_type, {tokens, rows});
    args.bias = Sometimes(F32({rows}));
    args.norm_gain = Sometimes(F32({desc.columns}));
    args.residual = Sometimes(Tensor(rig_.floats, desc.y_type, {tokens, rows}));
    args.w = Rarely() ? nullptr : weight;
    args.workspace = in_.Below(4) == 0 ? nullptr : rig_.workspace;
    args.workspace_offset = in_.Below(8) == 0 ? Number<uint64_t>() : 0;
    Call(dense.linear, {rig_.stream, Given(args), Error()});
    Call(dense.embed, {rig_.stream, weight, Indices(OCTET_I32, {tokens}), 2.0f,
                       Tensor(rig_.floats, desc.y_type, {tokens, desc.columns}), Error()});
    dense.release_weight(weight);
  }

  void Elementwise() {
    const auto& dense = *rig_.table->dense;
    const int64_t rows = in_.Below(6), n = in_.Below(40);
    const int32_t kind = Mostly({1, 2, 3, 4, 5, 6});
    switch (in_.Below(5)) {
      case 0:
        Call(dense.norm,
             {rig_.stream, kind, Floats({rows, n}), F32({n}), Sometimes(F32({n})), 1e-5f, Floats({rows, n}), Error()});
        break;
      case 1:
        Call(dense.rope, {rig_.stream, Floats({rows, 2, n}), Indices(OCTET_I32, {rows}), F32({7, n / 2, 2}),
                          Mostly({0, 1}), Error()});
        break;
      case 2:
        Call(dense.activation, {rig_.stream, kind, Floats({rows, kind <= 3 ? 2 * n : n}), Floats({rows, n}), Error()});
        break;
      case 3:
        Call(dense.add, {rig_.stream, Floats({rows, n}), Floats({rows, n}), Error()});
        break;
      default:
        Call(dense.gather_rows, {rig_.stream, Floats({7, n}), Indices(OCTET_I32, {rows}), Floats({rows, n}), Error()});
        break;
    }
  }

  // A backend's tables with something missing, short or of another draft, as the loader checks them.
  void Tables() {
    octet_backend_v1 table = *rig_.table;
    octet_quant_ops quant = *table.quant;
    octet_dense_ops dense = *table.dense;
    table.quant = &quant;
    table.dense = in_.Below(8) == 0 ? nullptr : &dense;
    constexpr size_t kEntry = sizeof(void*);
    const auto clear = [&](auto& part) {
      const auto entry = in_.Take<uint8_t>() % (sizeof part / kEntry);
      if (in_.Flag()) std::memset(reinterpret_cast<char*>(&part) + entry * kEntry, 0, kEntry);
    };
    clear(quant);
    clear(dense);
    if (in_.Flag()) quant.struct_size = Number<uint32_t>();
    if (in_.Flag()) table.abi_draft = Number<uint32_t>();
    const bool whole = in_.Flag();
    if (!whole) table.struct_size = in_.Take<uint16_t>();
    const size_t memory = std::clamp<size_t>(table.struct_size, offsetof(octet_backend_v1, name), sizeof table);
    const auto bytes = std::make_unique<uint8_t[]>(memory);
    std::memcpy(bytes.get(), &table, memory);
    fuzz::RequireSentence(CheckTable(*reinterpret_cast<octet_backend_v1*>(bytes.get())));
  }

  // What a backend writes into the host's structs.
  void Answers() {
    octet_error error = in_.Take<octet_error>();
    octet_support support = in_.Take<octet_support>();
    const auto code = Mostly({0, 3, 12, 13, 14, 15});
    const octet::Status status = convert::ReadStatus(code, error);
    Require(status.ok() == (code == 0) && (status.ok() || !status.message().empty()), "an error without a sentence");
    const octet::Support read = convert::ReadSupport(code, error, support);
    Require(read.level >= 0 && read.level <= 2 && (read.level > 0 || !read.reason.empty()), "a no without a reason");

    static octet_device_info info;
    info = in_.Take<octet_device_info>();
    static octet_code answer;
    answer = Mostly({0, 0, 0, 14});
    octet_device_ops device{};
    device.describe = [](uint32_t, octet_device_info* out, octet_error*) {
      *out = info;
      return answer;
    };
    octet_backend_v1 table{};
    table.device = &device;
    const auto described = DescribeDevice(table, 0);
    if (described.ok()) Require(described->lanes > 0 && described->preferred_alignment > 0, "a device without lanes");
  }

  void Memory() {
    const auto& memory = *rig_.table->memory;
    const uint64_t offset = Number<uint64_t>(), from = Number<uint64_t>(), bytes = Number<uint64_t>();
    uint8_t host[256] = {};
    switch (in_.Below(5)) {
      case 0:
        if (bytes > sizeof host && offset < kCacheBytes) return;  // the host's side is its own promise
        Call(memory.write, {rig_.stream, rig_.cache, offset, host, bytes, Error()});
        break;
      case 1:
        if (bytes > sizeof host && offset < kCacheBytes) return;
        Call(memory.read, {rig_.stream, rig_.cache, offset, host, bytes, Error()});
        break;
      case 2:
        Call(memory.copy, {rig_.stream, rig_.cache, offset, rig_.floats, from, bytes, Error()});
        break;
      case 3:
        Call(memory.fill, {rig_.stream, rig_.cache, offset, bytes, 7, Error()});
        break;
      default:
        Call(memory.info, {rig_.device, Given(octet_memory_info{}), Error()});
        break;
    }
  }

  // Only tables of the host that are refused: one that is taken must live for ever.
  void Query() {
    const octet_host_v1* host = Given(octet_host_v1{});
    if (host == nullptr || host->struct_size == sizeof *host) return;
    if (host->struct_size > sizeof *host && host->struct_size <= convert::kLargestStruct) {
      const auto* tail = reinterpret_cast<const uint8_t*>(host) + sizeof *host;
      if (std::all_of(tail, tail + (host->struct_size - sizeof *host), [](uint8_t b) { return b == 0; })) return;
    }
    Require(octet_backend_query_v1(host, Error()) == nullptr, "a host table that should be refused is taken");
  }

  FuzzInput in_;
  const Rig& rig_;
  std::vector<std::unique_ptr<uint8_t[]>> memory_;
  std::vector<std::unique_ptr<octet_tensor>> tensors_;
  octet_error* error_ = nullptr;
  octet_cache_side *side_k_ = nullptr, *side_v_ = nullptr, *side_extra_ = nullptr;
  int32_t head_dim_ = 8, v_head_dim_ = 8, kv_heads_ = 1, q_heads_ = 4;
};

}  // namespace
}  // namespace octet

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  octet::Caller(data, size).Run();
  return 0;
}
