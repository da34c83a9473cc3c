// A tile of kKeyTile keys and values, brought out of their blocks into the form that the row kernels read.
//
// Two arithmetics share everything else:
//   FloatMath  fp32 fused multiply-add, one element a step.
//   PairMath   int16 pairs: one instruction takes two elements into 32-bit sums, twice the rate of fp32. Rows are
//              scaled by their Euclidean norm, so that by Cauchy-Schwarz no partial sum of q.k exceeds 2^30;
//              weights have 12 and values 13 bits, so that 64 products stay below 2^31. That is finer than the
//              fp16 of the stored K/V.
#pragma once

#include "kernels.hpp"
#include "kernels/kv_load.hpp"
#include "simd/simd.hpp"

namespace ostinato::OSTINATO_ISA {

inline constexpr float kKeyNorm = 32760.0f;
inline constexpr float kWeightRange = 4095.0f;
inline constexpr float kValueRange = 8190.0f;

struct FloatMath {
  static constexpr bool kPairs = false;
  static constexpr int kStep = 1;  // elements a 32-bit cell holds
  using Sum = vf;
  OSTINATO_INLINE static Sum zero() { return vzero(); }
  OSTINATO_INLINE static Sum load(const float* p) { return vload(p); }
  OSTINATO_INLINE static Sum broadcast(const float* p) { return vset1(*p); }
  OSTINATO_INLINE static Sum step(Sum sum, Sum a, Sum b) { return vfma(a, b, sum); }
  OSTINATO_INLINE static vf value(Sum sum) { return sum; }
};

struct PairMath {
  static constexpr bool kPairs = true;
  static constexpr int kStep = 2;
  using Sum = vi;
  OSTINATO_INLINE static Sum zero() { return vi_zero(); }
  OSTINATO_INLINE static Sum load(const float* p) { return vi_load(p); }
  OSTINATO_INLINE static Sum broadcast(const float* p) {
    std::int32_t pair;
    __builtin_memcpy(&pair, p, 4);
    return vi_set1(pair);
  }
  OSTINATO_INLINE static Sum step(Sum sum, Sum a, Sum b) { return vi_dot_s16(sum, a, b); }
  OSTINATO_INLINE static vf value(Sum sum) { return vi_to_float(sum); }
};

// 8 keys x 8 cells (4 x 4 on NEON, twice 8 x 8 side by side on AVX-512) by rounds of interleaving.
#if defined(__AVX512F__)
inline constexpr int kSquare = 8;
OSTINATO_INLINE vf load_square(const float* row, int cells) { return vload_halves(row, row + 8 * cells); }
OSTINATO_INLINE vf interleave_low(vf a, vf b) { return vzip_low_halves(a, b); }
OSTINATO_INLINE vf interleave_high(vf a, vf b) { return vzip_high_halves(a, b); }
#else
inline constexpr int kSquare = kWidth;
OSTINATO_INLINE vf load_square(const float* row, int) { return vload(row); }
OSTINATO_INLINE vf interleave_low(vf a, vf b) { return vzip_low(a, b); }
OSTINATO_INLINE vf interleave_high(vf a, vf b) { return vzip_high(a, b); }
#endif

// [kKeyTile][cells] to [cells][kKeyTile], 32-bit cells; `cells` is a multiple of 8.
OSTINATO_INLINE void transpose_tile(const float* from, int cells, float* to) {
  for (int c = 0; c < cells; c += kSquare) {
    for (int j = 0; j < kKeyTile; j += kWidth) {
      vf r[kSquare], s[kSquare];
#pragma GCC unroll 8
      for (int i = 0; i < kSquare; ++i) r[i] = load_square(from + (j + i) * cells + c, cells);
#pragma GCC unroll 3
      for (int round = 1; round < kSquare; round *= 2) {
#pragma GCC unroll 4
        for (int i = 0; i < kSquare / 2; ++i) {
          s[2 * i] = interleave_low(r[i], r[i + kSquare / 2]);
          s[2 * i + 1] = interleave_high(r[i], r[i + kSquare / 2]);
        }
#pragma GCC unroll 8
        for (int i = 0; i < kSquare; ++i) r[i] = s[i];
      }
#pragma GCC unroll 8
      for (int i = 0; i < kSquare; ++i) vstore(to + (c + i) * kKeyTile + j, r[i]);
    }
  }
}

// Largest Euclidean norm of the rows.
OSTINATO_INLINE float largest_norm(const float* rows, int dim) {
  float largest = 0.0f;
  for (int j = 0; j < kKeyTile; ++j, rows += dim) {
    vf squares = vzero();
    for (int k = 0; k < dim; k += kWidth) squares = vfma(vload(rows + k), vload(rows + k), squares);
    largest = maximum(largest, vsum(squares));
  }
  return __builtin_sqrtf(largest);
}

// Keys as [dim / step][kKeyTile]; returns what a cell's unit is worth. `wide` is scratch of a whole tile.
template <class M>
OSTINATO_INLINE float load_keys(const TileRows& rows, float* wide, float* keys) {
  const int dim = rows.item.head_dim;
  load_rows(rows, KVPart::kKeys, wide);
  if constexpr (!M::kPairs) {
    transpose_tile(wide, dim, keys);
    return 1.0f;
  } else {
    const float norm = largest_norm(wide, dim);
    const vf factor = vset1(norm > 0.0f ? kKeyNorm / norm : 0.0f);
    auto* narrow = reinterpret_cast<std::int16_t*>(wide);  // behind what is still to be read
    for (int i = 0; i < kKeyTile * dim; i += kWidth) vstore_i16(narrow + i, vmul(vload(wide + i), factor));
    transpose_tile(wide, dim / 2, keys);
    return norm / kKeyNorm;
  }
}

// Values as [kKeyTile / step][dim]; returns what a cell's unit is worth.
template <class M>
OSTINATO_INLINE float load_values(const TileRows& rows, float* wide, float* values) {
  const int dim = rows.item.head_dim;
  if constexpr (!M::kPairs) {
    load_rows(rows, KVPart::kValues, values);
    return 1.0f;
  } else {
    load_rows(rows, KVPart::kValues, wide);
    vf largest = vzero();
    for (int i = 0; i < kKeyTile * dim; i += kWidth) largest = vmax(largest, vabs(vload(wide + i)));
    const float range = vmaximum(largest);
    const vf factor = vset1(range > 0.0f ? kValueRange / range : 0.0f);
    const vi low = vi_set1(0xffff);
    for (int j = 0; j < kKeyTile; j += 2) {
      for (int k = 0; k < dim; k += kWidth) {
        const vi a = vi_from_float(vmul(vload(wide + j * dim + k), factor));
        const vi b = vi_from_float(vmul(vload(wide + (j + 1) * dim + k), factor));
        vi_store(values + j / 2 * dim + k, vi_or(vi_and(a, low), vi_shift_left<16>(b)));
      }
    }
    return range / kValueRange;
  }
}

}  // namespace ostinato::OSTINATO_ISA
