// ReLU and leaky ReLU with their gradients. NaN stays NaN.
#include "../native.h"

// The result, or the gradient, where x is not positive.
template <class T>
struct Zero {
    T operator()(T) const { return T(0); }  // a product with 0 would make NaN of infinity
};

template <class T>
struct Slope {
    T slope;
    T operator()(T x) const { return slope * x; }
};

// Both values are computed before one is chosen: work for one sign alone would be a branch. The loop reads a copy of `below`: as
// far as the compiler knows, the shared one could be a part of y, and would be read again at each value.
template <class T, class Below>
static void rectify(const T* x, T* y, index_t size, int threads, Below below) {
    in_parts(size, threads, [=](index_t first, index_t last) {
        const Below local = below;
#pragma omp simd
        for (index_t k = first; k < last; ++k) {
            const T value = x[k], otherwise = local(value);
            y[k] = value <= 0 ? otherwise : value;
        }
    });
}

// `kept` is positive where x is.
template <class T, class Below>
static void differentiate(const T* kept, const T* dy, T* dx, index_t size, int threads, Below below) {
    in_parts(size, threads, [=](index_t first, index_t last) {
        const Below local = below;
#pragma omp simd
        for (index_t k = first; k < last; ++k) {
            const T gradient = dy[k], otherwise = local(gradient);
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
