// ReLU and leaky ReLU with their gradients. NaN stays NaN.
#include "../native.h"

// What becomes of a value, or a gradient, where x is not positive.
template <class T>
struct Zero {
    T operator()(T) const { return T(0); }  // a product with 0 would make NaN of infinity
};

template <class T>
struct Slope {
    T slope;
    T operator()(T x) const { return slope * x; }
};

template <class T, class Below>
static void rectify(const T* x, T* y, index_t size, int threads, Below below) {
    in_parts(size, threads, [=](index_t first, index_t last) {
#pragma omp simd
        for (index_t k = first; k < last; ++k) y[k] = x[k] <= 0 ? below(x[k]) : x[k];
    });
}

// `kept` is positive where x is. A gradient is read before it is chosen: a read that depends on a sign would be a branch.
template <class T, class Below>
static void differentiate(const T* kept, const T* dy, T* dx, index_t size, int threads, Below below) {
    in_parts(size, threads, [=](index_t first, index_t last) {
#pragma omp simd
        for (index_t k = first; k < last; ++k) {
            const T gradient = dy[k], otherwise = below(gradient);
            dx[k] = kept[k] > 0 ? gradient : otherwise;
        }
    });
}

#define RELU(T, NAME)                                                                                                 \
    extern "C" void relu_forward_##NAME(const T* x, T* y, int64_t size, int32_t threads) {                            \
        rectify(x, y, size, threads, Zero<T>());                                                                      \
    }                                                                                                                 \
    extern "C" void relu_backward_##NAME(const T* kept, const T* dy, T* dx, int64_t size, int32_t threads) {          \
        differentiate(kept, dy, dx, size, threads, Zero<T>());                                                        \
    }                                                                                                                 \
    extern "C" void leaky_relu_forward_##NAME(const T* x, T* y, int64_t size, double slope, int32_t threads) {        \
        rectify(x, y, size, threads, Slope<T>{T(slope)});                                                             \
    }                                                                                                                 \
    extern "C" void leaky_relu_backward_##NAME(const T* kept, const T* dy, T* dx, int64_t size, double slope,         \
                                               int32_t threads) {                                                     \
        differentiate(kept, dy, dx, size, threads, Slope<T>{T(slope)});                                               \
    }
ENTRIES(RELU)
