// Python bindings. Whatever takes long releases the GIL; a look-up of one row, or of the embeddings of up to 32 tokens, is
// over sooner than the lock could be taken back, and keeps it. Arrays are checked for type and contiguity by their signatures, and
// for shape and for what they index before any kernel runs: a wrong call raises ValueError and reads nothing.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "checks.hpp"
#include "crc32c.hpp"
#include "decoder_ops.hpp"
#include "kv_bindings.hpp"
#include "running.hpp"
#include "sampling_bindings.hpp"
#include "sha256.hpp"

namespace nb = nanobind;
using namespace ostinato;

namespace {

template <class T, int N>
using Array = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
using Floats2 = Array<float, 2>;
using Floats3 = Array<float, 3>;
using ConstFloats1 = Array<const float, 1>;
using ConstFloats2 = Array<const float, 2>;
using ConstFloats3 = Array<const float, 3>;
using ConstInts1 = Array<const std::int32_t, 1>;
using ConstInts2 = Array<const std::int32_t, 2>;
using ConstLongs1 = Array<const std::int64_t, 1>;

std::vector<float> to_vector(const ConstFloats1& from) { return {from.data(), from.data() + from.size()}; }

WeightFormat parse_format(const std::string& name) {
  if (name == "int4" || name == "int4_minimum") return WeightFormat::kInt4;
  if (name == "int8" || name == "int8_minimum") return WeightFormat::kInt8;
  if (name == "fp16") return WeightFormat::kFloat16;
  if (name == "fp32") return WeightFormat::kFloat32;
  throw std::invalid_argument("unknown weight format '" + name + "'");
}

RowEncoding parse_encoding(const std::string& name) {
  if (name == "Q4_0") return RowEncoding::kQ4_0;
  if (name == "Q4_1") return RowEncoding::kQ4_1;
  if (name == "Q5_0") return RowEncoding::kQ5_0;
  if (name == "Q5_1") return RowEncoding::kQ5_1;
  if (name == "Q8_0") return RowEncoding::kQ8_0;
  if (name == "F32") return RowEncoding::kFloat32;
  if (name == "F16") return RowEncoding::kFloat16;
  throw std::invalid_argument("unknown row encoding '" + name + "'");
}

// `rows` (n, bytes a row) uint8 go to the matrix rows `targets` (n).
void put_rows(PackedMatrix& matrix, const std::string& encoding_name, Array<const std::uint8_t, 2> rows,
              ConstInts1 targets) {
  const RowEncoding encoding = parse_encoding(encoding_name);
  if (rows.shape(1) != encoded_row_bytes(encoding, matrix.view().cols) || rows.shape(0) != targets.shape(0)) {
    throw std::invalid_argument("rows do not fit the matrix");
  }
  check_range(targets.data(), checked_int(targets.size()), matrix.view().rows, "a row lies outside the matrix");
  nb::gil_scoped_release release;
  for (std::size_t i = 0; i < rows.shape(0); ++i) {
    matrix.put(targets.data()[i], encoding, rows.data() + i * rows.shape(1));
  }
}

void bind_weights(nb::module_& m) {
  nb::class_<PackedMatrix>(m, "PackedMatrix")
      .def("__init__", [](PackedMatrix* self, const std::string& format, int rows, int cols) {
        constexpr int kMost = 1 << 28;
        require(rows >= 1 && cols >= 1 && rows <= kMost && cols <= kMost, "a matrix needs rows and columns");
        const bool with_minimum = format == "int4_minimum" || format == "int8_minimum";
        new (self) PackedMatrix(parse_format(format), with_minimum, rows, cols);
      }, nb::arg("format"), nb::arg("rows"), nb::arg("cols"))
      .def("put", &put_rows, nb::arg(), nb::arg().noconvert(), nb::arg().noconvert())
      .def("get", [](const PackedMatrix& self, int row, Array<float, 1> out) {
        require(row >= 0 && row < self.view().rows, "a row lies outside the matrix");
        require(checked_int(out.size()) == self.view().cols, "get: wrong size");
        self.get(row, out.data());
      }, nb::arg(), nb::arg().noconvert())
      // The packed form itself, to keep it on disk and to take it back.
      .def("get_bytes", [](const PackedMatrix& self, Array<std::uint8_t, 1> out) {
        if (out.size() != self.nbytes()) throw std::invalid_argument("get_bytes: wrong size");
        nb::gil_scoped_release release;
        std::memcpy(out.data(), self.data(), self.nbytes());
      }, nb::arg().noconvert())
      .def("set_bytes", [](PackedMatrix& self, Array<const std::uint8_t, 1> from) {
        if (from.size() != self.nbytes()) throw std::invalid_argument("set_bytes: wrong size");
        nb::gil_scoped_release release;
        self.assign(from.data());
      })
      .def_prop_ro("nbytes", &PackedMatrix::nbytes);
}

int window_of(std::optional<int> sliding_window) {
  require(!sliding_window || *sliding_window >= 1, "a sliding window must be positive");
  return sliding_window ? std::min(*sliding_window, kNoWindow) : kNoWindow;
}

using Matrix = std::shared_ptr<PackedMatrix>;
using Vector = std::optional<ConstFloats1>;

void make_layer(LayerWeights* self, const DecoderShape& shape, int intermediate, ConstFloats1 attention_norm,
                ConstFloats1 mlp_norm, Matrix qkv, Matrix output, Matrix gate_up, Matrix down, Vector bias,
                Vector q_norm, Vector k_norm) {
  LayerWeights layer{shape, to_vector(attention_norm), to_vector(mlp_norm), {},   {},          {},
                     qkv,   output,                    gate_up,             down, intermediate};
  if (bias) layer.qkv_bias = to_vector(*bias);
  if (q_norm) layer.q_norm = to_vector(*q_norm);
  if (k_norm) layer.k_norm = to_vector(*k_norm);
  check_layer(layer);
  new (self) LayerWeights(std::move(layer));
}

void make_rope(RopeTables* self, ConstFloats2 cos, ConstFloats2 sin) {
  require(cos.shape(0) == sin.shape(0) && cos.shape(1) == sin.shape(1), "cos and sin differ in shape");
  const int rows = checked_int(cos.shape(0)), half = checked_int(cos.shape(1));
  new (self) RopeTables{{cos.data(), cos.data() + cos.size()}, {sin.data(), sin.data() + sin.size()}, rows, half};
}

void bind_layers(nb::module_& m) {
  nb::class_<DecoderShape>(m, "DecoderShape")
      .def("__init__", [](DecoderShape* self, int hidden_size, int num_heads, int num_kv_heads, int head_dim,
                          float rms_norm_eps, float attention_scale, std::optional<int> sliding_window) {
        const DecoderShape shape{hidden_size,  num_heads,       num_kv_heads,             head_dim,
                                 rms_norm_eps, attention_scale, window_of(sliding_window)};
        check_shape(shape);
        new (self) DecoderShape(shape);
      }, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
         nb::arg("sliding_window").none() = nb::none());
  nb::class_<LayerWeights>(m, "LayerWeights")
      .def("__init__", &make_layer, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
           nb::arg(), nb::arg("qkv_bias").none() = nb::none(), nb::arg("q_norm").none() = nb::none(),
           nb::arg("k_norm").none() = nb::none());
  nb::class_<HeadWeights>(m, "HeadWeights")
      .def("__init__", [](HeadWeights* self, float eps, ConstFloats1 norm, Matrix embedding, Matrix output) {
        HeadWeights head{eps, to_vector(norm), embedding, output, {}};
        check_head(head);
        const nb::gil_scoped_release release;
        if (is_integer(output->view().format)) head.output_bounds = output->row_bounds();
        new (self) HeadWeights(std::move(head));
      });
  nb::class_<RopeTables>(m, "RopeTables").def("__init__", &make_rope);
}

using Bytes2 = Array<std::uint8_t, 2>;

template <class A>
bool has_shape(const A& array, std::size_t rows, int cols) {
  return array.shape(0) == rows && array.shape(1) == static_cast<std::size_t>(cols);
}

template <class A>
bool has_shape(const A& array, std::size_t tokens, int heads, int dim) {
  return has_shape(array, tokens, heads) && array.shape(2) == static_cast<std::size_t>(dim);
}

void run_embed(Runtime& self, const HeadWeights& head, ConstInts1 ids, Floats2 hidden) {
  const MatrixView& embedding = head.embedding->view();
  const int tokens = checked_int(ids.size());
  require(has_shape(hidden, ids.size(), embedding.cols), "embed: shapes do not fit");
  check_range(ids.data(), tokens, embedding.rows, "a token id lies outside the vocabulary");
  // The rows of a decode step are looked up sooner than the lock could be taken back from a thread that serves HTTP.
  constexpr int kMostUnderLock = 32;
  std::optional<nb::gil_scoped_release> release;
  if (tokens > kMostUnderLock) release.emplace();
  const std::lock_guard alone(self.turn());
  embed(self, head, ids.data(), tokens, hidden.data());
}

// KV is a KVArray or a QuantisedKV, here and below.
template <class KV>
void run_qkv(Runtime& self, const LayerWeights& layer, const RopeTables& rope, ConstFloats2 hidden,
             ConstInts1 positions, ConstLongs1 slots, const KV& kv, int index, Floats3 query) {
  const KVCacheView view = kv_view(kv);
  const DecoderShape& shape = layer.shape;
  const std::size_t size = positions.size();
  const int tokens = checked_int(size);
  require(has_shape(hidden, size, shape.hidden_size) && slots.size() == size &&
              has_shape(query, size, shape.num_heads, shape.head_dim) && rope.half == shape.head_dim / 2,
          "qkv: shapes do not fit");
  check_kv(view, shape.num_kv_heads, shape.head_dim, index);
  check_range(positions.data(), tokens, rope.max_position, "a position lies beyond the rotation tables");
  check_slots(slots.data(), tokens, view);
  const Running running(self);
  qkv(self, layer, rope, hidden.data(), positions.data(), slots.data(), tokens, view, index, query.data());
}

BatchView batch_view(const ConstInts1& positions, const ConstInts1& query_start, const ConstInts2& block_tables) {
  BatchView batch;
  batch.positions = positions.data();
  batch.query_start = query_start.data();
  batch.block_tables = block_tables.data();
  batch.num_tokens = checked_int(positions.size());
  batch.num_requests = checked_int(block_tables.shape(0));
  batch.max_blocks = checked_int(block_tables.shape(1));
  return batch;
}

BatchView checked_batch(const DecoderShape& shape, ConstInts1 positions, ConstInts1 query_start,
                        ConstInts2 block_tables, const KVCacheView& kv, int index) {
  require(query_start.size() >= 1 && block_tables.shape(0) + 1 == query_start.size(),
          "attention: a request needs a row of block_tables and an end in query_start");
  check_kv(kv, shape.num_kv_heads, shape.head_dim, index);
  BatchView batch = batch_view(positions, query_start, block_tables);
  batch.window = shape.window;
  check_batch(batch, kv);
  return batch;
}

template <class KV>
void run_attention(Runtime& self, const LayerWeights& layer, ConstFloats3 query, ConstInts1 positions,
                   ConstInts1 query_start, ConstInts2 block_tables, const KV& kv, int index, Floats3 output) {
  const KVCacheView view = kv_view(kv);
  const DecoderShape& shape = layer.shape;
  require(has_shape(query, positions.size(), shape.num_heads, shape.head_dim) &&
              has_shape(output, positions.size(), shape.num_heads, shape.head_dim),
          "attention: shapes do not fit");
  const BatchView batch = checked_batch(shape, positions, query_start, block_tables, view, index);
  const Running running(self);
  paged_attention(self, query.data(), output.data(), shape.num_heads, view, index, batch);
}

template <class KV>
void run_all_layers(Runtime& self, nb::list layers, const RopeTables& rope, Floats2 hidden, ConstInts1 positions,
                    ConstLongs1 slots, ConstInts1 query_start, ConstInts2 block_tables, ConstInts1 wanted,
                    const KV& kv) {
  const KVCacheView view = kv_view(kv);
  const std::size_t size = positions.size();
  require(slots.size() == size && query_start.size() >= 1 && block_tables.shape(0) + 1 == query_start.size(),
          "layers: shapes do not fit");
  BatchView batch = batch_view(positions, query_start, block_tables);
  check_range(positions.data(), batch.num_tokens, rope.max_position, "a position lies beyond the rotation tables");
  check_slots(slots.data(), batch.num_tokens, view);
  const TokenList rows{wanted.data(), checked_int(wanted.size())};
  check_range(rows.tokens, rows.count, batch.num_tokens, "logits of a token that is not there");
  std::vector<const LayerWeights*> all;
  for (nb::handle item : layers) {
    const LayerWeights& layer = nb::cast<const LayerWeights&>(item);
    const DecoderShape& shape = layer.shape;
    require(has_shape(hidden, size, shape.hidden_size) && rope.half == shape.head_dim / 2,
            "layers: shapes do not fit");
    check_kv(view, shape.num_kv_heads, shape.head_dim, checked_int(all.size()));
    require(all.empty() || shape.num_heads == all.front()->shape.num_heads, "layers: heads differ");
    // The widest window reads every block that a narrower one does.
    batch.window = all.empty() ? shape.window : std::max(batch.window, shape.window);
    all.push_back(&layer);
  }
  check_batch(batch, view);
  const Running running(self);
  run_layers(self, all, rope, batch, slots.data(), rows, view, hidden.data());
}

template <class KV>
void run_attention_mass(Runtime& self, const LayerWeights& layer, ConstFloats3 query, ConstInts1 positions,
                        ConstInts1 query_start, ConstInts2 block_tables, const KV& kv, int index, int observed,
                        Floats2 sums) {
  const KVCacheView view = kv_view(kv);
  const DecoderShape& shape = layer.shape;
  require(has_shape(query, positions.size(), shape.num_heads, shape.head_dim) && observed >= 0 &&
              sums.shape(0) == block_tables.shape(0) && sums.shape(1) == block_tables.shape(1),
          "attention_mass: shapes do not fit");
  const BatchView batch = checked_batch(shape, positions, query_start, block_tables, view, index);
  const Running running(self);
  attention_mass(self, query.data(), shape.num_heads, view, index, batch, observed, sums.data());
}

void run_attention_output(Runtime& self, const LayerWeights& layer, ConstFloats3 context, Floats2 hidden) {
  const DecoderShape& shape = layer.shape;
  const int tokens = checked_int(context.shape(0));
  require(has_shape(context, context.shape(0), shape.num_heads, shape.head_dim) &&
              has_shape(hidden, context.shape(0), shape.hidden_size),
          "attention_output: shapes do not fit");
  const Running running(self);
  attention_output(self, layer, context.data(), tokens, hidden.data());
}

void run_mlp(Runtime& self, const LayerWeights& layer, Floats2 hidden) {
  const int tokens = checked_int(hidden.shape(0));
  require(has_shape(hidden, hidden.shape(0), layer.shape.hidden_size), "mlp: shapes do not fit");
  const Running running(self);
  mlp(self, layer, tokens, hidden.data());
}

void run_logits(Runtime& self, const HeadWeights& head, ConstFloats2 hidden, ConstInts1 indices,
                std::optional<Array<const bool, 1>> argmax_only, Floats2 out) {
  const MatrixView& weights = head.output->view();
  const int count = checked_int(indices.size());
  require(has_shape(hidden, hidden.shape(0), weights.cols) && has_shape(out, indices.size(), weights.rows) &&
              (!argmax_only || argmax_only->size() == indices.size()),
          "logits: shapes do not fit");
  check_range(indices.data(), count, static_cast<std::int64_t>(hidden.shape(0)), "logits of a token that is not there");
  const bool* argmax = argmax_only ? argmax_only->data() : nullptr;
  const Running running(self);
  logits(self, head, hidden.data(), {indices.data(), count}, argmax, out.data());
}

// x @ weightsᵀ; for tests and measurements.
void run_linear(Runtime& self, const PackedMatrix& weights, ConstFloats2 x, Floats2 out) {
  const MatrixView& view = weights.view();
  if (checked_int(x.shape(1)) != view.cols || checked_int(out.shape(1)) != view.rows || x.shape(0) != out.shape(0)) {
    throw std::invalid_argument("shapes do not fit");
  }
  const int tokens = checked_int(x.shape(0));
  const Running running(self);
  const Activations a = self.prepare(0, x.data(), tokens, view.cols, nullptr, 0.0f, view);
  linear(self, a, view, tokens, 64, [&](const Piece& p) {
    for (int t = 0; t < p.tokens; ++t) {
      float* row = out.data() + static_cast<std::ptrdiff_t>(p.token + t) * view.rows;
      std::copy_n(p.tile + t * p.stride, p.rows, row + p.row);
    }
  });
}

void run_hash_blocks(nb::bytes tag, nb::bytes parent, Array<const std::uint32_t, 1> tokens, int block_size,
                     Bytes2 out) {
  if (block_size < 1) throw std::invalid_argument("block_size must be at least 1");
  const auto size = static_cast<std::size_t>(block_size), blocks = tokens.size() / size;
  if (out.shape(0) != blocks || out.shape(1) != 32) throw std::invalid_argument("out must be (blocks, 32)");
  const auto* tag_data = reinterpret_cast<const std::uint8_t*>(tag.c_str());
  const auto* parent_data = reinterpret_cast<const std::uint8_t*>(parent.c_str());
  const std::size_t tag_size = tag.size(), parent_size = parent.size();
  nb::gil_scoped_release release;
  hash_blocks(tag_data, tag_size, parent_data, parent_size, tokens.data(), size, blocks, out.data());
}

std::uint32_t run_crc32c(Array<const std::uint8_t, 1> data) {
  nb::gil_scoped_release release;
  return crc32c(data.data(), data.size());
}

void bind_operations(nb::module_& m) {
  // Not converted: a kernel would write to the converted copy.
  const auto any = nb::arg();
  const auto same = nb::arg().noconvert();
  nb::class_<Runtime> runtime(m, "Runtime");
  runtime
      .def("__init__", [](Runtime* self, int threads, const std::string& isa, bool exact) {
        require(threads >= 0 && threads <= 1024, "threads must be between 0, for all CPUs, and 1024");
        new (self) Runtime(threads, isa.c_str(), exact ? Precision::kExact : Precision::kFast);
      }, nb::arg("threads") = 0, nb::arg("isa") = "", nb::arg("exact") = false)
      .def_prop_ro("isa", [](const Runtime& self) { return self.kernels().name; })
      .def_prop_ro("threads", [](Runtime& self) { return self.pool().size(); })
      .def("embed", &run_embed, any, same, same)
      .def("qkv", &run_qkv<KVArray>, any, any, same, same, same, same, any, same)
      .def("qkv", &run_qkv<QuantisedKV>, any, any, same, same, same, any, any, same)
      .def("attention", &run_attention<KVArray>, any, same, same, same, same, same, any, same)
      .def("attention", &run_attention<QuantisedKV>, any, same, same, same, same, any, any, same)
      .def("attention_mass", &run_attention_mass<KVArray>, any, same, same, same, same, same, any, any, same)
      .def("attention_mass", &run_attention_mass<QuantisedKV>, any, same, same, same, same, any, any, any, same)
      .def("attention_output", &run_attention_output, any, same, same)
      .def("mlp", &run_mlp, any, same)
      .def("layers", &run_all_layers<KVArray>, any, any, same, same, same, same, same, same, same)
      .def("layers", &run_all_layers<QuantisedKV>, any, any, same, same, same, same, same, same, any)
      .def("logits", &run_logits, any, same, same, nb::arg().noconvert().none(), same)
      .def("linear", &run_linear, any, same, same);
  bind_sampling(runtime);
  m.def("usable_cpus", &usable_cpus);
  m.def("hash_blocks", &run_hash_blocks, any, any, same, any, same);
  m.def("crc32c", &run_crc32c, same);
}

}  // namespace

NB_MODULE(_native, m) {
  // A process that ends while a model is loaded (a cached one, a global) has leaked nothing that matters.
  nb::set_leak_warnings(false);
  bind_weights(m);
  bind_layers(m);
  bind_kv(m);
  bind_operations(m);
}
