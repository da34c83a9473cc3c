#include "decoder_ops.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>

namespace ostinato {
namespace {

constexpr int kUnit = 64;      // rows of a piece of a plain product
constexpr int kFewTokens = 8;  // with so few, pieces are one panel: 576 rows in 9 pieces would not divide by 2
constexpr int kEmbedRows = 16;

std::size_t at(int row, int cols) { return static_cast<std::size_t>(row) * static_cast<std::size_t>(cols); }

// hidden += x @ weightsᵀ
void add_product(Runtime& runtime, const Activations& x, const MatrixView& weights, int tokens, float* hidden) {
  linear(runtime, x, weights, tokens, tokens <= kFewTokens ? kPanel : kUnit, [&](const Piece& p) {
    float* to = hidden + at(p.token, weights.rows) + p.row;
    runtime.kernels().add_rows(to, weights.rows, p.tile, p.stride, p.tokens, p.rows);
  });
}

// Puts the finished rows of one K or V head where the slots say, which is in open blocks.
void store_kv(const KernelTable& kernels, const KVCacheView& kv, const KVView& view, void* base,
              const std::int64_t* slots, const Piece& p) {
  for (int t = 0; t < p.tokens; ++t) {
    const std::int64_t slot = slots[p.token + t];
    const std::ptrdiff_t to = view.open_offset(static_cast<int>(slot / kv.block_size)) +
                              static_cast<std::ptrdiff_t>(slot % kv.block_size) * kv.head_dim;
    const float* from = p.tile + t * p.stride;
    if (kv.type == KVType::kFloat16) {
      kernels.store_half(from, static_cast<std::uint16_t*>(base) + to, kv.head_dim);
    } else {
      std::memcpy(static_cast<float*>(base) + to, from, sizeof(float) * static_cast<std::size_t>(kv.head_dim));
    }
  }
}

// RMSNorm of a row, cut in two: `first` is what int8 in groups of 32 keeps of it, `second` the rest.
void split_row(const float* row, const float* norm, float epsilon, int cols, float* first, float* second) {
  float squares = 0;
  for (int k = 0; k < cols; ++k) squares += row[k] * row[k];
  const float inverse = 1.0f / std::sqrt(squares / static_cast<float>(cols) + epsilon);
  for (int begin = 0; begin < cols; begin += kGroup) {
    const int end = std::min(cols, begin + kGroup);
    float largest = 0;
    for (int k = begin; k < end; ++k) {
      second[k] = row[k] * inverse * norm[k];
      largest = std::max(largest, std::fabs(second[k]));
    }
    const float unit = largest / 127.0f, steps = largest > 0 ? 127.0f / largest : 0.0f;
    for (int k = begin; k < end; ++k) {
      first[k] = std::nearbyint(second[k] * steps) * unit;
      second[k] -= first[k];
    }
  }
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
  const MatrixView& weights = layer.qkv->view();
  const Activations x = runtime.prepare(0, hidden, num_tokens, shape.hidden_size, layer.attention_norm.data(),
                                        shape.rms_norm_eps, weights);
  const KernelTable& kernels = runtime.kernels();
  const int dim = shape.head_dim;
  linear(runtime, x, weights, num_tokens, dim, [&](const Piece& p) {
    const int head = p.row / dim, kv_head = head - shape.num_heads;
    const bool is_query = kv_head < 0, is_key = !is_query && kv_head < shape.num_kv_heads;
    HeadFinish finish;
    finish.epsilon = shape.rms_norm_eps;
    if (!layer.qkv_bias.empty()) finish.bias = layer.qkv_bias.data() + p.row;
    if (is_query || is_key) {
      finish.cos = rope.cos.data();
      finish.sin = rope.sin.data();
      const std::vector<float>& norm = is_query ? layer.q_norm : layer.k_norm;
      if (!norm.empty()) finish.norm = norm.data();
      if (is_query) finish.scale = shape.attention_scale;
    }
    kernels.finish_head(p.tile, p.stride, dim, positions + p.token, p.tokens, finish);
    if (is_query) {
      for (int t = 0; t < p.tokens; ++t) {
        std::memcpy(query + at(p.token + t, shape.num_heads * dim) + p.row, p.tile + t * p.stride,
                    sizeof(float) * static_cast<std::size_t>(dim));
      }
    } else {
      const KVView view = kv.head(index, is_key ? kv_head : kv_head - shape.num_kv_heads);
      store_kv(kernels, kv, view, is_key ? view.keys : view.values, slots, p);
    }
  });
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

void run_layers(Runtime& runtime, const std::vector<const LayerWeights*>& layers, const RopeTables& rope,
                const BatchView& batch, const std::int64_t* slots, const KVCacheView& kv, float* hidden) {
  const bool exact = runtime.precision() == Precision::kExact;
  BatchView seen = batch;  // what the plan refers to
  std::unique_ptr<AttentionPlan> plan;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const LayerWeights& layer = *layers[i];
    const DecoderShape& shape = layer.shape;
    const int tokens = batch.num_tokens, index = static_cast<int>(i);
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

void logits(Runtime& runtime, const HeadWeights& head, const float* hidden, const std::int32_t* indices, int count,
            float* out) {
  const MatrixView& weights = head.output->view();
  const float* norm = head.final_norm.data();
  // Rounding errors of this product reach the probabilities undamped: a third of all that int8 costs arises here. So
  // each row is rounded twice, the second time what the first left over; both meet the same weights in one pass.
  const int parts = runtime.rounds(weights) ? 2 : 1;
  std::vector<float> rows(at(count * parts, weights.cols));
  for (int i = 0; i < count; ++i) {
    const float* from = hidden + at(indices[i], weights.cols);
    float* to = rows.data() + at(i * parts, weights.cols);
    if (parts == 1) {
      std::copy_n(from, weights.cols, to);
    } else {
      split_row(from, norm, head.rms_norm_eps, weights.cols, to, to + weights.cols);
    }
  }
  const Activations x = runtime.prepare(0, rows.data(), count * parts, weights.cols, parts == 1 ? norm : nullptr,
                                        head.rms_norm_eps, weights);
  linear(runtime, x, weights, count * parts, kUnit, [&](const Piece& p) {
    for (int t = 0; t < p.tokens; t += parts) {
      const float* tile = p.tile + t * p.stride;
      float* to = out + at((p.token + t) / parts, weights.rows) + p.row;
      if (parts == 1) {
        std::copy_n(tile, p.rows, to);
      } else {
        std::transform(tile, tile + p.rows, tile + p.stride, to, std::plus<>());
      }
    }
  });
}

}  // namespace ostinato
