// A part of the product of two matrices, which one thread computes.
//
// It goes through the depth in blocks, each block through groups of panels that stay in L2, and each group through some rows at a
// time. The first matrix is packed by the tiles of the first panels, if it is transposed, and the second one, a pair of panels at a
// time, by the tile of the first rows (tile.h). Tiles prefetch the operands of the next tiles.
#pragma once
#include "packing.h"
#include "activation.h"
#include "operands.h"

static const index_t ROWS_AT_ONCE = 8 * TALL_ROWS;  // of a part with many rows: they and their sums stay in L2
static const index_t FEW_ROWS = 2 * ROWS_AT_ONCE;
static const index_t CACHED_PANELS = 1 << 19;  // bytes of a group of panels
static const index_t WRITING_DEPTH = 64;  // with a greater one, writing the result is hidden behind the products

// A range of k, some rows, and a group of panels.
struct Place {
    index_t k = 0, depth = 0, row = 0, rows = 0, first_panel = 0, last_panel = 0;
};

class Part {
  public:
    Part(const Operands& of, index_t first_row, index_t last_row, index_t first_panel, index_t last_panel)
        : of(of), first_row(first_row), last_row(last_row), first_panel(first_panel), last_panel(last_panel),
          blocks(last_row - first_row <= FEW_ROWS ? 1 : (last_row - first_row + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE),
          depths((of.depth + DEPTH_BLOCK - 1) / DEPTH_BLOCK),
          strips(of.a_turned ? strips_at_once() * R * most_depth() : 0),
          panels((blocks > 1 ? std::min(panels_at_once(), last_panel - first_panel) : P) * W * most_depth()) {}

    void multiply() {
        for (at = place(0, first_panel, 0); at.depth > 0; at = next) {
            next = after();
            foresee();
            for (panel = at.first_panel; panel < at.last_panel; panel += P) {
                multiply_panels(std::min(P, at.last_panel - panel));
                if (of.activation && at.k + at.depth == of.depth) activate();
            }
        }
        if (past_caches) end_past_caches();
    }

  private:
    static constexpr index_t R = TALL_ROWS, P = TALL_PANELS, LINE = CACHE_LINE / sizeof(T);
    const Operands& of;
    const index_t first_row, last_row, first_panel, last_panel, blocks, depths;  // blocks of rows, and of the depth
    const Aligned<T> strips, panels;
    index_t n = 0, block = 0;  // the current blocks
    Place at, next;            // the current one and the next; a depth of 0 is the end
    index_t panel = 0;
    Prefetch next_rows, next_panels;
    // The time of a small depth is that of writing the result.
    const bool past_caches = of.depth <= WRITING_DEPTH && !of.activation && go_past_caches<T>(of.rows * of.columns)
        && reinterpret_cast<uintptr_t>(of.out) % CACHE_LINE == 0 && of.out_distance % LINE == 0;
    bool by_two = false;  // true if tiles prefetch two lines at a time

    static index_t strips_of(index_t rows) { return (rows + R - 1) / R; }
    index_t most_depth() const { return (of.depth + depths - 1) / depths; }
    index_t panels_at_once() const {
        if (blocks == 1) return last_panel - first_panel;  // nothing is kept
        return std::max(CACHED_PANELS / (most_depth() * PANEL_BYTES) / P * P, P);
    }
    // Strips are kept for the groups of panels that follow.
    bool keeps_strips() const { return panels_at_once() < last_panel - first_panel; }
    index_t strips_at_once() const {
        const index_t all = strips_of(last_row - first_row);
        return keeps_strips() ? all : (all + blocks - 1) / blocks;
    }
    Place place(index_t n, index_t panel, index_t block) const {
        const index_t k = of.depth * n / depths, strips = strips_of(last_row - first_row);
        const index_t row = first_row + strips * block / blocks * R;
        const index_t end = std::min(first_row + strips * (block + 1) / blocks * R, last_row);
        return {k, of.depth * (n + 1) / depths - k, row, end - row, panel, std::min(panel + panels_at_once(), last_panel)};
    }
    Place after() {
        if (++block < blocks) return place(n, at.first_panel, block);
        block = 0;
        if (at.last_panel < last_panel) return place(n, at.last_panel, 0);
        return ++n < depths ? place(n, first_panel, 0) : Place();
    }
    T* strip(index_t s) const { return strips.data() + ((keeps_strips() ? at.row - first_row : 0) + s * R) * at.depth; }
    // Panels are kept for the blocks of rows that follow.
    T* packed() const { return panels.data() + (blocks > 1 ? (panel - at.first_panel) * at.depth * W : 0); }
    FromPanels from_panels() const { return {packed(), at.depth * W}; }
    bool packs_first() const { return of.a_turned && panel == first_panel; }
    bool packs_second() const { return at.row == first_row; }

    // The columns of `count` panels: as many as a tile has, or the remaining ones.
    void multiply_panels(index_t count) {
        const bool whole = count == P && (panel + P) * W <= of.columns;
        const bool by_tile = packs_second() && whole && at.rows >= R && !of.b_turned && of.b_in_one_piece();
        if (packs_second() && !by_tile) pack_second(count);
        if (whole) multiply_whole_panels(by_tile);
        else multiply_beside(count);
        if (of.sums && packs_second() && first_row == 0)
            for (index_t p = 0; p < count; ++p) add_sum(packed() + p * at.depth * W, of.sums + (panel + p) * W);
    }

    // `by_tile`: the first tile packs the panels.
    void multiply_whole_panels(bool by_tile) {
        const index_t count = at.rows / R;
        Prefetch ahead;
        if (packs_second() && panel + P < at.last_panel) ahead = lines_of_panels(at.k, at.depth, panel + P, P);
        if (by_two) ahead = ahead.by_two();
        const index_t asking = std::min(by_tile + (STEP * ahead.count + at.depth - 1) / at.depth, count);  // for all lines
        if (by_tile) {
            const MatrixToPanels second{of.b_at(at.k, panel * W), of.b[0].distance, packed(), at.depth * W};
            ahead = multiply_strips<P>(0, 1, second, sums(0), ahead);
        }
        multiply_strips<P>(by_tile, asking, from_panels(), sums(by_tile), ahead);
        Prefetch& later = next_panels.count > 0 ? next_panels : next_rows;
        later = multiply_strips<P>(asking, count, from_panels(), sums(asking), later);
        if (at.rows % R) multiply_rows<P>(count, at.rows % R, sums(count));
    }

    // The activation of the values that the last panels have just got, while they are in cache.
    void activate() const {
        const index_t columns = std::min(P * W, std::min(last_panel * W, of.columns) - panel * W);
        for (index_t r = at.row; r < at.row + at.rows; ++r) {
            T* out = of.out + r * of.out_distance + panel * W;
            index_t c = 0;
            for (; c + LANES <= columns; c += LANES) store(out + c, activated(load(out + c), of.activation));
            for (; c < columns; ++c) out[c] = activated(out[c], of.activation);
        }
    }

    // The destination of the sums of a strip.
    Sums sums(index_t s) const {
        const index_t row = at.row + s * R;
        T* out = of.out + row * of.out_distance + panel * W;
        if (at.k > 0) return {out, of.out_distance, out, of.out_distance};
        return {out, of.out_distance, of.added ? of.added_at(row, panel * W) : nullptr, of.added_distance, past_caches};
    }

    // Columns that are no whole tile are computed beside the result, and copied.
    void multiply_beside(index_t count) {
        T room[R][P * W];
        const Sums to{room[0], P * W, nullptr, 0};
        const index_t columns = std::min(count * W, of.columns - panel * W);
        for (index_t s = 0; s < strips_of(at.rows); ++s) {
            const index_t count_rows = std::min(R, at.rows - s * R);
            if (count == P) multiply_strip<P>(s, count_rows, to);
            else multiply_strip<1>(s, count_rows, to);
            const Sums sum = sums(s);
            for (index_t r = 0; r < count_rows; ++r)
                for (index_t c = 0; c < columns; ++c)
                    sum.out[r * sum.out_distance + c] = room[r][c] + (sum.added ? sum.added[r * sum.added_distance + c] : T(0));
        }
    }

    template <int PANELS>
    void multiply_strip(index_t s, index_t count_rows, const Sums& to) {
        if (count_rows == R) multiply_strips<PANELS>(s, s + 1, from_panels(), to, Prefetch());
        else multiply_rows<PANELS>(s, count_rows, to);
    }

    // Whole strips.
    template <int PANELS, class Second>
    Prefetch multiply_strips(index_t first, index_t last, const Second& second, const Sums& to, const Prefetch& next) {
        const T* from = of.a_at(at.row + first * R, at.k);
        const index_t count = last - first, distance = of.a_distance;
        if (!of.a_turned) return multiply_each<PANELS>(count, FromRows{from, distance}, second, at.depth, to, next);
        if (!packs_first()) return multiply_each<PANELS>(count, FromStrips{strip(first)}, second, at.depth, to, next);
        return multiply_each<PANELS>(count, ColumnsToStrips{from, distance, strip(first)}, second, at.depth, to, next);
    }

    // The rows after the last whole strip. If the first matrix is transposed, they are packed as rows.
    template <int PANELS>
    void multiply_rows(index_t s, index_t count, const Sums& to) {
        const T* from = of.a_at(at.row + s * R, at.k);
        if (packs_first())
            for (index_t j = 0; j < at.depth; ++j)
                for (index_t r = 0; r < count; ++r) strip(s)[r * at.depth + j] = from[j * of.a_distance + r];
        const FromRows first = of.a_turned ? FromRows{strip(s), at.depth} : FromRows{from, of.a_distance};
        multiply_few<PANELS>(count, first, from_panels(), at.depth, to);
    }

    void pack_second(index_t count) const {
        if (of.b_turned)
            return pack_transposed(of.b[0].rows + at.k, of.b[0].distance, at.depth, of.columns, panel, panel + count, packed());
        index_t begin = 0;
        for (const Piece& piece : of.b) {
            const index_t from = std::max(begin, at.k), until = std::min(piece.end, at.k + at.depth);
            if (from < until)
                pack_panels(piece.rows + (from - begin) * piece.distance, piece.distance, until - from, of.columns, panel,
                            panel + count, packed() + (from - at.k) * W, at.depth * W);
            begin = piece.end;
        }
    }

    // The operands of the next place: its rows, and its first panels if they are not packed yet. Where a place reads some columns
    // of a matrix, a line is prefetched by its last value: a row may begin within a line that the columns before have prefetched.
    void foresee() {
        next_rows = next_panels = Prefetch();
        const index_t count = next.rows * next.depth / LINE;
        if (next.depth > 0 && next.row == first_row) next_panels = lines_of_panels(next.k, next.depth, next.first_panel, P);
        if (!of.a_turned) next_rows = lines(of.a_at(next.row, next.k), LINE, next.depth / LINE, of.a_distance, count);
        else if (next.first_panel > first_panel)
            next_rows = lines(strips.data() + (next.row - first_row) * next.depth, LINE, count, 0, count);
        else next_rows = lines(of.a_at(next.row, next.k) + LINE - 1, LINE, next.rows / LINE, of.a_distance, count);
        const index_t group = at.last_panel - at.first_panel;
        const index_t wanted = next_rows.count + next_panels.count + (packs_second() ? group * W * at.depth / LINE : 0);
        by_two = wanted * STEP > at.rows / R * (group / P) * at.depth;
        if (!by_two) return;
        next_rows = next_rows.by_two();
        next_panels = next_panels.by_two();
    }

    // The second matrix in `count` panels.
    Prefetch lines_of_panels(index_t k, index_t depth, index_t first, index_t count) const {
        if (!of.b_in_one_piece()) return Prefetch();
        const index_t distance = of.b[0].distance, lines_in_all = count * W * depth / LINE;
        if (of.b_turned) return lines(of.b_at(k, first * W), LINE, depth / LINE, distance, lines_in_all);
        return lines(of.b_at(k, first * W) + LINE - 1, LINE, count * W / LINE, distance, lines_in_all);
    }

    // `count` lines from `first` on: `run` of them `pace` values apart, then as many `next` values further.
    static Prefetch lines(const T* first, index_t pace, index_t run, index_t next, index_t count) {
        static constexpr index_t SIZE = sizeof(T);
        if (count <= 0 || run <= 0) return Prefetch();
        return {reinterpret_cast<uintptr_t>(first), pace * SIZE, run, (next - run * pace) * SIZE, count, run};
    }

    // Adds up the rows of a panel. There are four sums, because an addition waits for the one before it.
    void add_sum(const T* values, T* sum) const {
        for (index_t j = 0; j < W; j += LANES) {
            vector parts[4] = {};
            for (index_t r = 0; r < at.depth; ++r) parts[r % 4] += load(values + r * W + j);
            store(sum + j, load(sum + j) + ((parts[0] + parts[1]) + (parts[2] + parts[3])));
        }
    }
};
