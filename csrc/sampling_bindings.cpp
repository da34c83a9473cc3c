#include "sampling_bindings.hpp"

#include <nanobind/ndarray.h>

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "checks.hpp"
#include "running.hpp"
#include "sampling.hpp"

namespace nb = nanobind;

namespace ostinato {
namespace {

template <class T, int N>
using Array = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;

void run_top_k(Runtime& self, Array<const float, 2> logits, float scale, Array<std::int32_t, 2> ids,
               Array<float, 2> values, Array<float, 1> log_sums) {
  const std::size_t rows = logits.shape(0), k = ids.shape(1);
  if (k < 1 || k > logits.shape(1) || ids.shape(0) != rows || values.shape(0) != rows || values.shape(1) != k ||
      log_sums.size() != rows || !(scale >= 0)) {
    throw std::invalid_argument("top_k: shapes do not fit");
  }
  const int count = checked_int(rows), vocab = checked_int(logits.shape(1)), best = checked_int(k);
  const Running running(self);
  top_k(self, logits.data(), count, vocab, best, scale, ids.data(), values.data(), log_sums.data());
}

void run_find_largest(Runtime& self, Array<const float, 2> logits, float limit, Array<std::int32_t, 1> ids,
                      Array<bool, 1> within) {
  const std::size_t rows = logits.shape(0);
  require(ids.size() == rows && within.size() == rows && logits.shape(1) >= 1, "find_largest: shapes do not fit");
  const int count = checked_int(rows), vocab = checked_int(logits.shape(1));
  const Running running(self);
  find_largest(self, logits.data(), count, vocab, limit, ids.data(), within.data());
}

void run_draw(Runtime& self, Array<const float, 2> logits, Array<const std::int32_t, 1> rows,
              Array<const float, 1> temperatures, Array<const std::int32_t, 1> top_ks, Array<const float, 1> min_ps,
              Array<const double, 1> top_ps, Array<const double, 1> uniforms, Array<std::int32_t, 1> ids) {
  const std::size_t count = ids.size();
  if (rows.size() != count || temperatures.size() != count || top_ks.size() != count || min_ps.size() != count ||
      top_ps.size() != count || uniforms.size() != count || logits.shape(1) < 1) {
    throw std::invalid_argument("draw: shapes do not fit");
  }
  std::vector<Draw> draws;
  for (std::size_t i = 0; i < count; ++i) {
    if (rows(i) < 0 || static_cast<std::size_t>(rows(i)) >= logits.shape(0) || !(temperatures(i) > 0)) {
      throw std::invalid_argument("draw: no such row, or a temperature that is not positive");
    }
    draws.push_back({temperatures(i), top_ks(i), min_ps(i), top_ps(i), uniforms(i)});
  }
  const int vocab = checked_int(logits.shape(1)), drawn = checked_int(count);
  const Running running(self);
  draw(self, logits.data(), vocab, rows.data(), draws.data(), drawn, ids.data());
}

}  // namespace

void bind_sampling(nb::class_<Runtime>& runtime) {
  const auto any = nb::arg();
  const auto same = nb::arg().noconvert();
  runtime.def("top_k", &run_top_k, same, any, same, same, same)
      .def("find_largest", &run_find_largest, same, any, same, same)
      .def("draw", &run_draw, same, same, same, same, same, same, same, same);
}

}  // namespace ostinato
