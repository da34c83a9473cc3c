#include "thread_pool.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <utility>

#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ostinato {
namespace {

constexpr int kSpins = 2000;  // pauses before sleeping: some 50 us

void pause_cpu() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

#if defined(__linux__)
// CPUs' worth of time a period, or 0 if nothing limits it (control groups v2, then v1).
double cgroup_quota() {
  std::string path = "/";
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (line.rfind("0::", 0) == 0) path = line.substr(3);
  }
  double smallest = 0;
  // Every ancestor's limit holds as well.
  for (;;) {
    std::ifstream file("/sys/fs/cgroup" + path + "/cpu.max");
    std::string quota;
    double period = 0;
    if (file >> quota >> period && quota != "max" && period > 0) {
      const double cpus = std::stod(quota) / period;
      smallest = smallest == 0 ? cpus : std::min(smallest, cpus);
    }
    if (path.size() <= 1) break;
    path.resize(std::max<std::size_t>(path.rfind('/'), 1));
    if (path.front() != '/') break;
  }
  if (smallest == 0) {
    std::ifstream quota_file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
    std::ifstream period_file("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
    double quota = 0, period = 0;
    if (quota_file >> quota && period_file >> period && quota > 0 && period > 0) smallest = quota / period;
  }
  return smallest;
}
#endif

}  // namespace

int usable_cpus() {
  int cpus = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
#if defined(__linux__)
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) == 0) cpus = std::max(1, CPU_COUNT(&mask));
  const double quota = cgroup_quota();
  if (quota > 0) cpus = std::min(cpus, std::max(1, static_cast<int>(std::ceil(quota))));
#endif
  return cpus;
}

ThreadPool::ThreadPool(int threads) : parts_(static_cast<std::size_t>(threads > 0 ? threads : usable_cpus())) {
  try {
    for (int worker = 1; worker < size(); ++worker) threads_.emplace_back([this, worker] { work(worker); });
  } catch (...) {  // no destructor runs then, and a thread that nobody joins ends the process
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  stopping_.store(true);
  epoch_.fetch_add(1);
  epoch_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run(int count, Call call, void* context) {
  if (count <= 1 || size() == 1) {
    for (int i = 0; i < count; ++i) call(context, i, 0);
    return;
  }
  for (int w = 0; w < size(); ++w) {
    const auto cut = [&](int k) { return static_cast<int>(static_cast<std::int64_t>(count) * k / size()); };
    parts_[static_cast<std::size_t>(w)].next.store(cut(w), std::memory_order_relaxed);
    parts_[static_cast<std::size_t>(w)].end = cut(w + 1);
  }
  call_ = call;
  context_ = context;
  open_.store(true);
  epoch_.fetch_add(1);
  epoch_.notify_all();
  drain(0);
  // Sequentially consistent with work(): a worker either sees the loop closed or is seen as active.
  open_.store(false);
  for (int spins = 0; active_.load() != 0; ++spins) {
    if (spins < kSpins) {
      pause_cpu();
    } else {
      std::this_thread::yield();
    }
  }
  if (failure_ != nullptr) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void ThreadPool::drain(int worker) {
  for (int i = 0; i < size(); ++i) {
    Part& part = parts_[static_cast<std::size_t>((worker + i) % size())];
    // Looking first keeps the counter from running away past the end.
    while (part.next.load(std::memory_order_relaxed) < part.end) {
      const int index = part.next.fetch_add(1, std::memory_order_relaxed);
      if (index >= part.end) break;
      try {
        call_(context_, index, worker);
      } catch (...) {  // of bodies, only allocations fail; the others must not be left with a loop whose caller is gone
        const std::lock_guard lock(failure_mutex_);
        failure_ = std::current_exception();
      }
    }
  }
}

std::uint32_t ThreadPool::await_change(std::uint32_t seen) const {
  for (int spins = 0; spins < kSpins; ++spins) {
    const std::uint32_t now = epoch_.load(std::memory_order_acquire);
    if (now != seen) return now;
    pause_cpu();
  }
  epoch_.wait(seen, std::memory_order_acquire);
  return epoch_.load(std::memory_order_acquire);
}

void ThreadPool::work(int worker) {
  std::uint32_t seen = 0;
  while (!stopping_.load(std::memory_order_relaxed)) {
    seen = await_change(seen);
    active_.fetch_add(1);
    if (open_.load()) drain(worker);
    active_.fetch_sub(1);
  }
}

}  // namespace ostinato
