// Random descriptors from everything that abi.h can say, and the question whether the backend is honest about one: it
// runs and matches the reference where supports says so, and refuses with a reason where not (rules A9 and A10).
#ifndef OCTET_TESTS_CONFORMANCE_RANDOM_CASES_H_
#define OCTET_TESTS_CONFORMANCE_RANDOM_CASES_H_

#include <string>

#include "octet/status.h"
#include "tests/conformance/scene.h"
#include "tests/conformance/test_cache.h"
#include "tests/reference/random.h"

namespace octet::conformance {

CacheSpec RandomSpec(reference::Random& random);
AttentionCase RandomAttention(reference::Random& random);

Status LayoutIsHonest(const CacheSpec& spec);
Status AttentionIsHonest(const AttentionCase& c);

}  // namespace octet::conformance

#endif  // OCTET_TESTS_CONFORMANCE_RANDOM_CASES_H_
