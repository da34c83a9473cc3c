// Many query rows against a tile of keys: two small matrix products around an online softmax.
//
// The rows of an item (tokens x heads of one K/V head's group) run in strips of kStrip; a strip's scores live in L1
// between the two products. The online softmax is that of Milakov and Gimelshein (2018) as used by FlashAttention
// (Dao et al., 2022): a running maximum and total per row, sums rescaled when the maximum rises.
#pragma once

#include "kernels.hpp"
#include "kernels/attention_tile.hpp"
#include "simd/simd.hpp"

namespace ostinato::OSTINATO_ISA {

#if defined(__AVX512F__)
inline constexpr int kStrip = 12, kScoreVectors = 2, kValueRows = 6, kValueVectors = 4;
#elif defined(__AVX2__)
inline constexpr int kStrip = 6, kScoreVectors = 2, kValueRows = 6, kValueVectors = 2;
#else
inline constexpr int kStrip = 6, kScoreVectors = 4, kValueRows = 6, kValueVectors = 4;
#endif
inline constexpr float kNoScore = -1e30f;  // finite: the difference of two is 0, not NaN

// put(r, v, sum over k of vectors[k * vector_stride + v * kWidth] * scalars[k * scalar_step + r * scalar_row]).
template <class M, int R, int V, class Put>
OSTINATO_INLINE void outer_products(const float* vectors, std::ptrdiff_t vector_stride, const float* scalars,
                                    std::ptrdiff_t scalar_step, std::ptrdiff_t scalar_row, int count, const Put& put) {
  typename M::Sum sum[R * V];
  each<R * V>(OSTINATO_EACH(i) { sum[i] = M::zero(); });
  for (int k = 0; k < count; ++k, vectors += vector_stride, scalars += scalar_step) {
    typename M::Sum vector[V];
    each<V>(OSTINATO_EACH(v) { vector[v] = M::load(vectors + v * kWidth); });
    each<R>(OSTINATO_EACH(r) {
      const typename M::Sum scalar = M::broadcast(scalars + r * scalar_row);
      each<V>(OSTINATO_EACH(v) { sum[r * V + v] = M::step(sum[r * V + v], vector[v], scalar); });
    });
  }
  each<R * V>(OSTINATO_EACH(i) { put(i / V, i % V, M::value(sum[i])); });
}

// Per-row state of an item, all in the caller's scratch.
struct RowState {
  float* sums;         // [rows][head_dim]
  float* totals;       // [rows][16], one total a lane
  float* maxima;       // [rows], readable to 16 beyond
  float* query_units;  // [rows], what a unit of the packed query is worth
};

// Scores of one strip: [kStrip][kKeyTile].
template <class M>
OSTINATO_INLINE void strip_scores(const float* query, const float* keys, int cells, float key_unit,
                                  const float* query_units, float* scores) {
  for (int j = 0; j < kKeyTile; j += kScoreVectors * kWidth) {
    const auto put = [&](int r, int v, vf score) __attribute__((always_inline)) {
      if constexpr (M::kPairs) score = vmul(score, vset1(key_unit * query_units[r]));
      vstore(scores + r * kKeyTile + j + v * kWidth, score);
    };
    outer_products<M, kStrip, kScoreVectors>(keys + j, kKeyTile, query, kStrip, 1, cells, put);
  }
}

// How rows' sums must be rescaled and what a unit of their new products is worth.
struct Rescale {
  alignas(64) float old_sums[16];
  alignas(64) float products[16];
};

// The keys of a tile that a row sees.
struct Visible {
  int begin;  // at least 0
  int end;    // below `begin` if there are none

