// What the checks share: random inputs, and a verdict.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <vector>

#include "matrix.hpp"
#include "runtime.hpp"

namespace ostinato::check {

float uniform(float low, float high);
int pick(std::initializer_list<int> from);
std::vector<float> random_values(std::size_t count, float low = -1, float high = 1);

// Counts and prints a failure unless error <= limit (NaN fails).
void expect_close(const char* what, const Runtime& runtime, double error, double limit);
void expect(const char* what, bool holds);
int failures();

inline std::size_t index(int row, int cols, int col = 0) {
  return static_cast<std::size_t>(row) * static_cast<std::size_t>(cols) + static_cast<std::size_t>(col);
}

// The largest difference of two arrays; infinite if there is a NaN.
double largest_difference(const std::vector<float>& a, const std::vector<double>& b);
// The norm of their difference as a share of the norm of b; infinite if there is a NaN.
double difference_by_norm(const std::vector<float>& a, const std::vector<double>& b);

// A packed matrix, and its values as they read back.
struct Weights {
  PackedMatrix packed;
  std::vector<float> values;
  int rows;
  int cols;

  Weights(WeightFormat format, bool minimum, int rows, int cols);
  // x @ weightsᵀ for `tokens` rows.
  std::vector<double> times(const std::vector<double>& x, int tokens) const;
};

std::vector<double> widen(const std::vector<float>& values);

void check_linear(Runtime&);
void check_attention(Runtime&);
void check_decoder(Runtime&);
void check_sampling(Runtime&);
void check_drawing(Runtime&);
void check_hashing();
void check_checksums();
void check_refusals();

}  // namespace ostinato::check
