#include "core/loader/memory_rates.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "absl/status/status.h"
#include "core/base/stopwatch.h"

namespace octet {
namespace {

constexpr uint64_t kBytes = uint64_t{256} << 20;
constexpr uint64_t kWord = 0x0101010101010101u;
constexpr int64_t kPiece = 512;  // words; one item of a loop

// The fastest of at least three calls that take `budget` seconds together.
absl::StatusOr<double> Fastest(const std::function<absl::Status()>& call, double budget) {
  double best = std::numeric_limits<double>::infinity();
  const Stopwatch all;
  for (int i = 0; i < 3 || all.seconds() < budget; ++i) {
    const Stopwatch one;
    if (auto status = call(); !status.ok()) return status;
    best = std::min(best, one.seconds());
  }
  return best;
}

struct SumCall {
  const uint64_t* data;
  std::vector<uint64_t> sums;  // [threads]
};

void SumPieces(void* arg, uint32_t worker, int64_t begin, int64_t end) {
  SumCall& call = *static_cast<SumCall*>(arg);
  uint64_t lanes[8] = {};
  for (int64_t i = begin * kPiece; i < end * kPiece; i += 8) {
    for (int64_t j = 0; j < 8; ++j) lanes[j] += call.data[i + j];
  }
  call.sums[worker] += std::accumulate(std::begin(lanes), std::end(lanes), uint64_t{0});
}

absl::StatusOr<double> ReadRate(const uint64_t* data, ThreadPool* pool, double seconds) {
  SumCall call{data, std::vector<uint64_t>(pool == nullptr ? 1 : static_cast<size_t>(pool->threads()))};
  uint64_t calls = 0;
  const auto fastest = Fastest(
      [&] {
        ++calls;
        constexpr int64_t kPieces = static_cast<int64_t>(kBytes / sizeof(uint64_t)) / kPiece;
        if (pool == nullptr) {
          SumPieces(&call, 0, 0, kPieces);
        } else {
          pool->ParallelFor(kPieces, SumPieces, &call);
        }
        return absl::OkStatus();
      },
      seconds);
  if (std::accumulate(call.sums.begin(), call.sums.end(), uint64_t{0}) != kWord * (kBytes / sizeof(uint64_t)) * calls) {
    return absl::DataLossError("256 MiB of the device's memory did not hold what was written there");
  }
  return static_cast<double>(kBytes) / *fastest;
}

}  // namespace

absl::StatusOr<MemoryRates> MeasureMemoryRates(Device& device, ThreadPool* pool, double seconds) {
  auto stream = device.CreateStream();
  if (!stream.ok()) return stream.status();
  auto from = device.Alloc(kBytes), to = device.Alloc(kBytes);
  const DrainAtEnd drain(device, stream->get());
  for (const auto* buffer : {&from, &to}) {
    if (!buffer->ok()) return buffer->status();
    if (auto status = device.Fill(stream->get(), (*buffer)->get(), 0, kBytes, 1); !status.ok()) return status;
  }
  if (auto status = device.Sync(stream->get()); !status.ok()) return status;
  const auto copy = Fastest(
      [&] {
        auto status = device.Copy(stream->get(), to->get(), 0, from->get(), 0, kBytes);
        return status.ok() ? device.Sync(stream->get()) : status;
      },
      seconds);
  if (!copy.ok()) return copy.status();
  MemoryRates rates;
  rates.copy = rates.read = 2.0 * static_cast<double>(kBytes) / *copy;
  const auto mapped = device.Map(from->get());
  if (device.info().kind != DeviceInfo::Kind::kCpu || !mapped.ok()) return rates;
  const auto read = ReadRate(static_cast<const uint64_t*>(*mapped), pool, seconds);
  if (!read.ok()) return read.status();
  rates.read = *read;
  return rates;
}

}  // namespace octet
