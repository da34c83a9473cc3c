// Paged attention over a batch: cuts the work of one layer into items and joins their parts.
#pragma once

#include <cstdint>

#include "kernels.hpp"
#include "runtime.hpp"

namespace ostinato {

// See ops/base.py, BatchMetadata.
struct BatchView {
  const std::int32_t* positions = nullptr;
  const std::int32_t* query_start = nullptr;
  const std::int32_t* block_tables = nullptr;
  int num_tokens = 0;
  int num_requests = 0;
  int max_blocks = 0;
  int window = kNoWindow;  // keys that a token sees, its own included
};

// All K/V of a model, (blocks, layers, 2, kv heads, block_size, head_dim).
struct KVCacheView {
  void* data = nullptr;
  int num_blocks = 0;
  KVType type = KVType::kFloat16;
  int num_layers = 0;
  int num_kv_heads = 0;
  int block_size = 0;
  int head_dim = 0;

  std::ptrdiff_t block_stride() const {
    return static_cast<std::ptrdiff_t>(num_layers) * 2 * num_kv_heads * block_size * head_dim;
  }
  KVView head(int layer, int kv_head) const;
};

// query and output: (tokens, heads, head_dim); query is already multiplied by the attention scale.
// Positions of a request ascend. Blocks that lie wholly outside of every token's window are not read.
void paged_attention(Runtime& runtime, const float* query, float* output, int num_heads, const KVCacheView& kv,
                     int layer, const BatchView& batch);

}  // namespace ostinato
