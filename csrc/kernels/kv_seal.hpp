// fp16 rows of one head and block to a sealed record and back. Byte for byte what cache/codec writes: scales are
// rounded to fp16 before values are divided by them, quotients half to even. Where a group holds a NaN its scale is
// NaN, so that the group reads back as NaN.
#pragma once

#include "kernels.hpp"
#include "kernels/kv_load.hpp"
#include "simd/simd.hpp"

namespace ostinato::OSTINATO_ISA {

inline constexpr float kLargestHalf = 65504.0f;

// x within fp16's finite range; NaN stays NaN (the second operand is returned where one is NaN).
OSTINATO_INLINE vf clip_half(vf x) { return vmin(vset1(kLargestHalf), vmax(vset1(-kLargestHalf), x)); }

OSTINATO_INLINE float half_to_float(std::uint16_t half) {
  float lanes[kWidth];
  vstore(lanes, load_first_halves(&half, 1));
  return lanes[0];
}

OSTINATO_INLINE std::uint16_t float_to_half(float value) {
  std::uint16_t lanes[kWidth];
  vstore_f16(lanes, vset1(value));
  return lanes[0];
}

// Quotients by `scale`, zeros where it is zero or NaN.
OSTINATO_INLINE vf divide(vf x, float scale) { return scale > 0.0f ? vdiv(x, vset1(scale)) : vzero(); }

// Half to even: the sums push the bits that E4M3 lacks out of the mantissa, for normal and for subnormal numbers.
// |x| <= 448, or a little more, which becomes 448.
OSTINATO_INLINE std::uint8_t to_e4m3(float x) {
  const auto bits = __builtin_bit_cast(std::uint32_t, x), magnitude = bits & 0x7fffffffu;
  const std::uint32_t normal = ((magnitude + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20) - (120u << 3);
  const float absolute = __builtin_bit_cast(float, magnitude);
  const std::uint32_t subnormal = __builtin_bit_cast(std::uint32_t, absolute + 16384.0f) & 0xffu;  // steps of 2^-9
  const std::uint32_t code = absolute < 0.015625f ? subnormal : normal;
  return static_cast<std::uint8_t>((code < 0x7eu ? code : 0x7eu) | (bits >> 24 & 0x80u));
}

OSTINATO_INLINE void put_e4m3(const vf x, std::uint8_t* to) {
  float lanes[kWidth];
  vstore(lanes, x);
  for (int i = 0; i < kWidth; ++i) to[i] = to_e4m3(lanes[i]);
}

// fp8 and int8: a scale by token.
OSTINATO_INLINE void seal_bytes(const RecordLayout& layout, const std::uint16_t* rows, int tokens, std::uint8_t* record) {
  const int dim = layout.head_dim;
  const bool floats = layout.format == SealedFormat::kFp8;
  auto* scales = reinterpret_cast<std::uint16_t*>(record + layout.payload_bytes());
  for (int j = 0; j < tokens; ++j, rows += dim, record += dim) {
    vf largest = vzero(), spoilt = vzero();
    for (int k = 0; k < dim; k += kWidth) {
      const vf x = clip_half(vload_f16(rows + k));
      largest = vmax(largest, vabs(x));
      spoilt = vadd(spoilt, vsub(x, x));
    }
    scales[j] = float_to_half(vmaximum(largest) / (floats ? 448.0f : 127.0f) + vsum(spoilt));
    const float scale = half_to_float(scales[j]);
    for (int k = 0; k < dim; k += kWidth) {
      const vf x = divide(clip_half(vload_f16(rows + k)), scale);
      if (floats) {
        put_e4m3(x, record + k);
      } else {
        vstore_i8(reinterpret_cast<std::int8_t*>(record) + k, vmax(vmin(x, vset1(127.0f)), vset1(-127.0f)));
      }
    }
  }
}

// Smallest and largest of groups, and NaN where they hold one.
struct Spread {
  vf least = vset1(kLargestHalf);
  vf largest = vset1(-kLargestHalf);
  vf spoilt = vzero();

  OSTINATO_INLINE void take(vf x) {
    least = vmin(least, x);
    largest = vmax(largest, x);
    spoilt = vadd(spoilt, vsub(x, x));
  }
};

// Quotients 0 ... 15 of low and high channels, a byte for a pair.
OSTINATO_INLINE void put_nibbles(vf low, vf high, int count, std::uint8_t* to) {
  float lows[kWidth], highs[kWidth];
  const vf top = vset1(15.0f);
  vstore(lows, vround(vmin(vmax(low, vzero()), top)));
  vstore(highs, vround(vmin(vmax(high, vzero()), top)));
  for (int i = 0; i < count; ++i) {
    to[i] = static_cast<std::uint8_t>(static_cast<int>(lows[i]) | static_cast<int>(highs[i]) << 4);
  }
}

// (x - minimum) / scale by lane, zero where the scale is zero or NaN.
OSTINATO_INLINE vf above(vf x, const std::uint16_t* scales, const std::uint16_t* minima, int count) {
  float scale[kWidth], quotient[kWidth];
  vstore(scale, load_first_halves(scales, count));
  vstore(quotient, vsub(x, load_first_halves(minima, count)));
  for (int i = 0; i < kWidth; ++i) quotient[i] = scale[i] > 0.0f ? quotient[i] / scale[i] : 0.0f;
  return vload(quotient);
}

// Int4 keys: a scale and a minimum by channel, over the tokens.
OSTINATO_INLINE void seal_nibble_keys(const RecordLayout& layout, const std::uint16_t* rows, int tokens,
                                      std::uint8_t* record) {
  const int dim = layout.head_dim, half = dim / 2;
  auto* scales = reinterpret_cast<std::uint16_t*>(record + layout.payload_bytes());
  std::uint16_t* minima = scales + dim;
  for (int k = 0; k < dim; k += kWidth) {
    const int here = minimum(kWidth, dim - k);
    Spread spread;
    for (int j = 0; j < tokens; ++j) {
      spread.take(clip_half(load_first_halves(rows + static_cast<std::ptrdiff_t>(j) * dim + k, here)));
    }
    const vf scale = vadd(vdiv(vsub(spread.largest, spread.least), vset1(15.0f)), spread.spoilt);
    std::uint16_t packed[2][kWidth];
    vstore_f16(packed[0], scale);
    vstore_f16(packed[1], vadd(spread.least, spread.spoilt));
    for (int i = 0; i < here; ++i) {
      scales[k + i] = packed[0][i];
      minima[k + i] = packed[1][i];
    }
  }
  for (int j = 0; j < tokens; ++j, rows += dim, record += half) {
    for (int k = 0; k < half; k += kWidth) {
      const int here = minimum(kWidth, half - k);
      const vf low = clip_half(load_first_halves(rows + k, here));
      const vf high = clip_half(load_first_halves(rows + half + k, here));
      put_nibbles(above(low, scales + k, minima + k, here), above(high, scales + half + k, minima + half + k, here), here,
                  record + k);
    }
  }
}

// Int4 values: a scale and a minimum by token, over the channels.
OSTINATO_INLINE void seal_nibble_values(const RecordLayout& layout, const std::uint16_t* rows, int tokens,
                                        std::uint8_t* record) {
  const int dim = layout.head_dim, half = dim / 2;
  auto* scales = reinterpret_cast<std::uint16_t*>(record + layout.payload_bytes());
  std::uint16_t* minima = scales + layout.block_size;
  for (int j = 0; j < tokens; ++j, rows += dim, record += half) {
    Spread spread;
    for (int k = 0; k < dim; k += kWidth) spread.take(clip_half(vload_f16(rows + k)));
    const float least = -vmaximum(vsub(vzero(), spread.least)), spoilt = vsum(spread.spoilt);
    scales[j] = float_to_half((vmaximum(spread.largest) - least) / 15.0f + spoilt);
    minima[j] = float_to_half(least + spoilt);
    const float scale = half_to_float(scales[j]);
    const vf base = vset1(half_to_float(minima[j]));
    for (int k = 0; k < half; k += kWidth) {
      const int here = minimum(kWidth, half - k);
      const vf low = vsub(clip_half(load_first_halves(rows + k, here)), base);
      const vf high = vsub(clip_half(load_first_halves(rows + half + k, here)), base);
      put_nibbles(divide(low, scale), divide(high, scale), here, record + k);
    }
  }
}

inline void seal_record(const RecordLayout& layout, KVPart part, const std::uint16_t* rows, int tokens,
                        std::uint8_t* record) {
  __builtin_memset(record, 0, static_cast<std::size_t>(layout.bytes(part)));
  if (layout.format != SealedFormat::kInt4) {
    seal_bytes(layout, rows, tokens, record);
  } else if (part == KVPart::kKeys) {
    seal_nibble_keys(layout, rows, tokens, record);
  } else {
    seal_nibble_values(layout, rows, tokens, record);
  }
}

// `scratch` holds a float for each element. A scale that was rounded up may put a value a little beyond fp16.
inline void open_record(const RecordLayout& layout, KVPart part, const std::uint8_t* record, std::uint16_t* rows,
                        float* scratch) {
  load_sealed(layout, part, record, 0, layout.block_size, scratch);
  for (int k = 0; k < layout.block_size * layout.head_dim; k += kWidth) {
    vstore_f16(rows + k, clip_half(vload(scratch + k)));
  }
}

}  // namespace ostinato::OSTINATO_ISA
