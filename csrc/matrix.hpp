// Packed weights: a MatrixView and the memory behind it.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "kernels.hpp"

namespace ostinato {

// Encodings a row can come in. Q4 repacks without loss into kInt4, and all quantised ones into kInt8; those with a minimum
// of their own (Q4_1, Q5_1) only where the matrix has minima.
enum class RowEncoding { kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kFloat32, kFloat16 };

std::size_t encoded_row_bytes(RowEncoding encoding, int cols);

class PackedMatrix {
 public:
  // All rows are zero until put. `with_minimum` is for integer formats only: weights are scale * q + minimum, and without
  // it scale * (q - 8) for kInt4 and scale * (q - 128) for kInt8.
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

  // For each row a number n with |row . x| <= n * ||x||, where row . x is what an integer product computes. Integer
  // formats only.
  std::vector<float> row_bounds() const;

 private:
  std::uint8_t* group(int row, int index);
  void put_group(int row, int index, const std::uint8_t* q, std::uint16_t scale, std::uint16_t minimum);
  void put_blocks(int row, RowEncoding encoding, const std::uint8_t* from);
  void put_float_as_int(int row, const float* from);

  std::shared_ptr<std::uint8_t> memory_;
  MatrixView view_;
};

// IEEE half to and from float, for the places that are not worth a kernel.
float half_to_float(std::uint16_t bits);
std::uint16_t float_to_half(float value);

}  // namespace ostinato
