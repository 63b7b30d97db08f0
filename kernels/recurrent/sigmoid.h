#pragma once
#include "portable.h"

#ifndef CPU_KERNEL  // vector.h has that of C++
FUNCTION real sigmoid(real x) { return 1.0f / (1.0f + exponential(-x)); }
#endif
