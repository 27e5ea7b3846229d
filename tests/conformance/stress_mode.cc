// Random cases by the clock, each from a seed of its own.
#include <chrono>
#include <cstdio>
#include <string>

#include "gtest/gtest.h"
#include "tests/conformance/harness.h"
#include "tests/conformance/modes.h"
#include "tests/conformance/random_cases.h"

namespace octet::conformance {
namespace {

// Larger batches and lengths than the fixed list has.
AttentionCase LargerAttention(reference::Random& random) {
  AttentionCase c = RandomAttention(random);
  c.sequences.clear();
  const int requests = random.Int(1, 6);
  for (int i = 0; i < requests; ++i) {
    const int queries = random.Int(0, 3) == 0 ? random.Int(2, 40) : 1;
    c.sequences.push_back({queries, queries + random.Int(0, random.Int(0, 4) == 0 ? 400 : 60), 0, i});
  }
  c.data = static_cast<Data>(random.Int(static_cast<int>(Data::kNormal), static_cast<int>(Data::kSignedZeros)));
  c.page_seed = random.Next() | 1;
  c.spare_pages = random.Int(0, 9);
  c.garbage = static_cast<uint8_t>(random.Int(0, 255));
  return c;
}

Status RandomCases(uint64_t seed, double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  int ran = 0, unsupported = 0;
  do {
    const uint64_t own_seed = seed + static_cast<uint64_t>(ran++);
    RunAgainWith("--mode stress --seed " + std::to_string(own_seed) + " --seconds 0");
    reference::Random random(own_seed);
    const bool layout = random.Int(0, 3) == 0;
    const CacheSpec spec = RandomSpec(random);
    const AttentionCase c = LargerAttention(random);
    const Status status = layout ? LayoutIsHonest(spec) : AttentionIsHonest(c);
    if (status.code() == Code::kUnimplemented) {
      ++unsupported;
    } else if (!status.ok()) {
      ADD_FAILURE() << status.message();
    }
    if (testing::Test::HasFailure()) {
      ADD_FAILURE() << "seed " << own_seed << ": " << (layout ? "cache " + NameOf(spec) : "attention " + NameOf(c));
      break;
    }
  } while (Clock::now() < end);
  std::printf("stress: %d random cases from seed %llu, %d of them unsupported\n", ran,
              static_cast<unsigned long long>(seed), unsupported);
  return OkStatus();
}

}  // namespace

void AddStressCase(uint64_t seed, double seconds) {
  AddCase("Stress.RandomCases/seed_" + std::to_string(seed), [=] { return RandomCases(seed, seconds); });
}

}  // namespace octet::conformance
