#include "decoder_ops.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <stdexcept>

namespace ostinato {
namespace {

constexpr int kEmbedRows = 16;

// Rows of a piece of a plain product. With one block of tokens smaller pieces divide better: 576 rows are 9 pieces of
// 64, and of two threads one would do five.
int unit_of(int tokens) {
  constexpr int kFewTokens = 8;
  return tokens <= kFewTokens ? kPanel : tokens <= kBlockTokens ? 2 * kPanel : 4 * kPanel;
}

std::size_t at(int row, int cols) { return static_cast<std::size_t>(row) * static_cast<std::size_t>(cols); }

// hidden += x @ weightsᵀ
void add_product(Runtime& runtime, const Activations& x, const MatrixView& weights, int tokens, float* hidden) {
  linear(runtime, x, weights, tokens, unit_of(tokens), [&](const Piece& p) {
    float* to = hidden + at(p.token, weights.rows) + p.row;
    runtime.kernels().add_rows(to, weights.rows, p.tile, p.stride, p.tokens, p.rows);
  });
}

bool all_finite(const float* values, int count) {
  constexpr std::uint32_t kExponent = 0x7f800000;
  std::uint32_t found = 0;
  for (int k = 0; k < count; ++k) {
    std::uint32_t bits;
    std::memcpy(&bits, values + k, 4);
    found |= static_cast<std::uint32_t>((bits & kExponent) == kExponent);
  }
  return found == 0;
}

// Puts the finished rows of one K or V head where the slots say, which is in open blocks. False if what is stored is not
// finite: the formats of sealed blocks hold every finite fp16 number.
[[nodiscard]] bool store_kv(const KernelTable& kernels, const KVCacheView& kv, const KVView& view, void* base,
                            const std::int64_t* slots, const Piece& p) {
  bool finite = true;
  for (int t = 0; t < p.tokens; ++t) {
    const std::int64_t slot = slots[p.token + t];
    const std::ptrdiff_t to = view.open_offset(static_cast<int>(slot / kv.block_size)) +
                              static_cast<std::ptrdiff_t>(slot % kv.block_size) * kv.head_dim;
    const float* from = p.tile + t * p.stride;
    if (kv.type == KVType::kFloat16) {
      finite = kernels.store_half(from, static_cast<std::uint16_t*>(base) + to, kv.head_dim) && finite;
    } else {
      std::memcpy(static_cast<float*>(base) + to, from, sizeof(float) * static_cast<std::size_t>(kv.head_dim));
      finite = all_finite(from, kv.head_dim) && finite;
    }
  }
  return finite;
}

// Heads of q, k and v, in this order.
struct HeadRange {
  int first;
  int count;
};

struct ProjectedTokens {
  const std::int32_t* positions;
  const std::int64_t* slots;  // where their k and v go; null if none are projected
  int count;
  float* query;  // null if no q is projected
};

// Heads `range` of q, k and v of normed rows `x`: finished, and put where they belong. Attention would make finite garbage
// of stored NaN and infinities, for every later token of the sequence, so they are refused here, where all pass once.
void project(Runtime& runtime, const LayerWeights& layer, const RopeTables& rope, const Activations& x, HeadRange range,
             const ProjectedTokens& tokens, const KVCacheView& kv, int index) {
  const DecoderShape& shape = layer.shape;
  const KernelTable& kernels = runtime.kernels();
  const int dim = shape.head_dim;
  const MatrixView weights = layer.qkv->view().row_range(range.first * dim, range.count * dim);
  std::atomic<bool> finite{true};
  linear(runtime, x, weights, tokens.count, dim, [&](const Piece& p) {
    const int head = range.first + p.row / dim, kv_head = head - shape.num_heads;
    const bool is_query = kv_head < 0, is_key = !is_query && kv_head < shape.num_kv_heads;
    HeadFinish finish;
    finish.epsilon = shape.rms_norm_eps;
    if (!layer.qkv_bias.empty()) finish.bias = layer.qkv_bias.data() + head * dim;
    if (is_query || is_key) {
      finish.cos = rope.cos.data();
      finish.sin = rope.sin.data();
      const std::vector<float>& norm = is_query ? layer.q_norm : layer.k_norm;
      if (!norm.empty()) finish.norm = norm.data();
      if (is_query) finish.scale = shape.attention_scale;
    }
    kernels.finish_head(p.tile, p.stride, dim, tokens.positions + p.token, p.tokens, finish);
    if (is_query) {
      for (int t = 0; t < p.tokens; ++t) {
        std::memcpy(tokens.query + at(p.token + t, shape.num_heads * dim) + head * dim, p.tile + t * p.stride,
                    sizeof(float) * static_cast<std::size_t>(dim));
      }
    } else {
      const KVView view = kv.head(index, is_key ? kv_head : kv_head - shape.num_kv_heads);
      if (!store_kv(kernels, kv, view, is_key ? view.keys : view.values, tokens.slots, p)) {
        finite.store(false, std::memory_order_relaxed);
      }
    }
  });
  if (!finite.load(std::memory_order_relaxed)) throw std::overflow_error("K or V is not finite");
}

}  // namespace

void embed(Runtime& runtime, const HeadWeights& head, const std::int32_t* token_ids, int num_tokens, float* hidden) {
  const int cols = head.embedding->view().cols;
  runtime.pool().parallel_for((num_tokens + kEmbedRows - 1) / kEmbedRows, [&](int block, int) {
    for (int t = block * kEmbedRows; t < std::min(num_tokens, (block + 1) * kEmbedRows); ++t) {
      head.embedding->get(token_ids[t], hidden + at(t, cols));
    }
  });
}

void qkv(Runtime& runtime, const LayerWeights& layer, const RopeTables& rope, const float* hidden,
         const std::int32_t* positions, const std::int64_t* slots, int num_tokens, const KVCacheView& kv, int index,
         float* query) {
  const DecoderShape& shape = layer.shape;
  const Activations x = runtime.prepare(0, hidden, num_tokens, shape.hidden_size, layer.attention_norm.data(),
                                        shape.rms_norm_eps, layer.qkv->view());
  project(runtime, layer, rope, x, {0, shape.num_heads + 2 * shape.num_kv_heads},
          {positions, slots, num_tokens, query}, kv, index);
}

void attention_output(Runtime& runtime, const LayerWeights& layer, const float* context, int num_tokens,
                      float* hidden) {
  const MatrixView& weights = layer.output->view();
  const Activations x = runtime.prepare(0, context, num_tokens, weights.cols, nullptr, 0.0f, weights);
  add_product(runtime, x, weights, num_tokens, hidden);
}

void mlp(Runtime& runtime, const LayerWeights& layer, int num_tokens, float* hidden) {
  const MatrixView& gate_up = layer.gate_up->view();
  const MatrixView& down = layer.down->view();
  const Activations x = runtime.prepare(0, hidden, num_tokens, layer.shape.hidden_size, layer.mlp_norm.data(),
                                        layer.shape.rms_norm_eps, gate_up);
  // Every piece of gate and up becomes one group of 32 of the next product's input at once.
  const Activations inner = runtime.activations(1, num_tokens, down.cols, down);
  linear(runtime, x, gate_up, num_tokens, 2 * kGroup, [&](const Piece& p) {
    // The product fills whole panels; what lies behind them in the last piece is an earlier call's.
    const int filled = (p.rows + kPanel - 1) / kPanel * kPanel;
    for (int t = 0; filled < 2 * kGroup && t < p.tokens; ++t) {
      std::fill_n(p.tile + t * p.stride + filled, 2 * kGroup - filled, 0.0f);
    }
    runtime.kernels().silu_mul(p.tile, p.tokens, inner, p.token, p.row / (2 * kGroup));
  });
  add_product(runtime, inner, down, num_tokens, hidden);
}

namespace {

// Some tokens of a batch as a batch of its own, and their rows.
struct Selection {
  std::vector<std::int32_t> tokens;  // of the whole batch, ascending
  std::vector<std::int32_t> positions;
  std::vector<std::int32_t> query_start;
  std::vector<float> rows;
  BatchView batch;

