// Packed weights: a MatrixView and the memory behind it.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "kernels.hpp"

namespace ostinato {

// Encodings a row can come in. The first three repack without loss into kInt4 (Q4_0, Q4_1) and kInt8 (Q8_0).
enum class RowEncoding { kQ4_0, kQ4_1, kQ8_0, kFloat32, kFloat16 };

std::size_t encoded_row_bytes(RowEncoding encoding, int cols);

class PackedMatrix {
 public:
  // All rows are zero until put. `with_minimum` is for kInt4 only: without it weights are scale * (q - 8).
  PackedMatrix(WeightFormat format, bool with_minimum, int rows, int cols);

  const MatrixView& view() const { return view_; }
  std::size_t nbytes() const;
  const std::uint8_t* data() const { return view_.data; }

  // Throws std::invalid_argument if this format cannot take the encoding: integer formats take their own encodings
  // and fp32 (quantised here, to the nearest), float formats take fp32 and fp16.
  void put(int row, RowEncoding encoding, const void* from);

  // Takes nbytes() bytes that data() once held, of a matrix of the same format and size.
  void assign(const std::uint8_t* from);

  // Row `row` as fp32.
  void get(int row, float* to) const;

 private:
  std::uint8_t* group(int row, int index);
  void put_int4(int row, int index, const std::uint8_t* q, std::uint16_t scale, std::uint16_t minimum);
  void put_int8(int row, int index, const std::int8_t* q, std::uint16_t scale);
  void put_float_as_int(int row, const float* from);

  std::shared_ptr<std::uint8_t> memory_;
  MatrixView view_;
};

// IEEE half to and from float, for the places that are not worth a kernel.
float half_to_float(std::uint16_t bits);
std::uint16_t float_to_half(float value);

}  // namespace ostinato
