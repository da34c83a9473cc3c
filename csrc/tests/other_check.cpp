// Sampling, hashing, and what must be refused.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.hpp"
#include "checks.hpp"
#include "crc32c.hpp"
#include "sampling.hpp"
#include "sha256.hpp"

namespace ostinato::check {

void check_sampling(Runtime& runtime) {
  const int rows = pick({1, 3}), vocab = pick({1, 63, 64, 65, 700}), k = std::min(vocab, pick({1, 5, 700}));
  std::vector<float> values = random_values(index(rows, vocab), -20, 20);
  for (float& v : values) v = std::round(v);  // so that there are ties
  std::vector<std::int32_t> ids(index(rows, k));
  std::vector<float> best(index(rows, k)), sums(static_cast<std::size_t>(rows));
  top_k(runtime, values.data(), rows, vocab, k, 0.5f, ids.data(), best.data(), sums.data());
  std::vector<double> wanted;
  for (int r = 0; r < rows; ++r) {
    const float* row = values.data() + index(r, vocab);
    std::vector<std::int32_t> order(static_cast<std::size_t>(vocab));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return row[a] > row[b]; });
    expect("top-k is the head of a stable sort", std::equal(ids.data() + index(r, k), ids.data() + index(r + 1, k),
                                                            order.begin()));
    double total = 0;
    for (int i = 0; i < vocab; ++i) total += std::exp(0.5 * row[i]);
    wanted.push_back(std::log(total));
  }
  expect_close("log-sum", runtime, largest_difference(sums, wanted), 1e-4);
}

void check_drawing(Runtime& runtime) {
  const int rows = pick({1, 3}), vocab = pick({1, 64, 65, 257, 700}), count = 8;
  std::vector<float> values = random_values(index(rows, vocab), -20, 20);
  for (float& v : values) v = std::round(v);
  std::vector<std::int32_t> from, ids(count);
  std::vector<Draw> draws;
  for (int n = 0; n < count; ++n) {
    const double uniform = random_values(1, 0, 1).front();
    from.push_back(n % rows);
    draws.push_back({pick({1, 7}) * 0.5f, pick({0, 1, 5, 300}), pick({0, 0, 1}) * 0.1f, pick({1, 2}) * 0.5, uniform});
  }
  draw(runtime, values.data(), vocab, from.data(), draws.data(), count, ids.data());
  for (int n = 0; n < count; ++n) {
    const float* row = values.data() + index(from[static_cast<std::size_t>(n)], vocab);
    const Draw& d = draws[static_cast<std::size_t>(n)];
    const int id = ids[static_cast<std::size_t>(n)];
    expect("a drawn token exists", id >= 0 && id < vocab);
    const auto before = std::count_if(row, row + vocab, [&](float v) { return v > row[id]; });
    expect("a drawn token is among the k likeliest", d.top_k <= 0 || before < d.top_k);
    const double relative = std::exp((row[id] - *std::max_element(row, row + vocab)) / d.temperature);
    expect("a drawn token is probable enough", relative >= d.min_p * 0.999);
  }
}

namespace {

std::string hex(const std::uint8_t* bytes) {
  std::string text;
  for (int i = 0; i < 32; ++i) {
    text += "0123456789abcdef"[bytes[i] >> 4];
    text += "0123456789abcdef"[bytes[i] & 15];
  }
  return text;
}

// SHA-256 of a text whose length is a multiple of 4, split anywhere into tag, parent and tokens.
std::string hash_of(const std::string& text, std::size_t tag, std::size_t parent) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(text.data());
  const std::size_t tokens = (text.size() - tag - parent) / 4;
  std::vector<std::uint32_t> words(tokens);
  std::memcpy(words.data(), bytes + tag + parent, 4 * tokens);
  std::array<std::uint8_t, 32> out{};
  hash_blocks(bytes, tag, bytes + tag, parent, words.data(), tokens, 1, out.data());
  return hex(out.data());
}

template <class Call>
void expect_refused(const char* what, const Call& call) {
  try {
    call();
  } catch (const std::invalid_argument&) {
    return;
  }
  expect(what, false);
}

}  // namespace

void check_hashing() {
  // Test vectors of FIPS 180-4's examples, and of a message that needs a second chunk for its length.
  const std::string two = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
  const std::string wanted = "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1";
  for (const std::size_t tag : {0, 1, 17, 20}) {
    for (const std::size_t parent : {3, 11, 32}) {
      if ((tag + parent) % 4 == 0) expect("SHA-256 of FIPS 180-4's message", hash_of(two, tag, parent) == wanted);
    }
  }
  expect("SHA-256 of FIPS 180-4's message in one piece", hash_of(two, 0, 0) == wanted);
  expect("SHA-256 of abcd", hash_of("abcd", 0, 0) ==
                                "88d4266fd4e6338d13b845fcf289579d209c897823b9217da3e161936f031589");
}

void check_checksums() {
  const std::string digits = "123456789";
  expect("CRC-32C of RFC 3720's kind", crc32c(reinterpret_cast<const std::uint8_t*>(digits.data()), 9) == 0xe3069283);
  std::vector<std::uint8_t> zeros(32, 0);
  expect("CRC-32C of RFC 3720's zeros", crc32c(zeros.data(), zeros.size()) == 0x8a9136aa);
  std::vector<std::uint8_t> data(30000);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::uint8_t>(i * i >> 3);
  for (const std::size_t size : {0, 1, 7, 8, 100, 12287, 12288, 12289, 24576, 29990}) {
    for (const std::size_t start : {0, 1, 5}) {
      expect("CRC-32C with the CPU's instruction",
             crc32c(data.data() + start, size) == crc32c_portable(data.data() + start, size));
    }
  }
}

void check_refusals() {
  KVCacheView kv;
  kv.num_blocks = 4;
  kv.num_layers = 1;
  kv.num_kv_heads = 1;
  kv.block_size = 4;
  kv.head_dim = 16;
  std::vector<std::int32_t> positions{4, 5, 6}, starts{0, 3}, table{9, 3};
  BatchView batch;
  batch.positions = positions.data();
  batch.query_start = starts.data();
  batch.block_tables = table.data();
  batch.num_tokens = 3;
  batch.num_requests = 1;
  batch.max_blocks = 2;
  expect_refused("a block that does not exist", [&] { check_batch(batch, kv); });
  batch.window = 1;
  check_batch(batch, kv);  // outside of the window it is never read
  positions[2] = 8;
  expect_refused("a position beyond the table", [&] { check_batch(batch, kv); });
  positions[2] = 4;
  expect_refused("positions that do not ascend", [&] { check_batch(batch, kv); });
  expect_refused("a layer that does not exist", [&] { check_kv(kv, 1, 16, 1); });
  const std::int64_t slots[] = {0, 16, -1};
  check_range(slots, 2, 17, "in range");
  expect_refused("a slot past the end", [&] { check_range(slots, 2, 16, ""); });
  expect_refused("a negative slot", [&] { check_range(slots, 3, 17, ""); });
  positions[2] = 6;
  table[0] = 2;
  std::vector<std::int32_t> open_slot{0, -1, 1, -1};
  kv.open_slot = open_slot.data();
  kv.num_open = 2;
  check_batch(batch, kv);
  check_slots(slots, 1, kv);
  const std::int64_t sealed[] = {0, 4};
  expect_refused("a slot of a sealed block", [&] { check_slots(sealed, 2, kv); });
  open_slot[3] = 2;
  expect_refused("an open block that does not exist", [&] { check_batch(batch, kv); });
}

}  // namespace ostinato::check
