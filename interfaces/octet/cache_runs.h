// The runs of bytes that a placed KV layout is made of: codes, scales and zeros of each side that it stores.
#ifndef OCTET_CACHE_RUNS_H_
#define OCTET_CACHE_RUNS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "octet/kv_cache.h"
#include "octet/status.h"

namespace octet {
inline namespace v1 {

// A run of a side: codes, scales or zeros.
struct CacheRun {
  const char* name;
  uint64_t base;
  const std::array<int64_t, 3>& stride;
  int64_t row_bytes;  // 0: the side has none
};

inline std::array<CacheRun, 3> RunsOf(const CacheSide& s) {
  const int64_t groups = s.dynamic() ? s.groups() : 0;
  const int64_t zeros = s.scheme == Scheme::kAsymmetric ? groups : 0;
  return {{{"codes", s.data_base, s.data_stride, s.head_dim * ElementBytes(s.data_type)},
           {"scales", s.scale_base, s.scale_stride, groups * ElementBytes(s.scale_type)},
           {"zeros", s.zero_base, s.zero_stride, zeros * ElementBytes(s.zero_type)}}};
}

// The sides that a layout stores.
struct StoredSides {
  explicit StoredSides(const KvLayout& l) {
    sides[count++] = {"K", &l.k};
    if (!l.v_is_k) sides[count++] = {"V", &l.v};
    if (l.has_k_extra) sides[count++] = {"extra K", &l.k_extra};
  }
  auto begin() const { return sides.data(); }
  auto end() const { return sides.data() + count; }

  std::array<std::pair<const char*, const CacheSide*>, 3> sides;
  size_t count = 0;
};

inline Status CheckRun(const KvLayout& l, const char* side, const CacheRun& run) {
  if (run.row_bytes == 0) return OkStatus();
  uint64_t last = run.base;
  const int64_t counts[3] = {l.num_pages, l.kv_heads, l.page_tokens};
  bool fits = true;
  for (size_t i = 0; i < 3; ++i) {
    uint64_t span = 0;
    fits = fits && run.stride[i] >= 0 && !__builtin_mul_overflow(counts[i] - 1, run.stride[i], &span) &&
           !__builtin_add_overflow(last, span, &last);
  }
  fits = fits && !__builtin_add_overflow(last, static_cast<uint64_t>(run.row_bytes), &last) && last <= l.layer_bytes;
  if (fits) return OkStatus();
  return InvalidArgument("KV layout: the " + std::string(run.name) + " of " + side + " leave the layer's " +
                         std::to_string(l.layer_bytes) + " bytes");
}

// Is every row of every run inside layer_bytes? Expects CheckLayout to have passed.
inline Status CheckRuns(const KvLayout& l) {
  for (const auto& [name, side] : StoredSides(l)) {
    for (const CacheRun& run : RunsOf(*side)) OCTET_RETURN_IF_ERROR(CheckRun(l, name, run));
  }
  return OkStatus();
}

}  // namespace v1
}  // namespace octet

#endif  // OCTET_CACHE_RUNS_H_
