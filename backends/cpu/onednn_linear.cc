// The one file that knows oneDNN: its C interface, of 2.6 and of 3.x, as the headers found by CMake declare it.
#include "backends/cpu/onednn_linear.h"

#include <algorithm>
#include <cstring>

#if defined(OCTET_CPU_ONEDNN)
#include <dlfcn.h>
#include <oneapi/dnnl/dnnl.h>

#include <atomic>
#include <map>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>
#endif

namespace octet_cpu {
namespace {

using octet::Status;
using octet::StatusOr;

constexpr int64_t kStepColumns = kPanelStep;
constexpr int64_t kMostColumns = 640;  // of a panel

int64_t RoundUp(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

constexpr int64_t kRunTokens = 128;  // that one product takes where there are so many; kTokenStep otherwise
static_assert(kRunTokens % OneDnn::kTokenStep == 0, "whole steps");

int64_t PanelsOf(const OneDnn::Panels& panels) { return (panels.columns + panels.block - 1) / panels.block; }

// A worker's scratch, in bytes: where its parts begin.
struct Scratch {
  int64_t sums, panel;                        // f32; the panel as it is multiplied
  int64_t floats, scales, offsets, products;  // kInt8: the panel in f32, its rows' scales and offsets, their products
  int64_t onednn;                             // the library's own

  Scratch(const OneDnn::Panels& panels, OneDnn::Type type) {
    constexpr int64_t kWord = 4;
    const int64_t elements = panels.block * kPanelRows;
    int64_t at = 0;
    const auto place = [&at](int64_t bytes) { return std::exchange(at, at + RoundUp(bytes, 64)); };
    sums = place(OneDnn::kMaxTokensPerItem * kPanelRows * kWord);
    panel = place(elements * (type == OneDnn::Type::kInt8 ? 1 : type == OneDnn::Type::kBf16 ? 2 : 4));
    const bool int8 = type == OneDnn::Type::kInt8;
    floats = place(int8 ? elements * kWord : 0);
    scales = place(int8 ? kPanelRows * kWord : 0);
    offsets = place(int8 ? kPanelRows * kWord : 0);
    products = place(int8 ? kRunTokens * kPanelRows * kWord : 0);
    onednn = at;
  }
};

}  // namespace

// Packed x: panels one behind the other, of [tokens to a whole step][columns of the panel to a multiple of 64]. kInt8:
// that twice, x's codes and those of what they leave of x, and behind both what they are worth, [2][panels][tokens to a
// whole step].
int64_t OneDnn::PlaneBytes(const Panels& panels, int64_t tokens) const {
  return RoundUp(tokens, kTokenStep) * RoundUp(panels.columns, kStepColumns) * ElementBytes();
}

int64_t OneDnn::XBytes(const Panels& panels, int64_t tokens) const {
  const int64_t plane = PlaneBytes(panels, tokens);
  if (type_ != Type::kInt8) return plane;
  return 2 * plane + 2 * PanelsOf(panels) * RoundUp(tokens, kTokenStep) * static_cast<int64_t>(sizeof(float));
}

int64_t OneDnn::ScratchBytes(const Panels& panels) const {
  return Scratch(panels, type_).onednn + panels.scratchpad_bytes;
}

void OneDnn::PackX(const Panels& panels, const KernelTable& kernels, const float* x, int64_t token, int64_t tokens,
                   uint8_t* packed) const {
  const int64_t rows = RoundUp(tokens, kTokenStep), bytes = ElementBytes(), plane = PlaneBytes(panels, tokens);
  const int planes = type_ == Type::kInt8 ? 2 : 1;
  for (int64_t c = 0, panel = 0; c < panels.columns; c += panels.block, ++panel) {
    const int64_t count = std::min(panels.block, panels.columns - c), padded = RoundUp(count, kStepColumns);
    float rest[kMostColumns];
    const float* from = x + c;
    for (int i = 0; i < planes; ++i) {
      uint8_t* const row = packed + i * plane + (c * rows + token * padded) * bytes;
      if (type_ == Type::kInt8) {
        float* const scales = reinterpret_cast<float*>(packed + 2 * plane) + (i * PanelsOf(panels) + panel) * rows;
        const float scale = scales[token] = kernels.quantize_row(from, count, row);
        for (int64_t k = 0; k < count; ++k) rest[k] = from[k] - scale * static_cast<float>(row[k] - 128);
        from = rest;
        if (token + 1 == tokens) std::fill(scales + tokens, scales + rows, 0.0f);
      } else {
        kernels.store_row(type_ == Type::kBf16 ? Element::kBF16 : Element::kF32, from, count, row);
      }
      std::memset(row + count * bytes, 0, static_cast<size_t>((padded - count) * bytes));
      if (token + 1 == tokens)
        std::memset(row + padded * bytes, 0, static_cast<size_t>((rows - tokens) * padded * bytes));
    }
  }
}

#if !defined(OCTET_CPU_ONEDNN)

StatusOr<std::shared_ptr<OneDnn>> OneDnn::Open(Type, uint32_t, const char*) {
  return octet::Unavailable(
      "this build has no oneDNN: its headers (package libdnnl-dev) were not there, or "
      "OCTET_CPU_ONEDNN was OFF");
}

#else

namespace {

// Columns of a panel: as many panels as needed, of the same size but for the last.
int64_t BlockOf(int64_t columns) {
  const int64_t steps = RoundUp(columns, kStepColumns) / kStepColumns, most = kMostColumns / kStepColumns;
  const int64_t panels = (steps + most - 1) / most;
  return (steps + panels - 1) / panels * kStepColumns;
}

#define OCTET_TEXT_OF(x) #x
#define OCTET_TEXT(x) OCTET_TEXT_OF(x)
constexpr char kLibrary[] = "libdnnl.so." OCTET_TEXT(DNNL_VERSION_MAJOR);

// What is used of an open library, with the types that its headers give.
class Library {
 private:
  void* handle_;
  const char* missing_ = nullptr;

