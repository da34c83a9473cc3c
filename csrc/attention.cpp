#include "attention.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

namespace ostinato {
namespace {

constexpr int kKeyAlign = 64;         // splits fall on whole key tiles
constexpr int kMinSplitKeys = 256;    // shorter parts cost more to join than they save
constexpr int kItemsPerThread = 4;    // how finely the work is cut for balance
constexpr int kMinSharedKeys = 64;    // shorter shared prefixes are read by each request itself
constexpr int kFewTokens = 8;         // requests with so few new tokens take part in prefix sharing

// Tokens that attend to keys [key_begin, key_end) of one block table, before heads and splits.
struct Segment {
  int first_token;  // index into Plan::tokens
  int num_tokens;
  const std::int32_t* block_table;
  int key_begin;
  int key_end;
};

struct Part {
  int token;
  int head;
  std::size_t offset;  // of the partial row, in floats
};

class Plan {
 public:
  Plan(const float* query, float* output, int num_heads, const KVCacheView& kv, int layer, const BatchView& batch,
       int threads, bool exact)
      : query_(query), output_(output), num_heads_(num_heads), kv_(kv), layer_(layer), batch_(batch), exact_(exact),
        group_(num_heads / kv.num_kv_heads) {
    find_segments();
    cut_items(threads);
  }

  void run(Runtime& runtime) {
    float* partials = runtime.partials().get<float>(partial_floats_);
    for (std::size_t i = 0; i < items_.size(); ++i) {
      if (offsets_[i] != kDirect) items_[i].partial = partials + offsets_[i];
      items_[i].tokens = tokens_.data() + token_offsets_[i];
    }
    const auto floats = static_cast<std::size_t>(attention_scratch(kv_.head_dim));
    runtime.pool().parallel_for(static_cast<int>(order_.size()), [&](int i, int worker) {
      runtime.kernels().attend(items_[static_cast<std::size_t>(order_[static_cast<std::size_t>(i)])],
                               runtime.scratch(worker, floats));
    });
    join_parts(runtime, partials);
  }

 private:
  static constexpr std::size_t kDirect = ~std::size_t{0};

  int tokens_of(int request) const { return batch_.query_start[request + 1] - batch_.query_start[request]; }
  const std::int32_t* table(int request) const {
    return batch_.block_tables + static_cast<std::ptrdiff_t>(request) * batch_.max_blocks;
  }
  // The first key that the window leaves to a token, and so to all later ones of its request.
  int oldest(int token) const { return std::max(0, batch_.positions[token] - batch_.window + 1); }
  // Keys before the request's first new token: what a shared prefix may cover.
  int past(int request) const { return batch_.positions[batch_.query_start[request]]; }

  int tokens_at_once() const { return std::max(1, kMaxItemRows / group_); }

  void add_segment(int first_token, int count, const std::int32_t* block_table, int begin, int end) {
    const int most = tokens_at_once();
    for (int t = 0; t < count; t += most) {
      segments_.push_back({first_token + t, std::min(most, count - t), block_table, begin, end});
    }
  }

