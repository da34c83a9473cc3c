// What a few query rows need of a tile besides its products: where its rows lie, and, if it is sealed, its scales.
//
//   fp8, int8   K: a token's scale multiplies its scores; V: its weights.
//   int4        K: channels have scales s and minima m, so q.(s * n + m) = (q * s).n + q.m: the query is multiplied by
//               s once a block, and q.m is added to the block's scores. V: tokens have them, so the weights are
//               multiplied by s, and the sum of weight * m is added to every channel.
#pragma once

#include "kernels.hpp"
#include "kernels/attention_rows.hpp"
#include "kernels/kv_load.hpp"
#include "simd/simd.hpp"

namespace ostinato::OSTINATO_ISA {

inline constexpr int kFewRows = 6;
inline constexpr int kFewAtOnce = 3;             // rows that share a loaded key
inline constexpr int kPointers = kKeyTile + 32;  // rows of a tile and those that are only prefetched or discarded

// Scratch of an item of few rows.
struct FewScratch {
  float* query;
  float* scores;  // [kFewAtOnce][kKeyTile]
  float* folded;  // [kFewAtOnce][head_dim], queries times the channels' scales
  RowState state;
};

OSTINATO_INLINE FewScratch carve_few(float* scratch, int dim) {
  float* scores = scratch + kFewRows * dim;
  float* folded = scores + kFewAtOnce * kKeyTile;
  float* sums = folded + kFewAtOnce * dim;
  float* totals = sums + kFewRows * dim;
  return {scratch, scores, folded, {sums, totals, totals + kFewRows * 16, nullptr}};
}

OSTINATO_INLINE void load_few_queries(const AttentionItem& item, int rows, float* query) {
  const int dim = item.head_dim;
  for (int row = 0; row < rows; ++row) {
    const float* from = item.query + (static_cast<std::ptrdiff_t>(item.tokens[row / item.group_size]) * item.num_heads +
                                      item.kv_head * item.group_size + row % item.group_size) * dim;
    for (int k = 0; k < dim; k += kWidth) vstore(query + row * dim + k, vload(from + k));
  }
}

// Where the rows of a tile lie; those from its count on are a readable row again, whose scores are masked.
template <class T>
struct TilePointers {
  const T* keys[kPointers];
  const T* values[kPointers];

  OSTINATO_INLINE void find(const TileRows& tile) {
    tile.each_block([&](int row, int count, int block, int at) {
      const int stride = tile.item.head_dim / kChannels<T>;
      const T* key = block_rows(tile.item, KVPart::kKeys, block) + at * stride;
      const T* value = block_rows(tile.item, KVPart::kValues, block) + at * stride;
      for (int j = row; j < row + count; ++j, key += stride, value += stride) {
        keys[j] = key;
        values[j] = value;
      }
    });
    for (int j = tile.count; j < kPointers; ++j) {
      keys[j] = keys[tile.count - 1];
      values[j] = values[tile.count - 1];
    }
  }

 private:
  OSTINATO_INLINE static const T* block_rows(const AttentionItem& item, KVPart part, int block) {
    const KVView& kv = item.kv;
    if constexpr (kIsSealed<T>) {
      return reinterpret_cast<const T*>(sealed_record(kv, part, block));
    } else {
      return static_cast<const T*>(part == KVPart::kKeys ? kv.keys : kv.values) + kv.open_offset(block);
    }
  }
};

// The same with the scales (and int4 minima) of its tokens, as fp32, zero from the tile's count on.
template <class T>
struct SealedTile : TilePointers<T> {
  float key_scales[kKeyTile];
  float value_scales[kKeyTile];
  float value_minima[kKeyTile];

  // Also asks for the scales' cache lines: they lie behind the rows, where no row's prefetch comes.
  OSTINATO_INLINE void find(const TileRows& tile) {
    TilePointers<T>::find(tile);
    const RecordLayout layout = record_layout(tile.item);
    const auto fetch = [&](KVPart part, int block) __attribute__((always_inline)) {
      const std::uint8_t* record = sealed_record(tile.item.kv, part, block);
      for (std::ptrdiff_t at = layout.payload_bytes(); at < layout.bytes(part); at += 64) {
        __builtin_prefetch(record + at, 0, 2);
      }
    };
    tile.each_block([&](int, int, int block, int) {
      fetch(KVPart::kKeys, block);
      fetch(KVPart::kValues, block);
    });
  }

