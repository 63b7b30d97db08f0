// What the C++ kernels share: vectors and their functions (vector.h), threads over rows (team.h), an entry for each dtype.
#pragma once
#include <limits>
#include <vector>

#define CPU_KERNEL  // see portable.h
#include "team.h"
#include "vector.h"

// ENTRIES(M) defines what M makes of both types and their names, such as `extern "C" void f_float32(...)`.
#define ENTRIES(M) M(float, float32) M(double, float64)
