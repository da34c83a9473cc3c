// Paged attention and its mass: mixed batches, shared prefixes, sliding windows, fp32, fp16 and sealed K/V.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "attention.hpp"
#include "check.hpp"
#include "checks.hpp"
#include "kv_codec.hpp"

namespace ostinato::check {
namespace {

constexpr int kBlocksBehind = 1;  // of the open memory, that no block owns

struct Sequence {
  int past;
  int count;
};

// A step over scattered blocks, and its K/V: NaN wherever no token may look.
struct Step {
  int kv_heads = pick({1, 3}), group = pick({1, 3, 7}), dim = pick({16, 48, 64, 128}), block = pick({4, 16, 32});
  int heads = kv_heads * group, shared = pick({0, 128}), window = pick({kNoWindow, kNoWindow, 1, 40, 150});
  std::vector<Sequence> sequences{
      {shared + pick({0, 70}), pick({1, 40})}, {shared + pick({1, 300}), 1}, {shared + 3, pick({1, 2})}};
  int width = 0, tokens = 0;
  std::vector<std::int32_t> tables, positions, starts{0}, owners;
  std::vector<float> values;             // what the K/V memory holds, as fp32
  std::vector<std::uint16_t> halves;     // the same as fp16
  std::vector<std::uint8_t> sealed;
  std::vector<std::int32_t> open_slot;

  explicit Step(KVType type) {
    for (const Sequence& s : sequences) {
      width = std::max(width, (s.past + s.count + block - 1) / block);
      tokens += s.count;
    }
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const int own = static_cast<int>(i) * width;
      for (int b = 0; b < width; ++b) tables.push_back(b < shared / block ? b : own + b);
      for (int t = 0; t < sequences[i].count; ++t) {
        positions.push_back(sequences[i].past + t);
        owners.push_back(static_cast<std::int32_t>(i));
      }
      starts.push_back(starts.back() + sequences[i].count);
    }
    const int blocks = width * static_cast<int>(sequences.size());
    values.assign(index(blocks, 2 * kv_heads * block * dim), std::numeric_limits<float>::quiet_NaN());
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const int end = sequences[i].past + sequences[i].count;
      for (int p = std::max(0, sequences[i].past - window + 1); p < end; ++p) fill(static_cast<int>(i), p);
    }
    for (float& v : values) {
      halves.push_back(float_to_half(v));
      if (type == KVType::kFloat16) v = half_to_float(halves.back());
    }
  }

  float* row(int request, int position, int which, int kv_head) {
    const int id = tables[index(request, width, position / block)];
    return values.data() + index(((id * 2 + which) * kv_heads + kv_head) * block + position % block, dim);
  }

  void fill(int request, int position) {
    for (int which = 0; which < 2; ++which) {
      for (int h = 0; h < kv_heads; ++h) {
        float* to = row(request, position, which, h);
        if (std::isnan(*to)) std::generate_n(to, dim, [] { return uniform(-1, 1); });
      }
    }
  }

  // Seals a third of the blocks and puts what they read back as into `values`; the others stay open, in another order.
  // What nobody wrote is sealed as zeros: a NaN would spoil the channel of an int4 key.
  void seal(Runtime& runtime, KVCacheView& kv) {
    const std::ptrdiff_t size = kv.block_stride();
    sealed.assign(static_cast<std::size_t>(kv.num_blocks * kv.sealed_bytes()), 0xff);
    std::vector<std::uint16_t> open(static_cast<std::size_t>((kv.num_blocks + kBlocksBehind) * size), 0xffff);
    for (int b = 0; b < kv.num_blocks; ++b) {
      std::uint16_t* block = halves.data() + b * size;
      if (pick({0, 1, 2}) == 0) {
        std::uint8_t* record = sealed.data() + b * kv.sealed_bytes();
        std::replace_if(block, block + size, [](std::uint16_t x) { return std::isnan(half_to_float(x)); }, 0);
        seal_block(runtime.kernels(), kv, block, kv.block_size, record);
        open_block(runtime.kernels(), kv, record, block);
        open_slot.push_back(-1);
      } else {
        open_slot.push_back(kv.num_blocks - b);
        std::copy_n(block, size, open.data() + open_slot.back() * size);
      }
      for (std::ptrdiff_t i = 0; i < size; ++i) values[static_cast<std::size_t>(b * size + i)] = half_to_float(block[i]);
    }
    halves = open;
    kv.data = halves.data();
    kv.sealed = sealed.data();
    kv.open_slot = open_slot.data();
    kv.num_open = kv.num_blocks + kBlocksBehind;
  }

