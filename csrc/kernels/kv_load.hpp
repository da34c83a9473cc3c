// How K and V come out of their blocks: element types as they are stored, the walk over a block table, and rows as fp32.
//
// A sealed element is loaded without its scale: x = element * scale (+ minimum for int4). Who multiplies rows may
// apply scales to the products instead (kernels/attention_few.hpp); load_rows() below applies them at once.
#pragma once

#include "kernels.hpp"
#include "simd/simd.hpp"

namespace ostinato::OSTINATO_ISA {

inline constexpr int kKeyTile = 64;

struct E4m3 {
  std::uint8_t bits;
};
struct Int8 {
  std::int8_t bits;
};
// Channel c in the low half of byte c, channel c + head_dim / 2 in the high one.
struct Nibbles {
  std::uint8_t bits;
};

template <class T>
inline constexpr bool kIsSealed = sizeof(T) == 1;
template <class T>
inline constexpr int kChannels = 1;  // that an element holds
template <>
inline constexpr int kChannels<Nibbles> = 2;
template <class T>
inline constexpr float kUnit = 1.0f;  // what load_channels() leaves out
template <>
inline constexpr float kUnit<E4m3> = kE4m3Unit;

// kWidth elements; those of an int4 row's low halves, then of its high ones.
OSTINATO_INLINE void load_channels(const float* p, vf (&x)[1]) { x[0] = vload(p); }
OSTINATO_INLINE void load_channels(const std::uint16_t* p, vf (&x)[1]) { x[0] = vload_f16(p); }
OSTINATO_INLINE void load_channels(const E4m3* p, vf (&x)[1]) { x[0] = vload_e4m3(&p->bits); }
OSTINATO_INLINE void load_channels(const Int8* p, vf (&x)[1]) { x[0] = vload_i8(&p->bits); }
OSTINATO_INLINE void load_channels(const Nibbles* p, vf (&x)[2]) { vload_nibbles(&p->bits, x[0], x[1]); }

// The first `count` of kWidth halves; never reads behind them.
OSTINATO_INLINE vf load_first_halves(const std::uint16_t* p, int count) {
  if (count >= kWidth) return vload_f16(p);
  std::uint16_t padded[kWidth] = {};
  for (int i = 0; i < count; ++i) padded[i] = p[i];
  return vload_f16(padded);
}

// Rows [0, count) of a tile that starts at position `first`.
struct TileRows {
  const AttentionItem& item;
  int first;
  int count;

