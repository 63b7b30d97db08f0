// Products of a few rows with a matrix, forward and backward. The matrix is read once, as it lies in memory: it is packed
// nowhere. Each value of a result is added up in one order, which does not depend on the threads.
#include "../rows.h"

// Keeps a vector in a register: g++ would read it from memory again for each product.
template <class V>
static inline V kept(V v) {
#if defined(__x86_64__)
    asm("" : "+x"(v));
#elif defined(__aarch64__)
    asm("" : "+w"(v));
#endif
    return v;
}

static const int GROUP = 4;  // rows of x that share a load of the matrix
static const int PANEL = 8;  // rows of the matrix that share a load and a store of y; the next panel is asked for
static const int SIDE_BY_SIDE = 8;   // vectors that are added up side by side; fewer would wait for each other
static const int ROWS_OF_W = 4;  // rows of the matrix, or of its gradient, that share a load of g
static const index_t COLUMNS_AT_ONCE = 1 << 12;  // of a sum over columns: the rounding of a longer one would grow with it
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
                const vector weights = kept(load(w + k * out + c + s * LANES));
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
            const vector weights = kept(load(w + k * out + c));
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

// dx[r, k .. k + K) = or += the products of g's rows with K rows of w, over the first `count` columns. The rows of w are read in
// turns, which the CPU does not foresee, so the loop asks for those that follow.
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
            weights[k] = kept(load(w + k * out + c));
        }
        for (int r = 0; r < R; ++r) {
            const vector gradient = kept(load(g + r * out + c));
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
            const vector gradient = kept(lanes.load(g + r * out + c));
            for (int k = 0; k < K; ++k) sums[k] += gradient * factors[r][k];
        }
        for (int k = 0; k < K; ++k) lanes.store(dw + k * out + c, sums[k]);
    };
    for (index_t c = 0; c < whole; c += LANES) add_up(c, WholeVector<T>());
    if (whole < out) add_up(whole, PartOfVector<T>{out - whole});
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

// The threads share rows of the matrix, not columns: a CPU fetches ahead what lies in one piece.
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

// The gradients of x and of w, as far as they are asked for.
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