  template <typename Function>
  Function Find(const char* name) {
    auto function = reinterpret_cast<Function>(dlsym(handle_, name));
    if (function == nullptr) missing_ = name;
    return function;
  }

 public:
  explicit Library(void* handle) : handle_(handle) {}
  const char* missing() const { return missing_; }  // a function that it lacks, or null

#define OCTET_DNNL_FUNCTION(name) decltype(&dnnl_##name) name = Find<decltype(&dnnl_##name)>("dnnl_" #name)
  OCTET_DNNL_FUNCTION(version);
  OCTET_DNNL_FUNCTION(engine_create);
  OCTET_DNNL_FUNCTION(engine_destroy);
  OCTET_DNNL_FUNCTION(stream_create);
  OCTET_DNNL_FUNCTION(stream_destroy);
  OCTET_DNNL_FUNCTION(memory_create);
  OCTET_DNNL_FUNCTION(memory_destroy);
  OCTET_DNNL_FUNCTION(memory_set_data_handle);
  OCTET_DNNL_FUNCTION(memory_desc_get_size);
#if DNNL_VERSION_MAJOR >= 3
  OCTET_DNNL_FUNCTION(memory_desc_create_with_tag);
  OCTET_DNNL_FUNCTION(memory_desc_destroy);
  OCTET_DNNL_FUNCTION(matmul_primitive_desc_create);
#else
  OCTET_DNNL_FUNCTION(memory_desc_init_by_tag);
  OCTET_DNNL_FUNCTION(matmul_desc_init);
  OCTET_DNNL_FUNCTION(primitive_desc_create);
#endif
  OCTET_DNNL_FUNCTION(primitive_attr_create);
  OCTET_DNNL_FUNCTION(primitive_attr_destroy);
  OCTET_DNNL_FUNCTION(primitive_attr_set_scratchpad_mode);
  OCTET_DNNL_FUNCTION(primitive_attr_set_post_ops);
  OCTET_DNNL_FUNCTION(post_ops_create);
  OCTET_DNNL_FUNCTION(post_ops_destroy);
  OCTET_DNNL_FUNCTION(post_ops_append_sum);
  OCTET_DNNL_FUNCTION(primitive_desc_query);
  OCTET_DNNL_FUNCTION(primitive_desc_query_md);
  OCTET_DNNL_FUNCTION(primitive_desc_destroy);
  OCTET_DNNL_FUNCTION(primitive_create);
  OCTET_DNNL_FUNCTION(primitive_destroy);
  OCTET_DNNL_FUNCTION(primitive_execute);
#undef OCTET_DNNL_FUNCTION

