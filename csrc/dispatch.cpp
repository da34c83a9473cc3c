#include <cstring>

#include "kernels.hpp"

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace ostinato {

#if defined(__x86_64__)
namespace avx2 {
extern const KernelTable kTable;
}
namespace avx512 {
extern const KernelTable kTable;
}
namespace avx512_vnni {
extern const KernelTable kTable;
}

namespace {

bool runs_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

bool runs_avx512() {
  return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd");
}

}  // namespace

const KernelTable* find_kernels(const char* name) {
  __builtin_cpu_init();
  const bool any = *name == '\0';
  const auto wanted = [&](const KernelTable& table) { return any || std::strcmp(name, table.name) == 0; };
  if (runs_avx512() && __builtin_cpu_supports("avx512vnni") && wanted(avx512_vnni::kTable)) return &avx512_vnni::kTable;
  if (runs_avx512() && wanted(avx512::kTable)) return &avx512::kTable;
  if (runs_avx2() && wanted(avx2::kTable)) return &avx2::kTable;
  return nullptr;
}

#elif defined(__aarch64__)
namespace neon {
extern const KernelTable kTable;
}

namespace {

// Every Apple CPU has dot products and half-precision arithmetic; the first generations of others have not.
bool runs_neon() {
#if defined(__linux__)
  const unsigned long needed = HWCAP_ASIMDDP | HWCAP_ASIMDHP;
  return (getauxval(AT_HWCAP) & needed) == needed;
#else
  return true;
#endif
}

}  // namespace

const KernelTable* find_kernels(const char* name) {
  if (!runs_neon()) return nullptr;
  return *name == '\0' || std::strcmp(name, neon::kTable.name) == 0 ? &neon::kTable : nullptr;
}
#endif

}  // namespace ostinato
