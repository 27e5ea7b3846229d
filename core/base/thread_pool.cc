#include "core/base/thread_pool.h"

#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace octet {
namespace {

// A decode step runs hundreds of short loops: a worker that spins this long between two of them need not be woken by
// the kernel. With more threads than CPUs nobody spins: the CPU is another thread's.
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

std::vector<int> CpusByCore(const cpu_set_t& allowed) {
  std::vector<int> first, others;
  std::set<std::pair<int, int>> cores;  // socket, core
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    const std::string folder = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    int socket = 0, core = 0;
    const bool known =
        std::ifstream(folder + "physical_package_id") >> socket && std::ifstream(folder + "core_id") >> core;
    (!known || cores.emplace(socket, core).second ? first : others).push_back(cpu);
  }
  first.insert(first.end(), others.begin(), others.end());
  return first;
}

ThreadPool::ThreadPool(int threads, Pinning pinning) : cpus_(AvailableCpus()) {
  if (threads <= 0) threads = cpus_;
  spins_ = threads <= cpus_ ? kSpins : 0;
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
  if (pinning == Pinning::kOff) return;
  try {
    Pin();
  } catch (const std::system_error& error) {
    Join();
    throw std::system_error(error.code(), "cannot pin " + std::to_string(threads) + " threads to " +
                                              std::to_string(cpus_) + " CPUs that this process may use");
  }
}

ThreadPool::~ThreadPool() { Join(); }

void ThreadPool::Pin() {
  const auto check = [](int code) {
    if (code != 0) throw std::system_error(code, std::generic_category());
  };
  check(pthread_getaffinity_np(pthread_self(), sizeof unpinned_, &unpinned_));
  owner_ = pthread_self();
  pinned_ = true;
  const std::vector<int> cpus = CpusByCore(unpinned_);
  if (threads() > static_cast<int>(cpus.size())) check(EINVAL);
  for (int i = 0; i < threads(); ++i) {
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(cpus[static_cast<size_t>(i)], &own);
    check(pthread_setaffinity_np(i == 0 ? pthread_self() : workers_[static_cast<size_t>(i) - 1].native_handle(),
                                 sizeof own, &own));
  }
}

void ThreadPool::Join() {
  stop_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
  if (pinned_ && pthread_equal(pthread_self(), owner_)) pthread_setaffinity_np(owner_, sizeof unpinned_, &unpinned_);
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
    const int most_at_once = std::min(threads(), cpus_);
    piece_ = std::max<int64_t>(1, n / (4 * most_at_once));
    next_.store(0, std::memory_order_relaxed);
    entered_.store(kOpen, std::memory_order_release);
    generation_.fetch_add(1);
    Wake();
    RunPieces(0);
    entered_.fetch_and(~kOpen, std::memory_order_acq_rel);
    for (int i = 0; i < spins_ && entered_.load(std::memory_order_acquire) != 0; ++i) Pause();
    for (int inside; (inside = entered_.load(std::memory_order_acquire)) != 0;) entered_.wait(inside);
  }
  current_pool = nullptr;
}

// A notify without a sleeper costs a load, which what it notifies of must not be reordered with. Of workers beyond the
// CPUs only as many are woken as CPUs can run.
void ThreadPool::Wake() {
  if (threads() <= cpus_) return generation_.notify_all();
  for (int i = 0; i < cpus_; ++i) generation_.notify_one();
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
  for (int seen = 0;;) {
    for (int i = 0; i < spins_ && generation_.load(std::memory_order_acquire) == seen; ++i) Pause();
    generation_.wait(seen, std::memory_order_acquire);
    // A worker that was not woken for some loops has missed them.
    seen = generation_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_relaxed)) return;
    if (!Enter()) continue;  // the others were faster
    RunPieces(worker);
    if (entered_.fetch_sub(1) == 1) entered_.notify_one();
  }
}

}  // namespace octet