  // (requests, width): weights summed over tokens and heads.
  std::vector<double> mass(const std::vector<float>& query) {
    std::vector<double> sums(index(static_cast<int>(sequences.size()), width), 0.0);
    for (int t = 0; t < tokens; ++t) {
      const int position = positions[static_cast<std::size_t>(t)], r = owners[static_cast<std::size_t>(t)];
      for (int h = 0; h < heads; ++h) {
        const float* q = query.data() + index(t * heads + h, dim);
        std::vector<double> weights;
        double total = 0;
        const int first = std::max(0, position - window + 1);
        for (int j = first; j <= position; ++j) {
          const float* k = row(r, j, 0, h / group);
          double score = 0;
          for (int d = 0; d < dim; ++d) score += static_cast<double>(q[d]) * k[d];
          weights.push_back(std::exp(score));
          total += weights.back();
        }
        for (int j = first; j <= position; ++j) {
          sums[index(r, width, j / block)] += weights[static_cast<std::size_t>(j - first)] / total;
        }
      }
    }
    return sums;
  }

  std::vector<double> attend(const std::vector<float>& query) {
    std::vector<double> out(query.size(), 0.0);
    for (int t = 0; t < tokens; ++t) {
      const int position = positions[static_cast<std::size_t>(t)], r = owners[static_cast<std::size_t>(t)];
      for (int h = 0; h < heads; ++h) {
        const std::size_t at = index(t * heads + h, dim);
        double total = 0;
        for (int j = std::max(0, position - window + 1); j <= position; ++j) {
          const float *k = row(r, j, 0, h / group), *v = row(r, j, 1, h / group);
          double score = 0;
          for (int d = 0; d < dim; ++d) score += static_cast<double>(query[at + static_cast<std::size_t>(d)]) * k[d];
          const double weight = std::exp(score);
          total += weight;
          for (int d = 0; d < dim; ++d) out[at + static_cast<std::size_t>(d)] += weight * v[d];
        }
        for (int d = 0; d < dim; ++d) out[at + static_cast<std::size_t>(d)] /= total;
      }
    }
    return out;
  }
};

}  // namespace

void check_attention(Runtime& runtime) {
  const auto format = static_cast<SealedFormat>(pick({0, 0, 1, 2, 3}));
  const bool floats = format == SealedFormat::kNone && pick({0, 1}) == 0;
  const KVType type = floats ? KVType::kFloat32 : KVType::kFloat16;
  Step step(type);
  const std::vector<float> query = random_values(index(step.tokens * step.heads, step.dim));
  std::vector<float> out(query.size(), std::numeric_limits<float>::quiet_NaN());
  KVCacheView kv;
  kv.data = type == KVType::kFloat32 ? static_cast<void*>(step.values.data()) : step.halves.data();
  kv.num_blocks = step.width * static_cast<int>(step.sequences.size());
  kv.type = type;
  kv.num_layers = 1;
  kv.num_kv_heads = step.kv_heads;
  kv.block_size = step.block;
  kv.head_dim = step.dim;
  kv.format = format;
  if (format != SealedFormat::kNone) step.seal(runtime, kv);
  BatchView batch;
  batch.positions = step.positions.data();
  batch.query_start = step.starts.data();
  batch.block_tables = step.tables.data();
  batch.num_tokens = step.tokens;
  batch.num_requests = static_cast<int>(step.sequences.size());
  batch.max_blocks = step.width;
  batch.window = step.window;
  check_batch(batch, kv);
  paged_attention(runtime, query.data(), out.data(), step.heads, kv, 0, batch);
  // int8 arithmetic with VNNI, int16 elsewhere. Single elements of the former have tails, so what binds is the norm.
  const bool bytes = std::string_view(runtime.kernels().name) == "avx512_vnni";
  const double rounded = bytes ? 0.15 : 2e-3;
  const double limit = runtime.precision() == Precision::kExact ? 2e-5 : rounded;
  // What a sealed block reads back as is rounded to fp16 here, and not in the kernels.
  const double rounding = format == SealedFormat::kNone ? 0 : 3e-3;
  const std::vector<double> wanted = step.attend(query);
  expect_close("attention", runtime, largest_difference(out, wanted), limit + rounding);
  if (bytes) expect_close("attention by norm", runtime, difference_by_norm(out, wanted), 0.04 + rounding);
  std::vector<float> sums(index(batch.num_requests, step.width), 0.0f);
  attention_mass(runtime, query.data(), step.heads, kv, 0, batch, step.tokens, sums.data());
  expect_close("attention mass", runtime, largest_difference(sums, step.mass(query)), 1e-3 + 50 * rounding);
}

}  // namespace ostinato::check
