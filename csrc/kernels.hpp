// What the machine-independent code knows of a kernel: plain structs and a table of function pointers, filled
// once per instruction set (kernels/isa_*.cpp) and chosen at run time (dispatch.cpp).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kv_format.hpp"

namespace ostinato {

inline constexpr int kPanel = 16;      // weight rows that lie interleaved
inline constexpr int kGroup = 32;      // weights (and activations) that share a scale
inline constexpr int kTokenTile = 16;  // activation rows that lie interleaved
// Bytes of one group of one tile of int8 activations: 16 x 32 values, 16 scales, 16 scaled sums.
inline constexpr int kIntTileGroup = kTokenTile * (kGroup + 4 + 4);
inline constexpr int kHeadPad = 16;  // behind the sums of a partial row: its maximum, its total, and padding

enum class WeightFormat : std::uint8_t { kFloat32, kFloat16, kInt8, kInt4 };

constexpr bool is_integer(WeightFormat format) {
  return format == WeightFormat::kInt4 || format == WeightFormat::kInt8;
}

// A packed matrix of (rows, cols), rows padded to whole panels and cols to whole groups.
//
// Float formats: panel = [col][16 rows].
// Integer formats: panel = [group]{16 fp16 scales, 16 fp16 minima if has_minimum, [quad of cols][16 rows][4 cols]}:
// one stream to the memory, in the order of use, and 64 bytes feed 16 rows with 4 columns each, which is what a 4-way
// byte dot product takes. Int8 stores q + 128; int4 packs quad j in the low and quad j + 4 in the high nibbles.
// weight = scale * (q - zero_point), or scale * q + minimum.
struct MatrixView {
  const std::uint8_t* data = nullptr;
  std::size_t panel_bytes = 0;
  int rows = 0;
  int cols = 0;
  int groups = 0;
  WeightFormat format = WeightFormat::kFloat32;
  bool has_minimum = false;
  int zero_point = 0;

  const std::uint8_t* panel(int index) const { return data + static_cast<std::size_t>(index) * panel_bytes; }
  int header_bytes() const { return has_minimum ? 4 * kPanel : 2 * kPanel; }
  int group_bytes() const {
    return header_bytes() + (format == WeightFormat::kInt4 ? kGroup * kPanel / 2 : kGroup * kPanel);
  }
  int panels() const { return (rows + kPanel - 1) / kPanel; }
  // `begin` is a multiple of 16.
  MatrixView row_range(int begin, int count) const {
    MatrixView range = *this;
    range.data = panel(begin / kPanel);
    range.rows = count;
    return range;
  }
};

// Activations of a step, in tiles of tokens; exactly one of the two forms is present.
//   int8:  [tile of 16][group]{ int8 [16][32], float scale[16], float scale*sum[16] }
//   float: [tile of 4][col][4]
struct Activations {
  std::uint8_t* ints = nullptr;
  float* floats = nullptr;
  int groups = 0;

  std::uint8_t* int_tile(int token) const {
    return ints + static_cast<std::size_t>(token / kTokenTile) * static_cast<std::size_t>(groups) * kIntTileGroup;
  }
  float* float_tile(int token) const {
    return floats + static_cast<std::size_t>(token / 4) * static_cast<std::size_t>(groups) * kGroup * 4;
  }
};

enum class KVType : std::uint8_t { kFloat32, kFloat16 };

inline constexpr int kNoWindow = 1 << 30;  // a sliding window wider than any sequence

// Where one layer's keys or values of one head lie: token j of block b at base + b * block_stride + j * head_dim. In a
// quantised memory these are the open blocks, and block b stands at open_slot[b]; where that is negative it is sealed.
struct KVView {
  void* keys = nullptr;
  void* values = nullptr;
  std::ptrdiff_t block_stride = 0;  // elements from one block to the next
  int block_size = 0;
  KVType type = KVType::kFloat16;
  SealedFormat sealed = SealedFormat::kNone;
  const std::int32_t* open_slot = nullptr;  // null if there are no sealed blocks
  const std::uint8_t* sealed_keys = nullptr;    // the head's record in block 0
  const std::uint8_t* sealed_values = nullptr;
  std::ptrdiff_t sealed_stride = 0;  // bytes from one block to the next

