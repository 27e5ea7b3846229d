#include <pthread.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <set>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "core/base/mapped_file.h"
#include "core/base/message_text.h"
#include "core/base/thread_pool.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace octet {
namespace {

using ::testing::HasSubstr;

struct Touches {
  ThreadPool* pool;
  std::vector<int> count;
  std::vector<std::atomic<int>> active;
  std::atomic<bool> shared_worker{false};
};

void Touch(void* arg, uint32_t worker, int64_t begin, int64_t end) {
  auto& touches = *static_cast<Touches*>(arg);
  if (touches.active[worker].fetch_add(1) != 0) touches.shared_worker = true;
  for (int64_t i = begin; i < end; ++i) ++touches.count[static_cast<size_t>(i)];
  touches.active[worker].fetch_sub(1);
}

TEST(ThreadPoolTest, VisitsEveryIndexOnceAndNeverSharesAWorkerNumber) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (int64_t n : {0, 1, 2, 7, 1000}) {
      Touches touches{&pool, std::vector<int>(static_cast<size_t>(n)), std::vector<std::atomic<int>>(8)};
      pool.ParallelFor(n, Touch, &touches);
      EXPECT_THAT(touches.count, ::testing::Each(1)) << threads << " threads, n " << n;
      EXPECT_FALSE(touches.shared_worker);
    }
  }
}

TEST(ThreadPoolTest, RunsManyShortLoopsInARow) {
  ThreadPool pool(4);
  Touches touches{&pool, std::vector<int>(16), std::vector<std::atomic<int>>(8)};
  for (int i = 0; i < 2000; ++i) pool.ParallelFor(16, Touch, &touches);
  EXPECT_THAT(touches.count, ::testing::Each(2000));
}

// The process's CPU time, so that what else runs here does not count. With workers that spin it is many times as much.
TEST(ThreadPoolTest, ManyMoreThreadsThanCpusCostWhatTheWorkCosts) {
  const auto work = [](void*, uint32_t, int64_t begin, int64_t end) {
    volatile int64_t sum = 0;
    for (int64_t i = 0; i < (end - begin) * 20000; ++i) sum = sum + i;
  };
  const auto cpu_seconds = [&work](int threads) {
    ThreadPool pool(threads);
    const std::clock_t start = std::clock();
    for (int i = 0; i < 100; ++i) pool.ParallelFor(64, work, nullptr);
    return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  };
  const double one = cpu_seconds(1), many = cpu_seconds(512);
  EXPECT_LT(many, 5 * one + 1);
}

TEST(ThreadPoolTest, ALoopInsideALoopRunsInline) {
  ThreadPool pool(3);
  Touches touches{&pool, std::vector<int>(64), std::vector<std::atomic<int>>(8)};
  auto outer = [](void* arg, uint32_t, int64_t begin, int64_t end) {
    auto& inner = *static_cast<Touches*>(arg);
    for (int64_t i = begin; i < end; ++i) {
      struct Slice {
        Touches* touches;
        int64_t base;
      } slice{&inner, i * 8};
      inner.pool->ParallelFor(
          8,
          [](void* a, uint32_t, int64_t b, int64_t e) {
            auto& s = *static_cast<Slice*>(a);
            for (int64_t k = b; k < e; ++k) ++s.touches->count[static_cast<size_t>(s.base + k)];
          },
          &slice);
    }
  };
  pool.ParallelFor(8, outer, &touches);
  EXPECT_THAT(touches.count, ::testing::Each(1));
}

