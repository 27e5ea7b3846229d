/* Backends by hand, in C, each with one peculiarity that CMake chooses by VARIANT_*. Only what the loader calls while
 * it looks around does anything. */
#include <stddef.h>
#include <string.h>

#if defined(VARIANT_ABI_2)
#define octet_backend_query_v1 octet_backend_query_v2
#endif
#include "octet/abi.h"

#if defined(VARIANT_UNDEFINED_SYMBOL)
extern int octet_test_defined_nowhere(void);
int octet_test_use(void) { return octet_test_defined_nowhere(); }
#endif
#if defined(VARIANT_MISSING_LIBRARY)
extern int octet_test_gone(void);
int octet_test_use(void) { return octet_test_gone(); }
#endif

#if defined(VARIANT_NO_DRIVER_LIBRARY)
extern int octet_test_driver(void);
int octet_test_use(void) { return octet_test_driver(); }
#endif

#if !defined(VARIANT_SANITIZER)
#if defined(__has_feature) /* clang; gcc defines the names itself */
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#elif __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define VARIANT_SANITIZER "address"
#elif defined(__SANITIZE_THREAD__)
#define VARIANT_SANITIZER "thread"
#else
#define VARIANT_SANITIZER "none"
#endif
#endif

static octet_code fail(octet_error* error, octet_code code, const char* text) {
  if (error != NULL) {
    error->code = code;
    error->message_len = (uint32_t)strlen(text);
    memcpy(error->message, text, error->message_len + 1);
  }
  return code;
}

static octet_code count(uint32_t* out, octet_error* error) {
#if defined(VARIANT_NO_DEVICE)
  (void)out;
  return fail(error, OCTET_UNAVAILABLE, "no Acme driver: libacme.so.1 was not found");
#elif defined(VARIANT_NO_DEVICE_SILENT)
  (void)out;
  (void)error;
  return OCTET_UNAVAILABLE;
#elif defined(VARIANT_ZERO_DEVICES)
  (void)error;
  *out = 0;
  return OCTET_OK;
#elif defined(VARIANT_MANY_DEVICES)
  (void)error;
  *out = 4000000000u;
  return OCTET_OK;
#else
  (void)error;
  *out = 2;
  return OCTET_OK;
#endif
}

static octet_code describe(uint32_t index, octet_device_info* out, octet_error* error) {
#if defined(VARIANT_DEVICE_FAILS)
  if (index == 1) return fail(error, OCTET_DATA_LOSS, "Acme 200 does not answer");
#endif
  (void)error;
#if defined(VARIANT_WIDE_CPU)
  out->kind = OCTET_DEVICE_CPU;
#else
  out->kind = OCTET_DEVICE_GPU;
#endif
  memcpy(out->name, index == 0 ? "Acme 100" : "Acme 200", 9);
  memcpy(out->arch, "acme1", 6);
  out->memory_bytes = 1u << 30;
  out->preferred_alignment = 512;
  out->lanes = 32;
#if defined(VARIANT_GARBAGE_DEVICE)
  memset(out->name, 0x1b, sizeof out->name); /* no end */
  memset(out->arch, '\n', sizeof out->arch);
  out->kind = 77;
#elif defined(VARIANT_BAD_DEVICE)
  out->preferred_alignment = 3;
#endif
  return OCTET_OK;
}

static char opened[2]; /* an open device is the address of its entry */
static octet_code open_device(uint32_t index, const char* options, octet_device** out, octet_error* error) {
  if (strcmp(options, "fail=1") == 0) return fail(error, OCTET_DATA_LOSS, "the device fell off the bus");
  *out = (octet_device*)&opened[index];
  return OCTET_OK;
}
static void close_device(octet_device* device) { (void)device; }
static octet_code refuse(void) { return OCTET_UNIMPLEMENTED; }

static octet_device_ops device_ops = {sizeof(octet_device_ops), 0, count, describe, open_device, close_device};
static octet_memory_ops memory_ops;
static octet_stream_ops stream_ops;
static octet_quant_ops quant_ops;
static octet_attention_ops attention_ops;
#if defined(VARIANT_LONG_TABLE)
static struct {
  octet_backend_v1 known;
  const void* later[4];
} longer;
#define table longer.known
#else
static octet_backend_v1 table;
#endif

/* Sets every function of a table to one that is present but never called here. */
static void fill(void* ops, size_t size) {
  uint32_t header[2] = {(uint32_t)size, 0};
  octet_code (*entry)(void) = refuse;
  size_t at;
  memcpy(ops, header, sizeof header);
  for (at = sizeof header; at < size; at += sizeof entry) memcpy((char*)ops + at, &entry, sizeof entry);
}

const octet_backend_v1* octet_backend_query_v1(const octet_host_v1* host, octet_error* error) {
  (void)host;
#if defined(VARIANT_NULL_WITH_TEXT)
  fail(error, OCTET_FAILED_PRECONDITION, "this backend needs a kernel from this century");
  return NULL;
#elif defined(VARIANT_NULL_GARBAGE)
  memset(error->message, '\033', sizeof error->message); /* no end */
  error->message_len = 0xffffffffu;
  return NULL;
#elif defined(VARIANT_NULL_SILENT)
  (void)error;
  return NULL;
#else
  (void)error;
#endif
  fill(&memory_ops, sizeof memory_ops);
  fill(&stream_ops, sizeof stream_ops);
  fill(&quant_ops, sizeof quant_ops);
  fill(&attention_ops, sizeof attention_ops);
  table.struct_size = sizeof table;
  table.abi_draft = OCTET_ABI_DRAFT;
  table.name = VARIANT_NAME;
  table.vendor = "Acme";
  table.version = "7";
  table.build = "compiler=by-hand;sanitizer=" VARIANT_SANITIZER ";targets=acme1";
  table.device = &device_ops;
  table.memory = &memory_ops;
  table.stream = &stream_ops;
  table.quant = &quant_ops;
  table.attention = &attention_ops;
#if defined(VARIANT_OTHER_DRAFT)
  table.abi_draft = 8;
#elif defined(VARIANT_SHORT_TABLE)
  table.struct_size = offsetof(octet_backend_v1, attention);
#elif defined(VARIANT_EMPTY_TABLE)
  table.struct_size = 0;
#elif defined(VARIANT_LONG_TABLE)
  table.struct_size = sizeof longer;
  longer.later[0] = longer.later[3] = &longer;
#elif defined(VARIANT_SHORT_PART)
  quant_ops.struct_size = offsetof(octet_quant_ops, gather);
#elif defined(VARIANT_NO_PART)
  table.stream = NULL;
#elif defined(VARIANT_GARBAGE_NAME)
  table.name = "\033[31m\n\377evil";
#elif defined(VARIANT_NO_TEXT)
  table.vendor = NULL;
#elif defined(VARIANT_NO_GATHER)
  quant_ops.gather = NULL;
#endif
  return &table;
}
