#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "decoder_ops.hpp"

namespace ostinato {
namespace {

constexpr int kUnit = 64;         // rows of a piece
constexpr int kReadingRows = 4;  // so few take as long as reading the weights does, with their second parts or without

std::size_t at(int row, int cols) { return static_cast<std::size_t>(row) * static_cast<std::size_t>(cols); }

// RMSNorm of a row, cut in two: `first` is what int8 in groups of 32 keeps of it, `second` the rest.
void split_row(const float* row, const float* norm, float epsilon, int cols, float* first, float* second) {
  float squares = 0;
  for (int k = 0; k < cols; ++k) squares += row[k] * row[k];
  const float inverse = 1.0f / std::sqrt(squares / static_cast<float>(cols) + epsilon);
  for (int begin = 0; begin < cols; begin += kGroup) {
    const int end = std::min(cols, begin + kGroup);
    float largest = 0;
    for (int k = begin; k < end; ++k) {
      second[k] = row[k] * inverse * norm[k];
      largest = std::max(largest, std::fabs(second[k]));
    }
    const float unit = largest / 127.0f, steps = largest > 0 ? 127.0f / largest : 0.0f;
    for (int k = begin; k < end; ++k) {
      constexpr float kToInteger = 0x1.8p23f;  // added and taken away again, it rounds; nearbyint() is a call here
      first[k] = (second[k] * steps + kToInteger - kToInteger) * unit;
      second[k] -= first[k];
    }
  }
}

// The Euclidean length of a row after it has been rounded to int8 in groups of 32, at most: a group's rounding error is
// at most sqrt(32) / 254 of its own length.
float rounded_length(const float* row, int cols) {
  double squares = 0;
  for (int k = 0; k < cols; ++k) squares += static_cast<double>(row[k]) * static_cast<double>(row[k]);
  return 1.03f * static_cast<float>(std::sqrt(squares));
}

// Rows of which only the largest logit is wanted. Their second parts meet only those weights that could make the
// largest: a logit moves by at most the length of its weights times that of the second part (Cauchy-Schwarz).
class ArgmaxRows {
 public:
  ArgmaxRows(const MatrixView& weights, const std::vector<float>& bounds) : weights_(weights), bounds_(bounds) {}

  int count() const { return static_cast<int>(outs_.size()); }

  // A row's second part, and where its logits go.
  void add(const float* second, float* out) {
    seconds_.insert(seconds_.end(), second, second + weights_.cols);
    lengths_.push_back(rounded_length(second, weights_.cols));
    outs_.push_back(out);
  }

  void begin() {
    const std::size_t units = (static_cast<std::size_t>(weights_.rows) + kUnit - 1) / kUnit;
    lower_.resize(units * outs_.size());
    upper_.resize(units * outs_.size());
  }

  // Logits of the first parts of rows [row, row + rows) of this list, rows [p.row, p.row + p.rows) of the weights.
  void take(const KernelTable& kernels, const Piece& p, const float* tile, int row, int rows) {
    for (int t = 0; t < rows; ++t) {
      std::copy_n(tile + t * p.stride, p.rows, outs_[static_cast<std::size_t>(row + t)] + p.row);
    }
    const std::size_t to = at(p.row / kUnit, count()) + static_cast<std::size_t>(row);
    kernels.largest_within(tile, p.stride, rows, p.rows, bounds_.data() + p.row, lengths_.data() + row,
                           lower_.data() + to, upper_.data() + to);
  }

  void finish(Runtime& runtime) {
    find();
    const Activations x = runtime.prepare(1, seconds_.data(), count(), weights_.cols, nullptr, 0.0f, weights_);
    runtime.pool().parallel_for(static_cast<int>(found_.size()), [&](int i, int worker) {
      const Candidate& c = found_[static_cast<std::size_t>(i)];
      float* scratch = runtime.scratch(worker, kGemmScratch + kPanel);
      float* tile = scratch + kGemmScratch;
      runtime.kernels().gemm(weights_, x, c.row, 1, c.panel, 1, tile, kPanel, scratch);
      float* to = outs_[static_cast<std::size_t>(c.row)] + c.panel * kPanel;
      std::transform(to, to + rows_of(c.panel), tile, to, std::plus<>());
    });
  }

 private:
  struct Candidate {
    int row;
    int panel;
  };

  int rows_of(int panel) const { return std::min(kPanel, weights_.rows - panel * kPanel); }

  // Panels with a logit that could be the largest of a row.
  void find() {
    const std::size_t n = outs_.size();
    std::vector<float> least(n, -std::numeric_limits<float>::infinity());  // what the largest is not below
    for (std::size_t i = 0; i < lower_.size(); i += n) {
      for (std::size_t row = 0; row < n; ++row) least[row] = std::max(least[row], lower_[i + row]);
    }
    for (std::size_t i = 0; i < upper_.size(); ++i) {
      const std::size_t row = i % n;
      if (upper_[i] >= least[row]) find_panels(static_cast<int>(i / n), static_cast<int>(row), least[row]);
    }
  }

