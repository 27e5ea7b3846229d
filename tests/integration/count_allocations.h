// Replaces operator new in every form, and counts. A library that the program loads resolves to the same operators, so
// its allocations count too. Link the .cc into the test program itself.
#ifndef OCTET_TESTS_INTEGRATION_COUNT_ALLOCATIONS_H_
#define OCTET_TESTS_INTEGRATION_COUNT_ALLOCATIONS_H_

#include <cstdint>

namespace octet {

// Calls of operator new on this thread so far.
int64_t AllocationsOfThisThread();

}  // namespace octet

#endif  // OCTET_TESTS_INTEGRATION_COUNT_ALLOCATIONS_H_
