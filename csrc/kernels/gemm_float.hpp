// Float activations times weights of any format: the exact path, and the one for fp32 and fp16 files.
//
// Weights are brought to fp32 a block of columns at a time (16 KiB, stays in L1) and used by all tokens of the
// call, so the price of dequantising falls with the number of tokens.
#pragma once

#include "kernels.hpp"
#include "kernels/gemm_int.hpp"
#include "simd/simd.hpp"

namespace ostinato::OSTINATO_ISA {

#if defined(__AVX512F__)
inline constexpr int kFloatTokens = 16;
#else
inline constexpr int kFloatTokens = 4;
#endif

// to[col][16 rows] for the columns of groups [group, group + count).
OSTINATO_INLINE void dequantise(const MatrixView& m, const std::uint8_t* panel, int group, int count, float* to) {
  const bool int4 = m.format == WeightFormat::kInt4;
  panel += static_cast<std::ptrdiff_t>(group) * m.group_bytes();
  const vi byte = vi_set1(int4 ? 15 : 255);
  for (int g = 0; g < count; ++g, panel += m.group_bytes()) {
    const auto* scales = reinterpret_cast<const std::uint16_t*>(panel);
    const std::uint8_t* quants = panel + m.header_bytes();
    for (int v = 0; v < kPanelVectors; ++v) {
      const vf scale = vload_f16(scales + v * kWidth);
      const vf offset = m.has_minimum ? vload_f16(scales + kPanel + v * kWidth)
                                      : vmul(scale, vset1(static_cast<float>(-m.zero_point)));
      const auto put = [&](int col, vi q) {
        vstore(to + (g * kGroup + col) * kPanel + v * kWidth, vfma(vi_to_float(vi_and(q, byte)), scale, offset));
      };
      for (int j = 0; j < (int4 ? kQuads / 2 : kQuads); ++j) {
        const vi line = vi_load(quants + 64 * j + 4 * v * kWidth);
        put(4 * j, line);
        put(4 * j + 1, vi_shift_right<8>(line));
        put(4 * j + 2, vi_shift_right<16>(line));
        put(4 * j + 3, vi_shift_right<24>(line));
        if (int4) {
          put(4 * j + 16, vi_shift_right<4>(line));
          put(4 * j + 17, vi_shift_right<12>(line));
          put(4 * j + 18, vi_shift_right<20>(line));
          put(4 * j + 19, vi_shift_right<28>(line));
        }
      }
    }
  }
}

// The block's columns as fp32: in place for fp32 panels, else written to `scratch`.
OSTINATO_INLINE const float* float_block(const MatrixView& m, const std::uint8_t* panel, int group, int count,
                                         float* scratch) {
  if (m.format == WeightFormat::kFloat32) {
    return reinterpret_cast<const float*>(panel) + group * kGroup * kPanel;
  }
  if (m.format == WeightFormat::kFloat16) {
    const auto* from = reinterpret_cast<const std::uint16_t*>(panel) + group * kGroup * kPanel;
    for (int i = 0; i < count * kGroup * kPanel; i += kWidth) vstore(scratch + i, vload_f16(from + i));
  } else {
    dequantise(m, panel, group, count, scratch);
  }
  return scratch;
}

// T tokens (T <= 4 or whole quads) over `cols` columns; adds to `out` unless this is the first block.
template <int T>
void float_tile(const float* w, const float* a, std::ptrdiff_t quad_stride, int cols, bool first, float* out,
                std::ptrdiff_t stride) {
  vf sum[T][kPanelVectors];
#pragma GCC unroll 16
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 4
    for (int v = 0; v < kPanelVectors; ++v) sum[t][v] = first ? vzero() : vload(out + t * stride + v * kWidth);
  }
  for (int k = 0; k < cols; ++k) {
    vf weight[kPanelVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kPanelVectors; ++v) weight[v] = vload(w + k * kPanel + v * kWidth);
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) {
      const vf x = vset1(a[(t / 4) * quad_stride + k * 4 + t % 4]);
#pragma GCC unroll 4
      for (int v = 0; v < kPanelVectors; ++v) sum[t][v] = vfma(weight[v], x, sum[t][v]);
    }
  }
#pragma GCC unroll 16
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 4
    for (int v = 0; v < kPanelVectors; ++v) vstore(out + t * stride + v * kWidth, sum[t][v]);
  }
}

inline void gemm_float(const MatrixView& m, const Activations& x, int token, int tokens, int panel, int panels,
                       float* out, std::ptrdiff_t stride, float* scratch) {
  const std::ptrdiff_t quad_stride = static_cast<std::ptrdiff_t>(m.groups) * kGroup * 4;
  for (int p = 0; p < panels; ++p) {
    for (int g = 0; g < m.groups; g += kGemmBlock) {
      const int count = minimum(kGemmBlock, m.groups - g);
      const float* w = float_block(m, m.panel(panel + p), g, count, scratch);
      for (int t = 0; t < tokens;) {
        const float* a = x.float_tile(token + t) + g * kGroup * 4;
        float* to = out + t * stride + p * kPanel;
        const int left = tokens - t;
        if (left >= kFloatTokens) {
          float_tile<kFloatTokens>(w, a, quad_stride, count * kGroup, g == 0, to, stride);
          t += kFloatTokens;
        } else if (left >= 4) {
          float_tile<4>(w, a, quad_stride, count * kGroup, g == 0, to, stride);
          t += 4;
        } else {
          if (left == 3) float_tile<3>(w, a, quad_stride, count * kGroup, g == 0, to, stride);
          if (left == 2) float_tile<2>(w, a, quad_stride, count * kGroup, g == 0, to, stride);
          if (left == 1) float_tile<1>(w, a, quad_stride, count * kGroup, g == 0, to, stride);
          t += left;
        }
      }
    }
  }
}

inline void gemm(const MatrixView& m, const Activations& x, int token, int tokens, int panel, int panels, float* out,
                 std::ptrdiff_t stride, float* scratch) {
  if (x.floats != nullptr) {
    gemm_float(m, x, token, tokens, panel, panels, out, stride, scratch);
  } else if (m.format == WeightFormat::kInt4) {
    if (m.has_minimum) {
      gemm_int<WeightFormat::kInt4, true>(m, x, token, tokens, panel, panels, out, stride);
    } else {
      gemm_int<WeightFormat::kInt4, false>(m, x, token, tokens, panel, panels, out, stride);
    }
  } else if (m.has_minimum) {
    gemm_int<WeightFormat::kInt8, true>(m, x, token, tokens, panel, panels, out, stride);
  } else {
    gemm_int<WeightFormat::kInt8, false>(m, x, token, tokens, panel, panels, out, stride);
  }
}

}  // namespace ostinato::OSTINATO_ISA
