// A pool for short, frequent parallel loops: one decode step runs about 150 of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace ostinato {

// CPUs that this process may use: its affinity mask, cut by the CPU quota of its control group.
int usable_cpus();

// The caller takes part in its loops as worker 0. Between loops the others spin for some tens of microseconds, then
// sleep on a futex. Each worker starts with its own contiguous part of the indices (so that it streams its own part
// of a matrix) and, when that is used up, takes from the parts of the others. Loops must not be nested, and only one
// thread may call at a time.
class ThreadPool {
 public:
  // 0: usable_cpus(). Throws std::system_error if the system does not give so many threads.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(parts_.size()); }

  // body(index, worker) once for every index in [0, count); returns when all are done. What a body throws is thrown here
  // then; if several do, one of them.
  template <class Body>
  void parallel_for(int count, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    run(count, [](void* context, int index, int worker) { (*static_cast<Plain*>(context))(index, worker); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using Call = void (*)(void*, int, int);
  struct alignas(64) Part {
    std::atomic<int> next{0};
    int end = 0;
  };

  void run(int count, Call call, void* context);
  void drain(int worker);
  void work(int worker);
  void stop();
  std::uint32_t await_change(std::uint32_t seen) const;

  std::vector<Part> parts_;
  Call call_ = nullptr;
  void* context_ = nullptr;
  // A loop is open while its caller still hands out indices. A worker that wakes late registers in active_, finds the
  // loop closed and leaves, so nobody waits for a sleeper.
  alignas(64) std::atomic<std::uint32_t> epoch_{0};
  alignas(64) std::atomic<int> active_{0};
  alignas(64) std::atomic<bool> open_{false};
  std::atomic<bool> stopping_{false};
  std::mutex failure_mutex_;
  std::exception_ptr failure_;  // of the loop under way
  std::vector<std::thread> threads_;
};

}  // namespace ostinato
