// The products of the values of two arrays.
#include "../each_value.h"

#define MULTIPLY(T, NAME)                                                                                             \
    extern "C" void multiply_##NAME(const T* x, const T* y, T* out, int64_t size, int32_t threads) {                  \
        each_value(size, out, threads,                                                                                \
                   [=](index_t k, const auto& lanes) { return lanes.load(x + k) * lanes.load(y + k); });              \
    }
ENTRIES(MULTIPLY)
