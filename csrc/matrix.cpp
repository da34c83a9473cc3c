#include "matrix.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "huge_memory.hpp"

namespace ostinato {
namespace {

std::uint16_t read_u16(const std::uint8_t* p) {
  std::uint16_t value;
  std::memcpy(&value, p, 2);
  return value;
}

// Sums over the codes of a group of 16 rows, and over their squares; by byte of a line, as the compiler vectorises it.
class CodeSums {
 public:
  CodeSums(const std::uint8_t* codes, WeightFormat format) {
    const bool int4 = format == WeightFormat::kInt4;
    for (int line = 0; line < kGroup / (int4 ? 8 : 4); ++line, codes += kLine) {
      if (int4) {
        add(codes, [](std::uint8_t byte) { return static_cast<std::uint8_t>(byte & 15); });
        add(codes, [](std::uint8_t byte) { return static_cast<std::uint8_t>(byte >> 4); });
      } else {
        add(codes, [](std::uint8_t byte) { return byte; });
      }
    }
  }

  double codes(int lane) const { return of_lane(codes_, lane); }
  double squares(int lane) const { return of_lane(squares_, lane); }

 private:
  static constexpr int kLine = 4 * kPanel;

  template <class Code>
  void add(const std::uint8_t* line, Code&& code) {
    for (int i = 0; i < kLine; ++i) {
      const std::uint16_t value = code(line[i]);
      codes_[i] += value;
      squares_[i] += static_cast<std::uint16_t>(value * value);
    }
  }

  static double of_lane(const std::uint32_t* sums, int lane) {
    return sums[4 * lane] + sums[4 * lane + 1] + sums[4 * lane + 2] + sums[4 * lane + 3];
  }

  std::uint32_t codes_[kLine] = {};
  std::uint32_t squares_[kLine] = {};
};

}  // namespace

float half_to_float(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000) << 16, magnitude = bits & 0x7fff;
  float value;
  if (magnitude < 0x0400) {
    value = static_cast<float>(magnitude) * 0x1p-24f;
  } else {
    const bool finite = magnitude < 0x7c00;
    const std::uint32_t wide = finite ? (magnitude + 0x1c000) << 13 : 0x7f800000u | (magnitude & 0x3ff) << 13;
    std::memcpy(&value, &wide, 4);
  }
  return sign != 0 ? -value : value;
}

std::uint16_t float_to_half(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return sign | 0x7e00;
  if (bits >= 0x477ff000) return sign | 0x7c00;  // rounds to infinity
  if (bits < 0x38800000) {                       // subnormal: let the adder round to a multiple of 2^-24
    float magnitude;
    std::memcpy(&magnitude, &bits, 4);
    return static_cast<std::uint16_t>(sign | static_cast<std::uint16_t>(std::nearbyint(magnitude * 0x1p24f)));
  }
  bits += 0xfff + (bits >> 13 & 1);  // to nearest, ties to even
  return static_cast<std::uint16_t>(sign | static_cast<std::uint16_t>((bits - 0x38000000) >> 13));
}

namespace {

// A block of 32 codes of a file: weight = scale * (q - zero), or scale * q + minimum.
struct BlockForm {
  int bytes;
  int bits;  // of a code; 0 if the encoding has no blocks
  int zero;
  bool has_minimum;
};

constexpr BlockForm block_form(RowEncoding encoding) {
  switch (encoding) {
    case RowEncoding::kQ4_0: return {18, 4, 8, false};
    case RowEncoding::kQ4_1: return {20, 4, 0, true};
    case RowEncoding::kQ5_0: return {22, 5, 16, false};
    case RowEncoding::kQ5_1: return {24, 5, 0, true};
    case RowEncoding::kQ8_0: return {34, 8, 128, false};
    case RowEncoding::kFloat32:
    case RowEncoding::kFloat16: break;
  }
  return {};
}

// The codes that stand behind scale and minimum, plus `shift`. The layout is ggml's (ggml-common.h): of 4 bits, q[k] and
// q[k + 16] share a byte; of 5 bits, the fifth ones come first, 32 in a word; of 8 bits they are signed.
void read_codes(int bits, const std::uint8_t* from, int shift, std::uint8_t* q) {
  if (bits == 8) {
    for (int k = 0; k < kGroup; ++k) q[k] = static_cast<std::uint8_t>((from[k] ^ 0x80) + shift);
    return;
  }
  std::uint32_t fifth = 0;
  if (bits == 5) {
    std::memcpy(&fifth, from, 4);
    from += 4;
  }
  for (int k = 0; k < kGroup / 2; ++k) {
    const std::uint32_t low = (from[k] & 15u) | (fifth >> k & 1u) << 4;
    const std::uint32_t high = from[k] >> 4 | (fifth >> (k + 16) & 1u) << 4;
    q[k] = static_cast<std::uint8_t>(static_cast<int>(low) + shift);
    q[k + kGroup / 2] = static_cast<std::uint8_t>(static_cast<int>(high) + shift);
  }
}

}  // namespace

