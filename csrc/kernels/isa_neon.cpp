#define OSTINATO_ISA neon
#include "kernels/table.hpp"
