// What must hold before a kernel may follow an index into memory. Every check throws std::invalid_argument, which
// Python sees as ValueError. They are cheap beside the kernels: one pass over what a call is given.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention.hpp"
#include "decoder_ops.hpp"

namespace ostinato {

// Throws std::invalid_argument(message) unless `holds`.
void require(bool holds, const char* message);

// `value` as an int.
int checked_int(std::size_t value);

void check_shape(const DecoderShape&);
void check_layer(const LayerWeights&);
void check_head(const HeadWeights&);

// Every ids[i] in [0, end).
void check_range(const std::int32_t* ids, int count, std::int64_t end, const char* message);
void check_range(const std::int64_t* ids, int count, std::int64_t end, const char* message);

// The K/V memory fits the heads, and has that layer.
void check_kv(const KVCacheView&, int num_kv_heads, int head_dim, int layer);

// Every slot is in the K/V memory, and in a quantised one in an open block.
void check_slots(const std::int64_t* slots, int count, const KVCacheView&);

// Requests own all tokens in order, their positions ascend, and every block that a token sees is in the K/V memory.
void check_batch(const BatchView&, const KVCacheView&);

}  // namespace ostinato
