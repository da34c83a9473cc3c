// Weights in 4 or 8 bits times activations in 8 bits.
//
// Per group of 32 columns the dot product is exact in integers; it is then scaled into the float accumulator:
//   sum = dw * da * dot(q, a) + minimum * (da * sum(a)).
// A group of weights of one panel is held in registers while the tokens of a tile pass over it.
#pragma once

#include "kernels.hpp"
#include "simd/simd.hpp"

namespace ostinato::OSTINATO_ISA {

inline constexpr int kQuads = kGroup / 4;
inline constexpr int kPanelVectors = kPanel / kWidth;
// Tokens a pass: as many accumulators as leave room for the 8 weight registers.
#if defined(__AVX512F__)
inline constexpr int kIntTokens = 16;
#elif defined(__AVX2__)
inline constexpr int kIntTokens = 4;
#else
inline constexpr int kIntTokens = 8;
#endif

inline constexpr int kPrefetchBytes = 4096;

OSTINATO_INLINE vi broadcast_quad(const std::uint8_t* p) {
  std::int32_t quad;
  __builtin_memcpy(&quad, p, 4);
  return vi_set1(quad);
}

// One vector's rows of one group. `quants` points at the vector's part of the group's first line.
template <WeightFormat F>
struct GroupWeights;

template <>
struct GroupWeights<WeightFormat::kInt4> {
  static constexpr int kZero = 0;
  vi q[kQuads];

  OSTINATO_INLINE explicit GroupWeights(const std::uint8_t* quants) {
    const vi nibble = vi_set1_8(15);
#pragma GCC unroll 8
    for (int j = 0; j < kQuads / 2; ++j) {
      const vi packed = vi_load(quants + 64 * j);
      q[j] = vi_and(packed, nibble);
      q[j + kQuads / 2] = vi_and(vi_shift_right16<4>(packed), nibble);
    }
  }

  OSTINATO_INLINE vf dot(const std::uint8_t* a) const {
#if defined(OSTINATO_HAS_DOT)
    vi even = vi_zero(), odd = vi_zero();
#pragma GCC unroll 8
    for (int j = 0; j < kQuads; j += 2) {
      even = vi_dot_u8(even, q[j], broadcast_quad(a + 4 * j));
      odd = vi_dot_u8(odd, q[j + 1], broadcast_quad(a + 4 * j + 4));
    }
    return vi_to_float(vi_add(even, odd));
#else
    // 8 x 2 x 15 x 127 stays below 2^15, so a whole group fits the 16-bit sums.
    vi sum = vi_dot_u8_pairs(q[0], broadcast_quad(a));
#pragma GCC unroll 8
    for (int j = 1; j < kQuads; ++j) sum = vi_add16(sum, vi_dot_u8_pairs(q[j], broadcast_quad(a + 4 * j)));
    return vi_to_float(vi_dot_s16_pairs(sum, vi_set1_16(1)));
#endif
  }
};

template <>
struct GroupWeights<WeightFormat::kInt8> {
  vi q[kQuads];

#if defined(OSTINATO_HAS_DOT) && defined(__aarch64__)
  static constexpr int kZero = -128;  // re-centred below: signed bytes again
#else
  static constexpr int kZero = 0;
#endif

  OSTINATO_INLINE explicit GroupWeights(const std::uint8_t* quants) {
#pragma GCC unroll 8
    for (int j = 0; j < kQuads; ++j) {
      q[j] = vi_load(quants + 64 * j);
      if constexpr (kZero != 0) q[j] = vi_xor(q[j], vi_set1_8(-128));
    }
  }

