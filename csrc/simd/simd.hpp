// One set of names over AVX-512, AVX2 and NEON.
//
// Every file that includes this is compiled once per instruction set, inside namespace OSTINATO_ISA, by a
// kernels/isa_*.cpp. Nothing of the standard library's templates is used in there: an out-of-line copy of such
// a function, compiled for a newer CPU, could be the one that the linker keeps for all.
//
//   vf, vi            kWidth floats / as many 32-bit integers
//   vload_first(p,n)  lanes >= n are zero;  vkeep_first(x,n,o) lanes >= n come from o
//   vscale_pow2(x,n)  x * 2^n for integral n that keep the result normal (or, on AVX-512, any n)
//   vfold(x)          kWidth / 2 vectors to one; vfold_join(vfold(x), vfold(x + kWidth / 2)) has sum(x[j]) in lane j
//   vload_nibbles     byte i's low half to lane i of one vector, its high half to lane i of the other
//   vload_e4m3        8-bit floats (4 exponent, 3 mantissa bits) times 2^-8
//   vi_dot_u8         acc + dot of 4 (unsigned x signed) bytes a lane;   only with OSTINATO_HAS_DOT
//   vi_dot_u8_pairs   dot of 2 (unsigned x signed) bytes into int16, saturating
//   vi_dot_s16        acc + dot of 2 int16 a lane
#pragma once

#include <cstdint>

namespace ostinato::OSTINATO_ISA {
// An e4m3 number, sign-extended to 16 bits and shifted left by 7, is an fp16 number 2^8 times smaller once the bit
// between sign and exponent is cleared; subnormal numbers included.
inline constexpr std::int16_t kHalfOfE4m3 = static_cast<std::int16_t>(0xbfff);
inline constexpr float kE4m3Unit = 256.0f;
}  // namespace ostinato::OSTINATO_ISA

#if defined(__AVX512F__)
#include "simd/avx512.hpp"
#elif defined(__AVX2__)
#include "simd/avx2.hpp"
#elif defined(__aarch64__)
#include "simd/neon.hpp"
#else
#error "no SIMD header for this target"
#endif

#define OSTINATO_INLINE inline __attribute__((always_inline))

namespace ostinato::OSTINATO_ISA {

// f(0), f(1), … f(N - 1), written out while templates are expanded: arrays of vectors that are only indexed so become
// registers early. (With loops and an unroll pragma GCC 12 keeps two-dimensional ones in memory.)
template <int I>
struct Index {
  constexpr operator int() const { return I; }
};
template <int N, class F>
OSTINATO_INLINE void each(const F& f) {
  if constexpr (N > 0) {
    each<N - 1>(f);
    f(Index<N - 1>{});
  }
}
#define OSTINATO_EACH(i) [&](auto i) __attribute__((always_inline))

template <class T>
OSTINATO_INLINE T minimum(T a, T b) {
  return a < b ? a : b;
}
template <class T>
OSTINATO_INLINE T maximum(T a, T b) {
  return a < b ? b : a;
}

// e^x for x <= 88; below -87 it stays at e^-87. Relative error below 2e-7: reduction by ln 2 in two parts, then a
// degree-6 polynomial fitted on [-ln2/2, ln2/2] (Lawson iteration; its own error is 3e-9).
OSTINATO_INLINE vf vexp(vf x) {
  x = vmax(x, vset1(-87.0f));
  const vf n = vround(vmul(x, vset1(1.44269504088896341f)));
  vf r = vfma(n, vset1(-0.693359375f), x);
  r = vfma(n, vset1(2.12194440e-4f), r);
  vf p = vset1(1.3814538288e-3f);
  p = vfma(p, r, vset1(8.3687455502e-3f));
  p = vfma(p, r, vset1(4.1668390841e-2f));
  p = vfma(p, r, vset1(1.6666520395e-1f));
  p = vfma(p, r, vset1(4.9999993432e-1f));
  p = vfma(p, vmul(r, r), vadd(r, vset1(1.0f)));
  return vscale_pow2(p, n);
}

OSTINATO_INLINE vf vsilu(vf x) {
  const vf e = vexp(vmin(vsub(vzero(), x), vset1(87.0f)));
  return vdiv(x, vadd(vset1(1.0f), e));
}

}  // namespace ostinato::OSTINATO_ISA
