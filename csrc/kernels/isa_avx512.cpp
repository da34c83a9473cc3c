#define OSTINATO_ISA avx512
#include "kernels/table.hpp"
