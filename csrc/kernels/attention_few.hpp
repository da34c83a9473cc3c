// A few query rows (decode: the heads of one group) against a range of keys.
//
// Bound by reading K and V, so nothing is re-packed: keys are converted in registers and multiplied by up to three
// rows at once, and the per-key sums are folded across lanes for kWidth keys together.
#pragma once

#include "kernels.hpp"
#include "kernels/attention_rows.hpp"
#include "simd/simd.hpp"

namespace ostinato::OSTINATO_ISA {

inline constexpr int kFewRows = 6;
inline constexpr int kHalf = kWidth / 2;
inline constexpr int kValuesAhead = 6;
inline constexpr int kPointers = kKeyTile + 16;  // rows of a tile and those that are only prefetched

template <class T>
OSTINATO_INLINE vf load_as_float(const T* p) {
  if constexpr (sizeof(T) == 2) {
    return vload_f16(p);
  } else {
    return vload(p);
  }
}

// Blocks lie far apart, where no hardware prefetcher follows, and at a distance of many pages, so that the same few
// cache sets would have to hold a tile and the next one. So the row of the next tile is fetched into L2, and the row a
// few keys ahead into L1: 15.4 ms a step of 4,096 keys without, 10.5 with the first, 8.6 with both.
template <class T>
OSTINATO_INLINE void prefetch_ahead(const T* next_tile, const T* few_ahead, int element) {
  if (element * static_cast<int>(sizeof(T)) % 64 == 0) {
    __builtin_prefetch(next_tile + element, 0, 2);
    __builtin_prefetch(few_ahead + element, 0, 3);
  }
}

// Folds kHalf vectors so that lane l holds (part of) the sum of vector l % kHalf.
OSTINATO_INLINE vf fold(vf (&x)[kHalf]) {
#pragma GCC unroll 4
  for (int n = kHalf / 2; n >= 1; n /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < n; ++i) x[i] = vadd(vzip_low(x[i], x[i + n]), vzip_high(x[i], x[i + n]));
  }
  return x[0];
}

// scores[r][0:kWidth] of kWidth keys; keys[j] points at key j. Even keys and odd keys fill one vector each, and
// zipping the two brings them in order.
template <class T, int R>
OSTINATO_INLINE void few_scores(const T* const* keys, const T* const* next, const float* query, int dim,
                                float* scores) {
  vf half[2][R];
#pragma GCC unroll 2
  for (int odd = 0; odd < 2; ++odd) {
    vf sum[R][kHalf];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int j = 0; j < kHalf; ++j) sum[r][j] = vzero();
    }
    for (int k = 0; k < dim; k += kWidth) {
#pragma GCC unroll 8
      for (int j = 0; j < kHalf; ++j) {
        const vf key = load_as_float(keys[2 * j + odd] + k);
        prefetch_ahead(next[2 * j + odd], keys[2 * j + odd + kWidth], k);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) sum[r][j] = vfma(key, vload(query + r * dim + k), sum[r][j]);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) half[odd][r] = fold(sum[r]);
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    vstore(scores + r * kKeyTile, vadd(vzip_low(half[0][r], half[1][r]), vzip_high(half[0][r], half[1][r])));
  }
}

// sums[r] = sums[r] * old + weights[r] @ values over `count` keys.
template <class T, int R, int V>
OSTINATO_INLINE void few_values(const T* const* values, const T* const* next, int offset, int count,
                                const float* weights, const Rescale& rescale, int dim, float* sums) {
  vf sum[R][V];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) sum[r][v] = vmul(vload(sums + r * dim + v * kWidth), vset1(rescale.old_sums[r]));
  }
  for (int j = 0; j < count; ++j) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      const vf value = load_as_float(values[j] + offset + v * kWidth);
      prefetch_ahead(next[j], values[j + kValuesAhead], offset + v * kWidth);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) sum[r][v] = vfma(value, vset1(weights[r * kKeyTile + j]), sum[r][v]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) vstore(sums + r * dim + v * kWidth, sum[r][v]);
  }
}

// Where the rows of a tile lie; those from `count` on are a readable row again, whose scores are masked.
template <class T>
struct TilePointers {
  const T* keys[kPointers];
  const T* values[kPointers];

  OSTINATO_INLINE void find(const TileRows& tile) {
    for (int j = 0; j < kPointers; ++j) {
      const std::ptrdiff_t at = tile.offset(minimum(j, tile.count - 1));
      keys[j] = static_cast<const T*>(tile.item.kv.keys) + at;
      values[j] = static_cast<const T*>(tile.item.kv.values) + at;
    }
  }
};