  OSTINATO_INLINE vf dot(const std::uint8_t* a) const {
#if defined(OSTINATO_HAS_DOT)
    vi even = vi_zero(), odd = vi_zero();
#pragma GCC unroll 8
    for (int j = 0; j < kQuads; j += 2) {
      even = vi_dot_u8(even, q[j], broadcast_quad(a + 4 * j));
      odd = vi_dot_u8(odd, q[j + 1], broadcast_quad(a + 4 * j + 4));
    }
    return vi_to_float(vi_add(even, odd));
#else
    // 255 x 127 twice would saturate 16 bits; nibbles do not, and their halves are joined by a weight of 16.
    const vi nibble = vi_set1_8(15);
    vi low = vi_zero(), high = vi_zero();
#pragma GCC unroll 8
    for (int j = 0; j < kQuads; ++j) {
      const vi quad = broadcast_quad(a + 4 * j);
      low = vi_add16(low, vi_dot_u8_pairs(vi_and(q[j], nibble), quad));
      high = vi_add16(high, vi_dot_u8_pairs(vi_and(vi_shift_right16<4>(q[j]), nibble), quad));
    }
    return vi_to_float(vi_add(vi_dot_s16_pairs(low, vi_set1_16(1)), vi_dot_s16_pairs(high, vi_set1_16(16))));
#endif
  }
};

// T tokens of a tile (from `lane`) against one vector of rows.
template <WeightFormat F, bool kMinimum, int T>
void int_tile(const MatrixView& m, const std::uint8_t* panel, int vector, const std::uint8_t* tile, int lane,
              float* out, std::ptrdiff_t stride) {
  constexpr int kQuantBytes = F == WeightFormat::kInt4 ? kGroup * kPanel / 2 : kGroup * kPanel;
  constexpr int kHeader = kMinimum ? 4 * kPanel : 2 * kPanel;
  const std::uint8_t* a = tile + lane * kGroup;
  const vf zero = vset1(static_cast<float>(-(m.zero_point + GroupWeights<F>::kZero)));
  vf sum[T];
#pragma GCC unroll 16
  for (int t = 0; t < T; ++t) sum[t] = vzero();
  for (int g = 0; g < m.groups; ++g) {
    // One token uses a group of weights in a few cycles: not enough work in flight to hide memory.
    if constexpr (T <= 4) {
#pragma GCC unroll 16
      for (int line = 0; line < kHeader + kQuantBytes; line += 64) __builtin_prefetch(panel + kPrefetchBytes + line);
    }
    const auto* scales = reinterpret_cast<const std::uint16_t*>(panel) + vector * kWidth;
    const GroupWeights<F> weights(panel + kHeader + vector * kWidth * 4);
    const vf scale = vload_f16(scales);
    vf minimum;
    if constexpr (kMinimum) {
      minimum = vload_f16(scales + kPanel);
      if constexpr (GroupWeights<F>::kZero != 0) minimum = vfma(scale, zero, minimum);
    } else {
      minimum = vmul(scale, zero);
    }
    const auto* a_scale = reinterpret_cast<const float*>(a + kTokenTile * kGroup - lane * kGroup) + lane;
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) {
      sum[t] = vfma(weights.dot(a + t * kGroup), vmul(scale, vset1(a_scale[t])), sum[t]);
      sum[t] = vfma(minimum, vset1(a_scale[kTokenTile + t]), sum[t]);
    }
    panel += kHeader + kQuantBytes;
    a += kIntTileGroup;
  }
#pragma GCC unroll 16
  for (int t = 0; t < T; ++t) vstore(out + t * stride + vector * kWidth, sum[t]);
}

template <WeightFormat F, bool kMinimum, int T>
OSTINATO_INLINE void int_tile_of(int count, const MatrixView& m, const std::uint8_t* panel, int vector,
                                 const std::uint8_t* tile, int lane, float* out, std::ptrdiff_t stride) {
  if (count == T) return int_tile<F, kMinimum, T>(m, panel, vector, tile, lane, out, stride);
  if constexpr (T > 1) int_tile_of<F, kMinimum, T - 1>(count, m, panel, vector, tile, lane, out, stride);
}

template <WeightFormat F, bool kMinimum>
void gemm_int(const MatrixView& m, const Activations& x, int token, int tokens, int panel, int panels, float* out,
              std::ptrdiff_t stride) {
  for (int p = 0; p < panels; ++p) {
    for (int t = 0; t < tokens; t += kIntTokens) {
      const int count = minimum(kIntTokens, tokens - t);
      for (int v = 0; v < kPanelVectors; ++v) {
        int_tile_of<F, kMinimum, kIntTokens>(count, m, m.panel(panel + p), v, x.int_tile(token + t),
                                             (token + t) % kTokenTile, out + t * stride + p * kPanel, stride);
      }
    }
  }
}

}  // namespace ostinato::OSTINATO_ISA
