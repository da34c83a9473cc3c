#include "kv_bindings.hpp"

#include <nanobind/stl/string.h>

#include <stdexcept>

#include "checks.hpp"
#include "kv_codec.hpp"

namespace nb = nanobind;

namespace ostinato {
namespace {

using BlockArray = nb::ndarray<nb::ndim<5>, nb::c_contig, nb::device::cpu>;
using ConstBlockArray = nb::ndarray<nb::ro, nb::ndim<5>, nb::c_contig, nb::device::cpu>;
using ByteArray = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ConstByteArray = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

SealedFormat parse_sealed_format(const std::string& name) {
  if (name == "fp8") return SealedFormat::kFp8;
  if (name == "int8") return SealedFormat::kInt8;
  if (name == "int4") return SealedFormat::kInt4;
  throw std::invalid_argument("unknown format of sealed K/V '" + name + "'");
}

template <class A>
bool has_type(const A& array, std::size_t bytes) {
  return array.dtype().code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float) && array.itemsize() == bytes;
}

// Dimensions (layers, 2, kv heads, block size, head dim) from `first` on.
template <class A>
KVCacheView block_view(const A& array, std::size_t first) {
  require(array.shape(first + 1) == 2, "K/V must be (layers, 2, kv heads, block size, head dim)");
  KVCacheView view;
  view.num_layers = checked_int(array.shape(first));
  view.num_kv_heads = checked_int(array.shape(first + 2));
  view.block_size = checked_int(array.shape(first + 3));
  view.head_dim = checked_int(array.shape(first + 4));
  return view;
}

// What the codec's kernels take, and what an int may count.
void check_sealed_shape(const KVCacheView& view) {
  constexpr std::int64_t kMost = 1 << 28;
  require(view.block_size >= 1 && view.num_kv_heads >= 1 && view.num_layers >= 1, "K/V blocks must hold something");
  require(view.head_dim >= 16 && view.head_dim % 16 == 0, "head_dim must be a multiple of 16");
  require(static_cast<std::int64_t>(view.block_size) * view.head_dim <= kMost, "a block is too large");
}

template <class Block, class Bytes>
KVCacheView codec_view(const std::string& format, const Block& block, const Bytes& sealed) {
  require(has_type(block, 2), "blocks to seal must be of fp16");
  KVCacheView view = block_view(block, 0);
  view.format = parse_sealed_format(format);
  check_sealed_shape(view);
  require(sealed.size() == static_cast<std::size_t>(view.sealed_bytes()), "a sealed block has another size");
  return view;
}

const KernelTable& best_kernels(const std::string& isa) {
  const KernelTable* table = find_kernels(isa.c_str());
  require(table != nullptr, "this CPU runs no kernels of that name");
  return *table;
}

void run_seal(const std::string& format, ConstBlockArray block, int num_tokens, ByteArray out, const std::string& isa) {
  const KVCacheView view = codec_view(format, block, out);
  require(num_tokens >= 1 && num_tokens <= view.block_size, "a block cannot hold that many tokens");
  const KernelTable& kernels = best_kernels(isa);
  nb::gil_scoped_release release;
  seal_block(kernels, view, static_cast<const std::uint16_t*>(block.data()), num_tokens, out.data());
}

void run_open(const std::string& format, ConstByteArray data, BlockArray out, const std::string& isa) {
  const KVCacheView view = codec_view(format, out, data);
  const KernelTable& kernels = best_kernels(isa);
  nb::gil_scoped_release release;
  open_block(kernels, view, data.data(), static_cast<std::uint16_t*>(out.data()));
}

}  // namespace

KVCacheView kv_view(const KVArray& array) {
  require(has_type(array, 2) || has_type(array, 4), "K/V must be of fp16 or fp32");
  KVCacheView view = block_view(array, 1);
  view.data = array.data();
  view.num_blocks = checked_int(array.shape(0));
  view.type = array.itemsize() == 2 ? KVType::kFloat16 : KVType::kFloat32;
  return view;
}

QuantisedKV::QuantisedKV(const std::string& format, KVArray open, Bytes sealed, Slots open_slot)
    : open_(std::move(open)), sealed_(std::move(sealed)), open_slot_(std::move(open_slot)), view_(kv_view(open_)) {
  require(view_.type == KVType::kFloat16, "open K/V blocks must be of fp16");
  view_.num_open = view_.num_blocks;
  view_.num_blocks = checked_int(open_slot_.size());
  view_.format = parse_sealed_format(format);
  check_sealed_shape(view_);
  require(sealed_.shape(0) == open_slot_.size(), "there must be an entry of open_slot for each sealed block");
  require(sealed_.shape(1) == static_cast<std::size_t>(view_.sealed_bytes()), "a sealed block has another size");
  view_.sealed = sealed_.data();
  view_.open_slot = open_slot_.data();
}

void bind_kv(nb::module_& m) {
  const auto same = nb::arg().noconvert();
  nb::class_<QuantisedKV>(m, "QuantisedKV")
      .def(nb::init<const std::string&, KVArray, QuantisedKV::Bytes, QuantisedKV::Slots>(), nb::arg("format"),
           nb::arg("open").noconvert(), nb::arg("sealed").noconvert(), nb::arg("open_slot").noconvert());
  m.def("seal_block", &run_seal, nb::arg(), same, nb::arg(), same, nb::arg("isa") = "");
  m.def("open_block", &run_open, nb::arg(), same, same, nb::arg("isa") = "");
}

}  // namespace ostinato
