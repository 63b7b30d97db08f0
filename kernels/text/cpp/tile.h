// The inner loop of every product: a tile of some rows and some panels of the result, whose sums stay in registers.
//
// A packed second matrix (depth, columns) is stored in panels of 64 bytes of columns: the values of one row of a panel are
// contiguous, and its rows follow one another. A packed first matrix (rows, depth) is stored in strips of TALL_ROWS rows: the
// values of a strip at one k are contiguous. A tile can pack its operands while it multiplies, because nothing else is written
// then. Each value is one sum over the tile's depth, in order, whatever rows and columns are computed with it: so its bits do not
// depend on the division of the work.
#pragma once
#include "rows.h"

#if VECTOR_BYTES == 64
static const int TALL_ROWS = 8, TALL_PANELS = 2, FLAT_ROWS = 4, FLAT_PANELS = 4;
#elif VECTOR_BYTES == 32
static const int TALL_ROWS = 6, TALL_PANELS = 1, FLAT_ROWS = 2, FLAT_PANELS = 2;
#else
static const int TALL_ROWS = 3, TALL_PANELS = 1, FLAT_ROWS = 3, FLAT_PANELS = 1;
#endif
// TALL and FLAT are the rows and panels whose sums fit in the registers beside a row of the panels and one value; a flat tile
// is for so few rows that the sums of a tall one would wait for each other.
static const index_t PANEL_BYTES = 64;
static const index_t STEP = 4;  // values of k that a tile takes at once
static const index_t DEPTH_BLOCK = 256;  // rows of a tall tile's panels that stay in L1

static constexpr index_t W = PANEL_BYTES / sizeof(T);  // the columns of a panel
static constexpr int PANEL_VECTORS = PANEL_BYTES / VECTOR_BYTES;
static inline index_t panels_of(index_t columns) { return (columns + W - 1) / W; }

// The cache lines that tiles prefetch while they multiply: one at each STEP values of k, or two that are `beside` bytes apart,
// `count` times in all. From one to the next it is `pace` bytes, and after `run` of them `jump` bytes more. Addresses are numbers,
// because they may lie beyond an array: nothing is read. The CPU has few misses under way at once: with more prefetches a tile
// would wait for its own values.
struct Prefetch {
    uintptr_t next = 0;
    index_t pace = 0, run = 0, jump = 0, count = 0, left = 0, beside = 0;

    // The same lines two at a time, for tiles of too small a depth.
    Prefetch by_two() const { return run % 2 ? *this : Prefetch{next, 2 * pace, run / 2, jump, count / 2, left / 2, pace}; }

    void ask() {
        if (count == 0) return;
        --count;
        __builtin_prefetch(reinterpret_cast<const void*>(next), 0, 2);
        __builtin_prefetch(reinterpret_cast<const void*>(next + beside), 0, 2);
        next += pace;
        if (--left == 0) {
            left = run;
            next += jump;
        }
    }
};

// The values of a tile in the first matrix, whose row stride is `distance`. `go_on` goes to the next strip, and `from` to another
// row and k.
struct FromRows {
    const T* first;
    index_t distance;
    void pack(index_t) const {}
    T value(index_t k, index_t r) const { return first[r * distance + k]; }
    void go_on(index_t) { first += TALL_ROWS * distance; }
    FromRows from(index_t row, index_t k) const { return {first + row * distance + k, distance}; }
};

// The same of a transposed matrix: the stride of its columns is `distance`.
struct FromColumns {
    const T* first;
    index_t distance;
    void pack(index_t) const {}
    T value(index_t k, index_t r) const { return first[k * distance + r]; }
    void go_on(index_t) { first += TALL_ROWS; }
    FromColumns from(index_t row, index_t k) const { return {first + k * distance + row, distance}; }
};

// The same where strips are packed.
struct FromStrips {
    const T* strip;
    void pack(index_t) const {}
    T value(index_t k, index_t r) const { return strip[k * TALL_ROWS + r]; }
    void go_on(index_t depth) { strip += TALL_ROWS * depth; }
};

// As FromColumns, and strips are packed on the way.
struct ColumnsToStrips {
    const T* columns;
    index_t distance;
    T* strip;
    void pack(index_t k) const { std::memcpy(strip + k * TALL_ROWS, columns + k * distance, TALL_ROWS * sizeof(T)); }
    T value(index_t k, index_t r) const { return columns[k * distance + r]; }
    void go_on(index_t depth) {
        columns += TALL_ROWS;
        strip += TALL_ROWS * depth;
    }
};

