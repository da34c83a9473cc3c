#include "attention.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace ostinato {
namespace {

constexpr int kKeyAlign = 64;         // splits fall on whole key tiles
constexpr int kMinSplitKeys = 256;    // shorter parts cost more to join than they save
constexpr int kItemsPerThread = 4;    // how finely the work is cut for balance
constexpr int kMinSharedKeys = 64;    // shorter shared prefixes are read by each request itself
constexpr int kFewTokens = 8;         // requests with so few new tokens take part in prefix sharing

constexpr std::size_t kDirect = ~std::size_t{0};  // an item that writes finished rows

}  // namespace

AttentionPlan::AttentionPlan(int num_heads, const KVCacheView& kv, const BatchView& batch, int threads, bool exact)
    : num_heads_(num_heads), kv_(kv), batch_(batch), exact_(exact), group_(num_heads / kv.num_kv_heads) {
  find_segments();
  cut_items(threads);
  order_items(threads);
  find_rows();
}

void AttentionPlan::run(Runtime& runtime, const float* query, float* output, int layer) {
  float* partials = runtime.partials().get<float>(partial_floats_);
  for (std::size_t i = 0; i < items_.size(); ++i) {
    Item& item = items_[i];
    item.work.next = i + 1 < items_.size() ? &items_[i + 1].work : nullptr;
    item.work.query = query;
    item.work.output = output;
    item.work.kv = kv_.head(layer, item.work.kv_head);
    if (item.partial_offset != kDirect) item.work.partial = partials + item.partial_offset;
  }
  const auto floats = static_cast<std::size_t>(attention_scratch(kv_.head_dim));
  runtime.pool().parallel_for(static_cast<int>(items_.size()), [&](int i, int worker) {
    runtime.kernels().attend(items_[static_cast<std::size_t>(i)].work, runtime.scratch(worker, floats));
  });
  join_parts(runtime, partials, output);
}

// The first key that the window leaves to a token, and so to all later ones of its request.
int AttentionPlan::oldest(int token) const { return std::max(0, batch_.positions[token] - batch_.window + 1); }

int AttentionPlan::tokens_at_once() const { return std::max(1, kMaxItemRows / group_); }

std::int64_t AttentionPlan::row_of(const Part& part) const {
  return static_cast<std::int64_t>(part.token) * num_heads_ + part.head;
}

void AttentionPlan::add_segment(int first_token, int count, const std::int32_t* block_table, int begin, int end) {
  const int most = tokens_at_once();
  for (int t = 0; t < count; t += most) {
    segments_.push_back({first_token + t, std::min(most, count - t), block_table, begin, end});
  }
}

// Requests with few tokens that begin with the same blocks form a group; its common prefix is read once for all
// (what Hydragen and cascade inference do), the rest of each by itself.
void AttentionPlan::find_segments() {
  std::vector<int> few;
  for (int r = 0; r < batch_.num_requests; ++r) {
    if (tokens_of(r) == 0) continue;
    if (tokens_of(r) <= kFewTokens && past(r) >= kMinSharedKeys) {
      few.push_back(r);
    } else {
      add_request(r, 0);
    }
  }
  std::stable_sort(few.begin(), few.end(), [&](int a, int b) { return table(a)[0] < table(b)[0]; });
  for (std::size_t i = 0; i < few.size();) {
    std::size_t end = i + 1;
    while (end < few.size() && table(few[end])[0] == table(few[i])[0]) ++end;
    add_group(few.data() + i, static_cast<int>(end - i));
    i = end;
  }
}

void AttentionPlan::add_request(int request, int key_begin) {
  const int first = static_cast<int>(tokens_.size());
  for (int t = batch_.query_start[request]; t < batch_.query_start[request + 1]; ++t) tokens_.push_back(t);
  const int count = tokens_of(request), most = tokens_at_once();
  for (int t = 0; t < count; t += most) {
    const int here = std::min(most, count - t), begin = tokens_[static_cast<std::size_t>(first + t)];
    add_segment(first + t, here, table(request), std::max(key_begin, oldest(begin)),
                batch_.positions[begin + here - 1] + 1);
  }
}

