// Mutants whose fault is in the tables themselves, beneath plugin.hpp, which would not let it through. One macro each.
#include <cstring>
#include <stdexcept>

#include "tests/mutants/reference_backend.h"

namespace {

const octet_backend_v1* Right(const octet_host_v1* host, octet_error* error) {
  return octet::mutants::ReferenceQuery(host, error);
}

#if defined(IGNORES_UNKNOWN_TAIL)
const octet_attention_ops* right;
// Reads what it knows of a batch and never looks at the rest (rule A3).
octet_code Refill(octet_stream* stream, octet_plan* plan, const octet_batch* batch, octet_error* error) {
  octet_batch known{};
  if (batch != nullptr)
    std::memcpy(&known, batch, batch->struct_size < sizeof(known) ? batch->struct_size : sizeof(known));
  if (known.struct_size > sizeof(known)) known.struct_size = sizeof(known);
  return right->refill(stream, plan, batch == nullptr ? nullptr : &known, error);
}
const octet_backend_v1* Wrong(const octet_backend_v1* table) {
  static octet_attention_ops attention;
  static octet_backend_v1 changed;
  right = table->attention;
  attention = *table->attention;
  attention.refill = Refill;
  changed = *table;
  changed.attention = &attention;
  return &changed;
}
#elif defined(WRITES_PAST_OUT_STRUCT)
// Fills all that it knows, however short the caller's struct is (rule A4).
octet_code Info(octet_device*, octet_memory_info* out, octet_error*) {
  const uint32_t size = out->struct_size;
  *out = octet_memory_info{};
  out->struct_size = size;
  return OCTET_OK;
}
const octet_backend_v1* Wrong(const octet_backend_v1* table) {
  static octet_memory_ops memory;
  static octet_backend_v1 changed;
  memory = *table->memory;
  memory.info = Info;
  changed = *table;
  changed.memory = &memory;
  return &changed;
}
#elif defined(SHORT_TABLE)
// A table that ends before its last entry (rule A1).
const octet_backend_v1* Wrong(const octet_backend_v1* table) {
  static octet_quant_ops quant;
  static octet_backend_v1 changed;
  quant = *table->quant;
  quant.struct_size = sizeof(octet_quant_ops) - sizeof(void*);
  changed = *table;
  changed.quant = &quant;
  return &changed;
}
#elif defined(THROWS_IN_QUERY)
const octet_backend_v1* Wrong(const octet_backend_v1*) { throw std::runtime_error("a fault that was planted"); }
#endif

}  // namespace

extern "C" const octet_backend_v1* octet_backend_query_v1(const octet_host_v1* host, octet_error* error) {
  const octet_backend_v1* table = Right(host, error);
  return table == nullptr ? nullptr : Wrong(table);
}
