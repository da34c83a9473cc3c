#include "sampling.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace ostinato {
namespace {

struct Candidate {
  float value;
  std::int32_t id;
  bool operator<(const Candidate& other) const {
    return value > other.value || (value == other.value && id < other.id);
  }
};

constexpr int kChunk = 64;

// A heap of the best k so far, worst on top. Whole chunks below the worst are skipped by their maximum, which the
// compiler vectorises; for a vocabulary of 50,000 almost all are.
void select(const float* row, int vocab, int k, std::vector<Candidate>& heap) {
  heap.clear();
  for (int begin = 0; begin < vocab; begin += kChunk) {
    const int end = std::min(vocab, begin + kChunk);
    if (static_cast<int>(heap.size()) == k) {
      const float worst = heap.front().value;
      int better = 0;
      for (int i = begin; i < end; ++i) better |= row[i] > worst ? 1 : 0;
      if (better == 0) continue;
    }
    for (int i = begin; i < end; ++i) {
      if (static_cast<int>(heap.size()) < k) {
        heap.push_back({row[i], i});
        std::push_heap(heap.begin(), heap.end());
      } else if (row[i] > heap.front().value) {
        std::pop_heap(heap.begin(), heap.end());
        heap.back() = {row[i], i};
        std::push_heap(heap.begin(), heap.end());
      }
    }
  }
  std::sort_heap(heap.begin(), heap.end());
}

}  // namespace

void top_k(Runtime& runtime, const float* logits, int rows, int vocab, int k, float scale, std::int32_t* ids,
           float* values, float* log_sums) {
  runtime.pool().parallel_for(rows, [&](int r, int) {
    const float* row = logits + static_cast<std::ptrdiff_t>(r) * vocab;
    std::vector<Candidate> heap;
    heap.reserve(static_cast<std::size_t>(k));
    select(row, vocab, k, heap);
    for (int i = 0; i < k; ++i) {
      ids[static_cast<std::ptrdiff_t>(r) * k + i] = heap[static_cast<std::size_t>(i)].id;
      values[static_cast<std::ptrdiff_t>(r) * k + i] = heap[static_cast<std::size_t>(i)].value;
    }
    const float largest = heap.front().value;
    log_sums[r] = largest * scale + std::log(runtime.kernels().sum_exponentials(row, vocab, largest, scale));
  });
}

}  // namespace ostinato
