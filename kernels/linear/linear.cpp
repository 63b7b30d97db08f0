// Products of a few rows with a matrix, forward and backward.
#include "few_rows.h"

using namespace few_rows;

// dw[k, :] = or += the sum of x[r, k] g[r, :] over R rows, for K values of k.
template <int R, int K>
static void outer_product(const T* x, const T* g, T* dw, index_t in, index_t out, bool add) {
    const index_t whole = out / LANES * LANES;
    vector factors[R][K];
    for (int r = 0; r < R; ++r)
        for (int k = 0; k < K; ++k) factors[r][k] = x[r * in + k] - vector{};
    const auto add_up = [&](index_t c, auto lanes) {
        vector sums[K];
        // A zero that the compiler knows would let it choose which of two products is rounded alone.
        for (int k = 0; k < K; ++k) sums[k] = add ? lanes.load(dw + k * out + c) : opaque(vector{});
        for (int r = 0; r < R; ++r) {
            const vector gradient = opaque(lanes.load(g + r * out + c));
            for (int k = 0; k < K; ++k) sums[k] += gradient * factors[r][k];
        }
        for (int k = 0; k < K; ++k) lanes.store(dw + k * out + c, sums[k]);
    };
    for (index_t c = 0; c < whole; c += LANES) add_up(c, WholeVector<T>());
    if (whole < out) add_up(whole, PartOfVector<T>{out - whole});
}

template <int K>
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
static void backward(const T* x, const T* w, const T* g, T* dx, T* dw, index_t rows, index_t in, index_t out, int threads) {
    each_rows_of_w(in, threads, [=](index_t k, auto count) { differentiate<count>(x, w, g, dx, dw, rows, in, out, k); });
}

ENTRY(linear_forward) {
    guarded([&] {
        multiply(x, weight, bias, y, rows, n_in, n_out, threads);
    });
}

ENTRY(linear_backward) {
    guarded([&] {
        backward(x, weight, dy, dx, d_weight, rows, n_in, n_out, threads);
    });
}

// y = x w^T, as the gradient of a product's input.
ENTRY(linear_transposed) {
    guarded([&] {
        multiply_transposed(x, weight, y, rows, n_in, n_out, threads);
    });
}
