/* No backend: it asks for the query instead of having it. */
#include "octet/abi.h"

OCTET_EXPORT const char* octet_test_name(void);
const char* octet_test_name(void) { return octet_backend_query_v1(NULL, NULL)->name; }
