// K/V memory as Python gives it: one array, or the three of a quantised memory.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <string>

#include "attention.hpp"

namespace ostinato {

// (blocks, layers, 2, kv heads, block size, head dim), fp16 or fp32.
using KVArray = nanobind::ndarray<nanobind::ndim<6>, nanobind::c_contig, nanobind::device::cpu>;

// Keeps the arrays of a cache.quantised_storage.QuantisedKVStorage alive, and their view. open_slot may change between
// calls; the arrays themselves stay.
class QuantisedKV {
 public:
  using Bytes = nanobind::ndarray<std::uint8_t, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;
  using Slots = nanobind::ndarray<std::int32_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

  // `format` is "fp8", "int8" or "int4". Throws std::invalid_argument if the arrays do not fit each other.
  QuantisedKV(const std::string& format, KVArray open, Bytes sealed, Slots open_slot);

  const KVCacheView& view() const { return view_; }

 private:
  KVArray open_;
  Bytes sealed_;
  Slots open_slot_;
  KVCacheView view_;
};

// Throws std::invalid_argument if the array is not K/V.
KVCacheView kv_view(const KVArray& array);
inline KVCacheView kv_view(const QuantisedKV& kv) { return kv.view(); }

void bind_kv(nanobind::module_&);

}  // namespace ostinato
