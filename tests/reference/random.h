// Seeded numbers that are the same on every machine. Reference: Steele, Lea, Flood, "Fast splittable pseudorandom
// number generators" (SplitMix64); Box and Muller for the normal distribution.
#ifndef OCTET_TESTS_REFERENCE_RANDOM_H_
#define OCTET_TESTS_REFERENCE_RANDOM_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace octet::reference {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // In [0, 1).
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }
  float Uniform(double low, double high) { return static_cast<float>(low + (high - low) * Uniform()); }
  // In [low, high].
  int Int(int low, int high) { return low + static_cast<int>(Next() % static_cast<uint64_t>(high - low + 1)); }
  float Normal() {
    const double r = std::sqrt(-2.0 * std::log(1.0 - Uniform()));
    return static_cast<float>(r * std::cos(6.283185307179586 * Uniform()));
  }
  std::vector<float> Normals(size_t n, float scale = 1.0f) {
    std::vector<float> v(n);
    for (float& x : v) x = scale * Normal();
    return v;
  }
  // 0..n-1 in random order.
  std::vector<int32_t> Permutation(int n) {
    std::vector<int32_t> v(static_cast<size_t>(n));
    std::iota(v.begin(), v.end(), 0);
    for (int i = n - 1; i > 0; --i) std::swap(v[static_cast<size_t>(i)], v[static_cast<size_t>(Int(0, i))]);
    return v;
  }

 private:
  uint64_t state_;
};

}  // namespace octet::reference

#endif  // OCTET_TESTS_REFERENCE_RANDOM_H_
