// The block-hash chain of cache/hashing.py in one call.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ostinato {

// out: (blocks, 32). hash(i) = SHA-256(tag ‖ parent ‖ block i's tokens as little-endian u32), where the parent of
// block i is hash(i - 1) and that of block 0 is `parent`.
void hash_blocks(const std::uint8_t* tag, std::size_t tag_bytes, const std::uint8_t* parent, std::size_t parent_bytes,
                 const std::uint32_t* tokens, std::size_t block_size, std::size_t blocks, std::uint8_t* out);

}  // namespace ostinato