  Selection(const BatchView& whole, const TokenList& wanted) : batch(whole) {
    tokens.assign(wanted.tokens, wanted.tokens + wanted.count);
    std::sort(tokens.begin(), tokens.end());
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
    for (const std::int32_t token : tokens) positions.push_back(whole.positions[token]);
    for (int r = 0; r <= whole.num_requests; ++r) {
      const auto end = std::lower_bound(tokens.begin(), tokens.end(), whole.query_start[r]);
      query_start.push_back(static_cast<std::int32_t>(end - tokens.begin()));
    }
    batch.positions = positions.data();
    batch.query_start = query_start.data();
    batch.num_tokens = static_cast<int>(tokens.size());
  }
  Selection(const Selection&) = delete;  // its batch points into it
  Selection& operator=(const Selection&) = delete;

  void gather(const float* hidden, int cols) {
    rows.resize(at(batch.num_tokens, cols));
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      std::copy_n(hidden + at(tokens[i], cols), cols, rows.data() + i * static_cast<std::size_t>(cols));
    }
  }
  void scatter(float* hidden, int cols) const {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      std::copy_n(rows.data() + i * static_cast<std::size_t>(cols), cols, hidden + at(tokens[i], cols));
    }
  }
};

// Of the last layer nobody reads more than the wanted rows, and later steps its keys and values.
void run_last_layer(Runtime& runtime, const LayerWeights& layer, const RopeTables& rope, const BatchView& batch,
                    const std::int64_t* slots, const TokenList& wanted, const KVCacheView& kv, int index,
                    float* hidden) {
  const DecoderShape& shape = layer.shape;
  const MatrixView& weights = layer.qkv->view();
  const auto normed = [&](const float* rows, int count) {
    return runtime.prepare(0, rows, count, shape.hidden_size, layer.attention_norm.data(), shape.rms_norm_eps, weights);
  };
  project(runtime, layer, rope, normed(hidden, batch.num_tokens), {shape.num_heads, 2 * shape.num_kv_heads},
          {batch.positions, slots, batch.num_tokens, nullptr}, kv, index);
  Selection selected(batch, wanted);
  const int tokens = selected.batch.num_tokens;
  if (tokens == 0) return;
  selected.gather(hidden, shape.hidden_size);
  float* query = runtime.queries().get<float>(at(tokens, shape.num_heads * shape.head_dim));
  float* context = runtime.contexts().get<float>(at(tokens, shape.num_heads * shape.head_dim));
  project(runtime, layer, rope, normed(selected.rows.data(), tokens), {0, shape.num_heads},
          {selected.batch.positions, nullptr, tokens, query}, kv, index);
  selected.batch.window = shape.window;
  paged_attention(runtime, query, context, shape.num_heads, kv, index, selected.batch);
  attention_output(runtime, layer, context, tokens, selected.rows.data());
  mlp(runtime, layer, tokens, selected.rows.data());
  selected.scatter(hidden, shape.hidden_size);
}

}  // namespace