  // Of the OpenMP that it computes with; null where it has none.
  void (*omp_set_num_threads)(int) = nullptr;
  int (*omp_get_max_threads)() = nullptr;

  bool FindOpenMp() {
    omp_set_num_threads = Find<void (*)(int)>("omp_set_num_threads");
    omp_get_max_threads = Find<int (*)()>("omp_get_max_threads");
    return omp_set_num_threads != nullptr && omp_get_max_threads != nullptr;
  }
};

std::string VersionText(const dnnl_version_t& v) {
  return std::to_string(v.major) + "." + std::to_string(v.minor) + "." + std::to_string(v.patch);
}

// Never closed: its threads' data would be left behind.
StatusOr<Library> OpenLibrary(const char* name) {
  void* const handle = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    const char* why = dlerror();
    return octet::Unavailable("oneDNN (package libdnnl" OCTET_TEXT(DNNL_VERSION_MAJOR) ") cannot be opened: " +
                              std::string(why != nullptr ? why : name));
  }
  Library library(handle);
  if (library.missing() != nullptr) return octet::Unavailable(std::string(name) + " has no " + library.missing());
  const dnnl_version_t& v = *library.version();
  if (v.major != DNNL_VERSION_MAJOR || v.minor < DNNL_VERSION_MINOR) {
    return octet::Unavailable("oneDNN " + VersionText(v) + " is older than what this was built with, " +
                              OCTET_TEXT(DNNL_VERSION_MAJOR) "." OCTET_TEXT(DNNL_VERSION_MINOR));
  }
  if (v.cpu_runtime == DNNL_RUNTIME_OMP) {
    if (!library.FindOpenMp()) {
      return octet::Unavailable("oneDNN's OpenMP has no omp_set_num_threads: it would start threads of its own");
    }
  } else if (v.cpu_runtime != DNNL_RUNTIME_SEQ) {
    return octet::Unavailable("oneDNN was built for neither OpenMP nor one thread: it would start threads of its own");
  }
  return library;
}

// While it lives, OpenMP regions that the calling thread enters have one thread.
class OneThread {
 public:
  explicit OneThread(const Library& library) : library_(library) {
    if (library.omp_set_num_threads == nullptr) return;
    before_ = library.omp_get_max_threads();
    library.omp_set_num_threads(1);
  }
  ~OneThread() {
    if (before_ > 0) library_.omp_set_num_threads(before_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  const Library& library_;
  int before_ = 0;
};

// A dnnl handle that is given back.
template <typename T>
class Owned {
 public:
  using Destroy = dnnl_status_t(T);
  Owned() = default;
  explicit Owned(Destroy* destroy) : destroy_(destroy) {}
  Owned(Owned&& other) noexcept : value_(std::exchange(other.value_, nullptr)), destroy_(other.destroy_) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(value_, other.value_);
    std::swap(destroy_, other.destroy_);
    return *this;
  }
  ~Owned() {
    if (value_ != nullptr) destroy_(value_);
  }
  T get() const { return value_; }
  T* out() { return &value_; }

 private:
  T value_ = nullptr;
  Destroy* destroy_ = nullptr;
};

Status Failed(const char* function, dnnl_status_t status) {
  return octet::Internal("oneDNN: dnnl_" + std::string(function) + " failed with status " + std::to_string(status));
}

#define OCTET_ONEDNN_CALL(library, function, ...)                            \
  do {                                                                       \
    const dnnl_status_t result = (library).function(__VA_ARGS__);            \
    if (result != dnnl_success) return Failed(OCTET_TEXT(function), result); \
  } while (false)

// A memory descriptor: a struct in 2.x, a handle in 3.x.
class MemoryDesc {
 public:
#if DNNL_VERSION_MAJOR >= 3
  using Pointer = const_dnnl_memory_desc_t;
  explicit MemoryDesc(const Library& library) : library_(library), desc_(library.memory_desc_destroy) {}
  Status Init(int64_t rows, int64_t columns, dnnl_data_type_t type, dnnl_format_tag_t tag) {
    const dnnl_dims_t dims = {rows, columns};
    OCTET_ONEDNN_CALL(library_, memory_desc_create_with_tag, desc_.out(), 2, dims, type, tag);
    return octet::OkStatus();
  }
  Pointer get() const { return desc_.get(); }

