// Vectors of 8 floats (x86-64-v3: AVX2, FMA, F16C). See simd/simd.hpp for what each name means.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace ostinato::OSTINATO_ISA {

inline constexpr int kWidth = 8;
using vf = __m256;
using vi = __m256i;

inline vf vzero() { return _mm256_setzero_ps(); }
inline vf vset1(float x) { return _mm256_set1_ps(x); }
inline vf vload(const float* p) { return _mm256_loadu_ps(p); }
inline void vstore(float* p, vf x) { _mm256_storeu_ps(p, x); }
inline __m256i first_lanes(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline vf vload_first(const float* p, int n) { return _mm256_maskload_ps(p, first_lanes(n)); }
inline void vstore_first(float* p, vf x, int n) { _mm256_maskstore_ps(p, first_lanes(n), x); }
inline vf vkeep_first(vf x, int n, vf other) {
  return _mm256_blendv_ps(other, x, _mm256_castsi256_ps(first_lanes(n)));
}
inline vf vadd(vf a, vf b) { return _mm256_add_ps(a, b); }
inline vf vsub(vf a, vf b) { return _mm256_sub_ps(a, b); }
inline vf vmul(vf a, vf b) { return _mm256_mul_ps(a, b); }
inline vf vdiv(vf a, vf b) { return _mm256_div_ps(a, b); }
inline vf vmax(vf a, vf b) { return _mm256_max_ps(a, b); }
inline vf vmin(vf a, vf b) { return _mm256_min_ps(a, b); }
inline vf vfma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
inline vf vabs(vf a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
inline vf vround(vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline vf vscale_pow2(vf x, vf n) {
  const __m256i bits = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_mul_ps(x, _mm256_castsi256_ps(bits));
}
inline float vsum(vf a) {
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
inline float vmaximum(vf a) {
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

// a0 b0 a1 b1 ... of the lower, then of the upper halves.
inline vf vzip_low(vf a, vf b) {
  return _mm256_permute2f128_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b), 0x20);
}
inline vf vzip_high(vf a, vf b) {
  return _mm256_permute2f128_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b), 0x31);
}

inline vf add_pairs(vf a, vf b) { return vadd(_mm256_blend_ps(a, b, 0xcc), _mm256_shuffle_ps(a, b, 0x4e)); }
inline vf vfold(const vf* x) {
  const vf a = add_pairs(x[0], x[1]), b = add_pairs(x[2], x[3]);
  return vadd(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd));
}
inline vf vfold_join(vf a, vf b) {
  return vadd(_mm256_blend_ps(a, b, 0xf0), _mm256_permute2f128_ps(a, b, 0x21));
}

inline vf vload_f16(const std::uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline void vstore_f16(std::uint16_t* p, vf x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
inline vf vload_i8(const std::int8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline void vload_nibbles(const std::uint8_t* p, vf& low, vf& high) {
  const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  low = _mm256_cvtepi32_ps(_mm256_and_si256(bytes, _mm256_set1_epi32(15)));
  high = _mm256_cvtepi32_ps(_mm256_srli_epi32(bytes, 4));
}
inline vf vload_e4m3(const std::uint8_t* p) {
  const __m128i wide = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  return _mm256_cvtph_ps(_mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16(kHalfOfE4m3)));
}
inline __m128i narrow16(vf x) {
  const __m256i wide = _mm256_cvtps_epi32(x);
  return _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
}
inline void vstore_i8(std::int8_t* p, vf x) {
  const __m128i narrow = narrow16(x);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(narrow, narrow));
}
inline void vstore_i16(std::int16_t* p, vf x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow16(x));
}

inline vi vi_zero() { return _mm256_setzero_si256(); }
inline vi vi_load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline void vi_store(void* p, vi x) { _mm256_storeu_si256(static_cast<__m256i*>(p), x); }
inline vi vi_set1(std::int32_t x) { return _mm256_set1_epi32(x); }
inline vi vi_set1_8(std::int8_t x) { return _mm256_set1_epi8(x); }
inline vi vi_set1_16(std::int16_t x) { return _mm256_set1_epi16(x); }
inline vi vi_and(vi a, vi b) { return _mm256_and_si256(a, b); }
inline vi vi_xor(vi a, vi b) { return _mm256_xor_si256(a, b); }
inline vi vi_add(vi a, vi b) { return _mm256_add_epi32(a, b); }
inline vi vi_add16(vi a, vi b) { return _mm256_add_epi16(a, b); }
template <int N>
inline vi vi_shift_right16(vi a) {
  return _mm256_srli_epi16(a, N);
}
template <int N>
inline vi vi_shift_right(vi a) {
  return _mm256_srli_epi32(a, N);
}
inline vi vi_or(vi a, vi b) { return _mm256_or_si256(a, b); }
template <int N>
inline vi vi_shift_left(vi a) {
  return _mm256_slli_epi32(a, N);
}
inline vi vi_from_float(vf a) { return _mm256_cvtps_epi32(a); }
inline vf vi_to_float(vi a) { return _mm256_cvtepi32_ps(a); }
inline vi vi_dot_u8_pairs(vi u8, vi s8) { return _mm256_maddubs_epi16(u8, s8); }
inline vi vi_dot_s16_pairs(vi a, vi b) { return _mm256_madd_epi16(a, b); }
inline vi vi_dot_s16(vi acc, vi a, vi b) { return vi_add(acc, vi_dot_s16_pairs(a, b)); }

}  // namespace ostinato::OSTINATO_ISA
