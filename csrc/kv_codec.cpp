#include "kv_codec.hpp"

#include <vector>

namespace ostinato {
namespace {

// f(part, rows, record) for every record: where its elements and its bytes begin.
template <class F>
void each_record(const KVCacheView& shape, F f) {
  const RecordLayout layout = shape.record_layout();
  const std::ptrdiff_t elements = static_cast<std::ptrdiff_t>(shape.block_size) * shape.head_dim;
  std::ptrdiff_t rows = 0, record = 0;
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    for (int head = 0; head < 2 * shape.num_kv_heads; ++head) {
      const KVPart part = head < shape.num_kv_heads ? KVPart::kKeys : KVPart::kValues;
      f(part, rows, record);
      rows += elements;
      record += layout.bytes(part);
    }
  }
}

}  // namespace

void seal_block(const KernelTable& kernels, const KVCacheView& shape, const std::uint16_t* block, int num_tokens,
                std::uint8_t* sealed) {
  each_record(shape, [&](KVPart part, std::ptrdiff_t rows, std::ptrdiff_t record) {
    kernels.seal_record(shape.record_layout(), part, block + rows, num_tokens, sealed + record);
  });
}

void open_block(const KernelTable& kernels, const KVCacheView& shape, const std::uint8_t* sealed,
                std::uint16_t* block) {
  std::vector<float> scratch(static_cast<std::size_t>(shape.block_size) * static_cast<std::size_t>(shape.head_dim));
  each_record(shape, [&](KVPart part, std::ptrdiff_t rows, std::ptrdiff_t record) {
    kernels.open_record(shape.record_layout(), part, sealed + record, block + rows, scratch.data());
  });
}

}  // namespace ostinato
