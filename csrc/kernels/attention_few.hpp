// A few query rows (decode: the heads of one group) against a range of keys.
//
// Bound by reading K and V, so nothing is re-packed: keys are converted in registers and multiplied by up to three
// rows at once, and the per-key sums are folded across lanes for kWidth keys together. Sealed keys and values are
// multiplied without their scales, which go to the scores, the weights or the query (kernels/attention_sealed.hpp).
#pragma once

#include "kernels.hpp"
#include "kernels/attention_bytes.hpp"
#include "kernels/attention_sealed.hpp"
#include "simd/simd.hpp"

namespace ostinato::OSTINATO_ISA {

inline constexpr int kHalf = kWidth / 2;
inline constexpr int kValuesAhead = 6;

// Blocks lie far apart, where no hardware prefetcher follows, and at a distance of many pages, so that the same few
// cache sets would have to hold a tile and the next one. So the row of the next tile is fetched into L2, and the row a
// few keys ahead into L1: 15.4 ms a step of 4,096 keys without, 10.5 with the first, 8.6 with both.
template <class T>
OSTINATO_INLINE void prefetch_ahead(const T* next_tile, const T* few_ahead) {
  __builtin_prefetch(next_tile, 0, 2);
  __builtin_prefetch(few_ahead, 0, 3);
}

// scores[r * stride + 0:kWidth] of kWidth keys; keys[j] points at key j. Half of the keys at a time, whose sums fill the
// registers; elements of two channels ask for twice the query vectors, so a quarter then.
template <class T, int R>
OSTINATO_INLINE void few_scores(const T* const* keys, const T* const* next, const float* query, int dim,
                                float* scores, int stride) {
  constexpr int N = kChannels<T>, kLine = 64 / static_cast<int>(sizeof(T));
  constexpr int kAtOnce = N > 1 && R > 2 && kHalf > 2 ? kHalf / 2 : kHalf;
  const int cells = dim / N;
  vf folded[2 * R];
  each<2>(OSTINATO_EACH(h) {
    vf sum[R * kHalf];
    each<R * kHalf>(OSTINATO_EACH(i) { sum[i] = vzero(); });
    each<kHalf / kAtOnce>(OSTINATO_EACH(part) {
      constexpr int first = part * kAtOnce;
      const T *const *here = keys + h * kHalf, *const *later = next + h * kHalf;
      for (int line = 0; line < cells; line += kLine) {
        each<kAtOnce>(OSTINATO_EACH(j) { prefetch_ahead(later[first + j] + line, here[first + j + kWidth] + line); });
        for (int k = line; k < minimum(line + kLine, cells); k += kWidth) {
          vf at[R * N];
          each<R * N>(OSTINATO_EACH(i) { at[i] = vload(query + i / N * dim + i % N * cells + k); });
          each<kAtOnce>(OSTINATO_EACH(j) {
            vf key[N];
            load_channels(here[first + j] + k, key);
            each<R * N>(OSTINATO_EACH(i) {
              vf& to = sum[i / N * kHalf + first + j];
              to = vfma(key[i % N], at[i], to);
            });
          });
        }
      }
    });
    each<R>(OSTINATO_EACH(r) { folded[r * 2 + h] = vfold(sum + r * kHalf); });
  });
  each<R>(OSTINATO_EACH(r) { vstore(scores + r * stride, vfold_join(folded[r * 2], folded[r * 2 + 1])); });
}

// sums[r] = sums[r] * old + constant[r] + weights[r] @ values over `count` keys, for V vectors of elements from `offset`
// on.
template <class T, int R, int V>
OSTINATO_INLINE void few_values(const T* const* values, const T* const* next, int offset, int count,
                                const float* weights, const Rescale& rescale, const float* constant, int dim,
                                float* sums) {
  constexpr int N = kChannels<T>;
  const auto channel = [&](int v) { return v % N * (dim / N) + offset + v / N * kWidth; };
  vf sum[R][V * N];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V * N; ++v) {
      vf& at = sum[r][v];
      at = vmul(vload(sums + r * dim + channel(v)), vset1(rescale.old_sums[r]));
      if constexpr (N > 1) at = vadd(at, vset1(constant[r]));
    }
  }
  for (int j = 0; j < count; ++j) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      vf value[N];
      load_channels(values[j] + offset + v * kWidth, value);
      const int element = offset + v * kWidth;
      if (element * static_cast<int>(sizeof(T)) % 64 == 0) {
        prefetch_ahead(next[j] + element, values[j + kValuesAhead] + element);
      }
