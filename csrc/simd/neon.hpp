// Vectors of 4 floats (aarch64 with the dot-product extension). See simd/simd.hpp for what each name means.
#pragma once
#include <arm_neon.h>

#include <cstdint>

namespace ostinato::OSTINATO_ISA {

inline constexpr int kWidth = 4;
using vf = float32x4_t;
using vi = int32x4_t;

inline vf vzero() { return vdupq_n_f32(0); }
inline vf vset1(float x) { return vdupq_n_f32(x); }
inline vf vload(const float* p) { return vld1q_f32(p); }
inline void vstore(float* p, vf x) { vst1q_f32(p, x); }
inline uint32x4_t first_lanes(int n) {
  const std::int32_t lane[4] = {0, 1, 2, 3};
  return vcltq_s32(vld1q_s32(lane), vdupq_n_s32(n));
}
inline vf vload_first(const float* p, int n) {
  float lanes[4] = {0, 0, 0, 0};
  for (int i = 0; i < n && i < 4; ++i) lanes[i] = p[i];
  return vld1q_f32(lanes);
}
inline void vstore_first(float* p, vf x, int n) {
  float lanes[4];
  vst1q_f32(lanes, x);
  for (int i = 0; i < n && i < 4; ++i) p[i] = lanes[i];
}
inline vf vkeep_first(vf x, int n, vf other) { return vbslq_f32(first_lanes(n), x, other); }
inline vf vadd(vf a, vf b) { return vaddq_f32(a, b); }
inline vf vsub(vf a, vf b) { return vsubq_f32(a, b); }
inline vf vmul(vf a, vf b) { return vmulq_f32(a, b); }
inline vf vdiv(vf a, vf b) { return vdivq_f32(a, b); }
inline vf vmax(vf a, vf b) { return vmaxq_f32(a, b); }
inline vf vmin(vf a, vf b) { return vminq_f32(a, b); }
inline vf vfma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
inline vf vabs(vf a) { return vabsq_f32(a); }
inline vf vround(vf a) { return vrndnq_f32(a); }
inline vf vscale_pow2(vf x, vf n) {
  const int32x4_t bits = vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127)), 23);
  return vmulq_f32(x, vreinterpretq_f32_s32(bits));
}
inline float vsum(vf a) { return vaddvq_f32(a); }
inline float vmaximum(vf a) { return vmaxvq_f32(a); }

inline vf vzip_low(vf a, vf b) { return vzip1q_f32(a, b); }
inline vf vzip_high(vf a, vf b) { return vzip2q_f32(a, b); }

inline vf vfold(const vf* x) { return vpaddq_f32(x[0], x[1]); }
inline vf vfold_join(vf a, vf b) { return vpaddq_f32(a, b); }

inline vf vload_f16(const std::uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
inline void vstore_f16(std::uint16_t* p, vf x) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x))); }
inline uint8x8_t load_4_bytes(const void* p) {
  std::uint32_t bytes;
  __builtin_memcpy(&bytes, p, 4);
  return vreinterpret_u8_u32(vdup_n_u32(bytes));
}
inline vf vload_i8(const std::int8_t* p) {
  const int16x8_t wide = vmovl_s8(vreinterpret_s8_u8(load_4_bytes(p)));
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
}
inline void vload_nibbles(const std::uint8_t* p, vf& low, vf& high) {
  const uint32x4_t bytes = vmovl_u16(vget_low_u16(vmovl_u8(load_4_bytes(p))));
  low = vcvtq_f32_u32(vandq_u32(bytes, vdupq_n_u32(15)));
  high = vcvtq_f32_u32(vshrq_n_u32(bytes, 4));
}
inline vf vload_e4m3(const std::uint8_t* p) {
  const int16x4_t wide = vget_low_s16(vmovl_s8(vreinterpret_s8_u8(load_4_bytes(p))));
  const int16x4_t half = vand_s16(vshl_n_s16(wide, 7), vdup_n_s16(kHalfOfE4m3));
  return vcvt_f32_f16(vreinterpret_f16_s16(half));
}
inline void vstore_i16(std::int16_t* p, vf x) { vst1_s16(p, vqmovn_s32(vcvtnq_s32_f32(x))); }
inline void vstore_i8(std::int8_t* p, vf x) {
  const int16x4_t narrow = vqmovn_s32(vcvtnq_s32_f32(x));
  const int8x8_t bytes = vqmovn_s16(vcombine_s16(narrow, narrow));
  vst1_lane_s32(reinterpret_cast<std::int32_t*>(p), vreinterpret_s32_s8(bytes), 0);
}

inline vi vi_zero() { return vdupq_n_s32(0); }
inline vi vi_load(const void* p) { return vreinterpretq_s32_u8(vld1q_u8(static_cast<const std::uint8_t*>(p))); }
inline void vi_store(void* p, vi x) { vst1q_u8(static_cast<std::uint8_t*>(p), vreinterpretq_u8_s32(x)); }
inline vi vi_set1(std::int32_t x) { return vdupq_n_s32(x); }
inline vi vi_set1_8(std::int8_t x) { return vreinterpretq_s32_s8(vdupq_n_s8(x)); }
inline vi vi_set1_16(std::int16_t x) { return vreinterpretq_s32_s16(vdupq_n_s16(x)); }
inline vi vi_and(vi a, vi b) { return vandq_s32(a, b); }
inline vi vi_xor(vi a, vi b) { return veorq_s32(a, b); }
inline vi vi_add(vi a, vi b) { return vaddq_s32(a, b); }
template <int N>
inline vi vi_shift_right16(vi a) {
  return vreinterpretq_s32_u16(vshrq_n_u16(vreinterpretq_u16_s32(a), N));
}
template <int N>
inline vi vi_shift_right(vi a) {
  if constexpr (N == 0) {
    return a;
  } else {
    return vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(a), N));
  }
}
inline vi vi_or(vi a, vi b) { return vorrq_s32(a, b); }
template <int N>
inline vi vi_shift_left(vi a) {
  return vshlq_n_s32(a, N);
}
inline vi vi_from_float(vf a) { return vcvtnq_s32_f32(a); }
inline vf vi_to_float(vi a) { return vcvtq_f32_s32(a); }
#define OSTINATO_HAS_DOT 1
// Both operands are signed here: 4-bit weights fit, 8-bit ones are re-centred when they are unpacked.
inline vi vi_dot_u8(vi acc, vi w, vi s8) {
  return vdotq_s32(acc, vreinterpretq_s8_s32(w), vreinterpretq_s8_s32(s8));
}
inline vi vi_dot_s16(vi acc, vi a, vi b) {
  const int16x8_t x = vreinterpretq_s16_s32(a), y = vreinterpretq_s16_s32(b);
  const int32x4_t low = vmull_s16(vget_low_s16(x), vget_low_s16(y));
  return vaddq_s32(acc, vpaddq_s32(low, vmull_high_s16(x, y)));
}

}  // namespace ostinato::OSTINATO_ISA