  void find_panels(int unit, int row, float least) {
    const float* out = outs_[static_cast<std::size_t>(row)];
    const float length = lengths_[static_cast<std::size_t>(row)];
    const int first = unit * (kUnit / kPanel), end = std::min(first + kUnit / kPanel, weights_.panels());
    for (int panel = first; panel < end; ++panel) {
      const int begin = panel * kPanel;
      const auto could = [&](int r) { return out[r] + bounds_[static_cast<std::size_t>(r)] * length >= least; };
      bool any = false;
      for (int r = begin; r < begin + rows_of(panel); ++r) any = any || could(r);
      if (any) found_.push_back({row, panel});
    }
  }

  const MatrixView& weights_;
  const std::vector<float>& bounds_;  // by row of the weights
  std::vector<float> seconds_;
  std::vector<float> lengths_;
  std::vector<float*> outs_;
  std::vector<float> lower_;  // [unit][row], the largest logit less what its second part may take away
  std::vector<float> upper_;  // the largest logit and what its second part may add
  std::vector<Candidate> found_;
};

void plain_logits(Runtime& runtime, const HeadWeights& head, const float* hidden, const TokenList& wanted, float* out) {
  const MatrixView& weights = head.output->view();
  std::vector<float> rows(at(wanted.count, weights.cols));
  for (int i = 0; i < wanted.count; ++i) {
    std::copy_n(hidden + at(wanted.tokens[i], weights.cols), weights.cols, rows.data() + at(i, weights.cols));
  }
  const Activations x = runtime.prepare(0, rows.data(), wanted.count, weights.cols, head.final_norm.data(),
                                        head.rms_norm_eps, weights);
  linear(runtime, x, weights, wanted.count, kUnit, [&](const Piece& p) {
    for (int t = 0; t < p.tokens; ++t) {
      std::copy_n(p.tile + t * p.stride, p.rows, out + at(p.token + t, weights.rows) + p.row);
    }
  });
}

// Rounding errors of this product reach the probabilities undamped: a third of all that int8 costs arises here. So each
// row is rounded twice, the second time what the first left over; both meet the same weights in one pass. Rows of which
// only the largest is wanted go last, and without their second parts, if there are enough of them.
void rounded_logits(Runtime& runtime, const HeadWeights& head, const float* hidden, const TokenList& wanted,
                    const bool* argmax_only, float* out) {
  const MatrixView& weights = head.output->view();
  const int cols = weights.cols;
  std::vector<float> rows, second(static_cast<std::size_t>(cols));
  std::vector<float*> wholes;  // rows of `out`
  ArgmaxRows argmax(weights, head.output_bounds);
  const auto add_first = [&](int i) {
    rows.resize(rows.size() + second.size());
    split_row(hidden + at(wanted.tokens[i], cols), head.final_norm.data(), head.rms_norm_eps, cols,
              rows.data() + rows.size() - second.size(), second.data());
  };
  const bool pays = argmax_only != nullptr && std::count(argmax_only, argmax_only + wanted.count, true) > kReadingRows;
  const auto is_argmax = [&](int i) { return pays && argmax_only[i]; };
  for (int i = 0; i < wanted.count; ++i) {
    if (is_argmax(i)) continue;
    add_first(i);
    rows.insert(rows.end(), second.begin(), second.end());
    wholes.push_back(out + at(i, weights.rows));
  }
  for (int i = 0; i < wanted.count; ++i) {
    if (!is_argmax(i)) continue;
    add_first(i);
    argmax.add(second.data(), out + at(i, weights.rows));
  }
  argmax.begin();
  const int pairs = 2 * static_cast<int>(wholes.size()), count = pairs + argmax.count();
  const Activations x = runtime.prepare(0, rows.data(), count, cols, nullptr, 0.0f, weights);
  linear(runtime, x, weights, count, kUnit, [&](const Piece& p) {
    // Blocks of tokens are even, so both parts of a row are in one piece.
    const int paired = std::clamp(pairs - p.token, 0, p.tokens);
    for (int t = 0; t < paired; t += 2) {
      const float* tile = p.tile + t * p.stride;
      float* to = wholes[static_cast<std::size_t>(p.token + t) / 2] + p.row;
      std::transform(tile, tile + p.rows, tile + p.stride, to, std::plus<>());
    }
    if (paired < p.tokens) {
      argmax.take(runtime.kernels(), p, p.tile + paired * p.stride, p.token + paired - pairs, p.tokens - paired);
    }
  });
  if (argmax.count() > 0) argmax.finish(runtime);
}

}  // namespace

void logits(Runtime& runtime, const HeadWeights& head, const float* hidden, const TokenList& wanted,
            const bool* argmax_only, float* out) {
  if (runtime.rounds(head.output->view())) {
    rounded_logits(runtime, head, hidden, wanted, argmax_only, out);
  } else {
    plain_logits(runtime, head, hidden, wanted, out);
  }
}

}  // namespace ostinato
