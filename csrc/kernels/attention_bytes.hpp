// Many query rows against a tile of keys in 8 bits: one instruction takes four elements, twice the rate of PairMath.
//
// Eight bits are enough for these reasons, in the order of what they gain:
//   - The mean of a tile's keys is subtracted from them and comes back, in fp32, as one number a row and tile: where
//     keys have large channels in common, only what distinguishes them is rounded ("smoothing", SageAttention, Zhang et
//     al., 2024).
//   - Queries and keys are rotated alike (a Hadamard transform over quarters of a head), which spreads large channels,
//     and have a scale a row.
//   - Each value row has a scale of its own, which is multiplied into the weights before these are rounded, relative to
//     their largest of the tile: so bits are not spent on an attention sink, whose weight is large and whose value is small.
// On SmolLM2 (512 tokens of Shakespeare, 8 layers) the error of the output is 1.8 % from the scores and 1.0 % from the
// weights and values; without rotation 2.4 %, with a scale a channel of the values 2.7 %.
#pragma once

#include "kernels.hpp"
#include "kernels/attention_rows.hpp"
#include "simd/simd.hpp"

namespace ostinato::OSTINATO_ISA {

#if defined(__AVX512VNNI__)
inline constexpr bool kHasByteAttention = true;
inline constexpr int kByteMultiple = 32;  // of head sizes: transpose_tile() takes 8 cells of 4 bytes
inline constexpr float kLog2e = 1.44269504088896341f;
inline constexpr float kByteWeights = 255.0f;
inline constexpr float kLog2ByteWeights = 7.99435344f;

// Everything of an item, all in the caller's scratch. Scores are in powers of two.
struct ByteRows {
  float* query;        // [strip][head_dim / 4][kStrip] cells of 4 signed bytes
  float* wide_query;   // [head_dim][stride]
  int stride;          // rows padded to whole vectors
  float* units;        // [rows], what a unit of the query is worth
  std::int32_t* starts;  // [rows], where a score begins: keys are stored 128 too large
  float* biases;       // [stride], query . mean of the tile's keys
};

struct ByteTile {
  float* keys;         // [head_dim / 4][kKeyTile] cells of 4 unsigned bytes
  float* key_units;    // [kKeyTile]
  float* mean;         // [head_dim]
  float* values;       // [kKeyTile / 4][head_dim] cells of 4 signed bytes
  float* value_logs;   // [kKeyTile], binary logarithm of what a unit of a value row is worth
  float* inverses;     // [kKeyTile], 1 / that unit
};

// x[k] of four quarters of a row become sums and differences of each other; an orthogonal transform.
OSTINATO_INLINE void mix_quarters(float* row, int dim) {
  if (dim % (4 * kWidth) != 0) return;
  const int quarter = dim / 4;
  for (int k = 0; k < quarter; k += kWidth) {
    const vf a = vload(row + k), b = vload(row + quarter + k), c = vload(row + 2 * quarter + k),
             d = vload(row + 3 * quarter + k), half = vset1(0.5f);
    const vf ab = vadd(a, b), a_b = vsub(a, b), cd = vadd(c, d), c_d = vsub(c, d);
    vstore(row + k, vmul(vadd(ab, cd), half));
    vstore(row + quarter + k, vmul(vadd(a_b, c_d), half));
    vstore(row + 2 * quarter + k, vmul(vsub(ab, cd), half));
    vstore(row + 3 * quarter + k, vmul(vsub(a_b, c_d), half));
  }
}

OSTINATO_INLINE void load_byte_queries(const AttentionItem& item, int rows, int padded, float* mixed,
                                       const ByteRows& to) {
  const int dim = item.head_dim;
  for (int row = 0; row < padded; ++row) {
    float* strip = to.query + row / kStrip * kStrip * (dim / 4) + row % kStrip;
    const int real = minimum(row, rows - 1);  // what pads is computed and dropped
    const float* from = item.query + (static_cast<std::ptrdiff_t>(item.tokens[real / item.group_size]) *
                                          item.num_heads + item.kv_head * item.group_size +
                                      real % item.group_size) * dim;
    for (int k = 0; k < dim; k += kWidth) vstore(mixed + k, vload(from + k));
    mix_quarters(mixed, dim);
    vf largest = vzero();
    for (int k = 0; k < dim; k += kWidth) largest = vmax(largest, vabs(vload(mixed + k)));
    const float range = vmaximum(largest);
    const vf factor = vset1(range > 0.0f ? 127.0f / range : 0.0f);
    vi total = vi_zero();
    for (int k = 0; k < dim; k += kWidth) {
      const vi q = vi_from_float(vmul(vload(mixed + k), factor));
      total = vi_add(total, q);
      alignas(16) std::int8_t bytes[kWidth];
      vstore_i8(bytes, vi_to_float(q));
      for (int i = 0; i < kWidth; i += 4) __builtin_memcpy(strip + (k + i) / 4 * kStrip, bytes + i, 4);
      alignas(64) float wide[kWidth];
      vstore(wide, vmul(vload(from + k), vset1(kLog2e)));
      for (int i = 0; i < kWidth; ++i) to.wide_query[(k + i) * to.stride + row] = wide[i];
    }
    to.units[row] = range / 127.0f * kLog2e;
    to.starts[row] = -128 * static_cast<std::int32_t>(vsum(vi_to_float(total)));
  }
}

OSTINATO_INLINE void load_byte_keys(const TileRows& rows, float* wide, const ByteTile& tile) {
  const int dim = rows.item.head_dim;
  load_rows(rows, KVPart::kKeys, wide);
  const vf share = vset1(1.0f / static_cast<float>(rows.count));
  for (int k = 0; k < dim; k += kWidth) {
    vf total = vzero();
    for (int j = 0; j < kKeyTile; ++j) total = vadd(total, vload(wide + j * dim + k));
    vstore(tile.mean + k, vmul(total, share));
  }
  auto* narrow = reinterpret_cast<std::uint8_t*>(wide);  // behind what is still to be read
  for (int j = 0; j < kKeyTile; ++j) {
    float* key = wide + j * dim;
    for (int k = 0; k < dim; k += kWidth) vstore(key + k, vsub(vload(key + k), vload(tile.mean + k)));
    mix_quarters(key, dim);
    vf largest = vzero();
    for (int k = 0; k < dim; k += kWidth) largest = vmax(largest, vabs(vload(key + k)));
    const float range = vmaximum(largest);
    const vf factor = vset1(range > 0.0f ? 127.0f / range : 0.0f);
    for (int k = 0; k < dim; k += kWidth) {
      vi_store_u8(narrow + j * dim + k, vi_from_float(vfma(vload(key + k), factor, vset1(128.0f))));
    }
    tile.key_units[j] = range * (1.0f / 127.0f);
  }
  transpose_tile(wide, dim / 4, tile.keys);
}

OSTINATO_INLINE void load_byte_values(const TileRows& rows, float* wide, const ByteTile& tile) {
  const int dim = rows.item.head_dim;
  load_rows(rows, KVPart::kValues, wide);
  alignas(64) float units[kKeyTile];
  float most = 0.0f;
  for (int j = 0; j < kKeyTile; ++j) {
    vf largest = vzero();
    for (int k = 0; k < dim; k += kWidth) largest = vmax(largest, vabs(vload(wide + j * dim + k)));
    units[j] = vmaximum(largest) * (1.0f / 127.0f);
    most = maximum(most, units[j]);
  }
  // A row of almost nothing must not make a weight that its inverse cannot bring back.
  const vf least = vset1(maximum(1e-6f * most, 1e-30f));
  for (int j = 0; j < kKeyTile; j += kWidth) {
    const vf log = vlog2_above(vmax(vload(units + j), least));
    vstore(tile.value_logs + j, log);
    vstore(tile.inverses + j, vexp(vmul(log, vset1(-1.0f / kLog2e))));
  }
  const vi low = vi_set1(0xff);
  for (int j = 0; j < kKeyTile; j += 4) {
    const vf fa = vset1(tile.inverses[j]), fb = vset1(tile.inverses[j + 1]), fc = vset1(tile.inverses[j + 2]),
             fd = vset1(tile.inverses[j + 3]);
    for (int k = 0; k < dim; k += kWidth) {
      const float* from = wide + j * dim + k;
      const vi a = vi_and(vi_from_float(vmul(vload(from), fa)), low);
      const vi b = vi_and(vi_from_float(vmul(vload(from + dim), fb)), low);
      const vi c = vi_and(vi_from_float(vmul(vload(from + 2 * dim), fc)), low);
      const vi d = vi_from_float(vmul(vload(from + 3 * dim), fd));
      vi_store(tile.values + j / 4 * dim + k,
               vi_or(vi_or(a, vi_shift_left<8>(b)), vi_or(vi_shift_left<16>(c), vi_shift_left<24>(d))));
    }
  }
}

// biases = query . mean for all rows.
OSTINATO_INLINE void find_biases(const ByteRows& rows, const float* mean, int dim) {
  for (int at = 0; at < rows.stride; at += 4 * kWidth) {
    vf sum[4] = {vzero(), vzero(), vzero(), vzero()};
    for (int k = 0; k < dim; ++k) {
      const vf m = vset1(mean[k]);
      each<4>(OSTINATO_EACH(v) { sum[v] = vfma(vload(rows.wide_query + k * rows.stride + at + v * kWidth), m, sum[v]); });
    }
    each<4>(OSTINATO_EACH(v) { vstore(rows.biases + at + v * kWidth, sum[v]); });
  }
}

OSTINATO_INLINE void byte_scores(const float* query, const ByteTile& tile, int cells, const std::int32_t* starts,
                                 const float* units, const float* biases, float* scores) {
  constexpr int V = kScoreVectors;
  for (int j = 0; j < kKeyTile; j += V * kWidth) {
    vi sum[kStrip * V];
    each<kStrip * V>(OSTINATO_EACH(i) { sum[i] = vi_set1(starts[i / V]); });
    const float* keys = tile.keys + j;
    const float* cell = query;
    for (int k = 0; k < cells; ++k, keys += kKeyTile, cell += kStrip) {
      vi key[V];
      each<V>(OSTINATO_EACH(v) { key[v] = vi_load(keys + v * kWidth); });
      each<kStrip>(OSTINATO_EACH(r) {
        const vi q = PairMath::broadcast(cell + r);
        each<V>(OSTINATO_EACH(v) { sum[r * V + v] = vi_dot_u8_long(sum[r * V + v], key[v], q); });
      });
    }
    each<kStrip * V>(OSTINATO_EACH(i) {
      constexpr int r = i / V, v = i % V;
      const vf unit = vmul(vload(tile.key_units + j + v * kWidth), vset1(units[r]));
      const vf bias = vadd(vload(tile.value_logs + j + v * kWidth), vset1(biases[r]));
      vstore(scores + r * kKeyTile + j + v * kWidth, vfma(vi_to_float(sum[i]), unit, bias));
    });
  }
}

// soften() in powers of two and bytes: each row's first 64 bytes become its weights. Scores hold the values' units, and so
// do maxima.
OSTINATO_INLINE void byte_weights(float* scores, const ByteTile& tile, const Visible* visible, float* maxima,
                                  float* totals, Rescale& rescale) {
  alignas(64) float local[16];
  for (int r = 0; r < kStrip; ++r) {
    if (!visible[r].all()) hide(scores + r * kKeyTile, visible[r]);
    local[r] = largest_of(scores + r * kKeyTile);
  }
  for (int r = kStrip; r < 16; ++r) local[r] = kNoScore;
  const vf here = vload(local), before = vload(maxima), now = vmax(here, before), ln2 = vset1(1.0f / kLog2e);
  vstore(rescale.old_sums, vexp(vmul(vsub(before, now), ln2)));
  vstore(rescale.products, vexp(vmul(vsub(here, now), ln2)));
  vstore_first(maxima, now, kStrip);
  for (int r = 0; r < kStrip; ++r, scores += kKeyTile) {
    const vf shift = vset1(local[r] - kLog2ByteWeights);
    auto* bytes = reinterpret_cast<std::uint8_t*>(scores);
    vf total = vzero();  // of the weights without the values' units
    each<kKeyTile / kWidth>(OSTINATO_EACH(i) {
      const vf weight = vexp2_coarse(vsub(vload(scores + i * kWidth), shift));
      total = vfma(weight, vload(tile.inverses + i * kWidth), total);
      vi_store_u8(bytes + i * kWidth, vi_from_float(weight));
    });
    float* sum = totals + r * 16;
    const float unit = rescale.products[r] * (1.0f / kByteWeights);
    vstore(sum, vfma(vload(sum), vset1(rescale.old_sums[r]), vmul(total, vset1(unit))));
  }
}

OSTINATO_INLINE void byte_values(const float* weights, const ByteTile& tile, int dim, const Rescale& rescale,
                                 float* sums) {
  const auto block = [&]<int V>(int r0, int d) {
    vi sum[kValueRows * V];
    each<kValueRows * V>(OSTINATO_EACH(i) { sum[i] = vi_zero(); });
    const float* values = tile.values + d;
    const float* weight = weights + r0 * kKeyTile;
    for (int quad = 0; quad < kKeyTile / 4; ++quad, values += dim, ++weight) {
      vi value[V];
      each<V>(OSTINATO_EACH(v) { value[v] = vi_load(values + v * kWidth); });
      each<kValueRows>(OSTINATO_EACH(r) {
        const vi w = PairMath::broadcast(weight + r * kKeyTile);
        each<V>(OSTINATO_EACH(v) { sum[r * V + v] = vi_dot_u8_long(sum[r * V + v], w, value[v]); });
      });
    }
    each<kValueRows * V>(OSTINATO_EACH(i) {
      constexpr int r = i / V, v = i % V;
      float* at = sums + (r0 + r) * dim + d + v * kWidth;
      const vf unit = vset1(rescale.products[r0 + r] * (1.0f / kByteWeights));
      vstore(at, vfma(vload(at), vset1(rescale.old_sums[r0 + r]), vmul(vi_to_float(sum[i]), unit)));
    });
  };
  for (int r = 0; r < kStrip; r += kValueRows) {
    int d = 0;
    for (; d + kValueVectors * kWidth <= dim; d += kValueVectors * kWidth) {
      block.template operator()<kValueVectors>(r, d);
    }
    for (; d < dim; d += kWidth) block.template operator()<1>(r, d);
  }
}

inline void attend_bytes(const AttentionItem& item, float* scratch) {
  const int dim = item.head_dim, rows = item.num_tokens * item.group_size;
  const int padded = (rows + kStrip - 1) / kStrip * kStrip;
  const int stride = (padded + 4 * kWidth - 1) / (4 * kWidth) * 4 * kWidth;
  float* at = scratch;
  const auto take = [&](int floats) {
    float* from = at;
    at += (floats + 15) / 16 * 16;
    return from;
  };
  float* wide = take(kKeyTile * dim);
  const ByteTile tile{take(kKeyTile / 4 * dim), take(kKeyTile), take(dim), take(kKeyTile / 4 * dim), take(kKeyTile),
                      take(kKeyTile)};
  float* packed = take(padded * dim / 4);
  float* wide_query = take(dim * stride);
  const ByteRows queries{packed, wide_query, stride, take(padded), reinterpret_cast<std::int32_t*>(take(padded)),
                         take(stride)};
  float* scores = take(kStrip * kKeyTile);
  const RowState state{take(padded * dim), take(padded * 16), take(padded + 16), nullptr};
  load_byte_queries(item, rows, padded, wide, queries);
  for (int k = 0; k < dim; ++k) {
    for (int row = padded; row < stride; ++row) wide_query[k * stride + row] = 0.0f;
  }
  clear_rows(padded, dim, state);
  const int last_position = item.positions[item.tokens[item.num_tokens - 1]];
  const int key_end = minimum(item.key_end, last_position + 1);
  for (int first = item.key_begin; first < key_end; first += kKeyTile) {
    const TileRows keys{item, first, minimum(kKeyTile, key_end - first)};
    load_byte_keys(keys, wide, tile);
    load_byte_values(keys, wide, tile);
    find_biases(queries, tile.mean, dim);
    const int rest = key_end - first - keys.count;
    if (rest > 0) prefetch_tile({item, first + kKeyTile, minimum(kKeyTile, rest)});
    for (int strip = 0; strip < padded; strip += kStrip) {
      Visible visible[kStrip];
      bool any = false;
      for (int r = 0; r < kStrip; ++r) {
        visible[r] = visible_keys(item, minimum(strip + r, rows - 1), first, keys.count);
        any = any || visible[r].begin < visible[r].end;
      }
      if (!any) continue;
      byte_scores(packed + strip * (dim / 4), tile, dim / 4, queries.starts + strip, queries.units + strip,
                  queries.biases + strip, scores);
      Rescale rescale;
      byte_weights(scores, tile, visible, state.maxima + strip, state.totals + strip * 16, rescale);
      byte_values(scores, tile, dim, rescale, state.sums + strip * dim);
    }
  }
  for (int row = 0; row < rows; ++row) state.maxima[row] *= 1.0f / kLog2e;  // where others join their parts
  put_rows(item, rows, state);
}
#else
inline constexpr bool kHasByteAttention = false;
inline constexpr int kByteMultiple = 1;
inline void attend_bytes(const AttentionItem&, float*) {}
#endif

}  // namespace ostinato::OSTINATO_ISA