  // Requests with few tokens that begin with the same blocks form a group; its common prefix is read once for all
  // (what Hydragen and cascade inference do), the rest of each by itself.
  void find_segments() {
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

  void add_request(int request, int key_begin) {
    const int first = static_cast<int>(tokens_.size());
    for (int t = batch_.query_start[request]; t < batch_.query_start[request + 1]; ++t) tokens_.push_back(t);
    const int count = tokens_of(request), most = tokens_at_once();
    for (int t = 0; t < count; t += most) {
      const int here = std::min(most, count - t), begin = tokens_[static_cast<std::size_t>(first + t)];
      add_segment(first + t, here, table(request), std::max(key_begin, oldest(begin)),
                  batch_.positions[begin + here - 1] + 1);
    }
  }

  void add_group(const int* requests, int count) {
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

  static std::int64_t cost(const Segment& s) {
    return static_cast<std::int64_t>(s.num_tokens) * (s.key_end - s.key_begin);
  }

  void cut_items(int threads) {
    std::vector<int> parts_of(static_cast<std::size_t>(batch_.num_tokens), 0);
    std::vector<int> splits;
    std::int64_t total = 0;
    for (const Segment& s : segments_) total += cost(s) * kv_.num_kv_heads;
    const std::int64_t target = std::max<std::int64_t>(1, total / (threads * kItemsPerThread));
    for (const Segment& s : segments_) {
      const int most = std::max(1, (s.key_end - s.key_begin) / kMinSplitKeys);
      const auto wanted = static_cast<int>(std::min<std::int64_t>((cost(s) + target - 1) / target, most));
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
    order_.resize(items_.size());
    std::iota(order_.begin(), order_.end(), 0);
    const auto size = [&](int i) {
      const AttentionItem& item = items_[static_cast<std::size_t>(i)];
      return static_cast<std::int64_t>(item.num_tokens) * (item.key_end - item.key_begin);
    };
    std::stable_sort(order_.begin(), order_.end(), [&](int a, int b) { return size(a) > size(b); });
    deal(threads);
  }

  // The pool gives each worker a contiguous run; deal the items so that every run starts with its largest.
  void deal(int threads) {
    std::vector<int> dealt;
    for (int w = 0; w < threads; ++w) {
      for (std::size_t i = static_cast<std::size_t>(w); i < order_.size(); i += static_cast<std::size_t>(threads)) {
        dealt.push_back(order_[i]);
      }
    }
    order_ = dealt;
  }

  void cut_segment(const Segment& s, int splits, bool direct) {
    const int keys = s.key_end - s.key_begin;
    const int step = (keys / splits + kKeyAlign - 1) / kKeyAlign * kKeyAlign;
    for (int head = 0; head < kv_.num_kv_heads; ++head) {
      for (int begin = s.key_begin, k = 0; k < splits; ++k, begin += step) {
        AttentionItem item;
        item.query = query_;
        item.positions = batch_.positions;
        item.block_table = s.block_table;
        item.kv = kv_.head(layer_, head);
        item.num_tokens = s.num_tokens;
        item.num_heads = num_heads_;
        item.group_size = group_;
        item.kv_head = head;
        item.head_dim = kv_.head_dim;
        item.key_begin = std::min(begin, s.key_end);
        item.key_end = k + 1 == splits ? s.key_end : std::min(begin + step, s.key_end);
        item.window = batch_.window;
        item.exact = exact_;
        item.output = output_;
        items_.push_back(item);
        token_offsets_.push_back(s.first_token);
        offsets_.push_back(direct ? kDirect : partial_floats_);
        if (direct) continue;
        for (int row = 0; row < s.num_tokens * group_; ++row) {
          parts_.push_back({tokens_[static_cast<std::size_t>(s.first_token + row / group_)],
                            head * group_ + row % group_, partial_floats_});
          partial_floats_ += static_cast<std::size_t>(partial_stride(kv_.head_dim));
        }
      }
    }
  }

  void join_parts(Runtime& runtime, const float* partials) {
    if (parts_.empty()) return;
    const auto row = [&](const Part& p) { return static_cast<std::int64_t>(p.token) * num_heads_ + p.head; };
    std::stable_sort(parts_.begin(), parts_.end(), [&](const Part& a, const Part& b) { return row(a) < row(b); });
    std::vector<const float*> pointers(parts_.size());
    std::vector<int> starts;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      pointers[i] = partials + parts_[i].offset;
      if (i == 0 || row(parts_[i]) != row(parts_[i - 1])) starts.push_back(static_cast<int>(i));
    }
    starts.push_back(static_cast<int>(parts_.size()));
    const int rows = static_cast<int>(starts.size()) - 1;
    constexpr int kRowsAtOnce = 64;
    runtime.pool().parallel_for((rows + kRowsAtOnce - 1) / kRowsAtOnce, [&](int block, int) {
      for (int i = block * kRowsAtOnce; i < std::min(rows, (block + 1) * kRowsAtOnce); ++i) {
        const int begin = starts[static_cast<std::size_t>(i)], end = starts[static_cast<std::size_t>(i + 1)];
        runtime.kernels().merge(pointers.data() + begin, end - begin, kv_.head_dim,
                                output_ + row(parts_[static_cast<std::size_t>(begin)]) * kv_.head_dim);
      }
    });
  }

  const float* query_;
  float* output_;
  int num_heads_;
  const KVCacheView& kv_;
  int layer_;
  const BatchView& batch_;
  bool exact_;
  int group_;
  std::vector<std::int32_t> tokens_;
  std::vector<Segment> segments_;
  std::vector<AttentionItem> items_;
  std::vector<int> token_offsets_;
  std::vector<std::size_t> offsets_;
  std::vector<int> order_;
  std::vector<Part> parts_;
  std::size_t partial_floats_ = 0;
};

}  // namespace

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
  return view;
}

void paged_attention(Runtime& runtime, const float* query, float* output, int num_heads, const KVCacheView& kv,
                     int layer, const BatchView& batch) {
  Plan(query, output, num_heads, kv, layer, batch, runtime.pool().size(), runtime.precision() == Precision::kExact)
      .run(runtime);
}

}  // namespace ostinato
