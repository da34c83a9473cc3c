#include "runtime.hpp"

#include <stdexcept>
#include <string>

namespace ostinato {
namespace {

// Below this many rows a parallel loop costs more than the rows.
constexpr int kSerialRows = 8;

const KernelTable& require_kernels(const char* isa) {
  const KernelTable* table = find_kernels(isa);
  if (table == nullptr && *isa == '\0') {
    throw std::invalid_argument("this CPU lacks what they need (AVX2, FMA and F16C; on ARM dot products and fp16)");
  }
  if (table == nullptr) throw std::invalid_argument(std::string("this CPU cannot run kernels for '") + isa + "'");
  return *table;
}

}  // namespace

Runtime::Runtime(int threads, const char* isa, Precision precision)
    : kernels_(&require_kernels(isa)),
      pool_(threads),
      precision_(precision),
      scratch_(static_cast<std::size_t>(pool_.size())) {}

Activations Runtime::activations(int slot, int tokens, int cols, const MatrixView& weights) {
  Activations x;
  x.groups = (cols + kGroup - 1) / kGroup;
  const auto groups = static_cast<std::size_t>(x.groups);
  const auto tiles = static_cast<std::size_t>((tokens + kTokenTile - 1) / kTokenTile);
  if (rounds(weights)) {
    x.ints = activations_[slot].get<std::uint8_t>(tiles * groups * kIntTileGroup);
  } else {
    x.floats = activations_[slot].get<float>(tiles * kTokenTile * groups * kGroup);
  }
  return x;
}

Activations Runtime::prepare(int slot, const float* rows, int tokens, int cols, const float* norm, float epsilon,
                             const MatrixView& weights) {
  const Activations x = activations(slot, tokens, cols, weights);
  const auto one = [&](int token) {
    const float* row = rows + static_cast<std::size_t>(token) * static_cast<std::size_t>(cols);
    kernels_->prepare(row, norm, epsilon, cols, x, token);
  };
  if (tokens <= kSerialRows) {
    for (int t = 0; t < tokens; ++t) one(t);
  } else {
    const int blocks = (tokens + kSerialRows - 1) / kSerialRows;
    pool_.parallel_for(blocks, [&](int block, int) {
      for (int t = block * kSerialRows; t < tokens && t < (block + 1) * kSerialRows; ++t) one(t);
    });
  }
  return x;
}

}  // namespace ostinato
