// Methods of the Runtime class that choose tokens; what they mean is in sampling.hpp.
#pragma once

#include <nanobind/nanobind.h>

#include "runtime.hpp"

namespace ostinato {

void bind_sampling(nanobind::class_<Runtime>&);

}  // namespace ostinato
