// What is opened and made must go away again: memory, threads, and nothing else with it. Counts come from the device
// (held_bytes) and from the process (/proc/self: threads, resident memory). Rules: abi.h, A6 and A13.
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "octet/convert.h"
#include "tests/conformance/harness.h"
#include "tests/conformance/scene.h"
#include "tests/conformance/test_cache.h"

namespace octet::conformance {
namespace {

// An allocator keeps some of what was freed; a leak of these cases is several times larger.
constexpr int64_t kSpareBytes = 16 << 20;

// A sanitizer holds back what is freed, and looks for leaks itself.
bool Sanitized() { return std::string(convert::BuildSanitizer()) != "none"; }

int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

int Threads() {
  int n = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) ++n;
  return n;
}

// A joined thread may stay in /proc for a moment.
void ExpectThreads(int before, const char* after) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  while (Threads() > before && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_LE(Threads(), before) << "threads after " << after << " (rule A13)";
}

StatusOr<uint64_t> HeldBytes() {
  const auto memory = TheSubject().device->memory();
  if (!memory.ok()) return Internal(std::string(memory.status().message()));
  return memory->held_bytes;
}

// `once` many times: after a first tenth, during which pools may fill, neither held nor resident memory grows.
Status ReturnsItsMemory(int times, const std::function<Status()>& once) {
  for (int i = 0; i < times / 10; ++i) OCTET_RETURN_IF_ERROR(once());
  const StatusOr<uint64_t> held = HeldBytes();
  OCTET_RETURN_IF_ERROR(held.status());
  const int64_t resident = ResidentBytes();
  for (int i = 0; i < times; ++i) OCTET_RETURN_IF_ERROR(once());
  const StatusOr<uint64_t> after = HeldBytes();
  OCTET_RETURN_IF_ERROR(after.status());
  EXPECT_EQ(*after, *held) << "held_bytes after " << times << " times";
  if (!Sanitized()) {
    EXPECT_LE(ResidentBytes() - resident, kSpareBytes) << "growth of the process after " << times << " times";
  }
  return OkStatus();
}

Status UsesAndCloses(bool computes) {
  auto device = OpenAgain();
  if (!device.ok()) return Internal(std::string(device.status().message()));
  const OnDevice use(*std::move(device));
  const Block block(1 << 20, 0x11);
  return computes ? StillWorks() : OkStatus();
}

Status OpensAndCloses() {
  OCTET_RETURN_IF_ERROR(UsesAndCloses(true));
  const int threads = Threads();
  const int64_t resident = ResidentBytes();
  for (int i = 0; i < 50; ++i) OCTET_RETURN_IF_ERROR(UsesAndCloses(i % 10 == 0));
  ExpectThreads(threads, "50 times open and close");
  if (!Sanitized()) {
    EXPECT_LE(ResidentBytes() - resident, kSpareBytes) << "growth of the process after 50 times open and close";
  }
  return OkStatus();
}

Status CloseJoinsItsThreads() {
  // What a driver starts once for all devices is there from the first one on.
  const int before = Threads();
  OCTET_RETURN_IF_ERROR(UsesAndCloses(true));
  ExpectThreads(before, "open, compute and close");
  return OkStatus();
}

Status ClosingOneLeavesTheOthers() {
  auto first = OpenAgain(), second = OpenAgain();
  if (!first.ok()) return Internal(std::string(first.status().message()));
  if (!second.ok()) return Internal(std::string(second.status().message()));
  first->reset();
  {
    const OnDevice use(*std::move(second));
    OCTET_RETURN_IF_ERROR(StillWorks());
  }
  return StillWorks();
}

Status BuffersReturnTheirBytes() {
  const StatusOr<uint64_t> before = HeldBytes();
  OCTET_RETURN_IF_ERROR(before.status());
  uint64_t sum = 0;
  {
    std::vector<OwnedBuffer> buffers;
    for (uint64_t bytes : {1, 255, 256, 4096, 65536, 1 << 20, 3 << 20, 77777}) {
      for (int i = 0; i < 8; ++i) {
        auto buffer = TheSubject().device->Alloc(bytes, i % 2 == 0 ? MemoryKind::kDevice : MemoryKind::kHostVisible);
        if (!buffer.ok()) return Internal(std::string(buffer.status().message()));
        buffers.push_back(*std::move(buffer));
        sum += i % 2 == 0 ? bytes : 0;  // host-visible memory need not be the device's
      }
    }
    const StatusOr<uint64_t> during = HeldBytes();
    OCTET_RETURN_IF_ERROR(during.status());
    EXPECT_GE(*during, *before + sum) << "held_bytes with " << buffers.size() << " buffers alive";
  }
  const StatusOr<uint64_t> after = HeldBytes();
  OCTET_RETURN_IF_ERROR(after.status());
  EXPECT_EQ(*after, *before) << "held_bytes after all buffers were freed";
  return OkStatus();
}

Status PlansReturnTheirMemory() {
  TestCache cache;
  OCTET_RETURN_IF_ERROR(cache.Init(Both(Int8(64)), 64));
  AttentionDesc desc;
  desc.q_heads = 4;
  desc.kv = &cache.layout();
  desc.limits = {8, 64, 1024, 64};
  AttentionBackend& attention = TheSubject().device->attention();
  const Support support = attention.Supports(desc);
  if (support.level == 0) return Unimplemented(support.reason);
  const Workspace workspace(support.workspace_bytes);
  const int32_t q_start[] = {0, 1}, kv_len[] = {40}, page_start[] = {0, 3}, pages[] = {5, 2, 60};
  return ReturnsItsMemory(200, [&]() -> Status {
    auto plan = attention.MakePlan(desc, workspace.buffer(), workspace.offset());
    OCTET_RETURN_IF_ERROR(Promised("make_plan", plan.status()));
    return Promised("refill",
                    attention.Refill(TheSubject().s(), **plan, {1, q_start, kv_len, nullptr, page_start, pages}));
  });
}

Status WeightsReturnTheirMemory() {
  DenseOps* dense = TheSubject().device->dense();
  if (dense == nullptr) return Unimplemented("the backend has no dense table");
  const FloatWeight host(256, 256, 4, std::vector<float>(256 * 256, 0.25f));
  const Support support = dense->SupportsWeight(host.desc);
  if (support.level == 0) return Unimplemented(support.reason);
  return ReturnsItsMemory(200, [&]() -> Status {
    const auto weight = TheSubject().device->PrepareWeight(&TheSubject().s(), host.desc);
    Sync();
    return Promised("prepare_weight", weight.status());
  });
}

Status StreamsAndEventsReturnTheirMemory() {
  return ReturnsItsMemory(300, []() -> Status {
    Device& device = *TheSubject().device;
    const auto stream = device.CreateStream();
    if (!stream.ok()) return Promised("create stream", stream.status());
    const auto event = device.CreateEvent();
    if (!event.ok()) return Promised("create event", event.status());
    for (const absl::Status& status :
         {device.Record(stream->get(), event->get()), device.Wait(stream->get(), event->get()),
          device.EventSync(event->get()), device.Sync(stream->get())}) {
      OCTET_RETURN_IF_ERROR(Promised("record, wait and sync", status));
    }
    return OkStatus();
  });
}

}  // namespace

void AddLifeCycleCases() {
  AddCase("LifeCycle.OpensAndCloses/50_times", OpensAndCloses);
  AddCase("LifeCycle.CloseJoinsItsThreads/A13", CloseJoinsItsThreads);
  AddCase("LifeCycle.ClosingOneLeavesTheOthers/two_more", ClosingOneLeavesTheOthers);
  AddCase("LifeCycle.BuffersReturnTheirBytes/64_buffers", BuffersReturnTheirBytes);
  AddCase("LifeCycle.PlansReturnTheirMemory/200_plans", PlansReturnTheirMemory);
  AddCase("LifeCycle.WeightsReturnTheirMemory/200_weights", WeightsReturnTheirMemory);
  AddCase("LifeCycle.StreamsAndEventsReturnTheirMemory/300_times", StreamsAndEventsReturnTheirMemory);
}

}  // namespace octet::conformance
