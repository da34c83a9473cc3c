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

std::size_t encoded_row_bytes(RowEncoding encoding, int cols) {
  const auto n = static_cast<std::size_t>(cols), groups = (n + kGroup - 1) / kGroup;
  switch (encoding) {
    case RowEncoding::kQ4_0: return groups * 18;
    case RowEncoding::kQ4_1: return groups * 20;
    case RowEncoding::kQ8_0: return groups * 34;
    case RowEncoding::kFloat16: return n * 2;
    case RowEncoding::kFloat32: return n * 4;
  }
  return 0;
}

PackedMatrix::PackedMatrix(WeightFormat format, bool with_minimum, int rows, int cols) {
  view_.format = format;
  view_.rows = rows;
  view_.cols = cols;
  view_.groups = (cols + kGroup - 1) / kGroup;
  view_.has_minimum = with_minimum && format == WeightFormat::kInt4;
  const auto cells = static_cast<std::size_t>(view_.groups) * kGroup * kPanel;
  if (format == WeightFormat::kInt4 || format == WeightFormat::kInt8) {
    view_.zero_point = format == WeightFormat::kInt8 ? 128 : view_.has_minimum ? 0 : 8;
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

// q holds 32 values of 0..15.
void PackedMatrix::put_int4(int row, int index, const std::uint8_t* q, std::uint16_t scale_bits,
                            std::uint16_t minimum) {
  auto* scales = reinterpret_cast<std::uint16_t*>(group(row, index)) + row % kPanel;
  scales[0] = scale_bits;
  if (view_.has_minimum) scales[kPanel] = minimum;
  std::uint8_t* to = group(row, index) + view_.header_bytes() + row % kPanel * 4;
  for (int k = 0; k < kGroup / 2; ++k) {
    to[k / 4 * 64 + k % 4] = static_cast<std::uint8_t>(q[k] | q[k + kGroup / 2] << 4);
  }
}

void PackedMatrix::put_int8(int row, int index, const std::int8_t* q, std::uint16_t scale_bits) {
  reinterpret_cast<std::uint16_t*>(group(row, index))[row % kPanel] = scale_bits;
  std::uint8_t* to = group(row, index) + view_.header_bytes() + row % kPanel * 4;
  for (int k = 0; k < kGroup; ++k) to[k / 4 * 64 + k % 4] = static_cast<std::uint8_t>(q[k] + 128);
}

void PackedMatrix::put_float_as_int(int row, const float* from) {
  for (int g = 0; g < view_.groups; ++g) {
    float x[kGroup] = {};
    std::copy_n(from + g * kGroup, std::min(kGroup, view_.cols - g * kGroup), x);
    const auto [low, high] = std::minmax_element(x, x + kGroup);
    const float largest = std::max(std::fabs(*low), std::fabs(*high));
    const bool int8 = view_.format == WeightFormat::kInt8;
    const float exact = int8 ? largest / 127.0f : view_.has_minimum ? (*high - *low) / 15.0f : largest / 7.0f;
    const std::uint16_t bits = float_to_half(exact), minimum = float_to_half(*low);
    const float unit = half_to_float(bits), inverse = unit > 0.0f ? 1.0f / unit : 0.0f;
    const float zero = int8 ? 0.0f : view_.has_minimum ? -half_to_float(minimum) * inverse : 8.0f;
    std::int8_t signed_q[kGroup];
    std::uint8_t q[kGroup];
    for (int k = 0; k < kGroup; ++k) {
      const float value = std::nearbyint(x[k] * inverse + zero);
      signed_q[k] = static_cast<std::int8_t>(std::clamp(value, -127.0f, 127.0f));
      q[k] = static_cast<std::uint8_t>(std::clamp(value, 0.0f, 15.0f));
    }
    int8 ? put_int8(row, g, signed_q, bits) : put_int4(row, g, q, bits, minimum);
  }
}

void PackedMatrix::put(int row, RowEncoding encoding, const void* from) {
  if (row < 0 || row >= view_.rows) throw std::invalid_argument("packed row out of range");
  const bool int4 = view_.format == WeightFormat::kInt4, int8 = view_.format == WeightFormat::kInt8;
  if ((int4 || int8) && encoding == RowEncoding::kFloat32) {
    return put_float_as_int(row, static_cast<const float*>(from));
  }
  const auto* bytes = static_cast<const std::uint8_t*>(from);
  if (int8 && encoding == RowEncoding::kQ8_0) {
    for (int g = 0; g < view_.groups; ++g, bytes += 34) {
      put_int8(row, g, reinterpret_cast<const std::int8_t*>(bytes + 2), read_u16(bytes));
    }
    return;
  }
  if (int4 && (encoding == RowEncoding::kQ4_1 ? view_.has_minimum : encoding == RowEncoding::kQ4_0)) {
    const int header = encoding == RowEncoding::kQ4_1 ? 4 : 2;
    for (int g = 0; g < view_.groups; ++g, bytes += header + kGroup / 2) {
      std::uint8_t q[kGroup];
      for (int k = 0; k < kGroup / 2; ++k) {
        q[k] = bytes[header + k] & 15;
        q[k + kGroup / 2] = bytes[header + k] >> 4;
      }
      const std::uint16_t bits = read_u16(bytes);
      put_int4(row, g, q, bits, header == 4 ? read_u16(bytes + 2) : float_to_half(-8.0f * half_to_float(bits)));
    }
    return;
  }
  const bool half = encoding == RowEncoding::kFloat16;
  if (int4 || int8 || !(half || encoding == RowEncoding::kFloat32)) {
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

}  // namespace ostinato
