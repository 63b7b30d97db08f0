// Adam (Kingma and Ba 2015, algorithm 1) over all tensors of a model in one call, with the norm of all gradients.
#include "../global_norm/blocks.h"

// A tensor's arrays: parameters, gradients, both moments, and where the new ones go, which may be the same places.
enum Role { P, G, M, V, NEW_P, NEW_M, NEW_V, ROLES };

// Gives the sum of the gradient's squares.
template <class T>
static T update(T* const at[ROLES], index_t first, index_t last, T rate, T eps, T scale, T beta1, T beta2) {
    const T *p = at[P], *g = at[G], *m = at[M], *v = at[V];
    T *new_p = at[NEW_P], *new_m = at[NEW_M], *new_v = at[NEW_V];
    T squares = 0;
#pragma omp simd reduction(+ : squares)
    for (index_t k = first; k < last; ++k) {
        const T gradient = g[k], scaled = gradient * scale;
        squares += gradient * gradient;
        const T moment = beta1 * m[k] + scaled, square = beta2 * v[k] + scaled * scaled;
        new_m[k] = moment;
        new_v[k] = square;
        new_p[k] = p[k] - rate * moment / (std::sqrt(square) + eps);
    }
    return squares;
}

#define ADAM(T, NAME)                                                                                                \
    extern "C" void adam_##NAME(const int64_t* addresses, const int64_t* sizes, const T* rate, const T* eps,          \
                                const T* scale, T* norm, int64_t tensors, double beta1, double beta2,                 \
                                int32_t threads) {                                                                    \
        *norm = T(root_of_sums(sizes, tensors, threads, [=](index_t tensor, index_t first, index_t last) {            \
            T* at[ROLES];                                                                                             \
            for (int role = 0; role < ROLES; ++role)                                                                  \
                at[role] = reinterpret_cast<T*>(addresses[role * tensors + tensor]);                                  \
            return update<T>(at, first, last, *rate, *eps, scale ? *scale : T(1), T(beta1), T(beta2));                \
        }));                                                                                                          \
    }
ENTRIES(ADAM)
