// Adam (Kingma and Ba 2015, algorithm 1) over all tensors of a model in one call.
#include "../native.h"

// A tensor's arrays: parameters, gradients, both moments, and where the new ones go, which may be the same places.
enum Role { P, G, M, V, NEW_P, NEW_M, NEW_V, ROLES };

template <class T>
static void update(const T* p, const T* g, const T* m, const T* v, T* new_p, T* new_m, T* new_v, index_t first,
                   index_t last, T rate, T eps, T beta1, T beta2) {
#pragma omp simd
    for (index_t k = first; k < last; ++k) {
        const T moment = beta1 * m[k] + g[k], square = beta2 * v[k] + g[k] * g[k];
        new_m[k] = moment;
        new_v[k] = square;
        new_p[k] = p[k] - rate * moment / (std::sqrt(square) + eps);
    }
}

// The tensors lie one behind the other in one range of numbers, of which each thread has a part.
#define ADAM(T, NAME)                                                                                                 \
    extern "C" void adam_##NAME(const int64_t* addresses, const int64_t* ends, const T* rate, const T* eps,            \
                                int64_t tensors, double beta1, double beta2, int32_t threads) {                        \
        in_parts(tensors ? ends[tensors - 1] : 0, threads, [=](index_t first, index_t last) {                          \
            for (index_t k = 0; k < tensors; ++k) {                                                                    \
                const index_t start = k ? ends[k - 1] : 0, a = first > start ? first - start : 0;                      \
                const index_t b = (last < ends[k] ? last : ends[k]) - start;                                           \
                T* at[ROLES];                                                                                          \
                for (int role = 0; role < ROLES; ++role)                                                               \
                    at[role] = reinterpret_cast<T*>(addresses[role * tensors + k]);                                    \
                if (a < b)                                                                                             \
                    update<T>(at[P], at[G], at[M], at[V], at[NEW_P], at[NEW_M], at[NEW_V], a, b, *rate, *eps,          \
                              T(beta1), T(beta2));                                                                     \
            }                                                                                                          \
        });                                                                                                            \
    }
ENTRIES(ADAM)
