// A product of so small a depth that its time is that of writing the result. A tile would write a few columns of many rows; here
// some rows are written from left to right, which the hardware prefetches.
#pragma once
#include "activation.h"
#include "rows.h"
#include "operands.h"

static const index_t SHALLOW = 8;  // the greatest depth
static const index_t LEAST_COLUMNS = 128;  // with fewer, the begin and the end of a row take longer than a tile

static bool is_shallow(const Operands& of) {
    return of.depth <= SHALLOW && of.columns >= LEAST_COLUMNS && !of.b_turned && of.b_in_one_piece();
}

// ROWS rows from `row` on, which share loads of the second matrix. With `room` they are computed there, and copied with streaming
// stores.
template <int ROWS>
static void shallow_rows(const Operands& of, index_t row, T* room) {
    T* const out = room ? room : of.out + row * of.out_distance;
    const index_t distance = room ? of.columns : of.out_distance;
    T x[SHALLOW][ROWS];
    for (index_t k = 0; k < of.depth; ++k)
        for (int r = 0; r < ROWS; ++r) x[k][r] = *of.a_at(row + r, k);
    each_vector<T>(of.columns, [&](index_t c, auto lanes, auto) {
        vector sums[ROWS] = {};
        for (index_t k = 0; k < of.depth; ++k) {
            const vector b = lanes.load(of.b_at(k, c));
            for (int r = 0; r < ROWS; ++r) sums[r] += x[k][r] * b;
        }
        if (of.added)
            for (int r = 0; r < ROWS; ++r) sums[r] += lanes.load(of.added_at(row + r, c));
        for (int r = 0; r < ROWS; ++r) lanes.store(out + r * distance + c, activated(sums[r], of.activation));
    });
    for (int r = 0; room && r < ROWS; ++r) copy_past_caches(room + r * distance, of.out + (row + r) * of.out_distance, of.columns);
}

static void multiply_shallow(const Operands& of, int threads) {
    static constexpr index_t ROWS = 4;
    const bool past_caches = go_past_caches<T>(of.rows * of.columns);
    in_parts((of.rows + ROWS - 1) / ROWS, threads, [&](index_t first, index_t last) {
        const Aligned<T> kept(past_caches ? ROWS * of.columns : 0);
        T* const room = past_caches ? kept.data() : nullptr;
        const index_t end = std::min(last * ROWS, of.rows);
        index_t row = first * ROWS;
        for (; row + ROWS <= end; row += ROWS) shallow_rows<ROWS>(of, row, room);
        for (; row < end; ++row) shallow_rows<1>(of, row, room);
        if (past_caches) end_past_caches();
    });
}
