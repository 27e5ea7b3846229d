// The C contract itself: exported symbols, repeated queries, sizes shorter and longer than ours, unknown tails, NULLs
// and unknown enumeration values. Calls the raw tables. Rules: abi.h, A1 to A18.
#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/loader/open_library.h"
#include "gtest/gtest.h"
#include "octet/convert.h"
#include "tests/conformance/harness.h"
#include "tests/conformance/scene.h"
#include "tests/conformance/test_cache.h"

namespace octet::conformance {
namespace {

octet_error Error() { return convert::Sized<octet_error>(); }

// Names of the dynamic symbols that the library defines for others.
std::set<std::string> ExportedSymbols(const std::string& path) {
  std::set<std::string> names;
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  link_map* map = nullptr;
  if (handle == nullptr || dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0) return names;
  const ElfW(Sym)* symbols = nullptr;
  const char* strings = nullptr;
  const uint32_t *gnu_hash = nullptr, *hash = nullptr;
  for (const ElfW(Dyn)* d = map->l_ld; d->d_tag != DT_NULL; ++d) {
    if (d->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym)*>(d->d_un.d_ptr);
    if (d->d_tag == DT_STRTAB) strings = reinterpret_cast<const char*>(d->d_un.d_ptr);
    if (d->d_tag == DT_GNU_HASH) gnu_hash = reinterpret_cast<const uint32_t*>(d->d_un.d_ptr);
    if (d->d_tag == DT_HASH) hash = reinterpret_cast<const uint32_t*>(d->d_un.d_ptr);
  }
  uint32_t count = hash != nullptr ? hash[1] : 0;
  if (hash == nullptr && gnu_hash != nullptr) {
    // The largest symbol of any bucket, then on to the end of its chain.
    const uint32_t buckets = gnu_hash[0], first = gnu_hash[1], bloom_words = gnu_hash[2];
    const uint32_t* bucket = gnu_hash + 4 + bloom_words * (sizeof(ElfW(Addr)) / 4);
    const uint32_t* chain = bucket + buckets;
    for (uint32_t b = 0; b < buckets; ++b) count = std::max(count, bucket[b]);
    if (count >= first) {
      while ((chain[count - first] & 1) == 0) ++count;
      ++count;
    }
  }
  for (uint32_t i = 0; i < count && symbols != nullptr && strings != nullptr; ++i) {
    if (symbols[i].st_shndx == SHN_UNDEF || ELF64_ST_BIND(symbols[i].st_info) == STB_LOCAL) continue;
    names.insert(strings + symbols[i].st_name);
  }
  return names;
}

Status ExportsOneSymbol() {
  const auto names = ExportedSymbols(TheSubject().path);
  EXPECT_EQ(names, std::set<std::string>{"octet_backend_query_v1"}) << "rule A14";
  return OkStatus();
}

void NoLog(void*, int32_t, const char*, size_t) {}

Status AnswersEveryQueryAlike() {
  const auto query = OpenLibrary(TheSubject().path);
  if (!query.ok()) return Internal(std::string(query.status().message()));
  octet_error error = Error();
  // All live for ever, as the rules say.
  static octet_host_v1 empty = convert::Sized<octet_host_v1>(), log_only = empty, brief = empty;
  log_only.log = NoLog;
  const octet_host_v1* const hosts[] = {nullptr, &empty, &log_only};
  for (const octet_host_v1* host : hosts) {
    EXPECT_EQ((*query)(host, &error), TheSubject().table());
    EXPECT_EQ((*query)(host, nullptr), TheSubject().table());
    // It still computes.
    AttentionCase c;
    c.cache = Both(Float(DType::kF32));
    c.sequences = {{3, 20, 0, 0}};
    const Status status = RunAndCheck(c);
    if (status.code() != Code::kUnimplemented) OCTET_RETURN_IF_ERROR(status);
  }
  // Shorter than the first release: refused with a reason, or taken without what it does not hold.
  brief.struct_size = offsetof(octet_host_v1, log);
  error = Error();
  const octet_backend_v1* const answer = (*query)(&brief, &error);
  EXPECT_TRUE(answer == TheSubject().table() || (answer == nullptr && error.message[0] != '\0'));
  std::vector<std::thread> threads;
  std::vector<const octet_backend_v1*> answers(4);
  for (auto& one : answers) threads.emplace_back([&] { one = (*query)(&empty, nullptr); });
  for (std::thread& t : threads) t.join();
  for (const auto* one : answers) EXPECT_EQ(one, TheSubject().table());
  (*query)(TheSubject().host, nullptr);
  return OkStatus();
}

Status SaysWhatItIs() {
  const octet_backend_v1& table = *TheSubject().table();
  EXPECT_GE(table.struct_size, offsetof(octet_backend_v1, device));
  for (const char* text : {table.name, table.vendor, table.version, table.build}) {
    EXPECT_TRUE(text != nullptr && *text != '\0') << "name, vendor, version and build must be set";
  }
  const std::string file = TheSubject().path.substr(TheSubject().path.rfind('/') + 1);
  EXPECT_EQ(file, "liboctet_backend_" + std::string(table.name) + ".so");
  uint32_t count = 0;
  octet_error error = Error();
  EXPECT_EQ(table.device->count(&count, &error), OCTET_OK) << error.message;
  EXPECT_GT(count, TheSubject().index);
  if (OCTET_HAS(&table, extension)) {
    EXPECT_EQ(table.extension("nobody.nothing.0"), nullptr);
  }
  return OkStatus();
}

void ExpectRefusal(octet_code code, const octet_error& error, const char* what) {
  EXPECT_NE(code, OCTET_OK) << what;
  EXPECT_EQ(error.code, code) << what;
  EXPECT_NE(error.message[0], '\0') << what << " gives no reason";
  EXPECT_EQ(error.message_len, strnlen(error.message, sizeof(error.message))) << what;
}

Status RefusesWhatDoesNotExist() {
  const octet_backend_v1& table = *TheSubject().table();
  octet_device_info info = convert::Sized<octet_device_info>();
  octet_device* device = nullptr;
  octet_buffer* buffer = nullptr;
  octet_error error = Error();
  ExpectRefusal(table.device->describe(9999, &info, &error), error, "describe of device 9999");
  error = Error();
  ExpectRefusal(table.device->open(9999, nullptr, &device, &error), error, "open of device 9999");
  EXPECT_EQ(device, nullptr);
  error = Error();
  const octet_code code = table.device->open(TheSubject().index, "no_such_option=1", &device, &error);
  ExpectRefusal(code, error, "open with an unknown option");
  EXPECT_EQ(code, OCTET_INVALID_ARGUMENT);
  EXPECT_EQ(device, nullptr);
  octet_device* open = TheSubject().device->handle();
  error = Error();
  ExpectRefusal(table.memory->alloc(open, 64, 99, &buffer, &error), error, "alloc of an unknown kind");
  error = Error();
  ExpectRefusal(table.memory->alloc(open, uint64_t{1} << 60, OCTET_MEMORY_DEVICE, &buffer, &error), error,
                "alloc of 2^60 bytes");
  EXPECT_EQ(buffer, nullptr);
  return OkStatus();
}

Status AcceptsNullError() {
  const octet_backend_v1& table = *TheSubject().table();
  octet_device* device = nullptr;
  octet_buffer* buffer = nullptr;
  EXPECT_NE(table.device->open(9999, nullptr, &device, nullptr), OCTET_OK);
  EXPECT_NE(
      table.memory->alloc(TheSubject().device->handle(), uint64_t{1} << 60, OCTET_MEMORY_DEVICE, &buffer, nullptr),
      OCTET_OK);
  octet_support support = convert::Sized<octet_support>();
  octet_kv_layout layout{};
  table.quant->supports(TheSubject().device->handle(), &layout, OCTET_F32, &support, nullptr);
  EXPECT_NE(table.quant->append(&TheSubject().s(), &layout, nullptr, nullptr, nullptr), OCTET_OK);
  EXPECT_NE(table.attention->refill(&TheSubject().s(), nullptr, nullptr, nullptr), OCTET_OK);
  return OkStatus();
}

Status AcceptsNullInDestroy() {
  const octet_backend_v1& table = *TheSubject().table();
  table.device->close(nullptr);
  table.memory->free(nullptr);
  table.stream->destroy(nullptr);
  table.stream->destroy_event(nullptr);
  table.attention->release_plan(nullptr);
  if (table.dense != nullptr) table.dense->release_weight(nullptr);
  if (table.graph != nullptr) table.graph->release(nullptr);
  return OkStatus();
}

Status RefusesNullArguments() {
  const octet_backend_v1& table = *TheSubject().table();
  octet_device* device = TheSubject().device->handle();
  octet_stream* stream = &TheSubject().s();
  octet_support support = convert::Sized<octet_support>();
  octet_plan* plan = nullptr;
  const std::vector<std::function<octet_code(octet_error*)>> calls = {
      [&](octet_error* e) { return table.quant->choose_layout(device, nullptr, nullptr, nullptr, nullptr, e); },
      [&](octet_error* e) { return table.quant->append(stream, nullptr, nullptr, nullptr, e); },
      [&](octet_error* e) { return table.quant->gather(stream, nullptr, nullptr, nullptr, e); },
      [&](octet_error* e) { return table.quant->copy_pages(stream, nullptr, nullptr, nullptr, e); },
      [&](octet_error* e) { return table.attention->make_plan(device, nullptr, nullptr, 0, &plan, e); },
      [&](octet_error* e) { return table.attention->run(stream, nullptr, nullptr, nullptr, e); },
      [&](octet_error* e) { return table.memory->alloc(device, 64, OCTET_MEMORY_DEVICE, nullptr, e); },
      [&](octet_error* e) { return table.memory->alloc(device, 0, OCTET_MEMORY_DEVICE, nullptr, e); }};
  for (size_t i = 0; i < calls.size(); ++i) {
    octet_error error = Error();
    ExpectRefusal(calls[i](&error), error, ("call " + std::to_string(i)).c_str());
  }
  octet_error error = Error();
  const octet_code code = table.quant->supports(device, nullptr, OCTET_F32, &support, &error);
  EXPECT_TRUE(code != OCTET_OK || support.level == 0);
  return OkStatus();
}

// Out structs shorter than the first release: refused or cut, never written beyond their size (rule A4).
Status WritesNoFurtherThanTheSize() {
  const octet_backend_v1& table = *TheSubject().table();
  octet_device* device = TheSubject().device->handle();
  auto check = [](const char* what, auto value, uint32_t size, auto call) {
    auto* bytes = reinterpret_cast<unsigned char*>(&value);
    std::memset(bytes, 0xee, sizeof(value));
    value.struct_size = size;
    octet_error error = Error();
    call(&value, &error);
    EXPECT_TRUE(std::all_of(bytes + size, bytes + sizeof(value), [](unsigned char b) { return b == 0xee; }))
        << what << " was written beyond its struct_size of " << size;
  };
  for (uint32_t size : {4u, 8u, 16u, 24u}) {
    check("octet_device_info", octet_device_info{}, size,
          [&](octet_device_info* out, octet_error* e) { table.device->describe(TheSubject().index, out, e); });
    check("octet_memory_info", octet_memory_info{}, size,
          [&](octet_memory_info* out, octet_error* e) { table.memory->info(device, out, e); });
    convert::CKvLayout c(LayoutOf(Both(Int8()), 2));
    check("octet_support", octet_support{}, size,
          [&](octet_support* out, octet_error* e) { table.quant->supports(device, &c.layout, OCTET_F32, out, e); });
  }
  for (uint32_t size : {16u, 17u, 40u, 1000u}) {
    octet_error error{};
    auto* bytes = reinterpret_cast<unsigned char*>(&error);
    std::memset(bytes, 0xee, sizeof(error));
    error.struct_size = size;
    octet_device* none = nullptr;
    table.device->open(9999, nullptr, &none, &error);
    EXPECT_TRUE(std::all_of(bytes + size, bytes + sizeof(error), [](unsigned char b) { return b == 0xee; }))
        << "octet_error was written beyond its struct_size of " << size;
    if (size > offsetof(octet_error, message)) {
      EXPECT_LT(strnlen(error.message, size - offsetof(octet_error, message)), size - offsetof(octet_error, message))
          << "the message does not end";
    }
  }
  return OkStatus();
}

// ---- Descriptors that are longer or shorter than ours

enum class Probe { kZeroTail, kUnknownField, kTooShort };

template <typename T>
struct Grown {
  explicit Grown(const T& value) : base(value) {}
  T base;
  unsigned char tail[64] = {};
  void Apply(Probe probe) {
    base.struct_size = probe == Probe::kTooShort ? 8 : sizeof(T) + sizeof(tail);
    if (probe == Probe::kUnknownField) tail[40] = 1;
  }
};

// Zero tail: works. Unknown field set: UNIMPLEMENTED. Too short: refused. `output` is untouched by both refusals.
void Judge(Probe probe, const std::string& what, octet_code code, const octet_error& error, const Block* output) {
  if (probe == Probe::kZeroTail) {
    EXPECT_EQ(code, OCTET_OK) << what << " with a zero tail (rule A3): " << error.message;
    return;
  }
  ExpectRefusal(code, error, what.c_str());
  if (probe == Probe::kUnknownField) {
    EXPECT_EQ(code, OCTET_UNIMPLEMENTED) << what << " with an unknown field set (rule A3)";
  }
  if (output != nullptr) Untouched(*output, what.c_str());
}

Status ProbeAppend(const std::string& which, Probe probe) {
  const CacheSpec spec = Both(Int8(64));
  TestCache cache;
  OCTET_RETURN_IF_ERROR(cache.Init(spec, 3));
  const Rows rows = NormalRows(spec, {1, 2}, 31);
  const Block k(rows.k), v(rows.v), slots(rows.slots), positions(rows.positions);
  const Tensor kt = k.View(DType::kF32, {2, spec.kv_heads, 64}), vt = v.View(DType::kF32, {2, spec.kv_heads, 64});
  const Tensor st = slots.View(DType::kI64, {2}), pt = positions.View(DType::kI32, {2});
  convert::CKvLayout c(cache.layout());
  Grown<octet_cache_side> side(c.k);
  Grown<octet_kv_layout> layout(c.layout);
  Grown<octet_kv_layer> layer(convert::ToC(cache.layer()));
  Grown<octet_kv_tokens> tokens(convert::ToC(KvTokens{&kt, &vt, &st, &pt}));
  layout.base.k = &side.base;
  if (which == "octet_cache_side") side.Apply(probe);
  if (which == "octet_kv_layout") layout.Apply(probe);
  if (which == "octet_kv_layer") layer.Apply(probe);
  if (which == "octet_kv_tokens") tokens.Apply(probe);
  octet_error error = Error();
  const octet_code code =
      TheSubject().table()->quant->append(&TheSubject().s(), &layout.base, &layer.base, &tokens.base, &error);
  Sync();
  Judge(probe, which, code, error, &cache.memory());
  return OkStatus();
}

Status ProbeAttention(const std::string& which, Probe probe) {
  const CacheSpec spec = Both(Int8(64));
  TestCache cache;
  OCTET_RETURN_IF_ERROR(cache.Init(spec, 3));
  OCTET_RETURN_IF_ERROR(cache.Append(NormalRows(spec, {0, 1, 2}, 31)));
  AttentionDesc d;
  d.q_heads = 4;
  d.kv = &cache.layout();
  d.limits = {1, 4, 32, 2};
  const Support support = TheSubject().device->attention().Supports(d);
  if (support.level == 0) return Unimplemented(support.reason);
  const Block workspace(support.workspace_bytes);
  convert::CAttentionDesc c(d);
  Grown<octet_attention_desc> desc(c.desc);
  Grown<octet_limits> limits(c.limits);
  desc.base.limits = &limits.base;
  if (which == "octet_attention_desc") desc.Apply(probe);
  if (which == "octet_limits") limits.Apply(probe);
  const octet_attention_ops& ops = *TheSubject().table()->attention;
  octet_plan* plan = nullptr;
  octet_error error = Error();
  octet_code code =
      ops.make_plan(TheSubject().device->handle(), &desc.base, workspace.buffer(), workspace.offset(), &plan, &error);
  const Owned<octet_plan> owned(plan, ops.release_plan);
  if (code != OCTET_OK || which == "octet_attention_desc" || which == "octet_limits") {
    Judge(probe, which, code, error, &workspace);
    EXPECT_EQ(plan != nullptr, code == OCTET_OK) << "a plan and an error, or neither";
    return OkStatus();
  }
  const int32_t q_start[] = {0, 1}, kv_len[] = {3}, page_start[] = {0, 1}, pages[] = {0};
  Grown<octet_batch> batch(convert::ToC(Batch{1, q_start, kv_len, nullptr, page_start, pages}));
  if (which == "octet_batch") batch.Apply(probe);
  error = Error();
  code = ops.refill(&TheSubject().s(), plan, &batch.base, &error);
  if (code != OCTET_OK || which == "octet_batch") {
    Judge(probe, which, code, error, nullptr);
    return OkStatus();
  }
  const Block q(std::vector<float>(4 * 64, 0.5f)), out(4 * 64 * 4);
  const Tensor qt = q.View(DType::kF32, {1, 4, 64}), ot = out.View(DType::kF32, {1, 4, 64});
  Grown<octet_kv_layer> layer(convert::ToC(cache.layer()));
  Grown<octet_attention_args> args(convert::ToC(AttentionArgs{&qt, &ot, nullptr, nullptr}));
  if (which == "octet_kv_layer") layer.Apply(probe);
  if (which == "octet_attention_args") args.Apply(probe);
  error = Error();
  code = ops.run(&TheSubject().s(), plan, &layer.base, &args.base, &error);
  Sync();
  Judge(probe, which, code, error, &out);
  return OkStatus();
}

Status ProbeDense(const std::string& which, Probe probe) {
  const octet_dense_ops* ops = TheSubject().table()->dense;
  if (ops == nullptr) return Unimplemented("the backend has no dense table");
  const std::vector<float> w(4 * 32, 0.5f);
  const WeightPart one{DType::kF32, 4, 32 * 4, w.data(), nullptr};
  WeightDesc d;
  d.columns = 32;
  d.parts = {&one, 1};
  d.max_tokens = 1;
  const Support support = TheSubject().device->dense()->SupportsWeight(d);
  if (support.level == 0) return Unimplemented(support.reason);
  convert::CWeightDesc c(d);
  Grown<octet_weight_part> part(*c.desc.parts[0]);
  Grown<octet_weight_desc> desc(c.desc);
  const octet_weight_part* const parts[] = {&part.base};
  desc.base.parts = parts;
  if (which == "octet_weight_part") part.Apply(probe);
  if (which == "octet_weight_desc") desc.Apply(probe);
  octet_weight* weight = nullptr;
  octet_error error = Error();
  octet_code code = ops->prepare_weight(&TheSubject().s(), &desc.base, &weight, &error);
  const Owned<octet_weight> owned(weight, ops->release_weight);
  if (code != OCTET_OK || which != "octet_linear_args") {
    Judge(probe, which, code, error, nullptr);
    return OkStatus();
  }
  const Block x(std::vector<float>(32, 1.0f)), y(4 * 4), workspace(support.workspace_bytes);
  const Tensor xt = x.View(DType::kF32, {1, 32}), yt = y.View(DType::kF32, {1, 4});
  LinearArgs args;
  args.x = &xt;
  args.y = &yt;
  args.w = weight;
  args.workspace = workspace.buffer();
  args.workspace_offset = workspace.offset();
  Grown<octet_linear_args> grown(convert::ToC(args));
  grown.Apply(probe);
  error = Error();
  code = ops->linear(&TheSubject().s(), &grown.base, &error);
  Sync();
  Judge(probe, which, code, error, &y);
  if (probe == Probe::kZeroTail) {
    EXPECT_EQ(y.Floats(DType::kF32), std::vector<float>(4, 16.0f));
  }
  return OkStatus();
}

// ---- Unknown enumeration values (rule A5)

Status RefusesUnknownCacheEnums() {
  const octet_quant_ops& ops = *TheSubject().table()->quant;
  octet_device* device = TheSubject().device->handle();
  const std::vector<std::pair<const char*, std::function<void(octet_cache_side&)>>> changes = {
      {"data_type 99", [](octet_cache_side& s) { s.data_type = 99; }},
      {"data_type i64", [](octet_cache_side& s) { s.data_type = OCTET_I64; }},
      {"scheme 7", [](octet_cache_side& s) { s.scheme = 7; }},
      {"scheme -1", [](octet_cache_side& s) { s.scheme = -1; }},
      {"axis 9", [](octet_cache_side& s) { s.axis = 9; }},
      {"scale_type 77", [](octet_cache_side& s) { s.scale_type = 77; }},
      {"scale_type f16", [](octet_cache_side& s) { s.scale_type = OCTET_F16; }},
      {"order 12345", [](octet_cache_side& s) { s.order = 12345; }}};
  for (const auto& [what, change] : changes) {
    KvLayout layout = LayoutOf(Both(Int8(64)), 3);
    FillRowStrides(layout);
    convert::CKvLayout c(layout);
    change(c.k);
    octet_support support = convert::Sized<octet_support>();
    octet_error error = Error();
    const octet_code code = ops.supports(device, &c.layout, OCTET_F32, &support, &error);
    EXPECT_TRUE(code == OCTET_UNIMPLEMENTED || (code == OCTET_OK && support.level == 0))
        << what << ": supports answers code " << code << ", level " << support.level;
    EXPECT_TRUE(error.message[0] != '\0' || support.reason[0] != '\0') << what << ": no reason";

    const Block memory(layout.layer_bytes), k(std::vector<float>(128, 1.0f)), slots(std::vector<int64_t>{0}),
        positions(std::vector<int32_t>{0});
    KvLayer layer;
    layer.cache = memory.buffer();
    layer.cache_offset = memory.offset();
    const Tensor kt = k.View(DType::kF32, {1, 2, 64}), st = slots.View(DType::kI64, {1}),
                 pt = positions.View(DType::kI32, {1});
    const octet_kv_layer y = convert::ToC(layer);
    const octet_kv_tokens t = convert::ToC(KvTokens{&kt, &kt, &st, &pt});
    error = Error();
    const octet_code refused = ops.append(&TheSubject().s(), &c.layout, &y, &t, &error);
    Sync();
    ExpectRefusal(refused, error, what);
    EXPECT_EQ(refused, OCTET_UNIMPLEMENTED) << what;
    Untouched(memory, "the cache");
  }
  return OkStatus();
}

Status RefusesUnknownAttentionEnums() {
  const octet_attention_ops& ops = *TheSubject().table()->attention;
  octet_device* device = TheSubject().device->handle();
  TestCache cache;
  OCTET_RETURN_IF_ERROR(cache.Init(Both(Int8(64)), 3));
  AttentionDesc d;
  d.q_heads = 4;
  d.kv = &cache.layout();
  d.limits = {1, 4, 32, 2};
  const std::vector<std::pair<const char*, std::function<void(octet_attention_desc&)>>> changes = {
      {"q_type 99", [](octet_attention_desc& c) { c.q_type = 99; }},
      {"out_type 99", [](octet_attention_desc& c) { c.out_type = 99; }},
      {"out_type i8", [](octet_attention_desc& c) { c.out_type = OCTET_I8; }},
      {"compute 7", [](octet_attention_desc& c) { c.compute = 7; }},
      {"causal 2", [](octet_attention_desc& c) { c.causal = 2; }}};
  for (const auto& [what, change] : changes) {
    convert::CAttentionDesc c(d);
    change(c.desc);
    octet_support support = convert::Sized<octet_support>();
    octet_error error = Error();
    const octet_code code = ops.supports(device, &c.desc, &support, &error);
    EXPECT_TRUE(code == OCTET_UNIMPLEMENTED || (code == OCTET_OK && support.level == 0))
        << what << ": supports answers code " << code << ", level " << support.level;
    octet_plan* plan = nullptr;
    error = Error();
    const octet_code refused = ops.make_plan(device, &c.desc, nullptr, 0, &plan, &error);
    const Owned<octet_plan> owned(plan, ops.release_plan);
    ExpectRefusal(refused, error, what);
    EXPECT_EQ(refused, OCTET_UNIMPLEMENTED) << what;
    EXPECT_EQ(plan, nullptr) << what;
  }
  return OkStatus();
}

Status RefusesUnknownDenseEnums() {
  const octet_dense_ops* ops = TheSubject().table()->dense;
  if (ops == nullptr) return Unimplemented("the backend has no dense table");
  const Block x(std::vector<float>(32, 1.0f)), y(32 * 4), gain(std::vector<float>(32, 1.0f));
  const Tensor xt = x.View(DType::kF32, {1, 32}), yt = y.View(DType::kF32, {1, 32}), gt = gain.View(DType::kF32, {32});
  for (int32_t kind : {0, 99, -1}) {
    octet_error error = Error();
    octet_code code = ops->norm(&TheSubject().s(), kind, &xt, &gt, nullptr, 1e-5f, &yt, &error);
    Sync();
    ExpectRefusal(code, error, "norm of an unknown kind");
    EXPECT_EQ(code, OCTET_UNIMPLEMENTED);
    error = Error();
    code = ops->activation(&TheSubject().s(), kind, &xt, &yt, &error);
    Sync();
    ExpectRefusal(code, error, "activation of an unknown kind");
    EXPECT_EQ(code, OCTET_UNIMPLEMENTED);
  }
  Untouched(y, "the output");
  const std::vector<float> w(4 * 32, 0.5f);
  const WeightPart one{DType::kF32, 4, 32 * 4, w.data(), nullptr};
  WeightDesc d;
  d.columns = 32;
  d.parts = {&one, 1};
  d.max_tokens = 1;
  const std::vector<std::pair<const char*, std::function<void(octet_weight_desc&, octet_weight_part&)>>> changes = {
      {"weight of type 99", [](octet_weight_desc&, octet_weight_part& p) { p.dtype = 99; }},
      {"weight of type 21", [](octet_weight_desc&, octet_weight_part& p) { p.dtype = 21; }},
      {"use 0x80", [](octet_weight_desc& c, octet_weight_part&) { c.use |= 0x80; }},
      {"x_type 99", [](octet_weight_desc& c, octet_weight_part&) { c.x_type = 99; }},
      {"y_type 99", [](octet_weight_desc& c, octet_weight_part&) { c.y_type = 99; }}};
  for (const auto& [what, change] : changes) {
    convert::CWeightDesc c(d);
    octet_weight_part part = *c.desc.parts[0];
    const octet_weight_part* const parts[] = {&part};
    c.desc.parts = parts;
    change(c.desc, part);
    octet_support support = convert::Sized<octet_support>();
    octet_error error = Error();
    const octet_code code = ops->supports_weight(TheSubject().device->handle(), &c.desc, &support, &error);
    EXPECT_TRUE(code == OCTET_UNIMPLEMENTED || (code == OCTET_OK && support.level == 0))
        << what << ": supports_weight answers code " << code << ", level " << support.level;
    octet_weight* weight = nullptr;
    error = Error();
    const octet_code refused = ops->prepare_weight(&TheSubject().s(), &c.desc, &weight, &error);
    const Owned<octet_weight> owned(weight, ops->release_weight);
    ExpectRefusal(refused, error, what);
    EXPECT_EQ(refused, OCTET_UNIMPLEMENTED) << what;
    EXPECT_EQ(weight, nullptr) << what;
  }
  return OkStatus();
}

}  // namespace

void AddAbiCases() {
  AddCase("Abi.ExportsOneSymbol/A14", ExportsOneSymbol);
  AddCase("Abi.AnswersEveryQueryAlike/absent_services", AnswersEveryQueryAlike);
  AddCase("Abi.SaysWhatItIs/strings", SaysWhatItIs);
  AddCase("Abi.RefusesWhatDoesNotExist/device_option_memory", RefusesWhatDoesNotExist);
  AddCase("Abi.AcceptsNullError/failing_calls", AcceptsNullError);
  AddCase("Abi.AcceptsNullInDestroy/A6", AcceptsNullInDestroy);
  AddCase("Abi.RefusesNullArguments/required", RefusesNullArguments);
  AddCase("Abi.WritesNoFurtherThanTheSize/A4", WritesNoFurtherThanTheSize);
  const std::pair<Probe, const char*> probes[] = {{Probe::kZeroTail, "Abi.AcceptsALongerStructWithAZeroTail/"},
                                                  {Probe::kUnknownField, "Abi.RefusesAnUnknownField/"},
                                                  {Probe::kTooShort, "Abi.RefusesAStructThatIsTooShort/"}};
  for (const auto& [kind, name] : probes) {
    const Probe probe = kind;
    for (const char* which : {"octet_cache_side", "octet_kv_layout", "octet_kv_layer", "octet_kv_tokens"}) {
      AddCase(name + std::string("append_") + which, [=] { return ProbeAppend(which, probe); });
    }
    for (const char* which :
         {"octet_attention_desc", "octet_limits", "octet_batch", "octet_kv_layer", "octet_attention_args"}) {
      AddCase(name + std::string("attention_") + which, [=] { return ProbeAttention(which, probe); });
    }
    for (const char* which : {"octet_weight_desc", "octet_weight_part", "octet_linear_args"}) {
      AddCase(name + std::string("dense_") + which, [=] { return ProbeDense(which, probe); });
    }
  }
  AddCase("Abi.RefusesUnknownEnums/cache", RefusesUnknownCacheEnums);
  AddCase("Abi.RefusesUnknownEnums/attention", RefusesUnknownAttentionEnums);
  AddCase("Abi.RefusesUnknownEnums/dense", RefusesUnknownDenseEnums);
}

}  // namespace octet::conformance
