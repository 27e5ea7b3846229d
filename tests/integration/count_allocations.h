// Replaces operator new in every form, counts, and fails where a test wants it. A library that the program loads
// resolves to the same operators, so its allocations count too. Link the .cc into the test program itself.
#ifndef OCTET_TESTS_INTEGRATION_COUNT_ALLOCATIONS_H_
#define OCTET_TESTS_INTEGRATION_COUNT_ALLOCATIONS_H_

#include <cstdint>

namespace octet {

// False where the program's operators cannot be replaced: nothing is counted, and none fails.
bool CountsAllocations();

// Calls of operator new on this thread so far.
int64_t AllocationsOfThisThread();

// Allocations of all threads that were not given back yet.
int64_t LiveAllocations();

// Lets the nth call of operator new from now on fail, once, on whichever thread; 1 is the next one, 0 none.
void FailAllocation(int64_t nth);
// Did it, since FailAllocation?
bool AllocationHasFailed();

}  // namespace octet

#endif  // OCTET_TESTS_INTEGRATION_COUNT_ALLOCATIONS_H_
