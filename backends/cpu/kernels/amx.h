// The tile registers of Intel's AMX as the kernels here use them: eight of 16 rows of 64 bytes. Included by files that
// are compiled for AMX only. Intel, "Intel 64 and IA-32 Architectures Software Developer's Manual", volume 1,
// chapter 18.
#ifndef OCTET_BACKENDS_CPU_KERNELS_AMX_H_
#define OCTET_BACKENDS_CPU_KERNELS_AMX_H_

#include <immintrin.h>
#include <stdint.h>

namespace octet_cpu {
namespace OCTET_CPU_ISA {

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Before tiles are loaded from memory that this function has written: gcc 12 does not tell the compiler that they are.
static inline void FinishStores() { asm volatile("" ::: "memory"); }

// The registers are this thread's while it lasts; their content is undefined before they are written.
class Tiles {
 public:
  Tiles() {
    const TileConfig config;
    FinishStores();
    _tile_loadconfig(&config);
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

}  // namespace OCTET_CPU_ISA
}  // namespace octet_cpu

#endif  // OCTET_BACKENDS_CPU_KERNELS_AMX_H_
