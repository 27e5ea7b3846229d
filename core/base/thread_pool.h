// A fixed set of worker threads for data-parallel loops: the one pool of the process, lent to backends through
// octet_host_v1::parallel_for.
#ifndef OCTET_CORE_BASE_THREAD_POOL_H_
#define OCTET_CORE_BASE_THREAD_POOL_H_

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace octet {

// Which CPUs a pool's threads run on: any that the process may use, or one of their own each.
enum class Pinning { kOff, kOn };

// The CPUs of `allowed` in the order in which threads are pinned to them: one of every core first, then those that
// share a core with an earlier one.
std::vector<int> CpusByCore(const cpu_set_t& allowed);

// Thread-safe: concurrent ParallelFor calls run one after the other. A ParallelFor from inside a body runs inline.
class ThreadPool {
 public:
  // `threads` counts the calling thread, so `threads - 1` workers are started; 0 means one per available CPU.
  // More threads than CPUs block between loops instead of spinning, and no more of them than CPUs are woken for a loop.
  // With kOn each worker keeps to a CPU of its own, and so does the constructing thread until the pool ends, which is
  // to be the one that calls ParallelFor; no more threads than CPUs then. Throws std::system_error when the system
  // starts no more threads, or does not let them be pinned.
  explicit ThreadPool(int threads, Pinning pinning = Pinning::kOff);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(arg, worker, begin, end) over disjoint pieces that cover [0, n), and returns when all are done.
  // `worker` is in [0, threads()) and no two pieces with the same worker run at once. Does not allocate. Which worker
  // gets which piece is not fixed, so a body must not let its result depend on it. A body must not throw.
  using Body = void (*)(void* arg, uint32_t worker, int64_t begin, int64_t end);
  void ParallelFor(int64_t n, Body body, void* arg);

 private:
  void Join();
  void Pin();
  void WorkerLoop(uint32_t worker);
  void RunPieces(uint32_t worker);
  bool Enter();
  void Wake();

  const int cpus_;  // that this process may use
  int spins_ = 0;   // constant after construction, as is cpus_

  // std::mutex, because the thread sanitizer cannot see into a packaged libabsl and reports what absl::Mutex guards.
  std::mutex call_mutex_;  // one loop at a time
  // The loop in progress: written by the caller before it opens the loop, read by workers that entered it.
  Body body_ = nullptr;
  void* arg_ = nullptr;
  int64_t n_ = 0;
  int64_t piece_ = 1;
  std::atomic<int64_t> next_{0};
  // kOpen while pieces may be left, plus the number of workers inside. A worker enters only an open loop, so the caller
  // waits for those that take part and never for one that the system has not let run.
  static constexpr int kOpen = 1 << 30;
  std::atomic<int> entered_{0};

  // Counts loops, and may wrap; workers sleep on it. int, because the system can wait on one without a lock.
  std::atomic<int> generation_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;  // constant after construction
  bool pinned_ = false;
  pthread_t owner_{};     // the constructing thread
  cpu_set_t unpinned_{};  // what it gets back
};

}  // namespace octet

#endif  // OCTET_CORE_BASE_THREAD_POOL_H_
