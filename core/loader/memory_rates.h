// How fast a device's memory is at this moment: what measured speeds are shares of.
#ifndef OCTET_CORE_LOADER_MEMORY_RATES_H_
#define OCTET_CORE_LOADER_MEMORY_RATES_H_

#include "absl/status/statusor.h"
#include "core/base/thread_pool.h"
#include "core/loader/device.h"

namespace octet {

struct MemoryRates {
  double copy = 0;  // bytes per second, read and written, of a device copy of 256 MiB
  // Bytes per second of the host's threads summing 256 MiB, where the device's memory is the host's; elsewhere copy.
  double read = 0;
};

// Thread-safe. Takes 512 MiB of the device for about twice `seconds`, and gives it back. `pool` may be null: the
// calling thread alone. The device's error, ResourceExhausted among them; DataLoss where the sum is wrong.
absl::StatusOr<MemoryRates> MeasureMemoryRates(Device& device, ThreadPool* pool, double seconds);

}  // namespace octet

#endif  // OCTET_CORE_LOADER_MEMORY_RATES_H_
