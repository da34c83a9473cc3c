// How much attention each block of keys receives: the softmax weights of an item's rows, summed by block.
//
// One pass over the keys. A row's weights are summed relative to the largest score that it had seen by then, which is
// kept beside each block's sum; all sums meet the row's final maximum and total at the end.
#pragma once

#include "kernels.hpp"
#include "kernels/attention_few.hpp"
#include "simd/simd.hpp"

namespace ostinato::OSTINATO_ISA {

// State of rows, each with `stride` floats a row, a whole number of vectors.
struct MassState {
  float* maxima;      // [rows]
  float* sums;        // by block, relative to ...
  float* references;  // ... the row's maximum when the block was last added to
  int stride;
};

OSTINATO_INLINE int mass_blocks(const AttentionItem& item) {
  const int size = item.kv.block_size;
  return item.key_begin < item.key_end ? (item.key_end - 1) / size - item.key_begin / size + 1 : 0;
}

OSTINATO_INLINE MassState carve_mass(const AttentionItem& item, int rows, float* scratch) {
  const int stride = (mass_blocks(item) + kWidth - 1) / kWidth * kWidth;
  const MassState state{scratch, scratch + rows, scratch + rows + rows * stride, stride};
  for (int r = 0; r < rows; ++r) state.maxima[r] = kNoScore;
  for (int i = 0; i < rows * stride; i += kWidth) {
    vstore(state.sums + i, vzero());
    vstore(state.references + i, vset1(kNoScore));
  }
  return state;
}

OSTINATO_INLINE float exponential(float x) {
  float lanes[kWidth];
  vstore(lanes, vexp(vset1(x)));
  return lanes[0];
}

// One row's scores with a tile, which are overwritten.
inline void add_mass(const TileRows& tile, int row, float* scores, const MassState& state) {
  const Visible visible = visible_keys(tile.item, row, tile.first, tile.count);
  if (visible.begin >= visible.end) return;
  if (!visible.all()) hide(scores, visible);
  const float reference = maximum(state.maxima[row], largest_of(scores));
  state.maxima[row] = reference;
  for (int j = 0; j < kKeyTile; j += kWidth) vstore(scores + j, vexp(vsub(vload(scores + j), vset1(reference))));
  const int size = tile.item.kv.block_size;
  const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(row) * state.stride + tile.first / size -
                            tile.item.key_begin / size;
  float *sum = state.sums + at, *of = state.references + at;
  tile.each_block([&](int begin, int count, int, int) {
    vf weights = vzero();
    for (int j = 0; j < count; j += kWidth) {
      weights = vadd(weights, count - j >= kWidth ? vload(scores + begin + j)
                                                  : vkeep_first(vload(scores + begin + j), count - j, vzero()));
    }
    if (*of != reference) *sum *= exponential(*of - reference);
    *sum++ += vsum(weights);
    *of++ = reference;
  });
}

OSTINATO_INLINE void put_mass(const AttentionItem& item, int rows, const MassState& state, float* mass) {
  const int blocks = mass_blocks(item);
  for (int b = 0; b < blocks; ++b) mass[b] = 0.0f;
  for (int r = 0; r < rows; ++r) {
    float* sums = state.sums + static_cast<std::ptrdiff_t>(r) * state.stride;
    const float* references = state.references + static_cast<std::ptrdiff_t>(r) * state.stride;
    vf total = vzero();
    for (int b = 0; b < state.stride; b += kWidth) {
      const vf weights = vmul(vload(sums + b), vexp(vsub(vload(references + b), vset1(state.maxima[r]))));
      vstore(sums + b, weights);
      total = vadd(total, weights);
    }
    const float all = vsum(total), inverse = all > 0.0f ? 1.0f / all : 0.0f;
    for (int b = 0; b < blocks; ++b) mass[b] += sums[b] * inverse;
  }
}

OSTINATO_INLINE void mass_of_few(const AttentionItem& item, float* mass, float* scratch) {
  const int dim = item.head_dim, rows = item.num_tokens * item.group_size;
  const FewScratch few = carve_few(scratch, dim);
  const MassState state = carve_mass(item, rows, few.state.maxima);
  load_few_queries(item, rows, few.query);
  each_few_tile(item, [&]<class T, int R>(const TileRows& tile, const Tile<T>& now, const Tile<T>& next, int row)
                          __attribute__((always_inline)) {
    tile_scores<T, R>(tile, now, next, few.query + row * dim, few.folded, few.scores);
    for (int r = 0; r < R; ++r) add_mass(tile, row + r, few.scores + r * kKeyTile, state);
  });
  put_mass(item, rows, state, mass);
}

OSTINATO_INLINE void mass_of_many(const AttentionItem& item, float* mass, float* scratch) {
  const int dim = item.head_dim, rows = item.num_tokens * item.group_size;
  const int padded = (rows + kStrip - 1) / kStrip * kStrip;
  float* keys = scratch;
  float* wide = keys + kKeyTile * dim;
  float* query = wide + kKeyTile * dim;
  float* scores = query + padded * dim;
  const MassState state = carve_mass(item, rows, scores + kStrip * kKeyTile);
  load_queries<FloatMath>(item, rows, query, nullptr);
  for (int first = item.key_begin; first < item.key_end; first += kKeyTile) {
    const TileRows tile{item, first, minimum(kKeyTile, item.key_end - first)};
    load_keys<FloatMath>(tile, wide, keys);
    for (int strip = 0; strip < padded; strip += kStrip) {
      strip_scores<FloatMath>(query + strip * dim, keys, dim, 1.0f, nullptr, scores);
      for (int r = 0; r < minimum(kStrip, rows - strip); ++r) {
        add_mass(tile, strip + r, scores + r * kKeyTile, state);
      }
    }
  }
  put_mass(item, rows, state, mass);
}

inline void attention_mass(const AttentionItem& item, float* mass, float* scratch) {
  if (fits_few(item)) {
    mass_of_few(item, mass, scratch);
  } else {
    mass_of_many(item, mass, scratch);
  }
}

}  // namespace ostinato::OSTINATO_ISA
