#include "huge_memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <mutex>
#include <new>

namespace ostinato {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kPieceBytes = std::size_t{32} << 20;
constexpr std::size_t kAlignment = 4096;

std::size_t round_up(std::size_t value, std::size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

std::shared_ptr<std::uint8_t> map_piece(std::size_t bytes) {
  const std::size_t mapped = bytes + kHugePage;  // so that an aligned part of the size exists
  void* memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  auto* start = static_cast<std::uint8_t*>(memory);
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  std::uint8_t* aligned = start + (round_up(address, kHugePage) - address);
#if defined(MADV_HUGEPAGE)
  madvise(aligned, bytes, MADV_HUGEPAGE);  // advice only: without it everything works, slower
#endif
  return {aligned, [start, mapped](std::uint8_t*) { munmap(start, mapped); }};
}

}  // namespace

std::shared_ptr<std::uint8_t> allocate_huge(std::size_t bytes) {
  static std::mutex mutex;
  static std::shared_ptr<std::uint8_t> piece;
  static std::size_t used = 0, size = 0;
  const std::lock_guard lock(mutex);
  bytes = round_up(std::max<std::size_t>(bytes, 1), kAlignment);
  if (piece == nullptr || used + bytes > size) {
    size = std::max(kPieceBytes, round_up(bytes, kHugePage));
    piece = map_piece(size);
    used = 0;
  }
  std::uint8_t* at = piece.get() + used;
  used += bytes;
  return {piece, at};
}

}  // namespace ostinato
