// The common norm of all tensors of a model in one call.
#include "blocks.h"

// In double, which holds the squares of all floats.
template <class T>
static double squares(const T* x, index_t first, index_t last) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (index_t k = first; k < last; ++k) sum += double(x[k]) * double(x[k]);
    return sum;
}

#define GLOBAL_NORM(T, NAME)                                                                                          \
    extern "C" void global_norm_##NAME(const int64_t* addresses, const int64_t* sizes, T* norm, int64_t tensors,      \
                                       int32_t threads) {                                                             \
        guarded([&] {                                                                                                 \
            *norm = T(root_of_sums(sizes, tensors, threads, [=](index_t tensor, index_t first, index_t last) {        \
                return squares(reinterpret_cast<const T*>(addresses[tensor]), first, last);                           \
            }));                                                                                                      \
        });                                                                                                           \
    }
ENTRIES(GLOBAL_NORM)