  // f(row, rows, block id, offset in the block) for each block's rows, in order.
  template <class F>
  OSTINATO_INLINE void each_block(const F& f) const {
    const int size = item.kv.block_size;
    const std::int32_t* block = item.block_table + first / size;
    for (int row = 0, at = first % size; row < count; ++block, at = 0) {
      const int rows = minimum(size - at, count - row);
      f(row, rows, *block, at);
      row += rows;
    }
  }
};

// Positions [begin, end) of an item's keys that are all sealed or all open.
struct KeyRun {
  int end;
  bool sealed;
};

inline KeyRun find_run(const AttentionItem& item, int begin, int end) {
  const KVView& kv = item.kv;
  if (kv.open_slot == nullptr) return {end, false};
  const bool sealed = kv.is_sealed(item.block_table[begin / kv.block_size]);
  int block = begin / kv.block_size + 1;
  while (block * kv.block_size < end && kv.is_sealed(item.block_table[block]) == sealed) ++block;
  return {minimum(end, block * kv.block_size), sealed};
}

OSTINATO_INLINE RecordLayout record_layout(const AttentionItem& item) {
  return {item.kv.sealed, item.kv.block_size, item.head_dim};
}

OSTINATO_INLINE const std::uint8_t* sealed_record(const KVView& kv, KVPart part, int block) {
  return (part == KVPart::kKeys ? kv.sealed_keys : kv.sealed_values) + block * kv.sealed_stride;
}

// Scales of a record, and minima behind them.
OSTINATO_INLINE const std::uint16_t* record_scales(const RecordLayout& layout, const std::uint8_t* record) {
  return reinterpret_cast<const std::uint16_t*>(record + layout.payload_bytes());
}

// Brings a tile nearer while another is worked on: blocks lie where no hardware prefetcher follows.
OSTINATO_INLINE void prefetch_tile(const TileRows& rows) {
  const KVView& kv = rows.item.kv;
  const std::ptrdiff_t element = kv.type == KVType::kFloat16 ? 2 : 4;
  const RecordLayout layout = record_layout(rows.item);
  const auto fetch = [&](KVPart part, int block, int at, int count) __attribute__((always_inline)) {
    const bool sealed = kv.is_sealed(block);
    const auto* base = static_cast<const std::uint8_t*>(part == KVPart::kKeys ? kv.keys : kv.values);
    const std::ptrdiff_t row = sealed ? layout.row_bytes() : rows.item.head_dim * element;
    base = sealed ? sealed_record(kv, part, block) : base + kv.open_offset(block) * element;
    for (std::ptrdiff_t line = at * row; line < (at + count) * row; line += 64) __builtin_prefetch(base + line, 0, 2);
    if (!sealed) return;
    for (std::ptrdiff_t scales = layout.payload_bytes(); scales < layout.bytes(part); scales += 64) {
      __builtin_prefetch(base + scales, 0, 2);
    }
  };
  rows.each_block([&](int, int count, int block, int at) {
    fetch(KVPart::kKeys, block, at, count);
    fetch(KVPart::kValues, block, at, count);
  });
}

// fp8 or int8 rows [at, at + count) of a record, scaled.
template <class T>
OSTINATO_INLINE void load_bytes(const RecordLayout& layout, const std::uint8_t* record, int at, int count, float* to) {
  const int dim = layout.head_dim;
  const auto* from = reinterpret_cast<const T*>(record) + static_cast<std::ptrdiff_t>(at) * dim;
  const std::uint16_t* scales = record_scales(layout, record) + at;
  float scale_of[kWidth];
  for (int j = 0; j < count; ++j, from += dim, to += dim) {
    if (j % kWidth == 0) vstore(scale_of, vmul(load_first_halves(scales + j, count - j), vset1(kUnit<T>)));
    for (int k = 0; k < dim; k += kWidth) {
      vf x[1];
      load_channels(from + k, x);
      vstore(to + k, vmul(x[0], vset1(scale_of[j % kWidth])));
    }
  }
}

// Scales and minima of `count` channels, low and high halves of their bytes.
struct NibbleScales {
  vf scale[2];
  vf minimum[2];
};

// `count` (at most kWidth) bytes of one int4 row to the channels of their low and of their high halves.
OSTINATO_INLINE void load_nibbles(const std::uint8_t* from, int count, const NibbleScales& scales, float* low,
                                  float* high) {
  std::uint8_t padded[kWidth] = {};
  if (count < kWidth) {
    for (int i = 0; i < count; ++i) padded[i] = from[i];
    from = padded;
  }
  vf x[2];
  vload_nibbles(from, x[0], x[1]);
  for (int i = 0; i < 2; ++i) {
    x[i] = vfma(x[i], scales.scale[i], scales.minimum[i]);
    float* to = i == 0 ? low : high;
    if (count < kWidth) {
      vstore_first(to, x[i], count);
    } else {
      vstore(to, x[i]);
    }
  }
}

// Int4 keys: a scale and a minimum by channel.
OSTINATO_INLINE void load_nibble_keys(const RecordLayout& layout, const std::uint8_t* record, int at, int count,
                                      float* to) {
  const int dim = layout.head_dim, half = dim / 2;
  const std::uint16_t *scales = record_scales(layout, record), *minima = scales + dim;
  const std::uint8_t* rows = record + static_cast<std::ptrdiff_t>(at) * half;
  for (int k = 0; k < half; k += kWidth) {
    const int here = minimum(kWidth, half - k);
    const NibbleScales of{{load_first_halves(scales + k, here), load_first_halves(scales + half + k, here)},
                          {load_first_halves(minima + k, here), load_first_halves(minima + half + k, here)}};
    for (int j = 0; j < count; ++j) {
      load_nibbles(rows + static_cast<std::ptrdiff_t>(j) * half + k, here, of, to + j * dim + k, to + j * dim + half + k);
    }
  }
}

// Int4 values: a scale and a minimum by token.
OSTINATO_INLINE void load_nibble_values(const RecordLayout& layout, const std::uint8_t* record, int at, int count,
                                        float* to) {
  const int half = layout.head_dim / 2;
  const std::uint16_t *scales = record_scales(layout, record) + at, *minima = scales + layout.block_size;
  const std::uint8_t* row = record + static_cast<std::ptrdiff_t>(at) * half;
  float scale_of[kWidth], minimum_of[kWidth];
  for (int j = 0; j < count; ++j, row += half, to += layout.head_dim) {
    if (j % kWidth == 0) {
      vstore(scale_of, load_first_halves(scales + j, count - j));
      vstore(minimum_of, load_first_halves(minima + j, count - j));
    }
    const vf scale = vset1(scale_of[j % kWidth]), least = vset1(minimum_of[j % kWidth]);
    for (int k = 0; k < half; k += kWidth) {
      load_nibbles(row + k, minimum(kWidth, half - k), {{scale, scale}, {least, least}}, to + k, to + half + k);
    }
  }
}

// Rows [at, at + count) of a sealed record as fp32.
inline void load_sealed(const RecordLayout& layout, KVPart part, const std::uint8_t* record, int at, int count,
                        float* to) {
  switch (layout.format) {
    case SealedFormat::kFp8: return load_bytes<E4m3>(layout, record, at, count, to);
    case SealedFormat::kInt8: return load_bytes<Int8>(layout, record, at, count, to);
    case SealedFormat::kInt4:
      if (part == KVPart::kKeys) return load_nibble_keys(layout, record, at, count, to);
      return load_nibble_values(layout, record, at, count, to);
    case SealedFormat::kNone: return;
  }
}

// The rows of a tile as fp32, [kKeyTile][head_dim]; from rows.count on zeros, so that nothing unwritten is multiplied.
// Out of line: once a tile, and long.
__attribute__((noinline)) inline void load_rows(const TileRows& rows, KVPart part, float* to) {
  const KVView& kv = rows.item.kv;
  const int dim = rows.item.head_dim;
  rows.each_block([&](int row, int count, int block, int at) {
    float* out = to + row * dim;
    if (kv.is_sealed(block)) {
      load_sealed(record_layout(rows.item), part, sealed_record(kv, part, block), at, count, out);
      return;
    }
    const void* base = part == KVPart::kKeys ? kv.keys : kv.values;
    const std::ptrdiff_t from = kv.open_offset(block) + static_cast<std::ptrdiff_t>(at) * dim;
    if (kv.type == KVType::kFloat16) {
      for (int k = 0; k < count * dim; k += kWidth) {
        vstore(out + k, vload_f16(static_cast<const std::uint16_t*>(base) + from + k));
      }
    } else {
      for (int k = 0; k < count * dim; k += kWidth) {
        vstore(out + k, vload(static_cast<const float*>(base) + from + k));
      }
    }
  });
  for (int k = rows.count * dim; k < kKeyTile * dim; k += kWidth) vstore(to + k, vzero());
}

}  // namespace ostinato::OSTINATO_ISA