void AttentionPlan::add_group(const int* requests, int count) {
  int shared = past(requests[0]) / kv_.block_size;
  for (int i = 1; i < count; ++i) {
    const int most = std::min(shared, past(requests[i]) / kv_.block_size);
    const auto* a = table(requests[0]);
    shared = static_cast<int>(std::mismatch(a, a + most, table(requests[i])).first - a);
  }
  const int keys = shared * kv_.block_size / kKeyAlign * kKeyAlign;
  int begin = keys;
  for (int i = 0; i < count; ++i) begin = std::min(begin, oldest(batch_.query_start[requests[i]]));
  const bool share = count > 1 && keys - begin >= kMinSharedKeys;
  if (share) {
    const int first = static_cast<int>(tokens_.size());
    for (int i = 0; i < count; ++i) {
      for (int t = batch_.query_start[requests[i]]; t < batch_.query_start[requests[i] + 1]; ++t) {
        tokens_.push_back(t);
      }
    }
    add_segment(first, static_cast<int>(tokens_.size()) - first, table(requests[0]), begin, keys);
  }
  for (int i = 0; i < count; ++i) add_request(requests[i], share ? keys : 0);
}

void AttentionPlan::cut_items(int threads) {
  std::vector<int> parts_of(static_cast<std::size_t>(batch_.num_tokens), 0);
  std::vector<int> splits;
  const auto cost = [](const Segment& s) {
    return static_cast<std::int64_t>(s.num_tokens) * (s.key_end - s.key_begin);
  };
  std::int64_t total = 0;
  for (const Segment& s : segments_) total += cost(s) * kv_.num_kv_heads;
  const std::int64_t target = std::max<std::int64_t>(1, total / (threads * kItemsPerThread));
  for (const Segment& s : segments_) {
    const int most = std::max(1, (s.key_end - s.key_begin) / kMinSplitKeys);
    int wanted = static_cast<int>(std::min<std::int64_t>((cost(s) + target - 1) / target, most));
    // Where one request is split, as many items for each thread: 9 for 2 would leave one idle a tenth of the time.
    while (wanted > 1 && wanted < most && wanted * kv_.num_kv_heads % threads != 0) ++wanted;
    splits.push_back(threads == 1 ? 1 : std::max(1, wanted));
    for (int t = 0; t < s.num_tokens; ++t) {
      parts_of[static_cast<std::size_t>(tokens_[static_cast<std::size_t>(s.first_token + t)])] += splits.back();
    }
  }
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    const Segment& s = segments_[i];
    bool direct = true;  // as a whole: one item writes either form
    for (int t = 0; t < s.num_tokens; ++t) {
      const std::int32_t token = tokens_[static_cast<std::size_t>(s.first_token + t)];
      direct = direct && parts_of[static_cast<std::size_t>(token)] == 1;
    }
    cut_segment(s, splits[i], direct);
  }
}

// Largest first; the pool gives each worker a contiguous run, so that they are dealt round.
void AttentionPlan::order_items(int threads) {
  const auto size = [](const Item& item) {
    return static_cast<std::int64_t>(item.work.num_tokens) * (item.work.key_end - item.work.key_begin);
  };
  std::stable_sort(items_.begin(), items_.end(), [&](const Item& a, const Item& b) { return size(a) > size(b); });
  const auto step = static_cast<std::size_t>(threads);
  std::vector<Item> dealt;
  dealt.reserve(items_.size());
  for (std::size_t worker = 0; worker < step; ++worker) {
    for (std::size_t i = worker; i < items_.size(); i += step) dealt.push_back(items_[i]);
  }
  items_ = std::move(dealt);
}

