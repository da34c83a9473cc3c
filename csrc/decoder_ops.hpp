// The sub-layers of a decoder, as cut by ops/base.py.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "attention.hpp"
#include "matrix.hpp"
#include "runtime.hpp"

namespace ostinato {

struct DecoderShape {
  int hidden_size = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;  // a multiple of 16
  float rms_norm_eps = 0;
  float attention_scale = 1;
  int window = kNoWindow;  // keys that a token sees, its own included
};

struct LayerWeights {
  DecoderShape shape;
  std::vector<float> attention_norm;
  std::vector<float> mlp_norm;
  std::vector<float> qkv_bias;  // (heads + 2 kv heads) * head_dim, or empty
  std::vector<float> q_norm;    // (head_dim) or empty
  std::vector<float> k_norm;
  std::shared_ptr<PackedMatrix> qkv;      // rows of q, then k, then v
  std::shared_ptr<PackedMatrix> output;
  std::shared_ptr<PackedMatrix> gate_up;  // per 32 channels: 32 rows of gate, 32 of up
  std::shared_ptr<PackedMatrix> down;
  int intermediate_size = 0;
};

struct HeadWeights {
  float rms_norm_eps = 0;
  std::vector<float> final_norm;
  std::shared_ptr<PackedMatrix> embedding;
  std::shared_ptr<PackedMatrix> output;
  std::vector<float> output_bounds;  // see PackedMatrix::row_bounds()
};

struct RopeTables {
  std::vector<float> cos;  // (max_position, half)
  std::vector<float> sin;
  int max_position = 0;
  int half = 0;  // half a head's elements
};

void embed(Runtime&, const HeadWeights&, const std::int32_t* token_ids, int num_tokens, float* hidden);
// query: (tokens, heads, head_dim), rotated and multiplied by the attention scale. Throws std::overflow_error if K or V
// is NaN, or infinite in the type of the K/V memory; so does run_layers().
void qkv(Runtime&, const LayerWeights&, const RopeTables&, const float* hidden, const std::int32_t* positions,
         const std::int64_t* slots, int num_tokens, const KVCacheView&, int layer, float* query);
void attention_output(Runtime&, const LayerWeights&, const float* context, int num_tokens, float* hidden);
void mlp(Runtime&, const LayerWeights&, int num_tokens, float* hidden);

// Some tokens of a step.
struct TokenList {
  const std::int32_t* tokens = nullptr;
  int count = 0;
};

// The four above for each of `layers`, which lie in the K/V memory in this order. K and V of all tokens are written; of
// `hidden`, only the `wanted` rows are brought to the end.
void run_layers(Runtime&, const std::vector<const LayerWeights*>& layers, const RopeTables&, const BatchView&,
                const std::int64_t* slots, const TokenList& wanted, const KVCacheView&, float* hidden);
// out: (wanted.count, vocab), for the `wanted` rows of hidden. Of a row that is true in argmax_only (null: none is)
// only what could be the largest is finished: the largest and its equals are what they would be, all others below.
void logits(Runtime&, const HeadWeights&, const float* hidden, const TokenList& wanted,
            const bool* argmax_only, float* out);

}  // namespace ostinato
