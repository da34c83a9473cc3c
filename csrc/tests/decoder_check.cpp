// The sub-layers around attention: embedding, Q/K/V with bias, norms and rotation into paged K/V, MLP, logits.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "check.hpp"
#include "checks.hpp"
#include "decoder_ops.hpp"

namespace ostinato::check {
namespace {

constexpr int kLayers = 2, kLayer = 1, kPositions = 50;
constexpr float kEpsilon = 1e-5f;

std::vector<double> normed(const double* row, const std::vector<float>& weight) {
  double squares = 0;
  for (std::size_t k = 0; k < weight.size(); ++k) squares += row[k] * row[k];
  const double factor = 1 / std::sqrt(squares / static_cast<double>(weight.size()) + kEpsilon);
  std::vector<double> out(weight.size());
  for (std::size_t k = 0; k < weight.size(); ++k) out[k] = row[k] * factor * weight[k];
  return out;
}

std::vector<double> normed_rows(const std::vector<double>& rows, const std::vector<float>& weight) {
  std::vector<double> out;
  for (std::size_t at = 0; at < rows.size(); at += weight.size()) {
    for (const double v : normed(rows.data() + at, weight)) out.push_back(v);
  }
  return out;
}

void add(std::vector<double>& to, const std::vector<double>& from) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
}

// A layer of float weights, its plain values, and a step of tokens with random positions and slots.
struct Layer {
  DecoderShape shape;
  WeightFormat format = pick({0, 1}) == 0 ? WeightFormat::kFloat32 : WeightFormat::kFloat16;
  int inner = pick({16, 33, 70}), tokens = pick({1, 2, 9, 40});
  Weights qkv, output, down, gate_up;
  LayerWeights weights;
  RopeTables rope;
  std::vector<float> hidden;
  std::vector<std::int32_t> positions;
  std::vector<std::int64_t> slots;

  static DecoderShape make_shape() {
    const int kv_heads = pick({1, 2});
    return {pick({8, 32, 65}), kv_heads * pick({1, 3}), kv_heads, pick({16, 48, 64}), kEpsilon, 0.25f};
  }

  explicit Layer(DecoderShape s)
      : shape(s),
        qkv(format, false, (s.num_heads + 2 * s.num_kv_heads) * s.head_dim, s.hidden_size),
        output(format, false, s.hidden_size, s.num_heads * s.head_dim),
        down(format, false, s.hidden_size, inner),
        gate_up(format, false, (inner - 1) / 32 * 64 + 33 + (inner - 1) % 32, s.hidden_size) {
    const auto size = [](int n) { return static_cast<std::size_t>(n); };
    weights.shape = s;
    weights.attention_norm = random_values(size(s.hidden_size));
    weights.mlp_norm = random_values(size(s.hidden_size));
    if (pick({0, 1}) == 1) weights.qkv_bias = random_values(size(qkv.rows));
    if (pick({0, 1}) == 1) {
      weights.q_norm = random_values(size(s.head_dim));
      weights.k_norm = random_values(size(s.head_dim));
    }
    weights.qkv = std::make_shared<PackedMatrix>(qkv.packed);
    weights.output = std::make_shared<PackedMatrix>(output.packed);
    weights.gate_up = std::make_shared<PackedMatrix>(gate_up.packed);
    weights.down = std::make_shared<PackedMatrix>(down.packed);
    weights.intermediate_size = inner;
    check_layer(weights);
    rope = {random_values(index(kPositions, s.head_dim / 2)), random_values(index(kPositions, s.head_dim / 2)),
            kPositions, s.head_dim / 2};
    hidden = random_values(index(tokens, s.hidden_size));
    for (int t = 0; t < tokens; ++t) {
      positions.push_back(pick({0, 1, 17, kPositions - 1}));
      slots.push_back(2 * t + 1);
    }
  }

