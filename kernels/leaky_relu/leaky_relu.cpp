// Leaky ReLU and its gradient. NaN stays NaN.
#include "../native.h"

#define LEAKY_RELU(T, NAME)                                                                                           \
    extern "C" void leaky_relu_forward_##NAME(const T* x, T* y, int64_t size, double slope, int32_t threads) {        \
        in_parts(size, threads, [=](index_t first, index_t last) {                                                    \
            const T below = T(slope);                                                                                 \
            _Pragma("omp simd") for (index_t k = first; k < last; ++k) y[k] = x[k] > 0 ? x[k] : below * x[k];         \
        });                                                                                                           \
    }                                                                                                                 \
    extern "C" void leaky_relu_backward_##NAME(const T* kept, const T* dy, T* dx, int64_t size, double slope,         \
                                               int32_t threads) {                                                     \
        in_parts(size, threads, [=](index_t first, index_t last) {                                                    \
            const T below = T(slope);                                                                                 \
            _Pragma("omp simd") for (index_t k = first; k < last; ++k) dx[k] = kept[k] > 0 ? dy[k] : below * dy[k];   \
        });                                                                                                           \
    }
ENTRIES(LEAKY_RELU)