  OSTINATO_INLINE void load_scales(const TileRows& tile) {
    const RecordLayout layout = record_layout(tile.item);
    alignas(64) std::uint16_t keys[kKeyTile] = {}, values[kKeyTile] = {}, minima[kKeyTile] = {};
    tile.each_block([&](int row, int count, int block, int at) {
      if constexpr (kChannels<T> == 1) {
        copy_halves(record_scales(layout, sealed_record(tile.item.kv, KVPart::kKeys, block)) + at, count, keys + row);
      }
      const std::uint16_t* of_values = record_scales(layout, sealed_record(tile.item.kv, KVPart::kValues, block)) + at;
      copy_halves(of_values, count, values + row);
      if constexpr (kChannels<T> > 1) copy_halves(of_values + layout.block_size, count, minima + row);
    });
    const vf unit = vset1(kUnit<T>);
    for (int j = 0; j < kKeyTile; j += kWidth) {
      vstore(value_scales + j, vmul(vload_f16(values + j), unit));
      if constexpr (kChannels<T> == 1) {
        vstore(key_scales + j, vmul(vload_f16(keys + j), unit));
      } else {
        vstore(value_minima + j, vload_f16(minima + j));
      }
    }
  }

 private:
  OSTINATO_INLINE static void copy_halves(const std::uint16_t* from, int count, std::uint16_t* to) {
    if (count == 16) {  // most blocks
      __builtin_memcpy(to, from, 32);
    } else {
      for (int i = 0; i < count; ++i) to[i] = from[i];
    }
  }
};

template <class T, bool = kIsSealed<T>>
struct TileOf {
  using Type = TilePointers<T>;
};
template <class T>
struct TileOf<T, true> {
  using Type = SealedTile<T>;
};
template <class T>
using Tile = typename TileOf<T>::Type;

// rows[r] *= factors, of a tile.
template <int R>
OSTINATO_INLINE void scale_tile(float* rows, const float* factors) {
  for (int j = 0; j < kKeyTile; j += kWidth) {
    const vf factor = vload(factors + j);
    for (int r = 0; r < R; ++r) vstore(rows + r * kKeyTile + j, vmul(vload(rows + r * kKeyTile + j), factor));
  }
}

// out[r] = rows[r] . factors, of a tile.
template <int R>
OSTINATO_INLINE void weighted_sums(const float* rows, const float* factors, float* out) {
  for (int r = 0; r < R; ++r, rows += kKeyTile) {
    vf sum = vzero();
    for (int j = 0; j < kKeyTile; j += kWidth) sum = vfma(vload(rows + j), vload(factors + j), sum);
    out[r] = vsum(sum);
  }
}

// Int4 keys of one block: folded[r] = query[r] * scales, constant[r] = query[r] . minima.
template <int R>
OSTINATO_INLINE void fold_query(const AttentionItem& item, int block, const float* query, float* folded,
                                float* constant) {
  const int dim = item.head_dim;
  const std::uint16_t* scales = record_scales(record_layout(item), sealed_record(item.kv, KVPart::kKeys, block));
  vf sum[R];
  for (int r = 0; r < R; ++r) sum[r] = vzero();
  for (int k = 0; k < dim; k += kWidth) {
    const vf scale = vload_f16(scales + k), least = vload_f16(scales + dim + k);
    for (int r = 0; r < R; ++r) {
      const vf q = vload(query + r * dim + k);
      vstore(folded + r * dim + k, vmul(q, scale));
      sum[r] = vfma(q, least, sum[r]);
    }
  }
  for (int r = 0; r < R; ++r) constant[r] = vsum(sum[r]);
}

}  // namespace ostinato::OSTINATO_ISA