  // A head of token t after bias, norm, rotation and scale; heads count through q, k and v.
  std::vector<double> head(const std::vector<double>& product, int t, int head) const {
    const int dim = shape.head_dim, half = dim / 2, kv_head = head - shape.num_heads;
    std::vector<double> x(static_cast<std::size_t>(dim));
    for (int d = 0; d < dim; ++d) {
      const std::size_t row = index(head, dim, d);
      x[static_cast<std::size_t>(d)] = product[index(t, qkv.rows) + row];
      if (!weights.qkv_bias.empty()) x[static_cast<std::size_t>(d)] += weights.qkv_bias[row];
    }
    if (kv_head >= shape.num_kv_heads) return x;
    const std::vector<float>& norm = kv_head < 0 ? weights.q_norm : weights.k_norm;
    if (!norm.empty()) x = normed(x.data(), norm);
    for (int d = 0; d < half; ++d) {
      const std::size_t at = index(positions[static_cast<std::size_t>(t)], half, d);
      double &a = x[static_cast<std::size_t>(d)], &b = x[static_cast<std::size_t>(d + half)];
      const double rotated = a * rope.cos[at] - b * rope.sin[at];
      b = b * rope.cos[at] + a * rope.sin[at];
      a = rotated;
    }
    if (kv_head < 0) {
      for (double& v : x) v *= shape.attention_scale;
    }
    return x;
  }

  std::vector<double> mlp_output() const {
    std::vector<double> result = widen(hidden);
    const std::vector<double> both = gate_up.times(normed_rows(result, weights.mlp_norm), tokens);
    std::vector<double> activated(index(tokens, inner));
    for (int t = 0; t < tokens; ++t) {
      for (int c = 0; c < inner; ++c) {
        const double gate = both[index(t, gate_up.rows, c / 32 * 64 + c % 32)];
        activated[index(t, inner, c)] =
            gate / (1 + std::exp(-gate)) * both[index(t, gate_up.rows, c / 32 * 64 + 32 + c % 32)];
      }
    }
    add(result, down.times(activated, tokens));
    return result;
  }
};

void check_qkv(Runtime& runtime, const Layer& layer) {
  const DecoderShape& s = layer.shape;
  const KVType type = pick({0, 1}) == 0 ? KVType::kFloat32 : KVType::kFloat16;
  const int block = pick({1, 4, 16}), blocks = (2 * layer.tokens + block) / block;
  const std::size_t cells = index(blocks * kLayers * 2 * s.num_kv_heads * block, s.head_dim);
  std::vector<float> wide(cells, 7.0f);
  std::vector<std::uint16_t> half(cells, float_to_half(7.0f));
  KVCacheView kv;
  kv.data = type == KVType::kFloat32 ? static_cast<void*>(wide.data()) : half.data();
  kv.num_blocks = blocks;
  kv.type = type;
  kv.num_layers = kLayers;
  kv.num_kv_heads = s.num_kv_heads;
  kv.block_size = block;
  kv.head_dim = s.head_dim;
  std::vector<float> query(index(layer.tokens * s.num_heads, s.head_dim), std::numeric_limits<float>::quiet_NaN());
  qkv(runtime, layer.weights, layer.rope, layer.hidden.data(), layer.positions.data(), layer.slots.data(),
      layer.tokens, kv, kLayer, query.data());
  if (type == KVType::kFloat16) {
    for (std::size_t i = 0; i < cells; ++i) wide[i] = half_to_float(half[i]);
  }
  std::vector<double> wanted(cells, 7.0), wanted_query;
  const std::vector<double> product =
      layer.qkv.times(normed_rows(widen(layer.hidden), layer.weights.attention_norm), layer.tokens);
  for (int t = 0; t < layer.tokens; ++t) {
    const auto slot = static_cast<int>(layer.slots[static_cast<std::size_t>(t)]);
    for (int h = 0; h < s.num_heads + 2 * s.num_kv_heads; ++h) {
      const std::vector<double> head = layer.head(product, t, h);
      if (h < s.num_heads) {
        wanted_query.insert(wanted_query.end(), head.begin(), head.end());
        continue;
      }
      const int place = (slot / block * kLayers + kLayer) * 2 * s.num_kv_heads + h - s.num_heads;
      for (int d = 0; d < s.head_dim; ++d) {
        wanted[index(place * block + slot % block, s.head_dim, d)] = head[static_cast<std::size_t>(d)];
      }
    }
  }
  expect_close("query", runtime, largest_difference(query, wanted_query), 2e-4);
  expect_close("stored K/V", runtime, largest_difference(wide, wanted), type == KVType::kFloat16 ? 2e-2 : 2e-4);
}

}  // namespace

