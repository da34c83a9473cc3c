// Kernels against plain loops in double, without Python: for cross-built targets (run under an emulator) and for the
// sanitizers (make test-sanitize). Exit status 0 if all agree.
#include "check.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>

namespace ostinato::check {
namespace {

std::mt19937 random_bits(1);
int failed = 0;

}  // namespace

float uniform(float low, float high) { return std::uniform_real_distribution<float>(low, high)(random_bits); }

int pick(std::initializer_list<int> from) {
  return from.begin()[std::uniform_int_distribution<std::size_t>(0, from.size() - 1)(random_bits)];
}

std::vector<float> random_values(std::size_t count, float low, float high) {
  std::vector<float> values(count);
  for (float& v : values) v = uniform(low, high);
  return values;
}

void expect_close(const char* what, const Runtime& runtime, double error, double limit) {
  if (error <= limit) return;
  ++failed;
  std::printf("%s on %s: error %g, allowed %g\n", what, runtime.kernels().name, error, limit);
}

void expect(const char* what, bool holds) {
  if (holds) return;
  ++failed;
  std::printf("%s\n", what);
}

int failures() { return failed; }

double largest_difference(const std::vector<float>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double error = std::fabs(a[i] - b[i]);
    worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(worst, error);
  }
  return worst;
}

double difference_by_norm(const std::vector<float>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  if (std::isnan(difference)) return std::numeric_limits<double>::infinity();
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

std::vector<double> widen(const std::vector<float>& values) { return {values.begin(), values.end()}; }

Weights::Weights(WeightFormat format, bool minimum, int rows, int cols)
    : packed(format, minimum, rows, cols), values(random_values(index(rows, cols))), rows(rows), cols(cols) {
  for (int r = 0; r < rows; ++r) {
    packed.put(r, RowEncoding::kFloat32, values.data() + index(r, cols));
    packed.get(r, values.data() + index(r, cols));
  }
}

std::vector<double> Weights::times(const std::vector<double>& x, int tokens) const {
  std::vector<double> out(index(tokens, rows));
  for (int t = 0; t < tokens; ++t) {
    for (int r = 0; r < rows; ++r) {
      double sum = 0;
      for (int k = 0; k < cols; ++k) sum += values[index(r, cols, k)] * x[index(t, cols, k)];
      out[index(t, rows, r)] = sum;
    }
  }
  return out;
}

void check_linear(Runtime& runtime) {
  const struct { WeightFormat format; bool minimum; } forms[] = {{WeightFormat::kFloat32, false},
                                                                 {WeightFormat::kFloat16, false},
                                                                 {WeightFormat::kInt8, false},
                                                                 {WeightFormat::kInt8, true},
                                                                 {WeightFormat::kInt4, false},
                                                                 {WeightFormat::kInt4, true}};
  for (const auto& form : forms) {
    const int rows = pick({1, 16, 40, 100}), cols = pick({5, 32, 96, 300}), tokens = pick({1, 3, 7, 16, 17, 70});
    const Weights weights(form.format, form.minimum, rows, cols);
    const std::vector<float> x = random_values(index(tokens, cols));
    const MatrixView& view = weights.packed.view();
    const Activations a = runtime.prepare(0, x.data(), tokens, cols, nullptr, 0.0f, view);
    std::vector<float> out(index(tokens, rows), std::numeric_limits<float>::quiet_NaN());
    linear(runtime, a, view, tokens, 64, [&](const Piece& p) {
      for (int t = 0; t < p.tokens; ++t) {
        std::copy_n(p.tile + t * p.stride, p.rows, out.data() + index(p.token + t, rows, p.row));
      }
    });
    const double limit = runtime.precision() == Precision::kExact ? 1e-4 : 0.01 * std::sqrt(cols);
    expect_close("linear", runtime, largest_difference(out, weights.times(widen(x), tokens)), limit);
  }
}

}  // namespace ostinato::check

int main(int argc, char** argv) {
  using namespace ostinato;
  int checked = 0;
  check::check_hashing();
  check::check_checksums();
  check::check_refusals();
  for (const char* isa : {"avx2", "avx512", "avx512_vnni", "neon"}) {
    if (find_kernels(isa) == nullptr || (argc > 1 && std::string_view(argv[1]) != isa)) continue;
    for (const Precision precision : {Precision::kExact, Precision::kFast}) {
      Runtime runtime(2, isa, precision);
      for (int i = 0; i < 30; ++i) {
        check::check_linear(runtime);
        check::check_attention(runtime);
        check::check_decoder(runtime);
        check::check_sampling(runtime);
        check::check_drawing(runtime);
      }
      std::printf("%s %s checked\n", isa, precision == Precision::kExact ? "exact" : "fast");
      ++checked;
    }
  }
  check::expect("no kernels were checked", checked > 0);
  return check::failures() == 0 ? 0 : 1;
}
