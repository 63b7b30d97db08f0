// Matrices packed or transposed for products with a packed matrix (packed_product.h).
#pragma once
#include <utility>

#include "packed_product.h"

// One row of a panel.
static inline void copy_row(const T* from, T* to) {
    for (int n = 0; n < PANEL_VECTORS; ++n) store(to + n * LANES, load(from + n * LANES));
}

// The panels [first, last) of a matrix (depth, columns) with row stride `distance`; the last panel is padded with zeros. A panel
// begins `between` values after the one before.
static void pack_panels(const T* matrix, index_t distance, index_t depth, index_t columns, index_t first, index_t last,
                        T* packed, index_t between) {
    constexpr index_t AHEAD = 8;
    const index_t whole = std::max(std::min(last, columns / W), first);
    for (index_t k = 0; k < depth; ++k) {
        const T* from = matrix + k * distance + first * W;
        T* to = packed + k * W;
        for (index_t p = first; p < whole; ++p, from += W, to += between) {
            fetch_ahead(from, AHEAD * distance);
            copy_row(from, to);
        }
    }
    for (index_t p = whole; p < last; ++p)
        for (index_t k = 0; k < depth; ++k)
            for (index_t j = 0; j < W; ++j)
                packed[(p - first) * between + k * W + j] = p * W + j < columns ? matrix[k * distance + p * W + j] : T(0);
}

// a0 b0 a1 b1 ... of the first halves of two vectors, or of the second ones.
template <class V, std::size_t... LANE>
static inline V interleaved(V a, V b, std::index_sequence<LANE...>) {
    return __builtin_shufflevector(a, b, (LANE % 2 * sizeof...(LANE) + LANE / 2)...);
}
template <class V, std::size_t... LANE>
static inline V interleaved_ends(V a, V b, std::index_sequence<LANE...>) {
    constexpr int HALF = sizeof...(LANE) / 2;
    return __builtin_shufflevector(a, b, (LANE % 2 * sizeof...(LANE) + LANE / 2 + HALF)...);
}

// The transpose of a square of values, one vector wide: to[k][r] = from[r][k]. The row strides are `from_step` and `to_step`.
static inline void turn_square(const T* from, index_t from_step, T* to, index_t to_step) {
    const auto lanes = std::make_index_sequence<LANES>();
    vector rows[LANES], turned[LANES];
#pragma GCC unroll 16
    for (int r = 0; r < LANES; ++r) rows[r] = load(from + r * from_step);
#pragma GCC unroll 4
    for (int step = 1; step < LANES; step *= 2) {
#pragma GCC unroll 8
        for (int r = 0; r < LANES / 2; ++r) {
            turned[2 * r] = interleaved(rows[r], rows[r + LANES / 2], lanes);
            turned[2 * r + 1] = interleaved_ends(rows[r], rows[r + LANES / 2], lanes);
        }
#pragma GCC unroll 16
        for (int r = 0; r < LANES; ++r) rows[r] = turned[r];
    }
#pragma GCC unroll 16
    for (int r = 0; r < LANES; ++r) store(to + r * to_step, rows[r]);
}

// to[k][r] = from[r][k] for a matrix (rows, columns); the row strides are `from_step` and `to_step`.
static void turn(const T* from, index_t rows, index_t columns, index_t from_step, T* to, index_t to_step) {
    const index_t whole_rows = rows / LANES * LANES, whole = columns / LANES * LANES;
    for (index_t r = 0; r < whole_rows; r += LANES)
        for (index_t k = 0; k < whole; k += LANES) turn_square(from + r * from_step + k, from_step, to + k * to_step + r, to_step);
    for (index_t r = 0; r < rows; ++r)
        for (index_t k = r < whole_rows ? whole : 0; k < columns; ++k) to[k * to_step + r] = from[r * from_step + k];
}

// The panels [first, last) of the transpose of a matrix with row stride `distance`.
static void pack_transposed(const T* matrix, index_t distance, index_t depth, index_t columns, index_t first,
                            index_t last, T* packed) {
    for (index_t p = first; p < last; ++p, packed += depth * W) {
        const index_t width = std::min(W, columns - p * W);
        if (width < W) std::fill(packed, packed + depth * W, T(0));
        turn(matrix + p * W * distance, width, depth, distance, packed, W);
    }
}

// The panels [0, last) of a product (packed_product.h), where the last panel can be wider than `out`.
template <class First>
static void product_into(const First& a, index_t rows, const T* packed, index_t between, index_t depth, index_t last, index_t columns,
                         T* out, index_t distance, bool add) {
    const index_t whole = std::min(last, columns / W);
    product(a, rows, packed, between, 0, whole, depth, out, distance, add);
    if (whole == last) return;
    std::vector<T> tail(rows * W);
    product(a, rows, packed + whole * between, between, 0, 1, depth, tail.data(), W, false);
    for (index_t r = 0; r < rows; ++r)
        for (index_t c = whole * W; c < columns; ++c) {
            T* to = out + r * distance + c;
            *to = (add ? *to : T(0)) + tail[r * W + c - whole * W];
        }
}
