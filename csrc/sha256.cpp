// SHA-256 (FIPS 180-4), with the CPU's SHA instructions where it has them.
#include "sha256.hpp"

#include <bit>
#include <cstring>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace ostinato {
namespace {

alignas(16) constexpr std::uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
constexpr std::uint32_t kInitial[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                       0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

std::uint32_t swap_bytes(std::uint32_t x) { return __builtin_bswap32(x); }

void compress_portable(std::uint32_t* state, const std::uint8_t* data, std::size_t chunks) {
  for (; chunks > 0; --chunks, data += 64) {
    std::uint32_t w[64];
    std::memcpy(w, data, 64);
    for (int i = 0; i < 16; ++i) w[i] = swap_bytes(w[i]);
    for (int i = 16; i < 64; ++i) {
      const std::uint32_t a = w[i - 15], b = w[i - 2];
      const std::uint32_t small0 = std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3;
      const std::uint32_t small1 = std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10;
      w[i] = w[i - 16] + small0 + w[i - 7] + small1;
    }
    std::uint32_t s[8];
    std::memcpy(s, state, 32);
    for (int i = 0; i < 64; ++i) {
      const std::uint32_t sum1 = std::rotr(s[4], 6) ^ std::rotr(s[4], 11) ^ std::rotr(s[4], 25);
      const std::uint32_t t1 = s[7] + sum1 + ((s[4] & s[5]) ^ (~s[4] & s[6])) + kRound[i] + w[i];
      const std::uint32_t sum0 = std::rotr(s[0], 2) ^ std::rotr(s[0], 13) ^ std::rotr(s[0], 22);
      const std::uint32_t t2 = sum0 + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
      for (int k = 7; k > 0; --k) s[k] = s[k - 1];
      s[4] += t1;
      s[0] = t1 + t2;
    }
    for (int k = 0; k < 8; ++k) state[k] += s[k];
  }
}

#if defined(__x86_64__)
// The instructions keep the state as (A, B, E, F) and (C, D, G, H), highest lane first, and do two rounds each.
__attribute__((target("sha,sse4.1,ssse3"))) void compress_sha_ni(std::uint32_t* state, const std::uint8_t* data,
                                                                std::size_t chunks) {
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
  const __m128i abcd = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state));
  const __m128i efgh = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state + 4));
  const __m128i badc = _mm_shuffle_epi32(abcd, 0xb1), hgfe = _mm_shuffle_epi32(efgh, 0x1b);
  __m128i abef = _mm_alignr_epi8(badc, hgfe, 8);
  __m128i cdgh = _mm_blend_epi16(hgfe, badc, 0xf0);
  for (; chunks > 0; --chunks, data += 64) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i w[4];
    for (int i = 0; i < 4; ++i) {
      w[i] = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data + 16 * i)), big_endian);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      const __m128i now = w[i % 4];
      const __m128i input = _mm_add_epi32(now, _mm_load_si128(reinterpret_cast<const __m128i*>(kRound + 4 * i)));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, input);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(input, 0x0e));
      if (i < 12) {  // words 4 (i + 4) .. 4 (i + 4) + 3 from the sixteen before them
        const __m128i last = w[(i + 3) % 4];
        const __m128i middle = _mm_alignr_epi8(last, w[(i + 2) % 4], 4);
        const __m128i partial = _mm_add_epi32(_mm_sha256msg1_epu32(now, w[(i + 1) % 4]), middle);
        w[i % 4] = _mm_sha256msg2_epu32(partial, last);
      }
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1b), dchg = _mm_shuffle_epi32(cdgh, 0xb1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state), _mm_blend_epi16(feba, dchg, 0xf0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

bool has_sha_ni() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b >> 29 & 1) != 0 && __builtin_cpu_supports("sse4.1");
}
#endif

using Compress = void (*)(std::uint32_t*, const std::uint8_t*, std::size_t);

Compress choose() {
#if defined(__x86_64__)
  if (has_sha_ni()) return compress_sha_ni;
#endif
  return compress_portable;
}

}  // namespace

void hash_blocks(const std::uint8_t* tag, std::size_t tag_bytes, const std::uint8_t* parent, std::size_t parent_bytes,
                 const std::uint32_t* tokens, std::size_t block_size, std::size_t blocks, std::uint8_t* out) {
  static const Compress compress = choose();
  // The message with its padding: 0x80, zeros, and the length in bits as big-endian u64. After the first block only
  // the parent's hash and the tokens change, so it is laid out anew only if its length does.
  std::vector<std::uint8_t> message;
  std::size_t laid_out = 0;
  for (std::size_t i = 0; i < blocks; ++i) {
    const std::size_t link = i == 0 ? parent_bytes : 32;
    const std::size_t length = tag_bytes + link + 4 * block_size;
    if (length != laid_out) {
      message.assign((length + 9 + 63) / 64 * 64, 0);
      std::memcpy(message.data(), tag, tag_bytes);
      message[length] = 0x80;
      const std::uint64_t bits = __builtin_bswap64(static_cast<std::uint64_t>(length) * 8);
      std::memcpy(message.data() + message.size() - 8, &bits, 8);
      laid_out = length;
    }
    std::memcpy(message.data() + tag_bytes, i == 0 ? parent : out + 32 * (i - 1), link);
    std::memcpy(message.data() + tag_bytes + link, tokens + i * block_size, 4 * block_size);
    std::uint32_t state[8];
    std::memcpy(state, kInitial, 32);
    compress(state, message.data(), message.size() / 64);
    for (int k = 0; k < 8; ++k) {
      const std::uint32_t word = swap_bytes(state[k]);
      std::memcpy(out + 32 * i + 4 * k, &word, 4);
    }
  }
}

}  // namespace ostinato
