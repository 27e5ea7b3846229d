// The vendor's one include: OCTET_BACKEND(MyBackend) at the end of one source file defines the entry symbol of a
// backend library and turns MyBackend (a Backend, usually a HostMemoryBackend) into the C tables of abi.h.
//
// The functions of the tables let no exception out (A8), check sizes and tails of what they are given (A2, A3), refuse
// NULL where something is needed, accept NULL for the error and in every destroy (A6), and cut messages to fit.
#ifndef OCTET_PLUGIN_HPP_
#define OCTET_PLUGIN_HPP_

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "octet/abi.h"
#include "octet/backend.hpp"
#include "octet/checks.h"
#include "octet/convert.h"
#include "octet/host_backend.hpp"

namespace octet {
inline namespace v1 {
namespace plugin {

// ---- What every function of a table does around its work

inline Status NotNull(const char* name, const void* p) {
  return p != nullptr ? OkStatus() : InvalidArgument(std::string(name) + " is NULL");
}

template <typename Body>
octet_code Guard(const char* function, octet_error* error, Body&& body) noexcept {
  try {
    return convert::WriteStatus(body(), error);
  } catch (const std::bad_alloc&) {
    return convert::WriteError(OCTET_RESOURCE_EXHAUSTED, function, ": out of host memory", error);
  } catch (const std::exception& e) {
    return convert::WriteError(OCTET_INTERNAL, e.what(), {}, error);
  } catch (...) {
    return convert::WriteError(OCTET_INTERNAL, function, ": the backend threw something that is no std::exception",
                               error);
  }
}

// Destroy functions have no error to fill: what a destructor or release throws goes to the log.
template <typename Body>
void GuardDestroy(const char* function, Body&& body) noexcept {
  octet_error error = convert::Sized<octet_error>();
  if (Guard(function, &error, [&] {
        body();
        return OkStatus();
      }) != OCTET_OK) {
    HostServices().Log(3, {error.message, error.message_len});
  }
}

// Handles alive in this library, counted in debug builds and reported when the last device is closed.
struct LiveHandles {
  std::atomic<int64_t> devices{0}, buffers{0}, streams{0}, events{0}, plans{0}, weights{0}, graphs{0};
};
inline LiveHandles& Live() {
  static LiveHandles live;
  return live;
}
#ifdef NDEBUG
inline void Count(std::atomic<int64_t>&, int64_t) {}
inline void ReportLive() {}
#else
inline void Count(std::atomic<int64_t>& counter, int64_t change) { counter.fetch_add(change); }
inline void ReportLive() {
  const LiveHandles& live = Live();
  if (live.devices.load() != 0) return;
  const std::pair<const char*, int64_t> kinds[] = {{"buffers", live.buffers.load()}, {"streams", live.streams.load()},
                                                   {"events", live.events.load()},   {"plans", live.plans.load()},
                                                   {"weights", live.weights.load()}, {"graphs", live.graphs.load()}};
  for (const auto& [kind, alive] : kinds) {
    if (alive != 0) {
      HostServices().Log(3, "the last device was closed with " + std::to_string(alive) + " " + kind + " alive");
    }
  }
}
#endif

inline OpenDevice* DeviceOf(octet_device* device) { return reinterpret_cast<OpenDevice*>(device); }
inline DeviceEvent* EventOf(octet_event* event) { return reinterpret_cast<DeviceEvent*>(event); }

// A handle that must know its operations when it is released.
struct WeightHandle {
  DenseOps* ops;
  Weight* weight;
};
struct GraphHandle {
  GraphOps* ops;
  octet_graph* graph;
};

inline StatusOr<DenseOps*> DenseOf(OpenDevice& device) {
  if (DenseOps* ops = device.dense()) return ops;
  return Unimplemented("this device has no dense operations");
}
inline StatusOr<FusedOps*> FusedOf(OpenDevice& device) {
  if (FusedOps* ops = device.fused()) return ops;
  return Unimplemented("this device has no fused operations");
}
inline StatusOr<GraphOps*> GraphOf(OpenDevice& device) {
  if (GraphOps* ops = device.graph()) return ops;
  return Unimplemented("this device cannot capture graphs");
}

#define OCTET_REQUIRE(pointer) OCTET_RETURN_IF_ERROR(::octet::plugin::NotNull(#pointer, pointer))

inline Status Made(const void* object) {
  return object != nullptr ? OkStatus() : Internal("the backend made no object and gave no reason");
}

// Hands a new object over as a C handle.
template <typename Handle, typename Object>
Status Release(StatusOr<std::unique_ptr<Object>> made, std::atomic<int64_t>& counter, Handle** out) {
  if (!made.ok()) return made.status();
  OCTET_RETURN_IF_ERROR(Made(made->get()));
  *out = reinterpret_cast<Handle*>(std::move(*made).release());
  Count(counter, 1);
  return OkStatus();
}

template <typename Object, typename Handle>
void Destroy(const char* function, Handle* handle, std::atomic<int64_t>& counter) noexcept {
  if (handle == nullptr) return;
  Count(counter, -1);
  GuardDestroy(function, [&] { delete reinterpret_cast<Object*>(handle); });
}

// ---- Memory and streams

inline const octet_memory_ops* MemoryTable() {
  static constexpr octet_memory_ops table = {
      .struct_size = sizeof(octet_memory_ops),
      .reserved = 0,
      .info =
          [](octet_device* device, octet_memory_info* out, octet_error* error) noexcept {
            return Guard("memory info", error, [&]() -> Status {
              OCTET_REQUIRE(device);
              OCTET_RETURN_IF_ERROR(convert::CheckOut("octet_memory_info", out));
              const StatusOr<MemoryUse> use = DeviceOf(device)->Memory();
              if (!use.ok()) return use.status();
              octet_memory_info info = convert::Sized<octet_memory_info>();
              info.free_bytes = use->free_bytes;
              info.total_bytes = use->total_bytes;
              info.held_bytes = use->held_bytes;
              convert::WriteStruct(info, out);
              return OkStatus();
            });
          },
      .alloc =
          [](octet_device* device, uint64_t bytes, uint32_t kind, octet_buffer** out, octet_error* error) noexcept {
            return Guard("alloc", error, [&]() -> Status {
              OCTET_REQUIRE(device);
              OCTET_REQUIRE(out);
              *out = nullptr;
              if (bytes == 0) return InvalidArgument("alloc: 0 bytes were asked for");
              if (kind != OCTET_MEMORY_DEVICE && kind != OCTET_MEMORY_HOST_VISIBLE) {
                return Unimplemented("alloc: memory kind " + std::to_string(kind) + " is unknown; known are 1 and 2");
              }
              return Release(DeviceOf(device)->Alloc(bytes, kind), Live().buffers, out);
            });
          },
      .free = [](octet_buffer* buffer) noexcept { Destroy<DeviceBuffer>("free", buffer, Live().buffers); },
      .map =
          [](octet_buffer* buffer, void** host, octet_error* error) noexcept {
            return Guard("map", error, [&]() -> Status {
              OCTET_REQUIRE(buffer);
              OCTET_REQUIRE(host);
              *host = nullptr;
              const StatusOr<void*> mapped = BufferOf(*buffer).Map();
              if (!mapped.ok()) return mapped.status();
              *host = *mapped;
              return OkStatus();
            });
          },
      .write =
          [](octet_stream* stream, octet_buffer* buffer, uint64_t offset, const void* src, uint64_t bytes,
             octet_error* error) noexcept {
            return Guard("write", error, [&]() -> Status {
              OCTET_REQUIRE(stream);
              OCTET_REQUIRE(buffer);
              if (bytes > 0) OCTET_REQUIRE(src);
              return StreamOf(*stream).Write(BufferOf(*buffer), offset, src, bytes);
            });
          },
      .read =
          [](octet_stream* stream, octet_buffer* buffer, uint64_t offset, void* dst, uint64_t bytes,
             octet_error* error) noexcept {
            return Guard("read", error, [&]() -> Status {
              OCTET_REQUIRE(stream);
              OCTET_REQUIRE(buffer);
              if (bytes > 0) OCTET_REQUIRE(dst);
              return StreamOf(*stream).Read(BufferOf(*buffer), offset, dst, bytes);
            });
          },
      .copy =
          [](octet_stream* stream, octet_buffer* dst, uint64_t dst_offset, octet_buffer* src, uint64_t src_offset,
             uint64_t bytes, octet_error* error) noexcept {
            return Guard("copy", error, [&]() -> Status {
              OCTET_REQUIRE(stream);
              OCTET_REQUIRE(dst);
              OCTET_REQUIRE(src);
              return StreamOf(*stream).Copy(BufferOf(*dst), dst_offset, BufferOf(*src), src_offset, bytes);
            });
          },
      .fill =
          [](octet_stream* stream, octet_buffer* buffer, uint64_t offset, uint64_t bytes, uint8_t value,
             octet_error* error) noexcept {
            return Guard("fill", error, [&]() -> Status {
              OCTET_REQUIRE(stream);
              OCTET_REQUIRE(buffer);
              return StreamOf(*stream).Fill(BufferOf(*buffer), offset, bytes, value);
            });
          },
  };
  return &table;
}

inline const octet_stream_ops* StreamTable() {
  static constexpr octet_stream_ops table = {
      .struct_size = sizeof(octet_stream_ops),
      .reserved = 0,
      .create =
          [](octet_device* device, octet_stream** out, octet_error* error) noexcept {
            return Guard("create stream", error, [&]() -> Status {
              OCTET_REQUIRE(device);
              OCTET_REQUIRE(out);
              *out = nullptr;
              return Release(DeviceOf(device)->CreateStream(), Live().streams, out);
            });
          },
      .destroy = [](octet_stream* stream) noexcept { Destroy<DeviceStream>("destroy", stream, Live().streams); },
      .sync =
          [](octet_stream* stream, octet_error* error) noexcept {
            return Guard("sync", error, [&]() -> Status {
              OCTET_REQUIRE(stream);
              return StreamOf(*stream).Sync();
            });
          },
      .create_event =
          [](octet_device* device, octet_event** out, octet_error* error) noexcept {
            return Guard("create event", error, [&]() -> Status {
              OCTET_REQUIRE(device);
              OCTET_REQUIRE(out);
              *out = nullptr;
              return Release(DeviceOf(device)->CreateEvent(), Live().events, out);
            });
          },
      .destroy_event = [](octet_event* event) noexcept { Destroy<DeviceEvent>("destroy event", event, Live().events); },
      .record =
          [](octet_stream* stream, octet_event* event, octet_error* error) noexcept {
            return Guard("record", error, [&]() -> Status {
              OCTET_REQUIRE(stream);
              OCTET_REQUIRE(event);
              return StreamOf(*stream).Record(*EventOf(event));
            });
          },
      .wait =
          [](octet_stream* stream, octet_event* event, octet_error* error) noexcept {
            return Guard("wait", error, [&]() -> Status {
              OCTET_REQUIRE(stream);
              OCTET_REQUIRE(event);
              return StreamOf(*stream).Wait(*EventOf(event));
            });
          },
      .event_sync =
          [](octet_event* event, octet_error* error) noexcept {
            return Guard("event sync", error, [&]() -> Status {
              OCTET_REQUIRE(event);
              return EventOf(event)->Sync();
            });
          },
  };
  return &table;
}

// ---- The cache and attention

// A call on one layer of a cache: body(OpenDevice&, const KvLayout&, const KvLayer&) -> Status.
template <typename Body>
octet_code GuardLayer(const char* function, octet_stream* stream, const octet_kv_layout* layout,
                      const octet_kv_layer* layer, octet_error* error, Body&& body) noexcept {
  return Guard(function, error, [&]() -> Status {
    OCTET_REQUIRE(stream);
    KvLayout l;
    KvLayer y;
    OCTET_RETURN_IF_ERROR(convert::FromC(layout, &l));
    OCTET_RETURN_IF_ERROR(convert::FromC(layer, &y));
    return body(StreamOf(*stream).device(), l, y);
  });
}

inline const octet_quant_ops* QuantTable() {
  static constexpr octet_quant_ops table = {
      .struct_size = sizeof(octet_quant_ops),
      .reserved = 0,
      .choose_layout =
          [](octet_device* device, octet_kv_layout* inout, octet_cache_side* k, octet_cache_side* v,
             octet_cache_side* k_extra, octet_error* error) noexcept {
            return Guard("choose_layout", error, [&]() -> Status {
              OCTET_REQUIRE(device);
              KvLayout layout;
              OCTET_RETURN_IF_ERROR(convert::FromC(inout, k, v, k_extra, &layout));
              OCTET_RETURN_IF_ERROR(DeviceOf(device)->quant().ChooseLayout(layout));
              convert::WritePlacement(layout.k, k);
              if (v != k) convert::WritePlacement(layout.v, v);
              if (k_extra != nullptr) convert::WritePlacement(layout.k_extra, k_extra);
              inout->layer_bytes = layout.layer_bytes;
              return OkStatus();
            });
          },
      .supports =
          [](octet_device* device, const octet_kv_layout* layout, octet_dtype input, octet_support* out,
             octet_error* error) noexcept {
            return Guard("supports", error, [&]() -> Status {
              OCTET_REQUIRE(device);
              OCTET_RETURN_IF_ERROR(convert::CheckOut("octet_support", out));
              KvLayout l;
              OCTET_RETURN_IF_ERROR(convert::FromC(layout, &l));
              convert::WriteSupport(DeviceOf(device)->quant().Supports(l, static_cast<DType>(input)), out);
              return OkStatus();
            });
          },
      .append =
          [](octet_stream* stream, const octet_kv_layout* layout, const octet_kv_layer* layer,
             const octet_kv_tokens* tokens, octet_error* error) noexcept {
            const auto body = [&](OpenDevice& device, const KvLayout& l, const KvLayer& y) -> Status {
              KvTokens t;
              OCTET_RETURN_IF_ERROR(convert::FromC(tokens, &t));
              return device.quant().Append(*stream, l, y, t);
            };
            return GuardLayer("append", stream, layout, layer, error, body);
          },
      .gather =
          [](octet_stream* stream, const octet_kv_layout* layout, const octet_kv_layer* layer,
             const octet_kv_tokens* tokens, octet_error* error) noexcept {
            const auto body = [&](OpenDevice& device, const KvLayout& l, const KvLayer& y) -> Status {
              KvTokens t;
              OCTET_RETURN_IF_ERROR(convert::FromC(tokens, &t));
              return device.quant().Gather(*stream, l, y, t);
            };
            return GuardLayer("gather", stream, layout, layer, error, body);
          },
      .copy_pages =
          [](octet_stream* stream, const octet_kv_layout* layout, const octet_kv_layer* layer,
             const octet_tensor* pairs, octet_error* error) noexcept {
            const auto body = [&](OpenDevice& device, const KvLayout& l, const KvLayer& y) -> Status {
              OCTET_REQUIRE(pairs);
              return device.quant().CopyPages(*stream, l, y, *pairs);
            };
            return GuardLayer("copy_pages", stream, layout, layer, error, body);
          },
      .export_pages =
          [](octet_stream* stream, const octet_kv_layout* layout, const octet_kv_layer* layer,
             const octet_tensor* pages, octet_buffer* dst, uint64_t offset, octet_error* error) noexcept {
            const auto body = [&](OpenDevice& device, const KvLayout& l, const KvLayer& y) -> Status {
              OCTET_REQUIRE(pages);
              OCTET_REQUIRE(dst);
              return device.quant().ExportPages(*stream, l, y, *pages, *dst, offset);
            };
            return GuardLayer("export_pages", stream, layout, layer, error, body);
          },
      .import_pages =
          [](octet_stream* stream, const octet_kv_layout* layout, const octet_kv_layer* layer,
             const octet_tensor* pages, octet_buffer* src, uint64_t offset, octet_error* error) noexcept {
            const auto body = [&](OpenDevice& device, const KvLayout& l, const KvLayer& y) -> Status {
              OCTET_REQUIRE(pages);
              OCTET_REQUIRE(src);
              return device.quant().ImportPages(*stream, l, y, *pages, *src, offset);
            };
            return GuardLayer("import_pages", stream, layout, layer, error, body);
          },
  };
  return &table;
}

inline const octet_attention_ops* AttentionTable() {
  static constexpr octet_attention_ops table = {
      .struct_size = sizeof(octet_attention_ops),
      .reserved = 0,
      .supports =
          [](octet_device* device, const octet_attention_desc* desc, octet_support* out, octet_error* error) noexcept {
            return Guard("supports", error, [&]() -> Status {
              OCTET_REQUIRE(device);
              OCTET_RETURN_IF_ERROR(convert::CheckOut("octet_support", out));
              KvLayout kv;
              AttentionDesc d;
              OCTET_RETURN_IF_ERROR(convert::FromC(desc, &kv, &d));
              convert::WriteSupport(DeviceOf(device)->attention().Supports(d), out);
              return OkStatus();
            });
          },
      .make_plan =
          [](octet_device* device, const octet_attention_desc* desc, octet_buffer* workspace, uint64_t offset,
             octet_plan** out, octet_error* error) noexcept {
            return Guard("make_plan", error, [&]() -> Status {
              OCTET_REQUIRE(device);
              OCTET_REQUIRE(out);
              *out = nullptr;
              KvLayout kv;
              AttentionDesc d;
              OCTET_RETURN_IF_ERROR(convert::FromC(desc, &kv, &d));
              return Release(DeviceOf(device)->attention().MakePlan(d, workspace, offset), Live().plans, out);
            });
          },
      .refill =
          [](octet_stream* stream, octet_plan* plan, const octet_batch* batch, octet_error* error) noexcept {
            return Guard("refill", error, [&]() -> Status {
              OCTET_REQUIRE(stream);
              OCTET_REQUIRE(plan);
              Batch b;
              OCTET_RETURN_IF_ERROR(convert::FromC(batch, &b));
              return StreamOf(*stream).device().attention().Refill(*stream, *reinterpret_cast<AttentionPlan*>(plan), b);
            });
          },
      .run =
          [](octet_stream* stream, const octet_plan* plan, const octet_kv_layer* layer,
             const octet_attention_args* args, octet_error* error) noexcept {
            return Guard("run", error, [&]() -> Status {
              OCTET_REQUIRE(stream);
              OCTET_REQUIRE(plan);
              KvLayer y;
              AttentionArgs a;
              OCTET_RETURN_IF_ERROR(convert::FromC(layer, &y));
              OCTET_RETURN_IF_ERROR(convert::FromC(args, &a));
              return StreamOf(*stream).device().attention().Run(*stream, *reinterpret_cast<const AttentionPlan*>(plan),
                                                                y, a);
            });
          },
      .release_plan = [](octet_plan* plan) noexcept { Destroy<AttentionPlan>("release_plan", plan, Live().plans); },
  };
  return &table;
}

// ---- Dense, fused, graphs

template <typename Body>
octet_code GuardDense(const char* function, octet_stream* stream, octet_error* error, Body&& body) noexcept {
  return Guard(function, error, [&]() -> Status {
    OCTET_REQUIRE(stream);
    const StatusOr<DenseOps*> ops = DenseOf(StreamOf(*stream).device());
    return ops.ok() ? body(**ops) : ops.status();
  });
}

inline const octet_dense_ops* DenseTable() {
  static constexpr octet_dense_ops table = {
      .struct_size = sizeof(octet_dense_ops),
      .reserved = 0,
      .supports_weight =
          [](octet_device* device, const octet_weight_desc* desc, octet_support* out, octet_error* error) noexcept {
            return Guard("supports_weight", error, [&]() -> Status {
              OCTET_REQUIRE(device);
              OCTET_RETURN_IF_ERROR(convert::CheckOut("octet_support", out));
              const StatusOr<DenseOps*> ops = DenseOf(*DeviceOf(device));
              if (!ops.ok()) return ops.status();
              convert::PartList<WeightPart> parts;
              WeightDesc d;
              OCTET_RETURN_IF_ERROR(convert::FromC(desc, &parts, &d));
              convert::WriteSupport((*ops)->SupportsWeight(d), out);
              return OkStatus();
            });
          },
      .prepare_weight =
          [](octet_stream* stream, const octet_weight_desc* desc, octet_weight** out, octet_error* error) noexcept {
            return GuardDense("prepare_weight", stream, error, [&](DenseOps& ops) -> Status {
              OCTET_REQUIRE(out);
              *out = nullptr;
              convert::PartList<WeightPart> parts;
              WeightDesc d;
              OCTET_RETURN_IF_ERROR(convert::FromC(desc, &parts, &d));
              auto handle = std::make_unique<WeightHandle>(WeightHandle{&ops, nullptr});
              StatusOr<Weight*> weight = ops.PrepareWeight(*stream, d);
              if (!weight.ok()) return weight.status();
              OCTET_RETURN_IF_ERROR(Made(*weight));
              handle->weight = *weight;
              return Release(StatusOr<std::unique_ptr<WeightHandle>>(std::move(handle)), Live().weights, out);
            });
          },
      .release_weight =
          [](octet_weight* weight) noexcept {
            if (weight == nullptr) return;
            auto* handle = reinterpret_cast<WeightHandle*>(weight);
            GuardDestroy("release_weight", [&] { handle->ops->ReleaseWeight(handle->weight); });
            Destroy<WeightHandle>("release_weight", weight, Live().weights);
          },
      .linear =
          [](octet_stream* stream, const octet_linear_args* args, octet_error* error) noexcept {
            return GuardDense("linear", stream, error, [&](DenseOps& ops) -> Status {
              LinearArgs a;
              OCTET_RETURN_IF_ERROR(convert::FromC(args, &a));
              OCTET_REQUIRE(a.w);
              a.w = reinterpret_cast<const WeightHandle*>(a.w)->weight;
              return ops.Linear(*stream, a);
            });
          },
      .embed =
          [](octet_stream* stream, const octet_weight* weight, const octet_tensor* ids, float scale,
             const octet_tensor* y, octet_error* error) noexcept {
            return GuardDense("embed", stream, error, [&](DenseOps& ops) -> Status {
              OCTET_REQUIRE(weight);
              OCTET_REQUIRE(ids);
              OCTET_REQUIRE(y);
              return ops.Embed(*stream, *reinterpret_cast<const WeightHandle*>(weight)->weight, *ids, scale, *y);
            });
          },
      .norm =
          [](octet_stream* stream, int32_t kind, const octet_tensor* x, const octet_tensor* gain,
             const octet_tensor* bias, float eps, const octet_tensor* y, octet_error* error) noexcept {
            return GuardDense("norm", stream, error, [&](DenseOps& ops) -> Status {
              OCTET_REQUIRE(x);
              OCTET_REQUIRE(gain);
              OCTET_REQUIRE(y);
              return ops.Norm(*stream, static_cast<NormKind>(kind), *x, *gain, bias, eps, *y);
            });
          },
      .rope =
          [](octet_stream* stream, const octet_tensor* x, const octet_tensor* positions, const octet_tensor* cos_sin,
             int32_t interleaved, octet_error* error) noexcept {
            return GuardDense("rope", stream, error, [&](DenseOps& ops) -> Status {
              OCTET_REQUIRE(x);
              OCTET_REQUIRE(positions);
              OCTET_REQUIRE(cos_sin);
              bool pairs_interleaved = false;
              OCTET_RETURN_IF_ERROR(convert::ReadBool("rope: interleaved", interleaved, &pairs_interleaved));
              return ops.Rope(*stream, *x, *positions, *cos_sin, pairs_interleaved);
            });
          },
      .activation =
          [](octet_stream* stream, int32_t kind, const octet_tensor* x, const octet_tensor* y,
             octet_error* error) noexcept {
            return GuardDense("activation", stream, error, [&](DenseOps& ops) -> Status {
              OCTET_REQUIRE(x);
              OCTET_REQUIRE(y);
              return ops.Activate(*stream, static_cast<Activation>(kind), *x, *y);
            });
          },
      .add =
          [](octet_stream* stream, const octet_tensor* x, const octet_tensor* y, octet_error* error) noexcept {
            return GuardDense("add", stream, error, [&](DenseOps& ops) -> Status {
              OCTET_REQUIRE(x);
              OCTET_REQUIRE(y);
              return ops.Add(*stream, *x, *y);
            });
          },
      .gather_rows =
          [](octet_stream* stream, const octet_tensor* x, const octet_tensor* rows, const octet_tensor* y,
             octet_error* error) noexcept {
            return GuardDense("gather_rows", stream, error, [&](DenseOps& ops) -> Status {
              OCTET_REQUIRE(x);
              OCTET_REQUIRE(rows);
              OCTET_REQUIRE(y);
              return ops.GatherRows(*stream, *x, *rows, *y);
            });
          },
  };
  return &table;
}

inline const octet_fused_ops* FusedTable() {
  static constexpr octet_fused_ops table = {
      .struct_size = sizeof(octet_fused_ops),
      .reserved = 0,
      .supports =
          [](octet_device* device, int32_t entry, const octet_attention_desc* desc, octet_support* out,
             octet_error* error) noexcept {
            return Guard("supports", error, [&]() -> Status {
              OCTET_REQUIRE(device);
              OCTET_RETURN_IF_ERROR(convert::CheckOut("octet_support", out));
              const StatusOr<FusedOps*> ops = FusedOf(*DeviceOf(device));
              if (!ops.ok()) return ops.status();
              KvLayout kv;
              AttentionDesc d;
              OCTET_RETURN_IF_ERROR(convert::FromC(desc, &kv, &d));
              convert::WriteSupport((*ops)->Supports(static_cast<FusedEntry>(entry), d), out);
              return OkStatus();
            });
          },
      .qkv_append =
          [](octet_stream* stream, const octet_kv_layout* layout, const octet_kv_layer* layer,
             const octet_qkv_append_args* args, octet_error* error) noexcept {
            const auto body = [&](OpenDevice& device, const KvLayout& l, const KvLayer& y) -> Status {
              const StatusOr<FusedOps*> ops = FusedOf(device);
              if (!ops.ok()) return ops.status();
              QkvAppendArgs a;
              OCTET_RETURN_IF_ERROR(convert::FromC(args, &a));
              return (*ops)->QkvAppend(*stream, l, y, a);
            };
            return GuardLayer("qkv_append", stream, layout, layer, error, body);
          },
      .sample =
          [](octet_stream* stream, const octet_sample_args* args, octet_error* error) noexcept {
            return Guard("sample", error, [&]() -> Status {
              OCTET_REQUIRE(stream);
              const StatusOr<FusedOps*> ops = FusedOf(StreamOf(*stream).device());
              if (!ops.ok()) return ops.status();
              SampleArgs a;
              OCTET_RETURN_IF_ERROR(convert::FromC(args, &a));
              return (*ops)->Sample(*stream, a);
            });
          },
  };
  return &table;
}

inline const octet_graph_ops* GraphTable() {
  static constexpr octet_graph_ops table = {
      .struct_size = sizeof(octet_graph_ops),
      .reserved = 0,
      .begin =
          [](octet_stream* stream, octet_error* error) noexcept {
            return Guard("begin", error, [&]() -> Status {
              OCTET_REQUIRE(stream);
              const StatusOr<GraphOps*> ops = GraphOf(StreamOf(*stream).device());
              return ops.ok() ? (*ops)->Begin(*stream) : ops.status();
            });
          },
      .end =
          [](octet_stream* stream, octet_graph** out, octet_error* error) noexcept {
            return Guard("end", error, [&]() -> Status {
              OCTET_REQUIRE(stream);
              OCTET_REQUIRE(out);
              *out = nullptr;
              const StatusOr<GraphOps*> ops = GraphOf(StreamOf(*stream).device());
              if (!ops.ok()) return ops.status();
              auto handle = std::make_unique<GraphHandle>(GraphHandle{*ops, nullptr});
              StatusOr<octet_graph*> graph = (*ops)->End(*stream);
              if (!graph.ok()) return graph.status();
              OCTET_RETURN_IF_ERROR(Made(*graph));
              handle->graph = *graph;
              return Release(StatusOr<std::unique_ptr<GraphHandle>>(std::move(handle)), Live().graphs, out);
            });
          },
      .launch =
          [](octet_stream* stream, octet_graph* graph, octet_error* error) noexcept {
            return Guard("launch", error, [&]() -> Status {
              OCTET_REQUIRE(stream);
              OCTET_REQUIRE(graph);
              auto* handle = reinterpret_cast<GraphHandle*>(graph);
              return handle->ops->Launch(*stream, handle->graph);
            });
          },
      .release =
          [](octet_graph* graph) noexcept {
            if (graph == nullptr) return;
            auto* handle = reinterpret_cast<GraphHandle*>(graph);
            GuardDestroy("release graph", [&] { handle->ops->Release(handle->graph); });
            Destroy<GraphHandle>("release graph", graph, Live().graphs);
          },
  };
  return &table;
}

// ---- The backend

// "compiler=gcc-12.2;sanitizer=none;targets=x86-64"
inline std::string BuildText(const std::string& targets) {
#if defined(__clang__)
  std::string text = "compiler=clang-" + std::to_string(__clang_major__) + "." + std::to_string(__clang_minor__);
#elif defined(__GNUC__)
  std::string text = "compiler=gcc-" + std::to_string(__GNUC__) + "." + std::to_string(__GNUC_MINOR__);
#else
  std::string text = "compiler=unknown";
#endif
  return text + ";sanitizer=" + convert::BuildSanitizer() + ";targets=" + targets;
}

// The table of B and the one object behind it, which is never destroyed: other threads may still be inside at exit.
template <typename B>
class Library {
 public:
  static const octet_backend_v1* Table() {
    static const Library* const library = new Library;  // made once, by the first caller; a throw is retried
    return &library->table_;
  }

 private:
  Library() : build_(BuildText(backend_.identity().targets)) {
    Instance() = &backend_;
    const BackendIdentity& identity = backend_.identity();
    const BackendFeatures features = backend_.features();
    table_.struct_size = sizeof table_;
    table_.abi_minor = OCTET_ABI_MINOR;
    table_.abi_draft = OCTET_ABI_DRAFT;
    table_.name = identity.name.c_str();
    table_.vendor = identity.vendor.c_str();
    table_.version = identity.version.c_str();
    table_.build = build_.c_str();
    table_.device = DeviceTable();
    table_.memory = MemoryTable();
    table_.stream = StreamTable();
    table_.quant = QuantTable();
    table_.attention = AttentionTable();
    table_.dense = features.dense ? DenseTable() : nullptr;
    table_.fused = features.fused ? FusedTable() : nullptr;
    table_.graph = features.graph ? GraphTable() : nullptr;
    table_.extension = [](const char* name) noexcept -> const void* {
      const void* found = nullptr;
      if (name != nullptr) GuardDestroy("extension", [&] { found = Instance()->Extension(name); });
      return found;
    };
  }

  static Backend*& Instance() {
    static Backend* instance = nullptr;
    return instance;
  }

  static const octet_device_ops* DeviceTable() {
    static constexpr octet_device_ops table = {
        .struct_size = sizeof(octet_device_ops),
        .reserved = 0,
        .count =
            [](uint32_t* out, octet_error* error) noexcept {
              return Guard("count", error, [&]() -> Status {
                OCTET_REQUIRE(out);
                *out = 0;
                const StatusOr<uint32_t> count = Instance()->CountDevices();
                if (!count.ok()) return count.status();
                *out = *count;
                return OkStatus();
              });
            },
        .describe =
            [](uint32_t index, octet_device_info* out, octet_error* error) noexcept {
              return Guard("describe", error, [&]() -> Status {
                OCTET_RETURN_IF_ERROR(convert::CheckOut("octet_device_info", out));
                const StatusOr<DeviceDescription> d = Instance()->Describe(index);
                if (!d.ok()) return d.status();
                octet_device_info info = convert::Sized<octet_device_info>();
                info.kind = d->kind;
                convert::WriteText(d->name, info.name, sizeof info.name);
                convert::WriteText(d->arch, info.arch, sizeof info.arch);
                info.memory_bytes = d->memory_bytes;
                info.preferred_alignment = d->preferred_alignment;
                info.lanes = d->lanes;
                convert::WriteStruct(info, out);
                return OkStatus();
              });
            },
        .open =
            [](uint32_t index, const char* options, octet_device** out, octet_error* error) noexcept {
              return Guard("open", error, [&]() -> Status {
                OCTET_REQUIRE(out);
                *out = nullptr;
                return Release(Instance()->Open(index, options != nullptr ? options : ""), Live().devices, out);
              });
            },
        .close =
            [](octet_device* device) noexcept {
              if (device == nullptr) return;
              Destroy<OpenDevice>("close", device, Live().devices);
              GuardDestroy("close", [] { ReportLive(); });
            },
    };
    return &table;
  }

  B backend_;
  std::string build_;
  octet_backend_v1 table_{};
};

// The entry symbol's body.
template <typename B>
const octet_backend_v1* Query(const octet_host_v1* host, octet_error* error) noexcept {
  const octet_backend_v1* table = nullptr;
  const octet_code code = Guard("query", error, [&]() -> Status {
    if (host != nullptr) {
      octet_host_v1 known;
      OCTET_RETURN_IF_ERROR(convert::ReadStruct("octet_host_v1", host, &known));
      HostServices::Latest().store(host, std::memory_order_release);
    }
    table = Library<B>::Table();
    return OkStatus();
  });
  return code == OCTET_OK ? table : nullptr;
}

#undef OCTET_REQUIRE

}  // namespace plugin
}  // namespace v1
}  // namespace octet

// At namespace scope, once per library; `Class` is a Backend with a default constructor. What the constructor throws is
// what the query answers.
#define OCTET_BACKEND(Class)                                                                                 \
  extern "C" const octet_backend_v1* octet_backend_query_v1(const octet_host_v1* host, octet_error* error) { \
    return ::octet::plugin::Query<Class>(host, error);                                                       \
  }                                                                                                          \
  static_assert(true, "ends with a semicolon")

#endif  // OCTET_PLUGIN_HPP_