void check_decoder(Runtime& runtime) {
  Layer layer(Layer::make_shape());
  const int tokens = layer.tokens, hidden_size = layer.shape.hidden_size;
  check_qkv(runtime, layer);

  const std::vector<float> context = random_values(index(tokens, layer.output.cols));
  std::vector<double> wanted = widen(layer.hidden);
  add(wanted, layer.output.times(widen(context), tokens));
  std::vector<float> found = layer.hidden;
  attention_output(runtime, layer.weights, context.data(), tokens, found.data());
  expect_close("attention output", runtime, largest_difference(found, wanted), 2e-4);

  // Nothing may depend on what an earlier call left in a worker's scratch.
  constexpr std::size_t kScratch = 1 << 16;
  for (int w = 0; w < runtime.pool().size(); ++w) {
    std::fill_n(runtime.scratch(w, kScratch), kScratch, std::numeric_limits<float>::quiet_NaN());
  }
  found = layer.hidden;
  mlp(runtime, layer.weights, tokens, found.data());
  expect_close("mlp", runtime, largest_difference(found, layer.mlp_output()), 1e-3);

  const int vocab = pick({30, 100});
  const Weights embedding(layer.format, false, vocab, hidden_size);
  const auto shared = std::make_shared<PackedMatrix>(embedding.packed);
  HeadWeights head{kEpsilon, random_values(static_cast<std::size_t>(hidden_size)), shared, shared, {}};
  if (is_integer(shared->view().format)) head.output_bounds = shared->row_bounds();
  check_head(head);
  std::vector<std::int32_t> ids, indices;
  std::vector<double> rows;
  for (int t = 0; t < tokens; ++t) {
    ids.push_back(pick({0, 11, vocab - 1}));
    for (int k = 0; k < hidden_size; ++k) rows.push_back(embedding.values[index(ids.back(), hidden_size, k)]);
  }
  embed(runtime, head, ids.data(), tokens, found.data());
  expect_close("embedding", runtime, largest_difference(found, rows), 0);

  std::vector<double> chosen;
  for (int i = 0; i < pick({1, 3}); ++i) {
    indices.push_back(pick({0, tokens - 1}));
    for (int k = 0; k < hidden_size; ++k) {
      chosen.push_back(layer.hidden[index(indices.back(), hidden_size, k)]);
    }
  }
  const int count = static_cast<int>(indices.size());
  std::vector<float> out(index(count, vocab), std::numeric_limits<float>::quiet_NaN());
  logits(runtime, head, layer.hidden.data(), {indices.data(), count}, nullptr, out.data());
  wanted = embedding.times(normed_rows(chosen, head.final_norm), count);
  expect_close("logits", runtime, largest_difference(out, wanted), 2e-4);
  constexpr int kMany = 9;  // fewer are computed whole
  bool argmax_only[kMany];
  std::fill_n(argmax_only, kMany, true);
  for (int i = count; i < kMany; ++i) indices.push_back(indices[static_cast<std::size_t>(i - count)]);
  std::vector<float> largest(index(kMany, vocab), std::numeric_limits<float>::quiet_NaN());
  logits(runtime, head, layer.hidden.data(), {indices.data(), kMany}, argmax_only, largest.data());
  for (int i = 0; i < kMany; ++i) {
    const auto whole = out.begin() + i % count * vocab, row = largest.begin() + i * vocab;
    const auto best = std::max_element(whole, whole + vocab) - whole, found = std::max_element(row, row + vocab) - row;
    const float apart = std::fabs(whole[best] - row[found]);
    expect_close("largest logit", runtime, best == found ? apart : 1.0f, 0);
  }
}

}  // namespace ostinato::check
