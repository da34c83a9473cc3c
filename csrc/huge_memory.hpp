// Memory for weights, carved out of large pieces that ask for huge pages.
//
// A decode step reads all weights once, so with 4 KiB pages it misses the TLB at every page; in a virtual machine
// (two-level page walks) that costs a third of the bandwidth: 20 against 30 GB/s on one core where it was measured.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace ostinato {

// 4 KiB-aligned and zero. The piece that it comes from lives until the last of its parts is released. Thread-safe.
std::shared_ptr<std::uint8_t> allocate_huge(std::size_t bytes);

}  // namespace ostinato
