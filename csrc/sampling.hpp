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

// For each row its first largest logit, and whether all of them lie within +-limit; if not, its id means nothing. ids
// and within: (rows).
void find_largest(Runtime& runtime, const float* logits, int rows, int vocab, float limit, std::int32_t* ids,
                  bool* within);

// How one token is drawn from one row.
struct Draw {
  float temperature;   // above 0
  std::int32_t top_k;  // keep this many of the likeliest; 0 or less keeps all
  float min_p;         // keep what is at least this probable, relative to the likeliest
  double top_p;        // then the smallest set of likeliest ones with this share of what is left
  double uniform;      // in [0, 1): which of the tokens kept, by their cumulative probability in order of ids
};

// One token for each of `count` rows of `logits`, which are `vocab` wide: draws[n] says how from row rows[n]. At least
// one logit of a row must be finite, and none NaN or +infinity; throws std::invalid_argument where nothing can be drawn.
// ids: (count).
void draw(Runtime& runtime, const float* logits, int vocab, const std::int32_t* rows, const Draw* draws, int count,
          std::int32_t* ids);

}  // namespace ostinato