TEST(ThreadPoolTest, CallersOnSeveralThreadsTakeTurns) {
  ThreadPool pool(2);
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int c = 0; c < 3; ++c) {
    callers.emplace_back([&pool, &wrong] {
      for (int i = 0; i < 100; ++i) {
        Touches touches{&pool, std::vector<int>(50), std::vector<std::atomic<int>>(8)};
        pool.ParallelFor(50, Touch, &touches);
        for (int count : touches.count) wrong += count != 1;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

cpu_set_t Affinity() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(pthread_getaffinity_np(pthread_self(), sizeof set, &set), 0);
  return set;
}

TEST(ThreadPoolTest, PinnedThreadsKeepToACpuOfTheirOwnUntilThePoolEnds) {
  const cpu_set_t before = Affinity();
  const int cpus = CPU_COUNT(&before);
  {
    ThreadPool pool(cpus, Pinning::kOn);
    struct Seen {
      std::vector<cpu_set_t> of_worker;
      std::atomic<int> arrived{0};
      int threads;
    } seen{std::vector<cpu_set_t>(static_cast<size_t>(cpus)), {}, cpus};
    pool.ParallelFor(
        cpus,
        [](void* arg, uint32_t worker, int64_t, int64_t) {
          auto& s = *static_cast<Seen*>(arg);
          s.of_worker[worker] = Affinity();
          s.arrived.fetch_add(1);
          while (s.arrived.load() < s.threads) std::this_thread::yield();  // so that every worker takes one piece
        },
        &seen);
    cpu_set_t all;
    CPU_ZERO(&all);
    for (const cpu_set_t& own : seen.of_worker) {
      EXPECT_EQ(CPU_COUNT(&own), 1);
      CPU_OR(&all, &all, &own);
    }
    EXPECT_TRUE(CPU_EQUAL(&all, &before));
  }
  const cpu_set_t after = Affinity();
  EXPECT_TRUE(CPU_EQUAL(&after, &before));
}

TEST(ThreadPoolTest, MoreThreadsThanCpusAreNotPinned) {
  const cpu_set_t before = Affinity();
  try {
    const ThreadPool pool(CPU_COUNT(&before) + 1, Pinning::kOn);
    FAIL() << "no error";
  } catch (const std::system_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("cannot pin"));
  }
  const cpu_set_t after = Affinity();
  EXPECT_TRUE(CPU_EQUAL(&after, &before));
}

TEST(ThreadPoolTest, PinningTakesOneCpuOfEveryCoreFirst) {
  const cpu_set_t allowed = Affinity();
  std::vector<int> cpus = CpusByCore(allowed);
  std::set<int> once(cpus.begin(), cpus.end());
  EXPECT_EQ(once.size(), cpus.size());
  EXPECT_EQ(static_cast<int>(cpus.size()), CPU_COUNT(&allowed));
  for (int cpu : cpus) EXPECT_TRUE(CPU_ISSET(cpu, &allowed));
}

TEST(MessageTextTest, PrintableLeavesNoControlCharacterAndNoInvalidByte) {
  EXPECT_EQ(Printable("plain, Grüße, 世界 🙂 \\"), "plain, Grüße, 世界 🙂 \\");
  EXPECT_EQ(Printable("a\n\x1b[31m\x7f"), "a\\x0a\\x1b[31m\\x7f");
  EXPECT_EQ(Printable(std::string_view("\0", 1)), "\\x00");
  EXPECT_EQ(Printable("\xc2\x9b\xc2\xa0"), "\\xc2\\x9b\xc2\xa0");             // C1; no-break space
  EXPECT_EQ(Printable("\xff\xc3(\xe2\x82"), "\\xff\\xc3(\\xe2\\x82");         // never; cut short
  EXPECT_EQ(Printable("\xc0\xaf\xe0\x80\xaf"), "\\xc0\\xaf\\xe0\\x80\\xaf");  // overlong
  EXPECT_EQ(Printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");                    // a surrogate
  EXPECT_EQ(Printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");           // above U+10FFFF
}

TEST(MessageTextTest, OneIsSingular) {
  EXPECT_EQ(CountOf(1, "token"), "1 token");
  EXPECT_EQ(CountOf(0, "token"), "0 tokens");
  EXPECT_EQ(CountOf(2, "file"), "2 files");
}

TEST(MappedFileTest, ReadsWhatWasWrittenAndNamesWhatItCannotOpen) {
  const std::string folder = ::testing::TempDir();
  const std::string path = folder + "/mapped_file_test.bin";
  std::ofstream(path) << "octet";
  auto file = MappedFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size()), "octet");

  EXPECT_EQ(MappedFile::Open(path + ".missing").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(MappedFile::Open(path + ".missing").status().message(), HasSubstr(path + ".missing"));
  EXPECT_THAT(MappedFile::Open(folder).status().message(), HasSubstr("not a regular file"));
  std::ofstream(path, std::ios::trunc).close();
  EXPECT_THAT(MappedFile::Open(path).status().message(), HasSubstr("empty"));
}

TEST(MappedFileTest, BorrowedBytesStayTheirOwners) {
  const std::string page(1 << 14, 'x');
  {
    MappedFile file = MappedFile::Borrow(std::as_bytes(std::span(page)));
    EXPECT_EQ(file.bytes().data(), reinterpret_cast<const std::byte*>(page.data()));
    file.DropPages(file.bytes());
    const MappedFile moved = std::move(file);
    EXPECT_EQ(moved.bytes().size(), page.size());
  }
  EXPECT_EQ(page, std::string(1 << 14, 'x'));
}

TEST(MappedFileTest, TellsAFileThatChangedSinceItWasOpened) {
  const std::string path = ::testing::TempDir() + "/mapped_file_test.changed";
  std::ofstream(path) << "octet";
  const auto open = MappedFile::Open(path);
  ASSERT_TRUE(open.ok()) << open.status();
  MappedFile moved = MappedFile::Open(path).value();
  const MappedFile file = std::move(moved);
  EXPECT_TRUE(open->CheckUnchanged(path).ok());
  EXPECT_TRUE(file.CheckUnchanged(path).ok());
  for (const uintmax_t size : {4u, 6u}) {
    std::filesystem::resize_file(path, size);
    const absl::Status status = file.CheckUnchanged(path);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(status.message(), HasSubstr("it had 5 bytes and has " + std::to_string(size)));
  }
  std::ofstream(path) << "OCTET";
  std::filesystem::last_write_time(path, std::filesystem::last_write_time(path) + std::chrono::seconds(2));
  EXPECT_FALSE(file.CheckUnchanged(path).ok()) << "the same length, written to";
  unlink(path.c_str());
  EXPECT_FALSE(file.CheckUnchanged(path).ok());
}

TEST(MappedFileTest, ANamedPipeIsRefusedWithoutWaitingForAWriter) {
  const std::string path = ::testing::TempDir() + "/mapped_file_test.pipe";
  unlink(path.c_str());
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(MappedFile::Open(path).status().message(), HasSubstr("not a regular file"));
  unlink(path.c_str());
}

}  // namespace
}  // namespace octet
