// Paged attention over a batch: cuts the work of one layer into items and joins their parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

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

// All K/V of a model, (blocks, layers, 2, kv heads, block_size, head_dim); in a quantised memory `data` has only the
// open blocks, and the others lie in `sealed`.
struct KVCacheView {
  void* data = nullptr;
  int num_blocks = 0;
  KVType type = KVType::kFloat16;
  int num_layers = 0;
  int num_kv_heads = 0;
  int block_size = 0;
  int head_dim = 0;
  SealedFormat format = SealedFormat::kNone;
  const std::uint8_t* sealed = nullptr;     // (num_blocks, sealed_bytes())
  const std::int32_t* open_slot = nullptr;  // (num_blocks), where in `data` a block is open, negative if it is sealed
  int num_open = 0;

  RecordLayout record_layout() const { return {format, block_size, head_dim}; }
  std::ptrdiff_t sealed_bytes() const { return num_layers * record_layout().layer_bytes(num_kv_heads); }
  std::ptrdiff_t block_stride() const {
    return static_cast<std::ptrdiff_t>(num_layers) * 2 * num_kv_heads * block_size * head_dim;
  }
  KVView head(int layer, int kv_head) const;
};

// How the attention of one step is cut: which query rows meet which keys, prefixes that requests share once, long
// ranges split. The same for all layers whose tokens see equally far, so it is made once a step.
//
// Positions of a request ascend. Blocks that lie wholly outside of every token's window are not read. `batch` and `kv`
// must outlive the plan.
class AttentionPlan {
 public:
  AttentionPlan(int num_heads, const KVCacheView& kv, const BatchView& batch, int threads, bool exact);
  AttentionPlan(const AttentionPlan&) = delete;  // its items point into it
  AttentionPlan& operator=(const AttentionPlan&) = delete;

  // query and output: (tokens, heads, head_dim); query is already multiplied by the attention scale.
  void run(Runtime& runtime, const float* query, float* output, int layer);

 private:
  // Tokens that attend to keys [key_begin, key_end) of one block table, before heads and splits.
  struct Segment {
    int first_token;  // index into tokens_
    int num_tokens;
    const std::int32_t* block_table;
    int key_begin;
    int key_end;
  };

  struct Item {
    AttentionItem work;
    std::size_t partial_offset;  // of its partial rows among all of them, in floats; or kDirect
  };

  // A partial row, and where it lies.
  struct Part {
    int token;
    int head;
    std::size_t offset;
  };

  int tokens_of(int request) const { return batch_.query_start[request + 1] - batch_.query_start[request]; }
  const std::int32_t* table(int request) const {
    return batch_.block_tables + static_cast<std::ptrdiff_t>(request) * batch_.max_blocks;
  }
  int oldest(int token) const;
  // Keys before the request's first new token: what a shared prefix may cover.
  int past(int request) const { return batch_.positions[batch_.query_start[request]]; }
  int tokens_at_once() const;
  std::int64_t row_of(const Part& part) const;

  void find_segments();
  void add_segment(int first_token, int count, const std::int32_t* block_table, int begin, int end);
  void add_request(int request, int key_begin);
  void add_group(const int* requests, int count);
  void cut_items(int threads);
  void cut_segment(const Segment& segment, int splits, bool direct);
  void order_items(int threads);
  void find_rows();
  void join_parts(Runtime& runtime, const float* partials, float* output) const;

  int num_heads_;
  const KVCacheView& kv_;
  const BatchView& batch_;
  bool exact_;
  int group_;
  std::vector<std::int32_t> tokens_;
  std::vector<Segment> segments_;
  std::vector<Item> items_;      // in the order in which they are handed out
  std::vector<Part> parts_;      // by row
  std::vector<int> row_starts_;  // indices into parts_, one more than there are rows
  std::size_t partial_floats_ = 0;
};

// One layer alone.
void paged_attention(Runtime& runtime, const float* query, float* output, int num_heads, const KVCacheView& kv,
                     int layer, const BatchView& batch);

// Adds to sums (requests, max_blocks), for each request, how much attention each block of its table receives from the
// last `observed` of its tokens at most: softmax weights summed over tokens and query heads. Reads no values.
void attention_mass(Runtime& runtime, const float* query, int num_heads, const KVCacheView& kv, int layer,
                    const BatchView& batch, int observed, float* sums);

}  // namespace ostinato
