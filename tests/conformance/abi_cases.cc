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
#include <vector>

#include "core/loader/open_library.h"
#include "gtest/gtest.h"
#include "octet/convert.h"
#include "tests/conformance/harness.h"
#include "tests/conformance/scene.h"
#include "tests/conformance/test_cache.h"

namespace octet::conformance {
namespace {

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
  OCTET_RETURN_IF_ERROR(OnThreads(4, [&](int) {
    EXPECT_EQ((*query)(&empty, nullptr), TheSubject().table());
    return OkStatus();
  }));
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
}

}  // namespace octet::conformance