#pragma GCC unroll 2
      for (int n = 0; n < N; ++n) {
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          sum[r][v * N + n] = vfma(value[n], vset1(weights[r * kKeyTile + j]), sum[r][v * N + n]);
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V * N; ++v) vstore(sums + r * dim + channel(v), sum[r][v]);
  }
}

// Scores of R rows with a tile: [R][kKeyTile].
template <class T, int R>
OSTINATO_INLINE void tile_scores(const TileRows& tile, const Tile<T>& now, const Tile<T>& next, const float* query,
                                 float* folded, float* scores) {
  const int dim = tile.item.head_dim;
  if constexpr (kChannels<T> == 1) {
    for (int j = 0; j < tile.count; j += kWidth) {
      few_scores<T, R>(now.keys + j, next.keys + j, query, dim, scores + j, kKeyTile);
    }
    if constexpr (kIsSealed<T>) scale_tile<R>(scores, now.key_scales);
  } else {
    tile.each_block([&](int row, int count, int block, int) {
      float constant[R], part[R * kWidth];
      fold_query<R>(tile.item, block, query, folded, constant);
      for (int j = row; j < row + count; j += kWidth) {
        few_scores<T, R>(now.keys + j, next.keys + j, folded, dim, part, kWidth);
        const int here = row + count - j;
        for (int r = 0; r < R; ++r) {
          const vf score = vadd(vload(part + r * kWidth), vset1(constant[r]));
          if (here >= kWidth) {  // a masked store takes AVX2 tens of cycles
            vstore(scores + r * kKeyTile + j, score);
          } else {
            vstore_first(scores + r * kKeyTile + j, score, here);
          }
        }
      }
    });
  }
}

// R rows from `row` on through one tile.
template <class T, int R>
OSTINATO_INLINE void few_tile(const TileRows& tile, const Tile<T>& now, const Tile<T>& next, int row,
                              const FewScratch& scratch) {
  const int dim = tile.item.head_dim, cells = dim / kChannels<T>;
  const RowState& state = scratch.state;
  float* scores = scratch.scores;
  tile_scores<T, R>(tile, now, next, scratch.query + row * dim, scratch.folded, scores);
  for (int j = (tile.count + kWidth - 1) / kWidth * kWidth; j < kKeyTile; j += kWidth) {
    for (int r = 0; r < R; ++r) vstore(scores + r * kKeyTile + j, vset1(kNoScore));
  }
  Visible visible[R];
  for (int r = 0; r < R; ++r) visible[r] = visible_keys(tile.item, row + r, tile.first, tile.count);
  Rescale rescale;
  soften<FloatMath, R>(scores, visible, state.maxima + row, state.totals + row * 16, rescale);
  float constant[R] = {};
  if constexpr (kChannels<T> > 1) weighted_sums<R>(scores, now.value_minima, constant);
  if constexpr (kIsSealed<T>) scale_tile<R>(scores, now.value_scales);
  float* sums = state.sums + row * dim;
  const auto advance = [&]<int V>(int d) {
    few_values<T, R, V>(now.values, next.values, d, tile.count, scores, rescale, constant, dim, sums);
  };
  constexpr int kVectors = 4 / kChannels<T>;
  int d = 0;
  for (; d + kVectors * kWidth <= cells; d += kVectors * kWidth) advance.template operator()<kVectors>(d);
  for (; d < cells; d += kWidth) advance.template operator()<1>(d);
}

OSTINATO_INLINE int last_key_end(const AttentionItem& item) {
  return minimum(item.key_end, item.positions[item.tokens[item.num_tokens - 1]] + 1);
}

// What to fetch during the last tile of an item's keys: the first tile of the item that comes after it, or `tile` itself
// if there is none in blocks of element type T.
template <class T>
OSTINATO_INLINE TileRows tile_after(const TileRows& tile, int end) {
  if (tile.item.next == nullptr || end < last_key_end(tile.item)) return tile;
  const AttentionItem& next = *tile.item.next;
  const int next_end = last_key_end(next);
  if (next.key_begin >= next_end) return tile;
  const KeyRun run = find_run(next, next.key_begin, minimum(next_end, next.key_begin + kKeyTile));
  return run.sealed == kIsSealed<T> ? TileRows{next, next.key_begin, run.end - next.key_begin} : tile;
}

