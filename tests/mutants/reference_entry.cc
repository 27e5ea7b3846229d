// The entry symbol of the reference backend, which EXPORT_MORE makes one of two.
#include "tests/mutants/reference_backend.h"

extern "C" const octet_backend_v1* octet_backend_query_v1(const octet_host_v1* host, octet_error* error) {
  return octet::mutants::ReferenceQuery(host, error);
}

#ifdef EXPORT_MORE
extern "C" OCTET_EXPORT int octet_mutant_helper() { return 1; }
#endif