  bool is_sealed(int block) const { return open_slot != nullptr && open_slot[block] < 0; }
  std::ptrdiff_t open_offset(int block) const {
    return (open_slot != nullptr ? open_slot[block] : block) * block_stride;
  }
};

// Some query rows against one range of keys of one K/V head.
struct AttentionItem {
  const float* query = nullptr;       // (tokens, heads, head_dim), already multiplied by the attention scale
  const std::int32_t* tokens = nullptr;     // the item's tokens
  const std::int32_t* positions = nullptr;  // by token
  const std::int32_t* block_table = nullptr;
  KVView kv;
  int num_tokens = 0;
  int num_heads = 0;
  int group_size = 0;  // query heads of the K/V head
  int kv_head = 0;
  int head_dim = 0;
  int key_begin = 0;
  int key_end = 0;
  int window = kNoWindow;  // the token at position p sees keys p - window + 1 .. p of the range
  bool exact = true;  // fp32 arithmetic; otherwise many rows are multiplied in int8 or in int16 pairs
  float* output = nullptr;  // (tokens, heads, head_dim) normalised, if `partial` is null
  // Otherwise per row (token-major, then head of the group): head_dim sums, then the maximum and the total
  // weight that belong to them.
  float* partial = nullptr;
  const AttentionItem* next = nullptr;  // whose first keys are worth fetching meanwhile, or null
};

inline constexpr int partial_stride(int head_dim) { return head_dim + kHeadPad; }

inline constexpr int kMaxItemRows = 192;  // query rows (tokens x heads of the group) of one item, at most
// Floats that attend() needs: three K/V tiles, queries, sums and a little for each row.
inline constexpr int attention_scratch(int head_dim) {
  return (3 * 64 + 2 * (kMaxItemRows + 16)) * head_dim + (kMaxItemRows + 16) * 18 + 16 * 64 + 64;
}

// Floats that attention_mass() needs: two K tiles, queries, scores, and two of each block for each row.
inline constexpr std::size_t mass_scratch(int head_dim, int rows, int blocks) {
  const std::size_t padded = static_cast<std::size_t>(rows) + 16;
  return (2 * 64 + padded) * static_cast<std::size_t>(head_dim) + 16 * 64 + padded * (2 * static_cast<std::size_t>(blocks) + 40);
}

// How a head of q, k or v is finished after its projection.
struct HeadFinish {
  const float* bias = nullptr;  // (head_dim) or null
  const float* norm = nullptr;  // (head_dim) or null
  const float* cos = nullptr;   // (max_position, head_dim / 2); null for values
  const float* sin = nullptr;
  float epsilon = 0;
  float scale = 1;
};

struct KernelTable {
  const char* name;
  // out[(t - token) * stride + (p - panel) * 16 + r] for `tokens` tokens from `token`, which is a multiple of 16 unless
  // there is only one.
  // `scratch` holds kGemmScratch floats.
  void (*gemm)(const MatrixView&, const Activations&, int token, int tokens, int panel, int panels, float* out,
               std::ptrdiff_t stride, float* scratch);
  // One row: optional RMSNorm by `norm`, then into the tile of `token`.
  void (*prepare)(const float* row, const float* norm, float epsilon, int cols, const Activations&, int token);
  // 32 channels of silu(gate) * up for `tokens` tokens into group `group`; gate_up is (tokens, 64).
  void (*silu_mul)(const float* gate_up, int tokens, const Activations&, int token, int group);
  // rows[t][0:cols] += tile[t][0:cols]
  void (*add_rows)(float* rows, std::ptrdiff_t stride, const float* tile, std::ptrdiff_t tile_stride, int tokens,
                   int cols);
  // Bias, norm, rotation and scale of one head for `tokens` tokens, in place.
  void (*finish_head)(float* tile, std::ptrdiff_t stride, int head_dim, const std::int32_t* positions, int tokens,
                      const HeadFinish&);
  // Over the first `rows` of each of `tokens` rows of a tile: the largest of tile[t][r] -+ bounds[r] * lengths[t].
  void (*largest_within)(const float* tile, std::ptrdiff_t stride, int tokens, int rows, const float* bounds,
                         const float* lengths, float* lower, float* upper);
  // The first largest of a row, and whether every element lies within +-limit; if not, the index means nothing.
  int (*find_largest)(const float* x, int count, float limit, bool* within);
  float (*sum_exponentials)(const float* x, int count, float shift, float scale);
  // To fp16; whether all of them became finite numbers.
  bool (*store_half)(const float* from, std::uint16_t* to, int count);
  // `scratch` holds attention_scratch(head_dim) floats.
  void (*attend)(const AttentionItem&, float* scratch);
  // Joins `parts` partial rows, `part_stride` floats apart, into one normalised row.
  void (*merge)(const float* const* parts, int count, int head_dim, float* out);
  // The attention weights of all rows of an item, summed by block: mass[i] belongs to the i-th block from that of
  // key_begin on. The item's keys are all that its rows see. `scratch` holds mass_scratch() floats.
  void (*attention_mass)(const AttentionItem&, float* mass, float* scratch);
  // The first `tokens` fp16 rows of a block to a sealed record, zeros behind them; and all rows back, for which
  // `scratch` holds a float for each element.
  void (*seal_record)(const RecordLayout&, KVPart, const std::uint16_t* rows, int tokens, std::uint8_t* record);
  void (*open_record)(const RecordLayout&, KVPart, const std::uint8_t* record, std::uint16_t* rows, float* scratch);
};

inline constexpr int kGemmBlock = 8;  // groups of weights that are dequantised at once
inline constexpr int kGemmScratch = kGemmBlock * kGroup * kPanel;

// Name is "avx2", "avx512", "avx512_vnni", "neon", or "" for the best that this CPU runs; null if it cannot.
const KernelTable* find_kernels(const char* name);

}  // namespace ostinato
