// Vectors of 16 floats (x86-64-v4). See simd/simd.hpp for what each name means.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace ostinato::OSTINATO_ISA {

inline constexpr int kWidth = 16;
using vf = __m512;
using vi = __m512i;

inline vf vzero() { return _mm512_setzero_ps(); }
inline vf vset1(float x) { return _mm512_set1_ps(x); }
inline vf vload(const float* p) { return _mm512_loadu_ps(p); }
inline void vstore(float* p, vf x) { _mm512_storeu_ps(p, x); }
inline __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
inline vf vload_first(const float* p, int n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
inline void vstore_first(float* p, vf x, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), x); }
inline vf vkeep_first(vf x, int n, vf other) {
  return n >= kWidth ? x : n <= 0 ? other : _mm512_mask_blend_ps(first_lanes(n), other, x);
}
inline vf vadd(vf a, vf b) { return _mm512_add_ps(a, b); }
inline vf vsub(vf a, vf b) { return _mm512_sub_ps(a, b); }
inline vf vmul(vf a, vf b) { return _mm512_mul_ps(a, b); }
inline vf vdiv(vf a, vf b) { return _mm512_div_ps(a, b); }
inline vf vmax(vf a, vf b) { return _mm512_max_ps(a, b); }
inline vf vmin(vf a, vf b) { return _mm512_min_ps(a, b); }
inline vf vfma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
inline vf vabs(vf a) { return _mm512_abs_ps(a); }
inline vf vround(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline vf vscale_pow2(vf x, vf n) { return _mm512_scalef_ps(x, n); }
inline float vsum(vf a) { return _mm512_reduce_add_ps(a); }
inline float vmaximum(vf a) { return _mm512_reduce_max_ps(a); }

inline vf add_pairs(vf a, vf b) {
  return vadd(_mm512_mask_blend_ps(0xcccc, a, b), _mm512_shuffle_ps(a, b, 0x4e));
}
inline vf add_fours(const vf* x) {
  const vf a = add_pairs(x[0], x[1]), b = add_pairs(x[2], x[3]);
  return vadd(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
}
inline vf vfold(const vf* x) {
  const vf a = add_fours(x), b = add_fours(x + 4);
  return vadd(_mm512_mask_blend_ps(0xff00, a, b), _mm512_shuffle_f32x4(a, b, 0x4e));
}
inline vf vfold_join(vf a, vf b) { return vadd(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd)); }

// a0 b0 a1 b1 ... of the lower, then of the upper quarters of each half, and a vector made of two halves.
inline vf vzip_low_halves(vf a, vf b) {
  const __m512i index = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 8, 24, 9, 25, 10, 26, 11, 27);
  return _mm512_permutex2var_ps(a, index, b);
}
inline vf vzip_high_halves(vf a, vf b) {
  const __m512i index = _mm512_setr_epi32(4, 20, 5, 21, 6, 22, 7, 23, 12, 28, 13, 29, 14, 30, 15, 31);
  return _mm512_permutex2var_ps(a, index, b);
}
inline vf vload_halves(const float* low, const float* high) {
  return _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(low)), _mm256_loadu_ps(high), 1);
}

inline vf vload_f16(const std::uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline void vstore_f16(std::uint16_t* p, vf x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
inline vf vload_i8(const std::int8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
inline void vload_nibbles(const std::uint8_t* p, vf& low, vf& high) {
  const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  low = _mm512_cvtepi32_ps(_mm512_and_si512(bytes, _mm512_set1_epi32(15)));
  high = _mm512_cvtepi32_ps(_mm512_srli_epi32(bytes, 4));
}
inline vf vload_e4m3(const std::uint8_t* p) {
  const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(kHalfOfE4m3)));
}
inline void vstore_i8(std::int8_t* p, vf x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(x)));
}
inline void vstore_i16(std::int16_t* p, vf x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(x)));
}

inline vi vi_zero() { return _mm512_setzero_si512(); }
inline vi vi_load(const void* p) { return _mm512_loadu_si512(p); }
inline void vi_store(void* p, vi x) { _mm512_storeu_si512(p, x); }
inline vi vi_set1(std::int32_t x) { return _mm512_set1_epi32(x); }
inline vi vi_set1_8(std::int8_t x) { return _mm512_set1_epi8(x); }
inline vi vi_set1_16(std::int16_t x) { return _mm512_set1_epi16(x); }
inline vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
inline vi vi_xor(vi a, vi b) { return _mm512_xor_si512(a, b); }
inline vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
inline vi vi_add16(vi a, vi b) { return _mm512_add_epi16(a, b); }
template <int N>
inline vi vi_shift_right16(vi a) {
  return _mm512_srli_epi16(a, N);
}
template <int N>
inline vi vi_shift_right(vi a) {
  return _mm512_srli_epi32(a, N);
}
inline vi vi_or(vi a, vi b) { return _mm512_or_si512(a, b); }
template <int N>
inline vi vi_shift_left(vi a) {
  return _mm512_slli_epi32(a, N);
}
inline vi vi_from_float(vf a) { return _mm512_cvtps_epi32(a); }
inline vf vi_to_float(vi a) { return _mm512_cvtepi32_ps(a); }
inline vi vi_dot_u8_pairs(vi u8, vi s8) { return _mm512_maddubs_epi16(u8, s8); }
inline vi vi_dot_s16_pairs(vi a, vi b) { return _mm512_madd_epi16(a, b); }
#if defined(__AVX512VNNI__)
#define OSTINATO_HAS_DOT 1
inline vi vi_dot_u8(vi acc, vi u8, vi s8) { return _mm512_dpbusd_epi32(acc, u8, s8); }
// The same for sums that live across a loop, where the intrinsic has the fault described below.
inline vi vi_dot_u8_long(vi acc, vi u8, vi s8) {
  asm("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(u8), "v"(s8));
  return acc;
}
inline void vi_store_u8(std::uint8_t* p, vi x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtusepi32_epi8(x));
}
// At most 0.09 above log2 of a positive x, never below.
inline vf vlog2_above(vf x) {
  const vf fraction = _mm512_getmant_ps(x, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_zero);
  return vadd(_mm512_getexp_ps(x), vadd(fraction, vset1(0.0861f - 1.0f)));
}
// 2^x with a relative error below 8e-5 (cubic fitted to 2^r on [0, 1), Lawson iteration); 0 far below.
inline vf vexp2_coarse(vf x) {
  const vf r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  vf p = vfma(vset1(0.07802403f), r, vset1(0.22606707f));
  p = vfma(p, r, vset1(0.69583399f));
  return vscale_pow2(vfma(p, r, vset1(0.99992513f)), x);  // takes the floor of x
}
// Not the intrinsic: around it GCC 12 copies and spills every accumulator that lives across a loop.
inline vi vi_dot_s16(vi acc, vi a, vi b) {
  asm("vpdpwssd %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
  return acc;
}
#else
inline vi vi_dot_s16(vi acc, vi a, vi b) { return vi_add(acc, vi_dot_s16_pairs(a, b)); }
#endif

}  // namespace ostinato::OSTINATO_ISA
