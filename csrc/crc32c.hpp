// CRC-32C (Castagnoli), the checksum of what lies on disk: with the CPU's own instruction as fast as memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ostinato {

// Checksum of `size` bytes as RFC 3720 gives it: crc32c("123456789") = 0xe3069283.
std::uint32_t crc32c(const std::uint8_t* data, std::size_t size);

// The same without special instructions, for checks.
std::uint32_t crc32c_portable(const std::uint8_t* data, std::size_t size);

}  // namespace ostinato