std::size_t encoded_row_bytes(RowEncoding encoding, int cols) {
  const auto n = static_cast<std::size_t>(cols), groups = (n + kGroup - 1) / kGroup;
  if (encoding == RowEncoding::kFloat32) return n * 4;
  if (encoding == RowEncoding::kFloat16) return n * 2;
  return groups * static_cast<std::size_t>(block_form(encoding).bytes);
}

PackedMatrix::PackedMatrix(WeightFormat format, bool with_minimum, int rows, int cols) {
  view_.format = format;
  view_.rows = rows;
  view_.cols = cols;
  view_.groups = (cols + kGroup - 1) / kGroup;
  view_.has_minimum = with_minimum && is_integer(format);
  const auto cells = static_cast<std::size_t>(view_.groups) * kGroup * kPanel;
  if (is_integer(format)) {
    view_.zero_point = view_.has_minimum ? 0 : format == WeightFormat::kInt8 ? 128 : 8;
    view_.panel_bytes = static_cast<std::size_t>(view_.groups) * static_cast<std::size_t>(view_.group_bytes());
  } else {
    view_.panel_bytes = cells * (format == WeightFormat::kFloat16 ? 2 : 4);
  }
  memory_ = allocate_huge(nbytes());
  view_.data = memory_.get();
}

std::size_t PackedMatrix::nbytes() const { return view_.panel_bytes * static_cast<std::size_t>(view_.panels()); }

std::uint8_t* PackedMatrix::group(int row, int index) {
  return memory_.get() + static_cast<std::size_t>(row / kPanel) * view_.panel_bytes +
         static_cast<std::size_t>(index) * static_cast<std::size_t>(view_.group_bytes());
}

// q holds 32 codes, from 0 on. Without minima `minimum` is not used.
void PackedMatrix::put_group(int row, int index, const std::uint8_t* q, std::uint16_t scale, std::uint16_t minimum) {
  auto* scales = reinterpret_cast<std::uint16_t*>(group(row, index)) + row % kPanel;
  scales[0] = scale;
  if (view_.has_minimum) scales[kPanel] = minimum;
  std::uint8_t* to = group(row, index) + view_.header_bytes() + row % kPanel * 4;
  if (view_.format == WeightFormat::kInt8) {
    for (int k = 0; k < kGroup; k += 4) std::memcpy(to + k * kPanel, q + k, 4);
    return;
  }
  for (int k = 0; k < kGroup / 2; ++k) {
    to[k / 4 * 64 + k % 4] = static_cast<std::uint8_t>(q[k] | q[k + kGroup / 2] << 4);
  }
}

void PackedMatrix::put_float_as_int(int row, const float* from) {
  const bool int8 = view_.format == WeightFormat::kInt8;
  const float top = int8 ? 255.0f : 15.0f, zero_point = static_cast<float>(view_.zero_point);
  const float least = view_.has_minimum || !int8 ? 0.0f : 1.0f;  // -128 would have no counterpart
  for (int g = 0; g < view_.groups; ++g) {
    float x[kGroup] = {};
    std::copy_n(from + g * kGroup, std::min(kGroup, view_.cols - g * kGroup), x);
    const auto [low, high] = std::minmax_element(x, x + kGroup);
    const float largest = std::max(std::fabs(*low), std::fabs(*high));
    const float exact = view_.has_minimum ? (*high - *low) / top : largest / (top - zero_point);
    const std::uint16_t bits = float_to_half(exact), minimum = float_to_half(*low);
    const float unit = half_to_float(bits), inverse = unit > 0.0f ? 1.0f / unit : 0.0f;
    const float zero = view_.has_minimum ? -half_to_float(minimum) * inverse : zero_point;
    std::uint8_t q[kGroup];
    for (int k = 0; k < kGroup; ++k) {
      q[k] = static_cast<std::uint8_t>(std::clamp(std::nearbyint(x[k] * inverse + zero), least, top));
    }
    put_group(row, g, q, bits, minimum);
  }
}

// Rows of a quantised encoding whose codes fit the format's: nothing is rounded.
void PackedMatrix::put_blocks(int row, RowEncoding encoding, const std::uint8_t* from) {
  const BlockForm form = block_form(encoding);
  const int header = form.has_minimum ? 4 : 2;
  const int shift = view_.has_minimum ? 0 : view_.zero_point - form.zero;
  for (int g = 0; g < view_.groups; ++g, from += form.bytes) {
    const std::uint16_t scale = read_u16(from);
    std::uint8_t q[kGroup];
    read_codes(form.bits, from + header, shift, q);
    // A power of two times the scale: exact.
    put_group(row, g, q, scale,
              form.has_minimum ? read_u16(from + 2) : float_to_half(-static_cast<float>(form.zero) * half_to_float(scale)));
  }
}