// R rows from `row` on through one tile.
template <class T, int R>
OSTINATO_INLINE void few_tile(const AttentionItem& item, const TilePointers<T>& now, const TilePointers<T>& next,
                              int first, int count, int row, const float* query, float* scores, const RowState& state) {
  const int dim = item.head_dim;
  for (int j = 0; j < count; j += kWidth) {
    few_scores<T, R>(now.keys + j, next.keys + j, query + row * dim, dim, scores + j);
  }
  for (int j = (count + kWidth - 1) / kWidth * kWidth; j < kKeyTile; j += kWidth) {
    for (int r = 0; r < R; ++r) vstore(scores + r * kKeyTile + j, vset1(kNoScore));
  }
  Visible visible[R];
  for (int r = 0; r < R; ++r) visible[r] = visible_keys(item, row + r, first, count);
  Rescale rescale;
  soften<FloatMath, R>(scores, visible, state.maxima + row, state.totals + row * 16, rescale);
  float* sums = state.sums + row * dim;
  const auto advance = [&]<int V>(int d) {
    few_values<T, R, V>(now.values, next.values, d, count, scores, rescale, dim, sums + d);
  };
  int d = 0;
  for (; d + 4 * kWidth <= dim; d += 4 * kWidth) advance.template operator()<4>(d);
  for (; d < dim; d += kWidth) advance.template operator()<1>(d);
}

template <class T>
OSTINATO_INLINE void attend_few_typed(const AttentionItem& item, float* scratch) {
  const int dim = item.head_dim, rows = item.num_tokens * item.group_size;
  float* query = scratch;
  float* scores = query + kFewRows * dim;
  const RowState state{scores + 3 * kKeyTile, scores + 3 * kKeyTile + kFewRows * dim,
                       scores + 3 * kKeyTile + kFewRows * (dim + 16), nullptr};
  for (int row = 0; row < rows; ++row) {
    const float* from = item.query + (static_cast<std::ptrdiff_t>(item.tokens[row / item.group_size]) * item.num_heads +
                                      item.kv_head * item.group_size + row % item.group_size) * dim;
    for (int k = 0; k < dim; k += kWidth) vstore(query + row * dim + k, vload(from + k));
  }
  clear_rows(rows, dim, state);
  const int key_end = minimum(item.key_end, item.positions[item.tokens[item.num_tokens - 1]] + 1);
  TilePointers<T> pointers[2];
  if (item.key_begin < key_end) pointers[0].find({item, item.key_begin, minimum(kKeyTile, key_end - item.key_begin)});
  int turn = 0;
  for (int first = item.key_begin; first < key_end; first += kKeyTile, turn ^= 1) {
    const int count = minimum(kKeyTile, key_end - first), rest = key_end - first - count;
    const TilePointers<T>& now = pointers[turn];
    TilePointers<T>& next = pointers[turn ^ 1];
    next.find({item, rest > 0 ? first + kKeyTile : first, rest > 0 ? minimum(kKeyTile, rest) : count});
    for (int row = 0; row < rows; row += 3) {
      switch (minimum(3, rows - row)) {
        case 3: few_tile<T, 3>(item, now, next, first, count, row, query, scores, state); break;
        case 2: few_tile<T, 2>(item, now, next, first, count, row, query, scores, state); break;
        default: few_tile<T, 1>(item, now, next, first, count, row, query, scores, state);
      }
    }
  }
  put_rows(item, rows, state);
}

inline void attend(const AttentionItem& item, float* scratch) {
  if (item.num_tokens * item.group_size <= kFewRows) {
    if (item.kv.type == KVType::kFloat16) {
      attend_few_typed<std::uint16_t>(item, scratch);
    } else {
      attend_few_typed<float>(item, scratch);
    }
  } else if (item.exact) {
    attend_rows<FloatMath>(item, scratch);
  } else {
    attend_rows<PairMath>(item, scratch);
  }
}

inline void merge(const float* const* parts, int count, int head_dim, float* out) {
  float largest = kNoScore, total = 0.0f;
  for (int i = 0; i < count; ++i) largest = maximum(largest, parts[i][head_dim]);
  for (int k = 0; k < head_dim; k += kWidth) vstore(out + k, vzero());
  for (int i = 0; i < count; ++i) {
    float weight[kWidth];
    vstore(weight, vexp(vset1(parts[i][head_dim] - largest)));
    total += weight[0] * parts[i][head_dim + 1];
    for (int k = 0; k < head_dim; k += kWidth) {
      vstore(out + k, vfma(vload(parts[i] + k), vset1(weight[0]), vload(out + k)));
    }
  }
  const vf inverse = vset1(total > 0.0f ? 1.0f / total : 0.0f);
  for (int k = 0; k < head_dim; k += kWidth) vstore(out + k, vmul(vload(out + k), inverse));
}

}  // namespace ostinato::OSTINATO_ISA