// The vectors of a tile's panels in the second matrix; a panel begins `between` values after the one before.
struct FromPanels {
    const T* first;
    index_t between;
    vector at(index_t k, int n) const {
        constexpr int V = PANEL_VECTORS;
        return load(first + n / V * between + k * W + n % V * LANES);
    }
};

// The same of a matrix with row stride `distance`; its rows are packed on the way.
struct MatrixToPanels {
    const T* matrix;
    index_t distance;
    T* packed;
    index_t between;
    vector at(index_t k, int n) const {
        constexpr int V = PANEL_VECTORS;
        const vector values = load(matrix + k * distance + n * LANES);
        store(packed + n / V * between + k * W + n % V * LANES, values);
        return values;
    }
};

// The destination of a tile's sums, and the values added to them, unless null. With `past_caches` they are written with streaming
// stores; whole lines are.
struct Sums {
    T* out;
    index_t out_distance;
    const T* added;
    index_t added_distance;
    bool past_caches = false;
};

// Adds the products at one k to the sums of a tile.
template <int ROWS, int N, class First, class Second>
__attribute__((always_inline)) static inline void add_products(const First& first, const Second& second, index_t k,
                                                               vector (&sums)[ROWS][N]) {
    first.pack(k);
    vector b[N];
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) b[n] = second.at(k, n);
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) {
        const T x = first.value(k, r);
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) sums[r][n] += x * b[n];
    }
}

// The product over `depth` of ROWS rows and PANELS panels.
template <int ROWS, int PANELS, class First, class Second>
__attribute__((always_inline)) static inline void tile(const First& first, const Second& second, index_t depth,
                                                       const Sums& to, Prefetch& ahead) {
    constexpr int N = PANELS * PANEL_VECTORS;
    vector sums[ROWS][N];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) sums[r][n] = vector{};
    // The lines of the sums are prefetched for writing, one after another, as far as the depth allows: the CPU has few misses under
    // way at once. A line is prefetched by its last value: a row may begin within a line that the tile to the left has written.
    const T* claimed = to.out + W - 1;
    index_t left = to.past_caches ? 0 : ROWS * PANELS;
    const auto claim = [&] {
        __builtin_prefetch(claimed, 1);
        claimed += --left % PANELS == 0 ? to.out_distance - (PANELS - 1) * W : W;
    };
    while (left > depth / STEP) claim();
    index_t k = 0;
    for (; k + STEP <= depth; k += STEP) {
        ahead.ask();
        if (left > 0) claim();
#pragma GCC unroll 4
        for (index_t j = 0; j < STEP; ++j) add_products<ROWS, N>(first, second, k + j, sums);
    }
    for (; k < depth; ++k) add_products<ROWS, N>(first, second, k, sums);
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) {
            T* out = to.out + r * to.out_distance + n * LANES;
            const vector sum = to.added ? load(to.added + r * to.added_distance + n * LANES) + sums[r][n] : sums[r][n];
            if (to.past_caches) store_past_caches(out, sum);
            else store(out, sum);
        }
}

// The same for `count` strips; `first` and `to` are those of the first one.
template <int PANELS, class First, class Second>
__attribute__((noinline)) static Prefetch multiply_each(index_t count, First first, const Second second, index_t depth, Sums to,
                                                        Prefetch ahead) {
    for (; count > 0; --count) {
        tile<TALL_ROWS, PANELS>(first, second, depth, to, ahead);
        first.go_on(depth);
        to.out += TALL_ROWS * to.out_distance;
        if (to.added) to.added += TALL_ROWS * to.added_distance;
    }
    return ahead;
}

// The same for fewer rows than a strip has.
template <int PANELS, int ROWS = TALL_ROWS - 1, class First, class Second>
static void multiply_few(index_t rows, const First& first, const Second& second, index_t depth, const Sums& to) {
    if constexpr (ROWS > 0) {
        Prefetch none;
        if (rows == ROWS) tile<ROWS, PANELS>(first, second, depth, to, none);
        else multiply_few<PANELS, ROWS - 1>(rows, first, second, depth, to);
    }
}
