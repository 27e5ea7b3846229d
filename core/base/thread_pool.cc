#include "core/base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <string>
#include <system_error>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace octet {
namespace {

// A decode step runs hundreds of short loops: a worker that spins this long between two of them (some tens of
// microseconds) need not be woken by the kernel.
constexpr int kSpins = 20000;

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

int AvailableCpus() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

// The pool and worker number of the loop body that this thread is in, if any.
thread_local const ThreadPool* current_pool = nullptr;
thread_local uint32_t current_worker = 0;

}  // namespace

ThreadPool::ThreadPool(int threads) {
  if (threads <= 0) threads = AvailableCpus();
  workers_.reserve(static_cast<size_t>(threads - 1));
  try {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { WorkerLoop(static_cast<uint32_t>(i)); });
  } catch (const std::system_error& error) {
    Join();  // the destructor does not run
    throw std::system_error(error.code(), "cannot start " + std::to_string(threads) + " threads");
  } catch (...) {
    Join();
    throw;
  }
}

ThreadPool::~ThreadPool() { Join(); }

void ThreadPool::Join() {
  {
    const std::lock_guard lock(mutex_);
    stop_.store(true, std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_release);
  }
  generation_changed_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::ParallelFor(int64_t n, Body body, void* arg) {
  if (n <= 0) return;
  if (current_pool == this) return body(arg, current_worker, 0, n);
  const std::lock_guard call_lock(call_mutex_);
  current_pool = this;
  current_worker = 0;
  if (workers_.empty() || n == 1) {
    body(arg, 0, 0, n);
  } else {
    body_ = body;
    arg_ = arg;
    n_ = n;
    piece_ = std::max<int64_t>(1, n / (4 * threads()));
    next_.store(0, std::memory_order_relaxed);
    entered_.store(kOpen, std::memory_order_release);
    {
      const std::lock_guard lock(mutex_);
      generation_.fetch_add(1, std::memory_order_release);
    }
    generation_changed_.notify_all();
    RunPieces(0);
    entered_.fetch_and(~kOpen, std::memory_order_acq_rel);
    for (int i = 0; entered_.load(std::memory_order_acquire) != 0; ++i) {
      if (i < kSpins) {
        Pause();
      } else {
        sched_yield();
      }
    }
  }
  current_pool = nullptr;
}

void ThreadPool::RunPieces(uint32_t worker) {
  for (;;) {
    const int64_t begin = next_.fetch_add(piece_, std::memory_order_relaxed);
    if (begin >= n_) return;
    body_(arg_, worker, begin, std::min(n_, begin + piece_));
  }
}

bool ThreadPool::Enter() {
  int entered = entered_.load(std::memory_order_relaxed);
  while ((entered & kOpen) != 0) {
    if (entered_.compare_exchange_weak(entered, entered + 1, std::memory_order_acq_rel, std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

void ThreadPool::WorkerLoop(uint32_t worker) {
  current_pool = this;
  current_worker = worker;
  for (uint64_t seen = 0;; ++seen) {
    for (int i = 0; i < kSpins && generation_.load(std::memory_order_acquire) == seen; ++i) Pause();
    if (generation_.load(std::memory_order_acquire) == seen) {
      std::unique_lock lock(mutex_);
      generation_changed_.wait(lock, [this, seen] { return generation_.load(std::memory_order_acquire) != seen; });
    }
    if (stop_.load(std::memory_order_relaxed)) return;
    if (!Enter()) continue;  // the others were faster
    RunPieces(worker);
    entered_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace octet
