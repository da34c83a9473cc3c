// The instruction has a latency of three cycles and a throughput of one, so three runs of the data are worked on at a
// time and joined: the checksum of A‖B is (checksum of A, moved over as many zero bytes as B has) xor that of B, and
// moving over a fixed number of zero bytes is linear, so a table a byte of the checksum does it.
#include "crc32c.hpp"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#define OSTINATO_CRC_TARGET __attribute__((target("sse4.2")))
#elif defined(__aarch64__)
#include <arm_acle.h>
#if defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif
#define OSTINATO_CRC_TARGET __attribute__((target("+crc")))
#endif

namespace ostinato {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // reflected
constexpr std::size_t kRun = 4096;                 // bytes of each of the three runs

using Table = std::array<std::uint32_t, 256>;

// kTables[k][b]: the register b moved over k + 1 bytes.
constexpr std::array<Table, 8> byte_tables() {
  std::array<Table, 8> tables{};
  for (std::uint32_t b = 0; b < 256; ++b) {
    std::uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? kPolynomial : 0);
    tables[0][b] = crc;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t b = 0; b < 256; ++b) {
      tables[k][b] = tables[k - 1][b] >> 8 ^ tables[0][tables[k - 1][b] & 0xff];
    }
  }
  return tables;
}
constexpr std::array<Table, 8> kTables = byte_tables();

std::uint32_t update_portable(std::uint32_t crc, const std::uint8_t* data, std::size_t size) {
  for (; size >= 8; size -= 8, data += 8) {
    std::uint32_t low = 0;
    for (int i = 0; i < 4; ++i) low |= std::uint32_t{data[i]} << 8 * i;
    low ^= crc;
    crc = kTables[7][low & 0xff] ^ kTables[6][low >> 8 & 0xff] ^ kTables[5][low >> 16 & 0xff] ^ kTables[4][low >> 24] ^
          kTables[3][data[4]] ^ kTables[2][data[5]] ^ kTables[1][data[6]] ^ kTables[0][data[7]];
  }
  for (; size > 0; --size, ++data) crc = crc >> 8 ^ kTables[0][(crc ^ *data) & 0xff];
  return crc;
}

#if defined(OSTINATO_CRC_TARGET)
// Moves a register over `bytes` zero bytes.
class Shift {
 public:
  explicit Shift(std::size_t bytes) {
    for (std::size_t byte = 0; byte < 4; ++byte) {
      for (std::uint32_t value = 0; value < 256; ++value) {
        std::uint32_t crc = value << 8 * byte;
        for (std::size_t i = 0; i < bytes; ++i) crc = crc >> 8 ^ kTables[0][crc & 0xff];
        tables_[byte][value] = crc;
      }
    }
  }
  std::uint32_t operator()(std::uint32_t crc) const {
    return tables_[0][crc & 0xff] ^ tables_[1][crc >> 8 & 0xff] ^ tables_[2][crc >> 16 & 0xff] ^ tables_[3][crc >> 24];
  }

 private:
  std::array<Table, 4> tables_;
};

OSTINATO_CRC_TARGET inline std::uint32_t step(std::uint32_t crc, const std::uint8_t* data) {
  std::uint64_t word;
  std::memcpy(&word, data, 8);
#if defined(__x86_64__)
  return static_cast<std::uint32_t>(_mm_crc32_u64(crc, word));
#else
  return __crc32cd(crc, word);
#endif
}

OSTINATO_CRC_TARGET std::uint32_t update_native(std::uint32_t crc, const std::uint8_t* data, std::size_t size) {
  static const Shift shift(kRun);
  for (; size >= 3 * kRun; size -= 3 * kRun, data += 3 * kRun) {
    std::uint32_t second = 0, third = 0;
    for (std::size_t at = 0; at < kRun; at += 8) {
      crc = step(crc, data + at);
      second = step(second, data + kRun + at);
      third = step(third, data + 2 * kRun + at);
    }
    crc = shift(shift(crc) ^ second) ^ third;
  }
  for (; size >= 8; size -= 8, data += 8) crc = step(crc, data);
  return update_portable(crc, data, size);
}

bool has_instruction() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("sse4.2");
#elif defined(__linux__)
  return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
#else
  return true;  // every 64-bit Apple CPU has it
#endif
}
#endif

using Update = std::uint32_t (*)(std::uint32_t, const std::uint8_t*, std::size_t);

Update choose() {
#if defined(OSTINATO_CRC_TARGET)
  if (has_instruction()) return update_native;
#endif
  return update_portable;
}

}  // namespace

std::uint32_t crc32c(const std::uint8_t* data, std::size_t size) {
  static const Update update = choose();
  return ~update(~std::uint32_t{0}, data, size);
}

std::uint32_t crc32c_portable(const std::uint8_t* data, std::size_t size) {
  return ~update_portable(~std::uint32_t{0}, data, size);
}

}  // namespace ostinato
