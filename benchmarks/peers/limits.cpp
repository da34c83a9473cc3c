// What this machine can do at most: multiply-adds in float32, int16 and int8 from registers, and reading memory.
// Prints JSON: operations (a multiply-add is two) and bytes, in giga a second, over N threads.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

constexpr int kAccumulators = 12;  // hides the latency of a multiply-add on two ports
constexpr long kRounds = 1'500'000;
constexpr int kRepeats = 15;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <class Work>
double best_seconds(int threads, Work work) {
  double best = 1e9;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const double start = now();
    std::vector<std::thread> pool;
    for (int thread = 0; thread < threads; ++thread) pool.emplace_back([&, thread] { work(thread); });
    for (auto& one : pool) one.join();
    best = std::min(best, now() - start);
  }
  return best;
}

// Runs `step` on independent accumulators that the compiler may neither merge nor drop.
template <class Vector, class Step>
void spin(Vector factor, Step step) {
  Vector sums[kAccumulators] = {};
  for (long round = 0; round < kRounds; ++round) {
    for (auto& sum : sums) sum = step(sum, factor);
    for (auto& sum : sums) asm volatile("" : "+v"(sum));
  }
}

template <class Vector, class Step>
double giga_ops(int threads, int ops, Vector factor, Step step) {
  const double seconds = best_seconds(threads, [&](int) { spin(factor, step); });
  return 1e-9 * threads * kRounds * kAccumulators * ops / seconds;
}

double read_giga_bytes(int threads) {
  const std::size_t size = std::size_t{512} << 20;
  auto* memory = static_cast<char*>(std::aligned_alloc(std::size_t{2} << 20, size));
  madvise(memory, size, MADV_HUGEPAGE);
  std::memset(memory, 1, size);
  using Words = std::uint64_t __attribute__((vector_size(32), may_alias));
  const double seconds = best_seconds(threads, [&](int thread) {
    const std::size_t part = size / threads;
    const auto* words = reinterpret_cast<const Words*>(memory + thread * part);
    Words sums[8] = {};
    for (std::size_t at = 0; at + 8 <= part / sizeof(Words); at += 8)
      for (int lane = 0; lane < 8; ++lane) sums[lane] += words[at + lane];
    for (auto& sum : sums) asm volatile("" : "+m"(sum));
  });
  std::free(memory);
  return 1e-9 * size / seconds;
}

}  // namespace

int main(int count, char** values) {
  const int threads = count > 1 ? std::atoi(values[1]) : 1;
  double fp32 = 0, int16 = 0, int8 = 0;
#if defined(__AVX512F__)
  fp32 = giga_ops(threads, 32, _mm512_set1_ps(0.9f), [](__m512 s, __m512 f) { return _mm512_fmadd_ps(s, f, f); });
#elif defined(__AVX2__)
  fp32 = giga_ops(threads, 16, _mm256_set1_ps(0.9f), [](__m256 s, __m256 f) { return _mm256_fmadd_ps(s, f, f); });
#endif
#if defined(__AVX512VNNI__)
  const __m512i factor = _mm512_set1_epi8(3);
  int16 = giga_ops(threads, 64, factor, [](__m512i s, __m512i f) { return _mm512_dpwssd_epi32(s, f, f); });
  int8 = giga_ops(threads, 128, factor, [](__m512i s, __m512i f) { return _mm512_dpbusd_epi32(s, f, f); });
#elif defined(__AVX2__)
  const __m256i factor = _mm256_set1_epi8(3);
  int16 = giga_ops(threads, 32, factor, [](__m256i s, __m256i f) {
    return _mm256_add_epi32(s, _mm256_madd_epi16(f, s));
  });
  int8 = giga_ops(threads, 64, factor, [](__m256i s, __m256i f) {
    return _mm256_add_epi16(s, _mm256_maddubs_epi16(f, s));
  });
#endif
  std::printf("{\"fp32\": %.1f, \"int16\": %.1f, \"int8\": %.1f, \"read\": %.2f}\n", fp32, int16, int8,
              read_giga_bytes(threads));
}