// Rows [begin, kKeyTile) of the next tile, which a shorter tile before it does not reach.
template <class T>
OSTINATO_INLINE void prefetch_rest(const TilePointers<T>& next, int begin, int dim) {
  for (int j = begin; j < kKeyTile; ++j) {
    for (int k = 0; k < dim / kChannels<T>; k += 64 / static_cast<int>(sizeof(T))) {
      __builtin_prefetch(next.keys[j] + k, 0, 2);
      __builtin_prefetch(next.values[j] + k, 0, 2);
    }
  }
}

// visit.operator()<T, R>(tile, now, next, row) for each tile of keys [begin, end), which lie in blocks of element type
// T, and for each R rows from `row` on.
template <class T, class Visit>
__attribute__((noinline)) void each_few_tile(const AttentionItem& item, int begin, int end, const Visit& visit) {
  const int rows = item.num_tokens * item.group_size;
  Tile<T> tiles[2];
  const auto tile_at = [&](int first) { return TileRows{item, first, minimum(kKeyTile, end - first)}; };
  tiles[0].find(tile_at(begin));
  int turn = 0;
  for (int first = begin; first < end; first += kKeyTile, turn ^= 1) {
    const TileRows tile = tile_at(first);
    Tile<T>& now = tiles[turn];
    Tile<T>& next = tiles[turn ^ 1];
    next.find(first + kKeyTile < end ? tile_at(first + kKeyTile) : tile_after<T>(tile, end));
    if (tile.count < kKeyTile) prefetch_rest(next, tile.count, item.head_dim);
    if constexpr (kIsSealed<T>) now.load_scales(tile);
    for (int row = 0; row < rows; row += kFewAtOnce) {
      switch (minimum(kFewAtOnce, rows - row)) {
        case 3: visit.template operator()<T, 3>(tile, now, next, row); break;
        case 2: visit.template operator()<T, 2>(tile, now, next, row); break;
        default: visit.template operator()<T, 1>(tile, now, next, row);
      }
    }
  }
}

// The same over all keys that the item's rows see.
template <class Visit>
OSTINATO_INLINE void each_few_tile(const AttentionItem& item, const Visit& visit) {
  const KVView& kv = item.kv;
  const int key_end = last_key_end(item);
  for (int begin = item.key_begin, end; begin < key_end; begin = end) {
    const KeyRun run = find_run(item, begin, key_end);
    end = run.end;
    if (!run.sealed && kv.type == KVType::kFloat16) {
      each_few_tile<std::uint16_t>(item, begin, end, visit);
    } else if (!run.sealed) {
      each_few_tile<float>(item, begin, end, visit);
    } else if (kv.sealed == SealedFormat::kFp8) {
      each_few_tile<E4m3>(item, begin, end, visit);
    } else if (kv.sealed == SealedFormat::kInt8) {
      each_few_tile<Int8>(item, begin, end, visit);
    } else {
      each_few_tile<Nibbles>(item, begin, end, visit);
    }
  }
}

OSTINATO_INLINE void attend_few(const AttentionItem& item, float* scratch) {
  const int dim = item.head_dim, rows = item.num_tokens * item.group_size;
  const FewScratch few = carve_few(scratch, dim);
  load_few_queries(item, rows, few.query);
  clear_rows(rows, dim, few.state);
  each_few_tile(item, [&]<class T, int R>(const TileRows& tile, const Tile<T>& now, const Tile<T>& next, int row)
                          __attribute__((always_inline)) { few_tile<T, R>(tile, now, next, row, few); });
  put_rows(item, rows, few.state);
}

// Int4 rows are read in whole vectors of their low and high halves.
OSTINATO_INLINE bool fits_few(const AttentionItem& item) {
  const bool whole = item.kv.sealed != SealedFormat::kInt4 || item.head_dim % (2 * kWidth) == 0;
  return whole && item.num_tokens * item.group_size <= kFewRows;
}

inline void attend(const AttentionItem& item, float* scratch) {
  if (fits_few(item)) {
    attend_few(item, scratch);
  } else if (item.exact) {
    attend_rows<FloatMath>(item, scratch);
  } else if (kHasByteAttention && item.head_dim % kByteMultiple == 0) {
    attend_bytes(item, scratch);
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