void PackedMatrix::put(int row, RowEncoding encoding, const void* from) {
  if (row < 0 || row >= view_.rows) throw std::invalid_argument("packed row out of range");
  const BlockForm form = block_form(encoding);
  const int most_bits = view_.format == WeightFormat::kInt4 ? 4 : view_.format == WeightFormat::kInt8 ? 8 : 0;
  if (most_bits > 0 && encoding == RowEncoding::kFloat32) {
    return put_float_as_int(row, static_cast<const float*>(from));
  }
  if (form.bits > 0 && form.bits <= most_bits && (view_.has_minimum || !form.has_minimum)) {
    return put_blocks(row, encoding, static_cast<const std::uint8_t*>(from));
  }
  const bool half = encoding == RowEncoding::kFloat16;
  if (most_bits > 0 || form.bits > 0) {
    throw std::invalid_argument("this packed format cannot take rows of that encoding");
  }
  std::uint8_t* panel = memory_.get() + static_cast<std::size_t>(row / kPanel) * view_.panel_bytes;
  for (int k = 0; k < view_.cols; ++k) {
    const int cell = k * kPanel + row % kPanel;
    if (view_.format == WeightFormat::kFloat32) {
      reinterpret_cast<float*>(panel)[cell] =
          half ? half_to_float(static_cast<const std::uint16_t*>(from)[k]) : static_cast<const float*>(from)[k];
    } else {
      reinterpret_cast<std::uint16_t*>(panel)[cell] =
          half ? static_cast<const std::uint16_t*>(from)[k] : float_to_half(static_cast<const float*>(from)[k]);
    }
  }
}

void PackedMatrix::assign(const std::uint8_t* from) { std::memcpy(memory_.get(), from, nbytes()); }

void PackedMatrix::get(int row, float* to) const {
  const std::uint8_t* panel = view_.panel(row / kPanel);
  const int lane = row % kPanel;
  if (view_.format == WeightFormat::kFloat32 || view_.format == WeightFormat::kFloat16) {
    for (int k = 0; k < view_.cols; ++k) {
      const int cell = k * kPanel + lane;
      if (view_.format == WeightFormat::kFloat32) {
        to[k] = reinterpret_cast<const float*>(panel)[cell];
      } else {
        to[k] = half_to_float(reinterpret_cast<const std::uint16_t*>(panel)[cell]);
      }
    }
    return;
  }
  const bool int4 = view_.format == WeightFormat::kInt4;
  for (int g = 0; g < view_.groups; ++g, panel += view_.group_bytes()) {
    const auto* scales = reinterpret_cast<const std::uint16_t*>(panel) + lane;
    const std::uint8_t* q = panel + view_.header_bytes() + lane * 4;
    const float unit = half_to_float(scales[0]);
    const float minimum =
        view_.has_minimum ? half_to_float(scales[kPanel]) : -unit * static_cast<float>(view_.zero_point);
    for (int k = 0; k < std::min(kGroup, view_.cols - g * kGroup); ++k) {
      const int cell = int4 ? k % 16 : k;
      const std::uint8_t byte = q[cell / 4 * 64 + cell % 4];
      const int value = !int4 ? byte : k < 16 ? byte & 15 : byte >> 4;
      to[g * kGroup + k] = unit * static_cast<float>(value) + minimum;
    }
  }
}

// The Euclidean length of each row, and what fp32 may add to it: as many roundings as there are groups, each of at most
// 2^-24 of terms that are not larger than the row would be with its largest codes and without signs.
std::vector<float> PackedMatrix::row_bounds() const {
  std::vector<float> bounds(static_cast<std::size_t>(view_.panels()) * kPanel);
  const double most = view_.format == WeightFormat::kInt4 ? 15.0 : 255.0;
  const double roundings = 4.0 * (view_.groups + 4) * 0x1p-24;
  for (int p = 0; p < view_.panels(); ++p) {
    const std::uint8_t* at = view_.panel(p);
    double squares[kPanel] = {}, largest[kPanel] = {};
    for (int g = 0; g < view_.groups; ++g, at += view_.group_bytes()) {
      const auto* scales = reinterpret_cast<const std::uint16_t*>(at);
      const CodeSums sums(at + view_.header_bytes(), view_.format);
      for (int lane = 0; lane < kPanel; ++lane) {
        const double unit = half_to_float(scales[lane]);
        const double least = view_.has_minimum ? half_to_float(scales[kPanel + lane]) : -unit * view_.zero_point;
        const double above = std::fabs(unit) * most + std::fabs(least);
        squares[lane] +=
            unit * unit * sums.squares(lane) + 2 * unit * least * sums.codes(lane) + kGroup * least * least;
        largest[lane] += kGroup * above * above;
      }
    }
    for (int lane = 0; lane < kPanel; ++lane) {
      bounds[static_cast<std::size_t>(p * kPanel + lane)] = static_cast<float>(
          1.0001 * std::sqrt(std::max(squares[lane], 0.0)) + roundings * std::sqrt(largest[lane]));
    }
  }
  bounds.resize(static_cast<std::size_t>(view_.rows));
  return bounds;
}

}  // namespace ostinato
