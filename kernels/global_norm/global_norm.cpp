// The common norm of all tensors of a model in one call.
#include "blocks.h"

template <class T>
static Wide<T> squares(const T* x, index_t count) {
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (index_t k = 0; k < count; ++k) sum += x[k] * x[k];
    return sum_of_squares(x, count, sum);
}

#define GLOBAL_NORM(T, NAME)                                                                                          \
    extern "C" void global_norm_##NAME(const int64_t* addresses, const int64_t* sizes, T* norm, int64_t tensors,      \
                                       int32_t threads) {                                                             \
        guarded([&] {                                                                                                 \
            *norm = T(root_of_sums<T>(sizes, tensors, threads, [=](index_t tensor, index_t first, index_t last) {        \
                return squares(reinterpret_cast<const T*>(addresses[tensor]) + first, last - first);                  \
            }));                                                                                                      \
        });                                                                                                           \
    }
ENTRIES(GLOBAL_NORM)