 private:
  const Library& library_;
  Owned<dnnl_memory_desc_t> desc_;
#else
  using Pointer = const dnnl_memory_desc_t*;
  explicit MemoryDesc(const Library& library) : library_(library) {}
  Status Init(int64_t rows, int64_t columns, dnnl_data_type_t type, dnnl_format_tag_t tag) {
    const dnnl_dims_t dims = {rows, columns};
    OCTET_ONEDNN_CALL(library_, memory_desc_init_by_tag, &desc_, 2, dims, type, tag);
    return octet::OkStatus();
  }
  Pointer get() const { return &desc_; }

 private:
  const Library& library_;
  dnnl_memory_desc_t desc_{};
#endif
};

// out [tokens][kPanelRows] = or += x [tokens][columns] w, and what a slot hands over to it.
struct Product {
  Owned<dnnl_primitive_t> store, add;
  struct Operands {
    Owned<dnnl_memory_t> x, w, out, scratchpad;
  };
  std::vector<Operands> slots;
};

}  // namespace

struct OneDnn::Shape {
  Product step, run;  // of kTokenStep and of kRunTokens tokens; run may be empty
  int64_t scratchpad_bytes = 0;
  std::string implementation;
};

namespace {

class LoadedOneDnn final : public OneDnn {
 public:
  LoadedOneDnn(Type type, const Library& library, Owned<dnnl_engine_t> engine,
               std::vector<Owned<dnnl_stream_t>> streams)
      : OneDnn(type),
        library_(library),
        engine_(std::move(engine)),
        streams_(std::move(streams)),
        taken_(streams_.size()) {}

  StatusOr<Panels> Prepare(int64_t columns) override {
    Panels panels{.columns = columns, .block = BlockOf(columns)};
    const int64_t rest = (columns - 1) % panels.block + 1;
    const auto whole = ShapeOf(panels.block), last = ShapeOf(RoundUp(rest, kStepColumns));
    if (!whole.ok()) return whole.status();
    if (!last.ok()) return last.status();
    panels.whole = *whole;
    panels.last = *last;
    panels.scratchpad_bytes = std::max((*whole)->scratchpad_bytes, (*last)->scratchpad_bytes);
    return panels;
  }

  Status Run(const Panels& panels, const KernelTable& kernels, const LinearParams& p, const uint8_t* packed,
             uint32_t worker, uint8_t* scratch, int64_t begin, int64_t end) override;

 private:
  StatusOr<Shape*> ShapeOf(int64_t columns);
  Status MakeProduct(int64_t tokens, int64_t columns, Shape* shape, Product* product) const;
  Status MakePrimitive(const MemoryDesc& x, const MemoryDesc& w, const MemoryDesc& out, bool add,
                       Owned<dnnl_primitive_desc_t>* desc) const;

  const Library library_;
  const Owned<dnnl_engine_t> engine_;
  const std::vector<Owned<dnnl_stream_t>> streams_;  // by slot; who has a slot, has its stream and operands alone
  std::vector<std::atomic<bool>> taken_;             // by slot
  std::mutex mutex_;
  std::map<int64_t, std::unique_ptr<Shape>> shapes_;  // by columns; guarded by mutex_

  // A slot that no other call has: the worker's own, unless a call on another stream is in it.
  class Slot {
   public:
    Slot(LoadedOneDnn* owner, uint32_t worker) : owner_(owner), index_(worker % owner->taken_.size()) {
      for (size_t tries = 1; owner_->taken_[index_].exchange(true, std::memory_order_acquire); ++tries) {
        index_ = (index_ + 1) % owner_->taken_.size();
        if (tries % owner_->taken_.size() == 0) std::this_thread::yield();  // more calls at once than slots
      }
    }
    ~Slot() { owner_->taken_[index_].store(false, std::memory_order_release); }
    Slot(const Slot&) = delete;
    Slot& operator=(const Slot&) = delete;
    size_t index() const { return index_; }

