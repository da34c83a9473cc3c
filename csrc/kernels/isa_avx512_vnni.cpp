#define OSTINATO_ISA avx512_vnni
#include "kernels/table.hpp"
