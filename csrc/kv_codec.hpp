// Sealing and opening of whole K/V blocks, all layers at once.
#pragma once

#include <cstdint>

#include "attention.hpp"

namespace ostinato {

// Geometry and format are taken from `shape`, of which nothing else is used. `block` is (layers, 2, kv heads,
// block_size, head_dim) of fp16, `sealed` has sealed_bytes(). Runs on the calling thread.
void seal_block(const KernelTable&, const KVCacheView& shape, const std::uint16_t* block, int num_tokens,
                std::uint8_t* sealed);
void open_block(const KernelTable&, const KVCacheView& shape, const std::uint8_t* sealed, std::uint16_t* block);

}  // namespace ostinato
