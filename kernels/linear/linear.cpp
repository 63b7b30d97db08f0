// Products of a few rows with a matrix, forward and backward.
#include "few_rows.h"

using namespace few_rows;

static const int ROWS_OF_W = 4;  // rows of the matrix, or of its gradient, that share a load of g
static const index_t COLUMNS_AT_ONCE = 1 << 12;  // of a sum over columns: the rounding of a longer one would grow with it

// dx[r, k .. k + K) = or += the products of g's rows with K rows of w, over the first `count` columns. The rows of w are read in
// turns, which the hardware does not prefetch, so the loop prefetches the next ones.
template <int R, int K, class T>
static void some_dots(const T* g, const T* w, T* dx, index_t in, index_t out, index_t count, bool add) {
    using vector = typename Vector<T>::type;
    constexpr index_t LANES = Vector<T>::lanes;
    vector sums[R][K] = {};
    const index_t whole = count / LANES * LANES;
    for (index_t c = 0; c < whole; c += LANES) {
        vector weights[K];
        for (int k = 0; k < K; ++k) {
            fetch_ahead(w + k * out + c, ROWS_OF_W * out);
            weights[k] = opaque(load(w + k * out + c));
        }
        for (int r = 0; r < R; ++r) {
            const vector gradient = opaque(load(g + r * out + c));
            for (int k = 0; k < K; ++k) sums[r][k] += gradient * weights[k];
        }
    }
    for (int r = 0; r < R; ++r)
        for (int k = 0; k < K; ++k) {
            T sum = total<T>(sums[r][k]);
            for (index_t c = whole; c < count; ++c) sum += g[r * out + c] * w[k * out + c];
            dx[r * in + k] = add ? dx[r * in + k] + sum : sum;
        }
}

// dx[r, k .. k + K) = the products of g's rows with K rows of w.
template <int R, int K, class T>
static void dots(const T* g, const T* w, T* dx, index_t in, index_t out) {
    if constexpr (R * K > SIDE_BY_SIDE) {
        dots<R, K / 2>(g, w, dx, in, out);
        return dots<R, K - K / 2>(g, w + K / 2 * out, dx + K / 2, in, out);
    }
    index_t c = 0;
    do {
        some_dots<R, K>(g + c, w + c, dx, in, out, std::min(COLUMNS_AT_ONCE, out - c), c > 0);
        c += COLUMNS_AT_ONCE;
    } while (c < out);
}

// dw[k, :] = or += the sum of x[r, k] g[r, :] over R rows, for K values of k.
template <int R, int K, class T>
static void outer_product(const T* x, const T* g, T* dw, index_t in, index_t out, bool add) {
    using vector = typename Vector<T>::type;
    constexpr index_t LANES = Vector<T>::lanes;
    const index_t whole = out / LANES * LANES;
    vector factors[R][K];
    for (int r = 0; r < R; ++r)
        for (int k = 0; k < K; ++k) factors[r][k] = x[r * in + k] - vector{};
    const auto add_up = [&](index_t c, auto lanes) {
        vector sums[K];
        for (int k = 0; k < K; ++k) sums[k] = add ? lanes.load(dw + k * out + c) : vector{};
        for (int r = 0; r < R; ++r) {
            const vector gradient = opaque(lanes.load(g + r * out + c));
            for (int k = 0; k < K; ++k) sums[k] += gradient * factors[r][k];
        }
        for (int k = 0; k < K; ++k) lanes.store(dw + k * out + c, sums[k]);
    };
    for (index_t c = 0; c < whole; c += LANES) add_up(c, WholeVector<T>());
    if (whole < out) add_up(whole, PartOfVector<T>{out - whole});
}

template <int K, class T>
static void differentiate(const T* x, const T* w, const T* g, T* dx, T* dw, index_t rows, index_t in, index_t out,
                          index_t k) {
    for (index_t row = 0; row < rows; row += GROUP) {
        const T* of_g = g + row * out;
#define DOTS(R) dots<R, K>(of_g, w + k * out, dx + row * in + k, in, out)
#define OUTER(R) outer_product<R, K>(x + row * in + k, of_g, dw + k * out, in, out, row > 0)
        if (dx) BY_ROWS(std::min<index_t>(GROUP, rows - row), DOTS)
        if (dw) BY_ROWS(std::min<index_t>(GROUP, rows - row), OUTER)
    }
}

// The gradients of x and of w; a null one is not computed.
template <class T>
static void backward(const T* x, const T* w, const T* g, T* dx, T* dw, index_t rows, index_t in, index_t out, int threads) {
    const index_t blocks = (in + ROWS_OF_W - 1) / ROWS_OF_W;
    in_parts(blocks, threads, [=](index_t first, index_t last) {
        for (index_t block = first; block < last; ++block) {
            const index_t k = block * ROWS_OF_W;
            if (k + ROWS_OF_W <= in) differentiate<ROWS_OF_W>(x, w, g, dx, dw, rows, in, out, k);
            else for (index_t one = k; one < in; ++one) differentiate<1>(x, w, g, dx, dw, rows, in, out, one);
        }
    });
}

#define LINEAR(T, NAME)                                                                                                \
    extern "C" void linear_forward_##NAME(const T* x, const T* w, const T* bias, T* y, int64_t rows, int64_t in,       \
                                          int64_t out, int32_t threads) {                                              \
        guarded([&] {                                                                                                  \
            multiply(x, w, bias, y, rows, in, out, threads);                                                           \
        });                                                                                                            \
    }                                                                                                                  \
    extern "C" void linear_backward_##NAME(const T* x, const T* w, const T* g, T* dx, T* dw, int64_t rows, int64_t in, \
                                           int64_t out, int32_t threads) {                                             \
        guarded([&] {                                                                                                  \
            backward(x, w, g, dx, dw, rows, in, out, threads);                                                         \
        });                                                                                                            \
    }                                                                                                                  \
    /* y = x w^T, as the gradient of a product's input. */                                                             \
    extern "C" void linear_transposed_##NAME(const T* x, const T* w, T* y, int64_t rows, int64_t in, int64_t out,      \
                                             int32_t threads) {                                                        \
        guarded([&] {                                                                                                  \
            backward<T>(nullptr, w, x, y, nullptr, rows, in, out, threads);                                            \
        });                                                                                                            \
    }
ENTRIES(LINEAR)
