// Products of a few rows with a matrix. The matrix is read once, unpacked. Each value of a result is added up in one order, which
// does not depend on the threads.
#pragma once
#include "rows.h"

namespace few_rows {

static const int GROUP = 4;  // rows of x that share a load of the matrix
static const int PANEL = 8;  // rows of the matrix that share a load and a store of y; the next panel is prefetched
static const int SIDE_BY_SIDE = 8;   // vectors that are added up side by side; fewer would wait for each other
static const index_t BLOCK = 128;  // rows of the matrix whose products are added up together, whatever the threads

// y += x[r, 0 .. K) w[0 .. K, :] for R rows.
template <int R, int K>
static void add_panel(const T* x, const T* w, T* y, index_t in, index_t out) {
    constexpr int STRIP = SIDE_BY_SIDE / R;
    const index_t step = STRIP * LANES, whole = out / step * step;
    for (index_t c = 0; c < whole; c += step) {
        vector sums[R][STRIP];
        for (int r = 0; r < R; ++r)
            for (int s = 0; s < STRIP; ++s) sums[r][s] = load(y + r * out + c + s * LANES);
        for (int k = 0; k < K; ++k)
            for (int s = 0; s < STRIP; ++s) {
                fetch_ahead(w + k * out + c + s * LANES, PANEL * out);
                const vector weights = opaque(load(w + k * out + c + s * LANES));
                for (int r = 0; r < R; ++r) sums[r][s] += weights * x[r * in + k];
            }
        for (int r = 0; r < R; ++r)
            for (int s = 0; s < STRIP; ++s) store(y + r * out + c + s * LANES, sums[r][s]);
    }
    index_t c = whole;
    for (; c + LANES <= out; c += LANES) {
        vector sums[R];
        for (int r = 0; r < R; ++r) sums[r] = load(y + r * out + c);
        for (int k = 0; k < K; ++k) {
            const vector weights = opaque(load(w + k * out + c));
            for (int r = 0; r < R; ++r) sums[r] += weights * x[r * in + k];
        }
        for (int r = 0; r < R; ++r) store(y + r * out + c, sums[r]);
    }
    for (; c < out; ++c)
        for (int r = 0; r < R; ++r) {
            T sum = y[r * out + c];
            for (int k = 0; k < K; ++k) sum += w[k * out + c] * x[r * in + k];
            y[r * out + c] = sum;
        }
}

// Calls CALL(R) for R of up to GROUP rows.
#define BY_ROWS(R, CALL) \
    switch (R) { case 1: CALL(1); break; case 2: CALL(2); break; case 3: CALL(3); break; default: CALL(4); }

template <int K>
static void add_rows(const T* x, const T* w, T* y, index_t rows, index_t in, index_t out) {
    for (index_t row = 0; row < rows; row += GROUP) {
#define ADD_PANEL(R) add_panel<R, K>(x + row * in, w, y + row * out, in, out)
        BY_ROWS(std::min<index_t>(GROUP, rows - row), ADD_PANEL)
    }
}

// The threads share rows of the matrix, not columns: the hardware prefetches contiguous memory.
static void multiply(const T* x, const T* w, const T* bias, T* y, index_t rows, index_t in, index_t out, int threads) {
    const index_t blocks = (in + BLOCK - 1) / BLOCK, size = rows * out;
    std::vector<T> parts(blocks * size);
    in_parts(blocks, threads, [&](index_t begin, index_t end) {
        for (index_t block = begin; block < end; ++block) {
            const index_t last = std::min((block + 1) * BLOCK, in), whole = last - (last - block * BLOCK) % PANEL;
            T* part = parts.data() + block * size;
            for (index_t k = block * BLOCK; k < whole; k += PANEL)
                add_rows<PANEL>(x + k, w + k * out, part, rows, in, out);
            for (index_t k = whole; k < last; ++k) add_rows<1>(x + k, w + k * out, part, rows, in, out);
        }
    });
    for (index_t row = 0; row < rows; ++row)
        for (index_t c = 0; c < out; ++c) y[row * out + c] = bias ? bias[c] : T(0);
    for (index_t block = 0; block < blocks; ++block) {
        const T* part = parts.data() + block * size;
#pragma omp simd
        for (index_t k = 0; k < size; ++k) y[k] += part[k];
    }
}

static const int ROWS_OF_W = 4;  // rows of the matrix, or of its gradient, that share a load of g
static const index_t COLUMNS_AT_ONCE = 1 << 12;  // of a sum over columns: the rounding of a longer one would grow with it

// dx[r, k .. k + K) = or += the products of g's rows with K rows of w, over the first `count` columns. The rows of w are read in
// turns, which the hardware does not prefetch, so the loop prefetches the next ones.
template <int R, int K>
static void some_dots(const T* g, const T* w, T* dx, index_t in, index_t out, index_t count, bool add) {
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
template <int R, int K>
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

// Calls work(k, count) for some rows of the matrix at a time, from k on; `count` is a constant.
template <class Work>
static void each_rows_of_w(index_t in, int threads, const Work& work) {
    in_parts((in + ROWS_OF_W - 1) / ROWS_OF_W, threads, [&](index_t first, index_t last) {
        for (index_t k = first * ROWS_OF_W; k < std::min(last * ROWS_OF_W, in);) {
            if (k + ROWS_OF_W <= in) work(k, Number<ROWS_OF_W>()), k += ROWS_OF_W;
            else work(k++, Number<1>());
        }
    });
}

// y (rows, in) = x (rows, out) times the transpose of w (in, out).
static void multiply_transposed(const T* x, const T* w, T* y, index_t rows, index_t in, index_t out, int threads) {
    each_rows_of_w(in, threads, [=](index_t k, auto count) {
        for (index_t row = 0; row < rows; row += GROUP) {
#define DOTS_OF(R) dots<R, count>(x + row * out, w + k * out, y + row * in + k, in, out)
            BY_ROWS(std::min<index_t>(GROUP, rows - row), DOTS_OF)
        }
    });
}

}  // namespace few_rows
