// The bytes of a sealed K/V block (cache/codec): records [layer][K, V][kv head], each a payload of
// [block_size] rows, then fp16 scales, and for int4 as many fp16 minima behind them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ostinato {

enum class SealedFormat : std::uint8_t { kNone, kFp8, kInt8, kInt4 };

enum class KVPart : std::uint8_t { kKeys, kValues };

struct RecordLayout {
  SealedFormat format = SealedFormat::kNone;
  int block_size = 0;
  int head_dim = 0;

  // Int4 packs channel c and channel c + head_dim / 2 into byte c of a row.
  std::ptrdiff_t row_bytes() const { return format == SealedFormat::kInt4 ? head_dim / 2 : head_dim; }
  std::ptrdiff_t payload_bytes() const { return block_size * row_bytes(); }
  // Int4 keys share a scale and a minimum by channel, everything else by token.
  int scales(KVPart part) const {
    return format == SealedFormat::kInt4 && part == KVPart::kKeys ? head_dim : block_size;
  }
  std::ptrdiff_t bytes(KVPart part) const {
    const std::ptrdiff_t all = payload_bytes() + scales(part) * (format == SealedFormat::kInt4 ? 4 : 2);
    return (all + 15) / 16 * 16;
  }
  std::ptrdiff_t layer_bytes(int kv_heads) const {
    return kv_heads * (bytes(KVPart::kKeys) + bytes(KVPart::kValues));
  }
};

}  // namespace ostinato