void run_layers(Runtime& runtime, const std::vector<const LayerWeights*>& layers, const RopeTables& rope,
                const BatchView& batch, const std::int64_t* slots, const TokenList& wanted, const KVCacheView& kv,
                float* hidden) {
  const bool exact = runtime.precision() == Precision::kExact;
  BatchView seen = batch;  // what the plan refers to
  std::unique_ptr<AttentionPlan> plan;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const LayerWeights& layer = *layers[i];
    const DecoderShape& shape = layer.shape;
    const int tokens = batch.num_tokens, index = static_cast<int>(i);
    if (i + 1 == layers.size() && wanted.count < tokens) {
      run_last_layer(runtime, layer, rope, batch, slots, wanted, kv, index, hidden);
      return;
    }
    const std::size_t floats = at(tokens, shape.num_heads * shape.head_dim);
    float* query = runtime.queries().get<float>(floats);
    float* context = runtime.contexts().get<float>(floats);
    if (!plan || seen.window != shape.window) {
      seen.window = shape.window;
      plan = std::make_unique<AttentionPlan>(shape.num_heads, kv, seen, runtime.pool().size(), exact);
    }
    qkv(runtime, layer, rope, hidden, batch.positions, slots, tokens, kv, index, query);
    plan->run(runtime, query, context, index);
    attention_output(runtime, layer, context, tokens, hidden);
    mlp(runtime, layer, tokens, hidden);
  }
}

}  // namespace ostinato
