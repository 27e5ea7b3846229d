// Canonical pages: the one byte order in which pages travel between backends. Per (page, KV head) one contiguous piece
// of runs, each at a multiple of 128 bytes: K codes, V codes, K scales, K zeros, V scales, V zeros, then the same of
// K-extra; within a run rows by token, groups contiguous. Runs that a layout does not have take no bytes. Reference:
// docs/numerics.md.
#ifndef OCTET_TESTS_REFERENCE_CANONICAL_H_
#define OCTET_TESTS_REFERENCE_CANONICAL_H_

#include <cstdint>
#include <span>
#include <vector>

#include "octet/kv_cache.h"
#include "tests/reference/quantize.h"

namespace octet::reference {

struct Run {
  int64_t offset = 0;     // bytes from the piece's start
  int64_t row_bytes = 0;  // of one token; 0: the layout has no such run
};

enum SideIndex { kSideK = 0, kSideV = 1, kSideKExtra = 2 };

struct PieceMap {
  Run codes[3], scales[3], zeros[3];  // by SideIndex
  int64_t bytes = 0;                  // of a piece
};
PieceMap MapPiece(const KvLayout& layout);

// Bytes of one page: all its heads.
int64_t CanonicalPageBytes(const KvLayout& layout);

// Between a row and its place in a page (kv_heads pieces). Bytes of other rows and of the padding stay as they are.
void PutRow(const KvLayout& layout, SideIndex which, std::span<uint8_t> page, int kv_head, int index,
            const StoredRow& row);
StoredRow GetRow(const KvLayout& layout, SideIndex which, std::span<const uint8_t> page, int kv_head, int index);

}  // namespace octet::reference

#endif  // OCTET_TESTS_REFERENCE_CANONICAL_H_
