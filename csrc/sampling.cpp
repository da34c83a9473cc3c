#include "sampling.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

namespace ostinato {
namespace {

struct Candidate {
  float value;
  std::int32_t id;
  float weight = 0;  // e^((value - largest) / temperature)
  bool operator<(const Candidate& other) const {
    return value > other.value || (value == other.value && id < other.id);
  }
};

using Candidates = std::vector<Candidate>;

constexpr int kChunk = 64;
constexpr int kLargestHeap = 256;
constexpr std::size_t kSorted = 64;
constexpr double kRounding = 1e-6;
constexpr float kNothing = 1e-30f;

// A heap of the best k so far, worst on top. Whole chunks below the worst are skipped by their maximum, which the
// compiler vectorises; for a vocabulary of 50,000 almost all are.
void select(const float* row, int vocab, int k, Candidates& heap) {
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

bool by_id(const Candidate& a, const Candidate& b) { return a.id < b.id; }

// Every token whose logit is at least `bound`, by id.
void collect(const float* row, int vocab, float bound, Candidates& found) {
  found.clear();
  for (int begin = 0; begin < vocab; begin += kChunk) {
    const int end = std::min(vocab, begin + kChunk);
    int any = 0;
    for (int i = begin; i < end; ++i) any |= row[i] >= bound ? 1 : 0;
    if (any == 0) continue;
    for (int i = begin; i < end; ++i) {
      if (row[i] >= bound) found.push_back({row[i], i});
    }
  }
}

// The k largest, by id.
void keep_top_k(const float* row, int vocab, int k, Candidates& found) {
  if (k <= kLargestHeap) {
    select(row, vocab, k, found);
  } else {
    collect(row, vocab, -std::numeric_limits<float>::infinity(), found);
    if (found.size() > static_cast<std::size_t>(k)) {
      std::nth_element(found.begin(), found.begin() + k, found.end());
      found.resize(static_cast<std::size_t>(k));
    }
  }
  std::sort(found.begin(), found.end(), by_id);
}

// One row's search; scratch is kept from row to row.
class Row {
 public:
  Row(const KernelTable& kernels, const float* logits, int vocab, float temperature)
      : kernels_(kernels), logits_(logits), vocab_(vocab), temperature_(temperature) {
    largest_ = logits[0];
    for (int begin = 0; begin < vocab; begin += kChunk) {
      const int end = std::min(vocab, begin + kChunk);
      int better = 0;
      for (int i = begin; i < end; ++i) better |= logits[i] > largest_ ? 1 : 0;
      if (better != 0) largest_ = std::max(largest_, *std::max_element(logits + begin, logits + end));
    }
  }

  // Without a filter: first the part of the row that `uniform` falls into, then the token.
  std::int32_t draw_from_all(double uniform, std::vector<double>& sums) const {
    double target = uniform * weigh_all(sums);
    int part = 0, last = static_cast<int>(sums.size()) - 1;
    while (part < last && target >= sums[static_cast<std::size_t>(part)]) {
      target -= sums[static_cast<std::size_t>(part++)];
    }
    std::int32_t chosen = -1;
    for (; chosen < 0 && part >= 0; --part) {  // rounding may lead into a part without any weight
      const int end = std::min(vocab_, (part + 1) * kPart);
      for (std::int32_t i = part * kPart; i < end && (chosen < 0 || target >= 0); ++i) {
        const float w = weight(logits_[i]);
        if (w > 0) chosen = i;
        target -= w;
      }
    }
    return chosen;
  }

  std::int32_t draw_filtered(const Draw& d, std::vector<double>& sums, Candidates& kept, Candidates& order) const {
    const bool by_count = d.top_k > 0 && d.top_k < vocab_;
    double total = 0;
    if (by_count) {
      keep_top_k(logits_, vocab_, d.top_k, kept);
    } else {
      double least = d.min_p;
      if (d.min_p <= 0) {
        // Tokens of at most (1 - top_p) total / vocab hold at most 1 - top_p together, so the nucleus is full before
        // it comes to them. Half of that leaves room for rounding.
        total = weigh_all(sums);
        least = 1 - d.top_p < kRounding ? 0 : 0.5 * (1 - d.top_p) * total / vocab_;
      }
      // A little lower, as logarithms round; what is below by weight is dropped next.
      collect(logits_, vocab_, static_cast<float>(largest_ + temperature_ * (std::log(least) - 1e-3)), kept);
    }
    for (Candidate& c : kept) c.weight = weight(c.value);
    if (d.min_p > 0) std::erase_if(kept, [&](const Candidate& c) { return c.weight < d.min_p; });
    if (d.top_p < 1) {
      if (by_count || d.min_p > 0) total = weigh(kept, 0, kept.size());
      if (kept.empty()) return -1;
      order = kept;
      const Candidate end = last_of_nucleus(order, d.top_p * total);
      std::erase_if(kept, [&](const Candidate& c) { return end < c; });
    }
    double target = d.uniform * weigh(kept, 0, kept.size());
    std::int32_t chosen = -1;
    for (const Candidate& c : kept) {
      if (chosen >= 0 && target < 0) break;
      if (c.weight > 0) chosen = c.id;
      target -= c.weight;
    }
    return chosen;
  }

 private:
  static constexpr int kPart = 256;

  float weight(float logit) const { return std::exp((logit - largest_) / temperature_); }

  // The weight of every kPart tokens, and of all. Summed in float32 within a part and in float64 beyond.
  double weigh_all(std::vector<double>& sums) const {
    sums.clear();
    double total = 0;
    for (int begin = 0; begin < vocab_; begin += kPart) {
      const int count = std::min(kPart, vocab_ - begin);
      const float sum = kernels_.sum_exponentials(logits_ + begin, count, largest_, 1 / temperature_);
      sums.push_back(sum < kNothing ? 0 : sum);  // the kernel's smallest exponential is e^-87
      total += sums.back();
    }
    return total;
  }

  static double weigh(const Candidates& of, std::size_t begin, std::size_t end) {
    double total = 0;
    for (std::size_t i = begin; i < end; ++i) total += of[i].weight;
    return total;
  }

  // The likelier half is weighed, then only the half is looked at in which the nucleus ends: linear time.
  static Candidate last_of_nucleus(Candidates& all, double wanted) {
    std::size_t begin = 0, end = all.size();
    while (end - begin > kSorted) {
      const std::size_t middle = begin + (end - begin) / 2;
      const auto at = [&](std::size_t i) { return all.begin() + static_cast<std::ptrdiff_t>(i); };
      std::nth_element(at(begin), at(middle), at(end));
      const double half = weigh(all, begin, middle);
      if (half >= wanted) {
        end = middle;
      } else {
        wanted -= half;
        begin = middle;
      }
    }
    std::sort(all.begin() + static_cast<std::ptrdiff_t>(begin), all.begin() + static_cast<std::ptrdiff_t>(end));
    for (; begin + 1 < end; ++begin) {
      wanted -= all[begin].weight;
      if (wanted <= 0) break;
    }
    return all[begin];
  }

  const KernelTable& kernels_;
  const float* logits_;
  int vocab_;
  float temperature_, largest_;
};

}  // namespace

void top_k(Runtime& runtime, const float* logits, int rows, int vocab, int k, float scale, std::int32_t* ids,
           float* values, float* log_sums) {
  runtime.pool().parallel_for(rows, [&](int r, int) {
    const float* row = logits + static_cast<std::ptrdiff_t>(r) * vocab;
    Candidates heap;
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

void find_largest(Runtime& runtime, const float* logits, int rows, int vocab, float limit, std::int32_t* ids,
                  bool* within) {
  runtime.pool().parallel_for(rows, [&](int row, int) {
    const float* from = logits + static_cast<std::ptrdiff_t>(row) * vocab;
    ids[row] = runtime.kernels().find_largest(from, vocab, limit, within + row);
  });
}

void draw(Runtime& runtime, const float* logits, int vocab, const std::int32_t* rows, const Draw* draws, int count,
          std::int32_t* ids) {
  runtime.pool().parallel_for(count, [&](int n, int) {
    const Draw& d = draws[n];
    const float* from = logits + static_cast<std::ptrdiff_t>(rows[n]) * vocab;
    const Row row(runtime.kernels(), from, vocab, d.temperature);
    std::vector<double> sums;
    if ((d.top_k <= 0 || d.top_k >= vocab) && d.min_p <= 0 && d.top_p >= 1) {
      ids[n] = row.draw_from_all(d.uniform, sums);
    } else {
      Candidates kept, order;
      ids[n] = row.draw_filtered(d, sums, kept, order);
    }
  });
  if (std::any_of(ids, ids + count, [](std::int32_t id) { return id < 0; })) {
    throw std::invalid_argument("draw: a row of which no token can be drawn");
  }
}

}  // namespace ostinato
