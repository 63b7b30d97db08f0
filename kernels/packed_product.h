// Products of few rows with a matrix that is packed once and used many times.
//
// A packed matrix (depth, columns) stands in panels of 64 bytes of columns: the values of one row of a panel are side by
// side, and its rows follow one another. Each value of a product is one sum over the depth, in order, whatever
// rows and columns are computed with it: so its bits do not depend on who computes what.
#pragma once
#include "native.h"

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
static const index_t DEPTH_BLOCK = 256;  // rows of a panel that stay in the first cache
static const index_t CACHED_BYTES = 1 << 20;  // of panels that stay in the second cache

template <class T>
struct Panel {
    static constexpr index_t width = PANEL_BYTES / sizeof(T);
    static constexpr int vectors = PANEL_BYTES / VECTOR_BYTES;
    static index_t count(index_t columns) { return (columns + width - 1) / width; }
};

// What a tile asks the memory for while it computes, at each row of its panels: nothing, or a part of what is used next. Its
// address is a number, because it may lie beyond the packed matrix; all distances are bytes.
struct NothingAhead {
    void ask(int) {}
};
struct PanelsAhead {
    uintptr_t next;
    index_t pace, between;
    void ask(int panels) {
#pragma GCC unroll 4
        for (int n = 0; n < panels; ++n) __builtin_prefetch(reinterpret_cast<const void*>(next + n * between), 0, 2);
        next += pace;
    }
};

// out[r][column...] = a[r] * panels, or added to what is there; a panel begins `between` values after the one before. STEP is
// the distance of a row's values.
template <int STEP, class T, int ROWS, int PANELS, class Ahead>
static inline void tile(const T* const* a, const T* panels, index_t between, index_t first, index_t last, T* const* out,
                        index_t column, bool add, Ahead ahead) {
    using vector = typename Vector<T>::type;
    constexpr int V = Panel<T>::vectors, N = PANELS * V;
    constexpr index_t L = Vector<T>::lanes;
    vector sums[ROWS][N];
    const T* rows[ROWS];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) {
        rows[r] = a[r];
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) sums[r][n] = add ? load(out[r] + column + n * L) : vector{};
    }
    if (!add) {  // so that the results' memory is there when the sums are
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 16
            for (int n = 0; n < N; ++n) __builtin_prefetch(out[r] + column + n * L, 1);
    }
    const T* row = panels + first * Panel<T>::width;
#pragma GCC unroll 4
    for (index_t k = first; k < last; ++k, row += Panel<T>::width) {
        ahead.ask(PANELS);
        vector b[N];
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) b[n] = load(row + n / V * between + n % V * L);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; ++r) {
            const T x = rows[r][k * STEP];
#pragma GCC unroll 16
            for (int n = 0; n < N; ++n) sums[r][n] += x * b[n];
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) store(out[r] + column + n * L, sums[r][n]);
}

template <int STEP, class T, int ROWS, int LEAST, int PANELS, class Ahead>
static void tile_of(index_t rows, const T* const* a, const T* panels, index_t between, index_t first, index_t last,
                    T* const* out, index_t column, bool add, Ahead ahead) {
    if constexpr (ROWS >= LEAST) {
        if (rows == ROWS) tile<STEP, T, ROWS, PANELS>(a, panels, between, first, last, out, column, add, ahead);
        else tile_of<STEP, T, ROWS - 1, LEAST, PANELS>(rows, a, panels, between, first, last, out, column, add, ahead);
    }
}

// Several groups of rows use the same panels. Where panels come from memory, the first group would wait for them, so each
// group asks for its share of the panels that come next. One group alone reads the panels as they lie, which the CPU foresees.
// Where rows are packed, too, the panels have just been packed and are in the caches.
template <int STEP, class T, int ROWS, int PANELS>
static void columns_of(const T* const* a, index_t rows, const T* panels, index_t between, index_t depth, T* const* out,
                       index_t column, bool add, bool from_memory) {
    constexpr index_t W = Panel<T>::width;
    const index_t groups = (rows + ROWS - 1) / ROWS;
    for (index_t k = 0; k < depth; k += DEPTH_BLOCK) {
        const index_t end = k + DEPTH_BLOCK < depth ? k + DEPTH_BLOCK : depth;
        const uintptr_t next = reinterpret_cast<uintptr_t>(panels) + (end < depth ? end * W : PANELS * between) * sizeof(T);
        for (index_t g = 0; g < groups; ++g) {
            const index_t r = rows * g / groups, count = rows * (g + 1) / groups - r;
            if constexpr (STEP == 1) {
                if (from_memory && groups > 1) {
                    const index_t pace = (W + groups - 1) / groups * sizeof(T);  // together the groups ask for all
                    const PanelsAhead ahead{next + g * (end - k) * pace, pace, between * index_t(sizeof(T))};
                    tile_of<STEP, T, ROWS, ROWS / 2, PANELS>(count, a + r, panels, between, k, end, out + r, column,
                                                             add || k > 0, ahead);
                    continue;
                }
            }
            tile_of<STEP, T, ROWS, 1, PANELS>(count, a + r, panels, between, k, end, out + r, column, add || k > 0,
                                              NothingAhead{});
        }
    }
}

template <int STEP, class T, int ROWS, int PANELS>
static void panels_of(const T* const* a, index_t rows, const T* packed, index_t between, index_t first, index_t last,
                      index_t depth, T* const* out, bool add) {
    const index_t W = Panel<T>::width;
    const bool from_memory = (last - first) * depth * PANEL_BYTES > CACHED_BYTES;
    index_t p = first;
    for (; p + PANELS <= last; p += PANELS)
        columns_of<STEP, T, ROWS, PANELS>(a, rows, packed + p * between, between, depth, out, p * W, add, from_memory);
    for (; p < last; ++p)
        columns_of<STEP, T, ROWS, 1>(a, rows, packed + p * between, between, depth, out, p * W, add, from_memory);
}

// The panels [first, last) of a product with the first `depth` rows of panels that begin `between` values one after another:
// out[r] = a[r] * packed, or out[r] += a[r] * packed. Rows are given by their addresses, and their values are STEP values
// apart.
template <int STEP = 1, class T>
__attribute__((noinline)) static void product(const T* const* a, index_t rows, const T* packed, index_t between, index_t first,
                                              index_t last, index_t depth, T* const* out, bool add) {
    if (rows <= FLAT_ROWS) panels_of<STEP, T, FLAT_ROWS, FLAT_PANELS>(a, rows, packed, between, first, last, depth, out, add);
    else panels_of<STEP, T, TALL_ROWS, TALL_PANELS>(a, rows, packed, between, first, last, depth, out, add);
}

// The same with all rows of the panels.
template <int STEP = 1, class T>
static void product(const T* const* a, index_t rows, const T* packed, index_t first, index_t last, index_t depth,
                    T* const* out, bool add) {
    product<STEP>(a, rows, packed, depth * Panel<T>::width, first, last, depth, out, add);
}