   private:
    LoadedOneDnn* const owner_;
    size_t index_;
  };
};

// out = x w, or out += x w.
Status LoadedOneDnn::MakePrimitive(const MemoryDesc& x, const MemoryDesc& w, const MemoryDesc& out, bool add,
                                   Owned<dnnl_primitive_desc_t>* desc) const {
  Owned<dnnl_primitive_attr_t> attr(library_.primitive_attr_destroy);
  OCTET_ONEDNN_CALL(library_, primitive_attr_create, attr.out());
  OCTET_ONEDNN_CALL(library_, primitive_attr_set_scratchpad_mode, attr.get(), dnnl_scratchpad_mode_user);
  Owned<dnnl_post_ops_t> sum(library_.post_ops_destroy);
  if (add) {
    OCTET_ONEDNN_CALL(library_, post_ops_create, sum.out());
#if DNNL_VERSION_MAJOR >= 3
    OCTET_ONEDNN_CALL(library_, post_ops_append_sum, sum.get(), 1.0f, 0, dnnl_data_type_undef);
#else
    OCTET_ONEDNN_CALL(library_, post_ops_append_sum, sum.get(), 1.0f);
#endif
    OCTET_ONEDNN_CALL(library_, primitive_attr_set_post_ops, attr.get(), sum.get());
  }
  *desc = Owned<dnnl_primitive_desc_t>(library_.primitive_desc_destroy);
#if DNNL_VERSION_MAJOR >= 3
  OCTET_ONEDNN_CALL(library_, matmul_primitive_desc_create, desc->out(), engine_.get(), x.get(), w.get(), nullptr,
                    out.get(), attr.get());
#else
  dnnl_matmul_desc_t matmul{};
  OCTET_ONEDNN_CALL(library_, matmul_desc_init, &matmul, x.get(), w.get(), nullptr, out.get());
  OCTET_ONEDNN_CALL(library_, primitive_desc_create, desc->out(), &matmul, attr.get(), engine_.get(), nullptr);
#endif
  return octet::OkStatus();
}

Status LoadedOneDnn::MakeProduct(int64_t tokens, int64_t columns, Shape* shape, Product* product) const {
  const bool int8 = type() == Type::kInt8;
  const dnnl_data_type_t element = int8 ? dnnl_s8 : type() == Type::kBf16 ? dnnl_bf16 : dnnl_f32;
  MemoryDesc x(library_), out(library_);
  OCTET_RETURN_IF_ERROR(x.Init(tokens, columns, int8 ? dnnl_u8 : element, dnnl_ab));
  OCTET_RETURN_IF_ERROR(out.Init(tokens, kPanelRows, int8 ? dnnl_s32 : dnnl_f32, dnnl_ab));
  // The same bytes in words that different implementations know.
  static_assert(kPanelRows == 64 && kStepColumns % 64 == 0, "blocks of the tags");
  const dnnl_format_tag_t blocked = int8 ? dnnl_BA16a64b4a : type() == Type::kBf16 ? dnnl_BA16a64b2a : dnnl_BA16a64b;
  for (const dnnl_format_tag_t tag : {blocked, dnnl_ab}) {
    if (tag == dnnl_ab && type() != Type::kF32) break;
    MemoryDesc w(library_);
    OCTET_RETURN_IF_ERROR(w.Init(columns, kPanelRows, element, tag));
    // In 8 bits every product is scaled on its own.
    const int ways = int8 ? 1 : 2;
    Owned<dnnl_primitive_desc_t> desc[2];
    bool quick = true;
    for (int add = 0; add < ways; ++add) {
      OCTET_RETURN_IF_ERROR(MakePrimitive(x, w, out, add == 1, &desc[add]));
      const char* name = nullptr;
      OCTET_ONEDNN_CALL(library_, primitive_desc_query, desc[add].get(), dnnl_query_impl_info_str, 0, &name);
      if (quick) shape->implementation = name;
      quick = quick && !shape->implementation.starts_with("ref");
    }
    if (!quick) continue;
    // Without VNNI it would add pairs of products in 16 bits, which may be too few.
    if (int8 && shape->implementation.find("vnni") == std::string::npos &&
        shape->implementation.find("amx") == std::string::npos) {
      continue;
    }
    int largest = 0;
    int64_t bytes[2] = {};
    for (int add = 0; add < ways; ++add) {
      auto& primitive = add == 1 ? product->add : product->store;
      primitive = Owned<dnnl_primitive_t>(library_.primitive_destroy);
      OCTET_ONEDNN_CALL(library_, primitive_create, primitive.out(), desc[add].get());
      const auto* scratchpad = library_.primitive_desc_query_md(desc[add].get(), dnnl_query_scratchpad_md, 0);
      bytes[add] = static_cast<int64_t>(library_.memory_desc_get_size(scratchpad));
      if (bytes[add] > bytes[largest]) largest = add;
    }
    shape->scratchpad_bytes = std::max(shape->scratchpad_bytes, RoundUp(bytes[largest], 64));
    const auto make = [&](auto md, Owned<dnnl_memory_t>* memory) -> Status {
      *memory = Owned<dnnl_memory_t>(library_.memory_destroy);
      OCTET_ONEDNN_CALL(library_, memory_create, memory->out(), md, engine_.get(), nullptr);
      return octet::OkStatus();
    };
    product->slots.resize(streams_.size());
    for (Product::Operands& o : product->slots) {
      OCTET_RETURN_IF_ERROR(make(x.get(), &o.x));
      OCTET_RETURN_IF_ERROR(make(w.get(), &o.w));
      OCTET_RETURN_IF_ERROR(make(out.get(), &o.out));
      OCTET_RETURN_IF_ERROR(
          make(library_.primitive_desc_query_md(desc[largest].get(), dnnl_query_scratchpad_md, 0), &o.scratchpad));
    }
    return octet::OkStatus();
  }
  return octet::Unavailable("oneDNN has only " + shape->implementation + " for it here");
}

StatusOr<OneDnn::Shape*> LoadedOneDnn::ShapeOf(int64_t columns) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::unique_ptr<Shape>& known = shapes_[columns];
  if (known == nullptr) {
    const OneThread one(library_);
    auto shape = std::make_unique<Shape>();
    OCTET_RETURN_IF_ERROR(MakeProduct(kTokenStep, columns, shape.get(), &shape->step));
    // Its plain GEMM adds columns in another order where there are more tokens; its blocked kernels do not.
    if (shape->implementation.starts_with("brg")) {
      OCTET_RETURN_IF_ERROR(MakeProduct(kRunTokens, columns, shape.get(), &shape->run));
    }
    known = std::move(shape);
  }
  return known.get();
}

Status LoadedOneDnn::Run(const Panels& panels, const KernelTable& kernels, const LinearParams& p, const uint8_t* packed,
                         uint32_t worker, uint8_t* scratch, int64_t begin, int64_t end) {
  const OneThread one(library_);
  const Slot slot(this, worker);
  const dnnl_stream_t stream = streams_[slot.index()].get();
  const Scratch at(panels, type());
  const bool int8 = type() == Type::kInt8;
  const auto expand = type() == Type::kBf16 ? kernels.expand_bf16 : kernels.expand;
  uint8_t* const panel = scratch + at.panel;
  auto* const sums = reinterpret_cast<float*>(scratch + at.sums);
  auto* const floats = reinterpret_cast<float*>(scratch + at.floats);
  auto* const scales = reinterpret_cast<float*>(scratch + at.scales);
  auto* const offsets = reinterpret_cast<int32_t*>(scratch + at.offsets);
  auto* const products = reinterpret_cast<int32_t*>(scratch + at.products);
  const int64_t num_panels = (p.num_tiles + kPanelTiles - 1) / kPanelTiles, rows = RoundUp(p.tokens, kTokenStep);
  const int64_t plane = PlaneBytes(panels, p.tokens);
  for (int64_t index = begin; index < end; ++index) {
    const int64_t tile = index % num_panels * kPanelTiles, token = index / num_panels * p.tokens_per_item;
    const int64_t end_token = std::min<int64_t>(token + p.tokens_per_item, rows);
    const auto num_tiles = static_cast<int>(std::min<int64_t>(kPanelTiles, p.num_tiles - tile));
    for (int64_t column = 0; column < p.columns; column += panels.block) {
      const int64_t count = std::min(panels.block, p.columns - column), padded = RoundUp(count, kStepColumns);
      expand(p.tiles + tile, num_tiles, column, count, int8 ? static_cast<void*>(floats) : panel);
      if (int8) kernels.quantize_panel(floats, padded, reinterpret_cast<uint32_t*>(panel), scales, offsets);
      const Shape& shape = column + count < p.columns ? *panels.whole : *panels.last;
      for (int64_t t = token; t < end_token;) {
        const bool run = end_token - t >= kRunTokens && shape.run.store.get() != nullptr;
        const Product& product = run ? shape.run : shape.step;
        const Product::Operands& o = product.slots[slot.index()];
        const int64_t tokens = run ? kRunTokens : kTokenStep;
        float* const out = sums + (t - token) * kPanelRows;
        for (int64_t i = 0; i < (int8 ? 2 : 1); ++i) {
          const uint8_t* const x = packed + i * plane + (column * rows + t * padded) * ElementBytes();
          OCTET_ONEDNN_CALL(library_, memory_set_data_handle, o.x.get(), const_cast<uint8_t*>(x));  // only read
          OCTET_ONEDNN_CALL(library_, memory_set_data_handle, o.w.get(), panel);
          OCTET_ONEDNN_CALL(library_, memory_set_data_handle, o.out.get(), int8 ? static_cast<void*>(products) : out);
          OCTET_ONEDNN_CALL(library_, memory_set_data_handle, o.scratchpad.get(), scratch + at.onednn);
          const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, o.x.get()},
                                          {DNNL_ARG_WEIGHTS, o.w.get()},
                                          {DNNL_ARG_DST, o.out.get()},
                                          {DNNL_ARG_SCRATCHPAD, o.scratchpad.get()}};
          const auto& primitive = column > 0 && !int8 ? product.add : product.store;
          OCTET_ONEDNN_CALL(library_, primitive_execute, primitive.get(), stream, std::size(args), args);
          if (!int8) continue;
          const auto* const x_scales = reinterpret_cast<const float*>(packed + 2 * plane) +
                                       (i * PanelsOf(panels) + column / panels.block) * rows + t;
          kernels.add_products(products, tokens, x_scales, scales, offsets, column > 0 || i > 0, out);
        }
        t += tokens;
      }
    }
    kernels.finish(p, index, sums);
  }
  return octet::OkStatus();
}

}  // namespace