  bool all() const { return begin == 0 && end >= kKeyTile; }
};

// Of `count` keys from position `first` on.
OSTINATO_INLINE Visible visible_keys(const AttentionItem& item, int row, int first, int count) {
  const int position = item.positions[item.tokens[row / item.group_size]];
  return {maximum(0, position - item.window + 1 - first), minimum(count, position + 1 - first)};
}

// Most tiles are seen whole, so what handles the others stays out of the loops.
__attribute__((noinline)) inline void hide(float* scores, Visible visible) {
  for (int j = 0; j < kKeyTile; j += kWidth) {
    const vf s = vkeep_first(vload(scores + j), visible.end - j, vset1(kNoScore));
    vstore(scores + j, vkeep_first(vset1(kNoScore), visible.begin - j, s));
  }
}

OSTINATO_INLINE float largest_of(const float* scores) {
  vf largest = vset1(kNoScore);
  for (int j = 0; j < kKeyTile; j += kWidth) largest = vmax(largest, vload(scores + j));
  return vmaximum(largest);
}

// A hidden score becomes a weight of e^-87, or of up to 1 in a row that has seen no key yet, whose sums then shrink by
// e^-87 with the first key: either way nothing that a float can hold beside a visible key's weight.
//
// Turns up to 16 rows of scores into weights of at most 1 (int16 of at most kWeightRange with pairs), and moves their
// maxima (padded to 16) and totals on.
template <class M, int R>
OSTINATO_INLINE void soften(float* scores, const Visible* visible, float* maxima, float* totals, Rescale& rescale) {
  alignas(64) float local[16], reference[16];
  for (int r = 0; r < R; ++r) {
    if (!visible[r].all()) hide(scores + r * kKeyTile, visible[r]);
    local[r] = largest_of(scores + r * kKeyTile);
  }
  for (int r = R; r < 16; ++r) local[r] = kNoScore;
  for (int r = 0; r < R; r += kWidth) {
    const vf here = vload(local + r), before = vload(maxima + r), now = vmax(here, before);
    vstore(rescale.old_sums + r, vexp(vsub(before, now)));
    vstore(rescale.products + r, M::kPairs ? vexp(vsub(here, now)) : vset1(1.0f));
    // Pairs have few bits: they are spent relative to the tile's own maximum; `products` brings the difference.
    vstore(reference + r, M::kPairs ? here : now);
    vstore_first(maxima + r, now, minimum(kWidth, R - r));
  }
  for (int r = 0; r < R; ++r, scores += kKeyTile) {
    const vf shift = vset1(reference[r]);
    vf total = vzero();
#pragma GCC unroll 4
    for (int j = 0; j < kKeyTile; j += kWidth) {
      const vf weight = vexp(vsub(vload(scores + j), shift));
      total = vadd(total, weight);
      if constexpr (M::kPairs) {
        vstore_i16(reinterpret_cast<std::int16_t*>(scores) + j, vmul(weight, vset1(kWeightRange)));
      } else {
        vstore(scores + j, weight);
      }
    }
    float* sum = totals + r * 16;
    vstore(sum, vfma(vload(sum), vset1(rescale.old_sums[r]), vmul(total, vset1(rescale.products[r]))));
  }
}

// sums = sums * old + weights @ values for one strip.
template <class M>
OSTINATO_INLINE void strip_values(const float* weights, const float* values, int dim, float value_unit,
                                  const Rescale& rescale, float* sums) {
  const auto block = [&]<int V>(int r0, int d) {
    const auto put = [&](int r, int v, vf product) __attribute__((always_inline)) {
      float* at = sums + (r0 + r) * dim + d + v * kWidth;
      if constexpr (M::kPairs) {
        product = vmul(product, vset1(rescale.products[r0 + r] * value_unit * (1.0f / kWeightRange)));
      }
      vstore(at, vfma(vload(at), vset1(rescale.old_sums[r0 + r]), product));
    };
    outer_products<M, kValueRows, V>(values + d, dim, weights + r0 * kKeyTile, 1, kKeyTile, kKeyTile / M::kStep, put);
  };
  for (int r = 0; r < kStrip; r += kValueRows) {
    int d = 0;
    for (; d + kValueVectors * kWidth <= dim; d += kValueVectors * kWidth) {
      block.template operator()<kValueVectors>(r, d);
    }
    for (; d < dim; d += kWidth) block.template operator()<1>(r, d);
  }
}

// Queries as [strip][head_dim / step][kStrip].
template <class M>
OSTINATO_INLINE void load_queries(const AttentionItem& item, int rows, float* query, float* units) {
  const int dim = item.head_dim;
  for (int row = 0; row < (rows + kStrip - 1) / kStrip * kStrip; ++row) {
    float* strip = query + row / kStrip * kStrip * (dim / M::kStep) + row % kStrip;
    const bool real = row < rows;
    const float* from = real ? item.query + (static_cast<std::ptrdiff_t>(item.tokens[row / item.group_size]) *
                                                 item.num_heads + item.kv_head * item.group_size +
                                             row % item.group_size) * dim
                             : nullptr;
    if constexpr (!M::kPairs) {
      for (int k = 0; k < dim; ++k) strip[k * kStrip] = real ? from[k] : 0.0f;
    } else {
      float squares = 0.0f;
      for (int k = 0; real && k < dim; ++k) squares += from[k] * from[k];
      const float norm = __builtin_sqrtf(squares);
      const float factor = norm > 0.0f ? kKeyNorm / norm : 0.0f;
      units[row] = norm / kKeyNorm;
      for (int k = 0; k < dim; k += 2) {
        std::int16_t pair[2] = {0, 0};
        if (real) {
          pair[0] = static_cast<std::int16_t>(__builtin_rintf(from[k] * factor));
          pair[1] = static_cast<std::int16_t>(__builtin_rintf(from[k + 1] * factor));
        }
        __builtin_memcpy(strip + k / 2 * kStrip, pair, 4);
      }
    }
  }
}

// Writes the item's rows: normalised to `output`, or as they are to `partial`.
OSTINATO_INLINE void put_rows(const AttentionItem& item, int rows, const RowState& state) {
  const int dim = item.head_dim;
  for (int row = 0; row < rows; ++row) {
    const float total = vsum(vload(state.totals + row * 16));
    const float* sums = state.sums + row * dim;
    if (item.partial != nullptr) {
      float* to = item.partial + static_cast<std::ptrdiff_t>(row) * partial_stride(dim);
      for (int k = 0; k < dim; k += kWidth) vstore(to + k, vload(sums + k));
      to[dim] = state.maxima[row];
      to[dim + 1] = total;
    } else {
      float* to = item.output + (static_cast<std::ptrdiff_t>(item.tokens[row / item.group_size]) * item.num_heads +
                                 item.kv_head * item.group_size + row % item.group_size) * dim;
      const vf inverse = vset1(total > 0.0f ? 1.0f / total : 0.0f);
      for (int k = 0; k < dim; k += kWidth) vstore(to + k, vmul(vload(sums + k), inverse));
    }
  }
}

OSTINATO_INLINE void clear_rows(int rows, int dim, const RowState& state) {
  for (int i = 0; i < rows * dim; i += kWidth) vstore(state.sums + i, vzero());
  for (int i = 0; i < rows * 16; i += kWidth) vstore(state.totals + i, vzero());
  for (int r = 0; r < rows + 16; ++r) state.maxima[r] = kNoScore;
}

template <class M>
void attend_rows(const AttentionItem& item, float* scratch) {
  const int dim = item.head_dim, rows = item.num_tokens * item.group_size;
  const int padded = (rows + kStrip - 1) / kStrip * kStrip;
  float* keys = scratch;
  float* values = keys + kKeyTile * dim;
  float* wide = values + kKeyTile * dim;
  float* query = wide + kKeyTile * dim;
  float* scores = query + padded * dim;
  float* rest = scores + kStrip * kKeyTile;
  const RowState state{rest, rest + padded * dim, rest + padded * (dim + 16), rest + padded * (dim + 17) + 16};
  load_queries<M>(item, rows, query, state.query_units);
  clear_rows(padded, dim, state);
  const int last_position = item.positions[item.tokens[item.num_tokens - 1]];
  const int key_end = minimum(item.key_end, last_position + 1);
  for (int first = item.key_begin; first < key_end; first += kKeyTile) {
    const TileRows tile{item, first, minimum(kKeyTile, key_end - first)};
    const float key_unit = load_keys<M>(tile, wide, keys);
    const float value_unit = load_values<M>(tile, wide, values);
    for (int strip = 0; strip < padded; strip += kStrip) {
      Visible visible[kStrip];
      bool any = false;
      for (int r = 0; r < kStrip; ++r) {
        visible[r] = visible_keys(item, minimum(strip + r, rows - 1), first, tile.count);
        any = any || visible[r].begin < visible[r].end;
      }
      if (!any) continue;
      strip_scores<M>(query + strip * (dim / M::kStep), keys, dim / M::kStep, key_unit, state.query_units + strip,
                      scores);
      Rescale rescale;
      soften<M, kStrip>(scores, visible, state.maxima + strip, state.totals + strip * 16, rescale);
      strip_values<M>(scores, values, dim, value_unit, rescale, state.sums + strip * dim);
    }
  }
  put_rows(item, rows, state);
}

}  // namespace ostinato::OSTINATO_ISA
