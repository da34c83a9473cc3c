// What sampling needs of a row of logits, without sorting the vocabulary.
#pragma once

#include <cstdint>

#include "runtime.hpp"

namespace ostinato {

// For each of `rows` rows of `vocab` logits: the k largest, descending (of equal ones the lower id first), and the
// logarithm of the sum of e^(logit * scale) over the whole row, which turns any of them into a log-probability at
// temperature 1 / scale. A row without NaN is assumed. ids and values: (rows, k); log_sums: (rows).
void top_k(Runtime& runtime, const float* logits, int rows, int vocab, int k, float scale, std::int32_t* ids,
           float* values, float* log_sums);

}  // namespace ostinato