StatusOr<std::shared_ptr<OneDnn>> OneDnn::Open(Type type, uint32_t workers, const char* name) {
  const auto library = OpenLibrary(name != nullptr ? name : kLibrary);
  if (!library.ok()) return library.status();
  Owned<dnnl_engine_t> engine(library->engine_destroy);
  OCTET_ONEDNN_CALL(*library, engine_create, engine.out(), dnnl_cpu, 0);
  std::vector<Owned<dnnl_stream_t>> streams(2 * workers + 2);  // for two callers' workers at once, and some more
  for (auto& stream : streams) {
    stream = Owned<dnnl_stream_t>(library->stream_destroy);
    OCTET_ONEDNN_CALL(*library, stream_create, stream.out(), engine.get(), dnnl_stream_default_flags);
  }
  auto onednn = std::make_shared<LoadedOneDnn>(type, *library, std::move(engine), std::move(streams));
  // Its first product says whether it has anything quick here, and what that is called.
  const auto panels = onednn->Prepare(kMostColumns);
  if (!panels.ok()) return octet::Unavailable(panels.status().message());
  onednn->SetName("oneDNN " + VersionText(*library->version()) + " " + onednn->type_name() + " (" +
                  panels->whole->implementation + ")");
  return std::shared_ptr<OneDnn>(std::move(onednn));
}

#endif

}  // namespace octet_cpu
