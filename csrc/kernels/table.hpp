// The table of this translation unit's instruction set. Included by kernels/isa_*.cpp only.
#pragma once

#include "kernels.hpp"
#include "kernels/attention_mass.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/gemm_float.hpp"
#include "kernels/kv_seal.hpp"

#define OSTINATO_STRING_(x) #x
#define OSTINATO_STRING(x) OSTINATO_STRING_(x)

namespace ostinato::OSTINATO_ISA {

extern const KernelTable kTable;
const KernelTable kTable = {
    OSTINATO_STRING(OSTINATO_ISA),
    gemm,
    prepare,
    silu_mul,
    add_rows,
    finish_head,
    largest_within,
    find_largest,
    sum_exponentials,
    store_half,
    attend,
    merge,
    attention_mass,
    seal_record,
    open_record,
};

}  // namespace ostinato::OSTINATO_ISA
