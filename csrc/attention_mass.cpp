#include <algorithm>
#include <vector>

#include "attention.hpp"

namespace ostinato {
namespace {

constexpr int kMostRows = 48;  // query rows of an item: few enough that their sums by block stay in a core's cache

// Tokens of one request and one K/V head, and where the sums of their blocks go.
struct MassItem {
  AttentionItem item;
  int request;
  int first_block;
  int num_blocks;
  std::size_t offset;
};

std::vector<MassItem> cut(const KVCacheView& kv, int layer, int num_heads, const BatchView& batch, int observed,
                          const std::int32_t* tokens) {
  std::vector<MassItem> items;
  const int group = num_heads / kv.num_kv_heads, most = std::max(1, kMostRows / group);
  std::size_t offset = 0;
  for (int r = 0; r < batch.num_requests; ++r) {
    const int end = batch.query_start[r + 1];
    const int begin = end - std::min(observed, end - batch.query_start[r]);
    for (int t = begin; t < end; t += most) {
      for (int head = 0; head < kv.num_kv_heads; ++head) {
        MassItem next{{}, r, 0, 0, offset};
        AttentionItem& item = next.item;
        item.tokens = tokens + t;
        item.num_tokens = std::min(most, end - t);
        item.positions = batch.positions;
        item.block_table = batch.block_tables + static_cast<std::ptrdiff_t>(r) * batch.max_blocks;
        item.kv = kv.head(layer, head);
        item.num_heads = num_heads;
        item.group_size = group;
        item.kv_head = head;
        item.head_dim = kv.head_dim;
        item.window = batch.window;
        item.key_begin = std::max(0, batch.positions[t] - batch.window + 1);
        item.key_end = batch.positions[t + item.num_tokens - 1] + 1;
        next.first_block = item.key_begin / kv.block_size;
        next.num_blocks = (item.key_end - 1) / kv.block_size - next.first_block + 1;
        offset += static_cast<std::size_t>(next.num_blocks);
        items.push_back(next);
      }
    }
  }
  return items;
}

}  // namespace

void attention_mass(Runtime& runtime, const float* query, int num_heads, const KVCacheView& kv, int layer,
                    const BatchView& batch, int observed, float* sums) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(batch.num_tokens));
  for (std::size_t t = 0; t < tokens.size(); ++t) tokens[t] = static_cast<std::int32_t>(t);
  std::vector<MassItem> items = cut(kv, layer, num_heads, batch, observed, tokens.data());
  if (items.empty()) return;
  const MassItem& last = items.back();
  auto* masses = runtime.partials().get<float>(last.offset + static_cast<std::size_t>(last.num_blocks));
  runtime.pool().parallel_for(static_cast<int>(items.size()), [&](int i, int worker) {
    MassItem& next = items[static_cast<std::size_t>(i)];
    next.item.query = query;
    const std::size_t floats =
        mass_scratch(kv.head_dim, next.item.num_tokens * next.item.group_size, next.num_blocks);
    runtime.kernels().attention_mass(next.item, masses + next.offset, runtime.scratch(worker, floats));
  });
  for (const MassItem& next : items) {
    float* row = sums + static_cast<std::ptrdiff_t>(next.request) * batch.max_blocks + next.first_block;
    for (int b = 0; b < next.num_blocks; ++b) row[b] += masses[next.offset + static_cast<std::size_t>(b)];
  }
}

}  // namespace ostinato
