#include "checks.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <type_traits>

namespace ostinato {
namespace {

// Negative numbers are large ones without a sign: one comparison, which the compiler vectorises.
template <class T>
void check_all_below(const T* ids, int count, std::int64_t end, const char* message) {
  using Bits = std::make_unsigned_t<T>;
  const auto limit = static_cast<Bits>(std::min<std::int64_t>(end, std::numeric_limits<T>::max()));
  Bits bad = 0;
  for (int i = 0; i < count; ++i) bad |= static_cast<Bits>(static_cast<Bits>(ids[i]) >= limit);
  require(bad == 0, message);
}

bool has_size(const std::vector<float>& values, int size) { return values.size() == static_cast<std::size_t>(size); }

bool has_size(const PackedMatrix* matrix, int rows, int cols) {
  return matrix != nullptr && matrix->view().rows == rows && matrix->view().cols == cols;
}

}  // namespace

void require(bool holds, const char* message) {
  if (!holds) throw std::invalid_argument(message);
}

int checked_int(std::size_t value) {
  require(value <= static_cast<std::size_t>(std::numeric_limits<int>::max()), "an array is too long");
  return static_cast<int>(value);
}

void check_shape(const DecoderShape& shape) {
  constexpr int kMost = 1 << 20;  // keeps products of two within an int64, and of heads and head_dim within an int
  const auto sane = [](int value) { return value >= 1 && value <= kMost; };
  require(sane(shape.hidden_size) && sane(shape.num_heads) && sane(shape.num_kv_heads) && sane(shape.head_dim),
          "sizes must be positive");
  require(shape.num_heads % shape.num_kv_heads == 0, "query heads must be a multiple of K/V heads");
  require(shape.num_heads / shape.num_kv_heads <= kMaxItemRows, "more query heads share a K/V head than kernels take");
  require(shape.head_dim % kPanel == 0, "head_dim must be a multiple of 16");
  require((shape.num_heads + 2LL * shape.num_kv_heads) * shape.head_dim <= std::numeric_limits<int>::max(),
          "too many heads");
  require(shape.window >= 1, "a sliding window must be positive");
}

void check_layer(const LayerWeights& layer) {
  const DecoderShape& shape = layer.shape;
  check_shape(shape);
  const int query = shape.num_heads * shape.head_dim, packed = query + 2 * shape.num_kv_heads * shape.head_dim;
  const int inner = layer.intermediate_size, hidden = shape.hidden_size;
  require(inner >= 1, "the MLP's inner size must be positive");
  const int last = inner - 1, gate_up = last / kGroup * 2 * kGroup + kGroup + last % kGroup + 1;
  require(has_size(layer.qkv.get(), packed, hidden), "the Q/K/V matrix does not fit the shape");
  require(has_size(layer.output.get(), hidden, query), "the output matrix does not fit the shape");
  require(has_size(layer.gate_up.get(), gate_up, hidden), "the gate/up matrix does not fit the shape");
  require(has_size(layer.down.get(), hidden, inner), "the down matrix does not fit the shape");
  require(has_size(layer.attention_norm, hidden) && has_size(layer.mlp_norm, hidden), "a norm does not fit the shape");
  require(layer.qkv_bias.empty() || has_size(layer.qkv_bias, packed), "the Q/K/V bias does not fit the shape");
  require(layer.q_norm.empty() || has_size(layer.q_norm, shape.head_dim), "the Q norm does not fit the shape");
  require(layer.k_norm.empty() || has_size(layer.k_norm, shape.head_dim), "the K norm does not fit the shape");
}

void check_head(const HeadWeights& head) {
  require(head.embedding != nullptr && head.output != nullptr, "embedding and output matrix are needed");
  const int hidden = head.embedding->view().cols;
  require(head.output->view().cols == hidden, "embedding and output matrix differ in width");
  require(has_size(head.final_norm, hidden), "the final norm does not fit the embedding");
}

void check_range(const std::int32_t* ids, int count, std::int64_t end, const char* message) {
  check_all_below(ids, count, end, message);
}

void check_range(const std::int64_t* ids, int count, std::int64_t end, const char* message) {
  check_all_below(ids, count, end, message);
}

void check_kv(const KVCacheView& kv, int num_kv_heads, int head_dim, int layer) {
  require(kv.num_kv_heads == num_kv_heads && kv.head_dim == head_dim, "the K/V memory has other heads");
  require(kv.block_size >= 1, "K/V blocks must hold tokens");
  require(layer >= 0 && layer < kv.num_layers, "there is no such layer in the K/V memory");
}

void check_slots(const std::int64_t* slots, int count, const KVCacheView& kv) {
  check_range(slots, count, static_cast<std::int64_t>(kv.num_blocks) * kv.block_size,
              "a slot lies outside the K/V memory");
  if (kv.open_slot == nullptr) return;
  for (int i = 0; i < count; ++i) {
    const std::int32_t open = kv.open_slot[slots[i] / kv.block_size];
    require(open >= 0 && open < kv.num_open, "a slot lies in a block that is not open");
  }
}

void check_batch(const BatchView& batch, const KVCacheView& kv) {
  const std::int32_t* starts = batch.query_start;
  require(batch.num_requests >= 0, "query_start must have an entry more than there are requests");
  require(starts[0] == 0 && starts[batch.num_requests] == batch.num_tokens, "query_start does not cover the tokens");
  for (int r = 0; r < batch.num_requests; ++r) {
    require(starts[r] <= starts[r + 1] && starts[r + 1] <= batch.num_tokens, "query_start must ascend");
  }
  for (int r = 0; r < batch.num_requests; ++r) {
    if (starts[r] == starts[r + 1]) continue;
    const int first = batch.positions[starts[r]], last = batch.positions[starts[r + 1] - 1];
    for (int t = starts[r] + 1; t < starts[r + 1]; ++t) {
      require(batch.positions[t - 1] < batch.positions[t], "the positions of a request must ascend");
    }
    require(first >= 0 && last / kv.block_size < batch.max_blocks, "a position lies beyond the block table");
    const int begin = std::max(0, first - batch.window + 1) / kv.block_size;
    const std::int32_t* blocks = batch.block_tables + static_cast<std::ptrdiff_t>(r) * batch.max_blocks + begin;
    const int count = last / kv.block_size - begin + 1;
    check_range(blocks, count, kv.num_blocks, "a block table names a block that does not exist");
    for (int i = 0; kv.open_slot != nullptr && i < count; ++i) {
      require(kv.open_slot[blocks[i]] < kv.num_open, "an open block lies outside the open memory");
    }
  }
}

}  // namespace ostinato
