// The passes between the matrix products: norms, rotation, activation function, and the preparation of
// activations (to int8 per group of 32, or to interleaved floats).
#pragma once

#include "kernels.hpp"
#include "simd/simd.hpp"

namespace ostinato::OSTINATO_ISA {

inline constexpr int kGroupVectors = kGroup / kWidth;

// 32 floats to int8 with scale max|x| / 127, as one token's part of a tile.
OSTINATO_INLINE void quantise_group(const vf* x, std::uint8_t* tile_group, int lane) {
  vf largest = vabs(x[0]);
#pragma GCC unroll 8
  for (int i = 1; i < kGroupVectors; ++i) largest = vmax(largest, vabs(x[i]));
  const float scale = vmaximum(largest) * (1.0f / 127.0f);
  const vf inverse = vset1(scale > 0.0f ? 1.0f / scale : 0.0f);
  auto* values = reinterpret_cast<std::int8_t*>(tile_group + lane * kGroup);
  vf total = vzero();
#pragma GCC unroll 8
  for (int i = 0; i < kGroupVectors; ++i) {
    const vf q = vround(vmul(x[i], inverse));
    total = vadd(total, q);
    vstore_i8(values + i * kWidth, q);
  }
  auto* scales = reinterpret_cast<float*>(tile_group + kTokenTile * kGroup);
  scales[lane] = scale;
  scales[kTokenTile + lane] = scale * vsum(total);
}

// `count` of 32 floats, the rest zero.
OSTINATO_INLINE void load_group(const float* from, int count, vf* x) {
#pragma GCC unroll 8
  for (int i = 0; i < kGroupVectors; ++i) {
    const int left = count - i * kWidth;
    x[i] = left >= kWidth ? vload(from + i * kWidth) : left > 0 ? vload_first(from + i * kWidth, left) : vzero();
  }
}

OSTINATO_INLINE void put_group(const vf* x, const Activations& to, int token, int group) {
  if (to.ints != nullptr) {
    quantise_group(x, to.int_tile(token) + static_cast<std::ptrdiff_t>(group) * kIntTileGroup, token % kTokenTile);
    return;
  }
  float values[kGroup];
#pragma GCC unroll 8
  for (int i = 0; i < kGroupVectors; ++i) vstore(values + i * kWidth, x[i]);
  float* at = to.float_tile(token) + group * kGroup * 4 + token % 4;
  for (int k = 0; k < kGroup; ++k) at[4 * k] = values[k];
}

OSTINATO_INLINE float inverse_rms(const float* row, int cols, float epsilon) {
  vf squares = vzero();
  int k = 0;
  for (; k + kWidth <= cols; k += kWidth) squares = vfma(vload(row + k), vload(row + k), squares);
  if (k < cols) {
    const vf tail = vload_first(row + k, cols - k);
    squares = vfma(tail, tail, squares);
  }
  return 1.0f / __builtin_sqrtf(vsum(squares) / static_cast<float>(cols) + epsilon);
}

inline void prepare(const float* row, const float* norm, float epsilon, int cols, const Activations& to, int token) {
  const vf factor = vset1(norm != nullptr ? inverse_rms(row, cols, epsilon) : 1.0f);
  for (int g = 0; g < to.groups; ++g) {
    const int count = minimum(kGroup, cols - g * kGroup);
    vf x[kGroupVectors];
    load_group(row + g * kGroup, count, x);
    if (norm != nullptr) {
      vf w[kGroupVectors];
      load_group(norm + g * kGroup, count, w);
#pragma GCC unroll 8
      for (int i = 0; i < kGroupVectors; ++i) x[i] = vmul(vmul(x[i], factor), w[i]);
    }
    put_group(x, to, token, g);
  }
}

inline void silu_mul(const float* gate_up, int tokens, const Activations& to, int token, int group) {
  for (int t = 0; t < tokens; ++t, gate_up += 2 * kGroup) {
    vf x[kGroupVectors];
#pragma GCC unroll 8
    for (int i = 0; i < kGroupVectors; ++i) {
      x[i] = vmul(vsilu(vload(gate_up + i * kWidth)), vload(gate_up + kGroup + i * kWidth));
    }
    put_group(x, to, token + t, group);
  }
}

inline void add_rows(float* rows, std::ptrdiff_t stride, const float* tile, std::ptrdiff_t tile_stride, int tokens,
                     int cols) {
  for (int t = 0; t < tokens; ++t, rows += stride, tile += tile_stride) {
    int k = 0;
    for (; k + kWidth <= cols; k += kWidth) vstore(rows + k, vadd(vload(rows + k), vload(tile + k)));
    for (; k < cols; ++k) rows[k] += tile[k];
  }
}

// x * rms^-1 * w over one head.
OSTINATO_INLINE void norm_head(float* head, int head_dim, const float* norm, float epsilon) {
  const vf factor = vset1(inverse_rms(head, head_dim, epsilon));
  for (int k = 0; k < head_dim; k += kWidth) {
    vstore(head + k, vmul(vmul(vload(head + k), factor), vload(norm + k)));
  }
}

// Halves (a, b) of a head become (a cos - b sin, b cos + a sin).
OSTINATO_INLINE void rotate_head(float* head, int half, const float* cos, const float* sin, float scale) {
  int k = 0;
  const vf factor = vset1(scale);
  for (; k + kWidth <= half; k += kWidth) {
    const vf a = vmul(vload(head + k), factor), b = vmul(vload(head + half + k), factor);
    const vf c = vload(cos + k), s = vload(sin + k);
    vstore(head + k, vsub(vmul(a, c), vmul(b, s)));
    vstore(head + half + k, vfma(a, s, vmul(b, c)));
  }
  for (; k < half; ++k) {
    const float a = head[k] * scale, b = head[half + k] * scale;
    head[k] = a * cos[k] - b * sin[k];
    head[half + k] = b * cos[k] + a * sin[k];
  }
}

inline void finish_head(float* tile, std::ptrdiff_t stride, int head_dim, const std::int32_t* positions, int tokens,
                        const HeadFinish& finish) {
  const int half = head_dim / 2;
  for (int t = 0; t < tokens; ++t, tile += stride) {
    if (finish.bias != nullptr) {
      for (int k = 0; k < head_dim; k += kWidth) vstore(tile + k, vadd(vload(tile + k), vload(finish.bias + k)));
    }
    if (finish.norm != nullptr) norm_head(tile, head_dim, finish.norm, finish.epsilon);
    if (finish.cos != nullptr) {
      const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(positions[t]) * half;
      rotate_head(tile, half, finish.cos + at, finish.sin + at, finish.scale);
    }
  }
}

inline void largest_within(const float* tile, std::ptrdiff_t stride, int tokens, int rows, const float* bounds,
                           const float* lengths, float* lower, float* upper) {
  for (int t = 0; t < tokens; ++t, tile += stride) {
    const vf length = vset1(lengths[t]), none = vset1(-__builtin_inff());
    vf least = none, most = none;
    for (int r = 0; r < rows; r += kWidth) {
      const int count = minimum(kWidth, rows - r);
      const vf x = count == kWidth ? vload(tile + r) : vload_first(tile + r, count);
      const vf bound = vmul(count == kWidth ? vload(bounds + r) : vload_first(bounds + r, count), length);
      least = vmax(least, vkeep_first(vsub(x, bound), count, none));
      most = vmax(most, vkeep_first(vadd(x, bound), count, none));
    }
    lower[t] = vmaximum(least);
    upper[t] = vmaximum(most);
  }
}

inline int find_largest(const float* x, int count, float limit, bool* within) {
  constexpr int kChunk = 1024;
  float largest = -__builtin_inff(), smallest = __builtin_inff();
  vf nothing = vzero();  // stays 0 unless an element is infinite or NaN
  int chunk = 0;
  for (int begin = 0; begin < count; begin += kChunk) {
    const int end = minimum(count, begin + kChunk);
    vf most = vset1(-__builtin_inff()), least = vset1(__builtin_inff());
    int k = begin;
    for (; k + kWidth <= end; k += kWidth) {
      const vf here = vload(x + k);
      most = vmax(most, here);
      least = vmin(least, here);
      nothing = vfma(here, vzero(), nothing);
    }
    float here = vmaximum(most);
    smallest = minimum(smallest, -vmaximum(vsub(vzero(), least)));
    for (; k < end; ++k) {
      here = maximum(here, x[k]);
      smallest = minimum(smallest, x[k]);
      nothing = vfma(vset1(x[k]), vzero(), nothing);
    }
    if (here > largest) {
      largest = here;
      chunk = begin;
    }
  }
  *within = vsum(nothing) == 0.0f && largest <= limit && smallest >= -limit;
  if (!*within) return 0;
  while (x[chunk] != largest) ++chunk;
  return chunk;
}

// sum of e^((x - shift) * scale); every (x - shift) * scale must be at most 0.
inline float sum_exponentials(const float* x, int count, float shift, float scale) {
  vf total = vzero();
  int k = 0;
  const vf factor = vset1(scale), origin = vset1(shift);
  for (; k + kWidth <= count; k += kWidth) total = vadd(total, vexp(vmul(vsub(vload(x + k), origin), factor)));
  if (k < count) {
    const vf tail = vexp(vmul(vsub(vload_first(x + k, count - k), origin), factor));
    total = vadd(total, vkeep_first(tail, count - k, vzero()));
  }
  return vsum(total);
}

inline bool store_half(const float* from, std::uint16_t* to, int count) {
  vf nothing = vzero();  // stays 0 unless an element is infinite or NaN
  for (int k = 0; k < count; k += kWidth) {
    vstore_f16(to + k, vload(from + k));
    nothing = vfma(vload_f16(to + k), vzero(), nothing);
  }
  return vsum(nothing) == 0.0f;
}

}  // namespace ostinato::OSTINATO_ISA