void AttentionPlan::cut_segment(const Segment& s, int splits, bool direct) {
  const auto cut = [&](std::int64_t k) {
    return s.key_begin + static_cast<int>((s.key_end - s.key_begin) * k / splits) / kKeyAlign * kKeyAlign;
  };
  for (int head = 0; head < kv_.num_kv_heads; ++head) {
    for (int k = 0; k < splits; ++k) {
      AttentionItem item;
      item.tokens = tokens_.data() + s.first_token;
      item.positions = batch_.positions;
      item.block_table = s.block_table;
      item.num_tokens = s.num_tokens;
      item.num_heads = num_heads_;
      item.group_size = group_;
      item.kv_head = head;
      item.head_dim = kv_.head_dim;
      item.key_begin = cut(k);
      item.key_end = k + 1 == splits ? s.key_end : cut(k + 1);
      item.window = batch_.window;
      item.exact = exact_;
      items_.push_back({item, direct ? kDirect : partial_floats_});
      if (direct) continue;
      for (int row = 0; row < s.num_tokens * group_; ++row) {
        parts_.push_back({tokens_[static_cast<std::size_t>(s.first_token + row / group_)],
                          head * group_ + row % group_, partial_floats_});
        partial_floats_ += static_cast<std::size_t>(partial_stride(kv_.head_dim));
      }
    }
  }
}

void AttentionPlan::find_rows() {
  std::stable_sort(parts_.begin(), parts_.end(),
                   [&](const Part& a, const Part& b) { return row_of(a) < row_of(b); });
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (i == 0 || row_of(parts_[i]) != row_of(parts_[i - 1])) row_starts_.push_back(static_cast<int>(i));
  }
  row_starts_.push_back(static_cast<int>(parts_.size()));
}

void AttentionPlan::join_parts(Runtime& runtime, const float* partials, float* output) const {
  const int rows = static_cast<int>(row_starts_.size()) - 1;
  if (rows == 0) return;
  std::vector<const float*> pointers;
  pointers.reserve(parts_.size());
  for (const Part& part : parts_) pointers.push_back(partials + part.offset);
  constexpr int kRowsAtOnce = 64;
  runtime.pool().parallel_for((rows + kRowsAtOnce - 1) / kRowsAtOnce, [&](int block, int) {
    for (int i = block * kRowsAtOnce; i < std::min(rows, (block + 1) * kRowsAtOnce); ++i) {
      const auto begin = static_cast<std::size_t>(row_starts_[static_cast<std::size_t>(i)]);
      const auto end = static_cast<std::size_t>(row_starts_[static_cast<std::size_t>(i + 1)]);
      runtime.kernels().merge(pointers.data() + begin, static_cast<int>(end - begin), kv_.head_dim,
                              output + row_of(parts_[begin]) * kv_.head_dim);
    }
  });
}

KVView KVCacheView::head(int layer, int kv_head) const {
  const std::ptrdiff_t head_size = static_cast<std::ptrdiff_t>(block_size) * head_dim;
  const std::ptrdiff_t at = (static_cast<std::ptrdiff_t>(layer) * 2 * num_kv_heads + kv_head) * head_size;
  const std::ptrdiff_t size = type == KVType::kFloat16 ? 2 : 4;
  auto* base = static_cast<std::uint8_t*>(data);
  KVView view;
  view.keys = base + at * size;
  view.values = base + (at + num_kv_heads * head_size) * size;
  view.block_stride = block_stride();
  view.block_size = block_size;
  view.type = type;
  if (open_slot == nullptr) return view;
  const RecordLayout record = record_layout();
  const std::uint8_t* layer_records = sealed + layer * record.layer_bytes(num_kv_heads);
  view.sealed = format;
  view.open_slot = open_slot;
  view.sealed_keys = layer_records + kv_head * record.bytes(KVPart::kKeys);
  view.sealed_values =
      layer_records + num_kv_heads * record.bytes(KVPart::kKeys) + kv_head * record.bytes(KVPart::kValues);
  view.sealed_stride = sealed_bytes();
  return view;
}

void paged_attention(Runtime& runtime, const float* query, float* output, int num_heads, const KVCacheView& kv,
                     int layer, const BatchView& batch) {
  AttentionPlan plan(num_heads, kv, batch, runtime.pool().size(), runtime.precision() == Precision::kExact);
  plan.run(runtime, query, output, layer);
}

}  // namespace ostinato
