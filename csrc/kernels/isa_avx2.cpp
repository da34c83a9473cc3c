#define OSTINATO_ISA avx2
#include "kernels/table.hpp"
