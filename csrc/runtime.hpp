// What all operations share: kernels, threads and scratch memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "kernels.hpp"
#include "matrix.hpp"
#include "thread_pool.hpp"

namespace ostinato {

// Memory that only grows, is 64-byte aligned and is not initialised.
class Buffer {
 public:
  template <class T>
  T* get(std::size_t count) {
    const std::size_t bytes = (count * sizeof(T) + 4095) / 4096 * 4096;
    if (bytes > capacity_) {
      capacity_ = 0;  // true as well where the next line fails
      memory_.reset(static_cast<std::uint8_t*>(std::aligned_alloc(4096, bytes)));
      if (!memory_) throw std::bad_alloc();
      capacity_ = bytes;
    }
    return reinterpret_cast<T*>(memory_.get());
  }

 private:
  struct Free {
    void operator()(std::uint8_t* p) const { std::free(p); }
  };
  std::unique_ptr<std::uint8_t, Free> memory_;
  std::size_t capacity_ = 0;
};

// Whether activations are multiplied as they are or in int8 (weights), int8 or int16 (attention over many rows).
enum class Precision { kExact, kFast };

class Runtime {
 public:
  // `isa` as in find_kernels(); throws std::invalid_argument if this CPU cannot run it.
  Runtime(int threads, const char* isa, Precision precision);

  const KernelTable& kernels() const { return *kernels_; }
  ThreadPool& pool() { return pool_; }
  Precision precision() const { return precision_; }

  // Whether activations are rounded to int8 before a product with `weights`.
  bool rounds(const MatrixView& weights) const {
    return precision_ == Precision::kFast && is_integer(weights.format);
  }

  // Scratch of one worker, at least `floats` long.
  float* scratch(int worker, std::size_t floats) {
    return scratch_[static_cast<std::size_t>(worker)].get<float>(floats);
  }

  // Room for `tokens` rows of `cols` in the form that `weights` and the precision ask for. There are two, so that
  // one product's output can become the next one's input.
  Activations activations(int slot, int tokens, int cols, const MatrixView& weights);

  // `rows` (tokens, cols) prepared for a product; RMSNorm first if `norm` is given.
  Activations prepare(int slot, const float* rows, int tokens, int cols, const float* norm, float epsilon,
                      const MatrixView& weights);

  // Held by whoever runs an operation: there is one scratch and one pool.
  std::mutex& turn() { return turn_; }

  Buffer& partials() { return partials_; }
  Buffer& queries() { return queries_; }
  Buffer& contexts() { return contexts_; }

 private:
  const KernelTable* kernels_;
  ThreadPool pool_;
  Precision precision_;
  std::vector<Buffer> scratch_;
  Buffer activations_[2];
  Buffer partials_;
  Buffer queries_;
  Buffer contexts_;
  std::mutex turn_;
};

// What is done with a finished piece of a product: rows [row, row + rows) of the matrix for tokens
// [token, token + tokens); value (t, r) at tile[t * stride + r].
struct Piece {
  int token;
  int tokens;
  int row;
  int rows;
  float* tile;
  std::ptrdiff_t stride;
};

inline constexpr int kBlockTokens = 64;

// x @ weightsᵀ, cut into pieces of `unit` rows (a multiple of 16) and up to 64 tokens; each goes to finish(piece)
// on the thread that computed it, while it is in that core's cache.
template <class Finish>
void linear(Runtime& runtime, const Activations& x, const MatrixView& weights, int tokens, int unit, Finish&& finish) {
  const int units = (weights.panels() * kPanel + unit - 1) / unit;
  const int blocks = (tokens + kBlockTokens - 1) / kBlockTokens;
  const int panels = unit / kPanel;
  runtime.pool().parallel_for(units * blocks, [&](int index, int worker) {
    const int u = index / blocks, token = index % blocks * kBlockTokens;
    const int count = tokens - token < kBlockTokens ? tokens - token : kBlockTokens;
    const int here = weights.panels() - u * panels < panels ? weights.panels() - u * panels : panels;
    float* scratch = runtime.scratch(worker, kGemmScratch + static_cast<std::size_t>(kBlockTokens) * unit);
    float* tile = scratch + kGemmScratch;
    runtime.kernels().gemm(weights, x, token, count, u * panels, here, tile, unit, scratch);
    const int rows = weights.rows - u * unit < unit ? weights.rows - u * unit : unit;
    finish(Piece{token, count, u * unit, rows, tile, unit});
  });
}

}  // namespace ostinato
