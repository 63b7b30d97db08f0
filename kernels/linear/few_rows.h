// Products of a few rows with a matrix. The matrix is read once, unpacked. Each value of a result is added up in one order, which
// does not depend on the threads.
#pragma once
#include "../rows.h"

namespace few_rows {

static const int GROUP = 4;  // rows of x that share a load of the matrix
static const int PANEL = 8;  // rows of the matrix that share a load and a store of y; the next panel is prefetched
static const int SIDE_BY_SIDE = 8;   // vectors that are added up side by side; fewer would wait for each other
static const index_t BLOCK = 128;  // rows of the matrix whose products are added up together, whatever the threads

// y += x[r, 0 .. K) w[0 .. K, :] for R rows.
template <int R, int K, class T>
static void add_panel(const T* x, const T* w, T* y, index_t in, index_t out) {
    using vector = typename Vector<T>::type;
    constexpr index_t LANES = Vector<T>::lanes;
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

template <int K, class T>
static void add_rows(const T* x, const T* w, T* y, index_t rows, index_t in, index_t out) {
    for (index_t row = 0; row < rows; row += GROUP) {
#define ADD_PANEL(R) add_panel<R, K>(x + row * in, w, y + row * out, in, out)
        BY_ROWS(std::min<index_t>(GROUP, rows - row), ADD_PANEL)
    }
}

// The threads share rows of the matrix, not columns: the hardware prefetches contiguous memory.
template <class T>
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

}  // namespace few_rows
