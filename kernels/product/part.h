// A part of the product of two matrices, which one thread computes.
//
// It goes through the depth in blocks, each block through some rows at a time, and these through all panels. In a block the
// first matrix is packed by the tiles of the first panels, if it lies transposed, and the second one, a pair of panels at a
// time, by the tile of the first rows (tile.h). Tiles ask for what the next tiles read, and then for the next block, row after
// row: memory is fast where neighbours are read one after another.
#pragma once
#include "../packing.h"
#include "../activation.h"

static const index_t ROWS_AT_ONCE = 8 * TALL_ROWS;  // of a part of many: they and their sums stay in the second cache
static const index_t FEW_ROWS = 2 * ROWS_AT_ONCE;
static const index_t CACHED_PANELS = 1 << 19;  // bytes of a block's panels that stay there, too

// Rows of the second matrix that lie in one piece of memory: `end` is the row after them, a distance is that of two rows.
template <class T>
struct Piece {
    const T* rows;
    index_t distance, end;
};

// The arguments of a product: a (rows, depth), or (depth, rows) if `a_turned`, and b (depth, columns), of pieces one below the
// other, or (columns, depth), of one piece, if `b_turned`.
template <class T>
struct Operands {
    const T *a, *bias;
    std::vector<Piece<T>> b;
    T* out;
    index_t rows, depth, columns, a_distance, out_distance;
    bool a_turned, b_turned;
    T* sums = nullptr;  // of b's columns, with room for whole panels
    int activation = 0;  // see activation.h

    const T* a_at(index_t row, index_t k) const { return a_turned ? a + k * a_distance + row : a + row * a_distance + k; }
    const T* b_at(index_t k, index_t column) const {
        return b_turned ? b[0].rows + column * b[0].distance + k : b[0].rows + k * b[0].distance + column;
    }
    bool b_in_one_piece() const { return b.size() == 1; }
};

template <class T>
class Part {
  public:
    Part(const Operands<T>& of, index_t first_row, index_t last_row, index_t first_panel, index_t last_panel)
        : of(of), first_row(first_row), last_row(last_row), first_panel(first_panel), last_panel(last_panel),
          blocks(last_row - first_row <= FEW_ROWS ? 1 : (last_row - first_row + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE),
          depths((of.depth + DEPTH_BLOCK - 1) / DEPTH_BLOCK),
          strips(of.a_turned ? (strips_of(last_row - first_row) + blocks - 1) / blocks * R * most_depth() : 0),
          panels((blocks > 1 ? last_panel - first_panel : P) * W * most_depth()) {}

    void multiply() {
        const index_t count = strips_of(last_row - first_row);
        for (index_t n = 0; n < depths; ++n) {
            k = of.depth * n / depths;
            depth = of.depth * (n + 1) / depths - k;
            ask_for_block(k + depth);
            for (index_t block = 0; block < blocks; ++block) {
                row = first_row + count * block / blocks * R;
                rows = std::min(first_row + count * (block + 1) / blocks * R, last_row) - row;
                for (panel = first_panel; panel < last_panel; panel += P) {
                    multiply_panels(std::min(P, last_panel - panel));
                    if (of.activation && k + depth == of.depth) activate();
                }
            }
        }
    }

  private:
    static constexpr index_t W = Panel<T>::width, R = TALL_ROWS, P = TALL_PANELS, LINE = CACHE_LINE / sizeof(T);
    const Operands<T>& of;
    const index_t first_row, last_row, first_panel, last_panel, blocks, depths;  // blocks of rows, and of the depth
    const Aligned<T> strips, panels;
    index_t k = 0, depth = 0, row = 0, rows = 0, panel = 0;  // where it is
    Prefetch block_of_first{}, block_of_second{};            // that come next

    static index_t strips_of(index_t rows) { return (rows + R - 1) / R; }
    index_t most_depth() const { return (of.depth + depths - 1) / depths; }
    T* strip(index_t s) const { return strips.data() + s * R * depth; }
    // Panels are kept for the blocks of rows that follow.
    T* packed() const { return panels.data() + (blocks > 1 ? (panel - first_panel) * depth * W : 0); }
    FromPanels<T> from_panels() const { return {packed(), depth * W}; }
    bool packs_first() const { return of.a_turned && panel == first_panel; }
    bool packs_second() const { return row == first_row; }

    // The columns of `count` panels: as many as a tile has, or what is left.
    void multiply_panels(index_t count) {
        const bool whole = count == P && (panel + P) * W <= of.columns;
        const bool by_tile = packs_second() && whole && rows >= R && !of.b_turned && of.b_in_one_piece();
        if (packs_second() && !by_tile) pack_second(count);
        if (whole) multiply_whole_panels(by_tile);
        else multiply_beside(count);
        if (of.sums && packs_second() && first_row == 0)
            for (index_t p = 0; p < count; ++p) add_sum(packed() + p * depth * W, of.sums + (panel + p) * W);
    }

    // `by_tile`: the first tile packs the panels.
    void multiply_whole_panels(bool by_tile) {
        const index_t count = rows / R;
        Prefetch next = next_tiles();
        if (by_tile) {
            const MatrixToPanels<T> second{of.b_at(k, panel * W), of.b[0].distance, packed(), depth * W};
            next = multiply_strips<P>(0, 1, second, sums(0), next);
        }
        const index_t asking = std::min(by_tile + (2 * next.count + depth - 1) / depth, count);  // these ask for all lines
        multiply_strips<P>(by_tile, asking, from_panels(), sums(by_tile), next);
        Prefetch& block = block_of_second.count > 0 ? block_of_second : block_of_first;
        block = multiply_strips<P>(asking, count, from_panels(), sums(asking), block);
        if (rows % R) multiply_rows<P>(count, rows % R, sums(count));
    }

    // What follows the product, of the values that the last panels have just got: they are still in the caches.
    void activate() const {
        const index_t columns = std::min(P * W, std::min(last_panel * W, of.columns) - panel * W);
        for (index_t r = row; r < row + rows; ++r) {
            T* out = of.out + r * of.out_distance + panel * W;
            index_t c = 0;
            for (; c + Vector<T>::lanes <= columns; c += Vector<T>::lanes) store(out + c, activated(load(out + c), of.activation));
            for (; c < columns; ++c) out[c] = activated(out[c], of.activation);
        }
    }

    // Where the sums of a strip go.
    Sums<T> sums(index_t s) const {
        T* out = of.out + (row + s * R) * of.out_distance + panel * W;
        if (k > 0) return {out, of.out_distance, out, of.out_distance};
        return {out, of.out_distance, of.bias ? of.bias + panel * W : nullptr, 0};
    }

    // Columns that are no whole tile are computed beside the result, and copied.
    void multiply_beside(index_t count) {
        T room[R][P * W];
        const Sums<T> to{room[0], P * W, nullptr, 0};
        const index_t columns = std::min(count * W, of.columns - panel * W);
        for (index_t s = 0; s < strips_of(rows); ++s) {
            const index_t count_rows = std::min(R, rows - s * R);
            if (count == P) multiply_strip<P>(s, count_rows, to);
            else multiply_strip<1>(s, count_rows, to);
            const Sums<T> sum = sums(s);
            for (index_t r = 0; r < count_rows; ++r)
                for (index_t c = 0; c < columns; ++c)
                    sum.out[r * sum.out_distance + c] = room[r][c] + (sum.added ? sum.added[r * sum.added_distance + c] : T(0));
        }
    }

    template <int PANELS>
    void multiply_strip(index_t s, index_t count_rows, const Sums<T>& to) {
        if (count_rows == R) multiply_strips<PANELS>(s, s + 1, from_panels(), to, Prefetch());
        else multiply_rows<PANELS>(s, count_rows, to);
    }

    // Whole strips.
    template <int PANELS, class Second>
    Prefetch multiply_strips(index_t first, index_t last, const Second& second, const Sums<T>& to, const Prefetch& next) {
        const T* from = of.a_at(row + first * R, k);
        const index_t count = last - first, distance = of.a_distance;
        if (!of.a_turned) return multiply_each<T, PANELS>(count, FromRows<T>{from, distance}, second, depth, to, next);
        if (!packs_first()) return multiply_each<T, PANELS>(count, FromStrips<T>{strip(first)}, second, depth, to, next);
        return multiply_each<T, PANELS>(count, ColumnsToStrips<T>{from, distance, strip(first)}, second, depth, to, next);
    }

    // The rows after the last whole strip. If the first matrix lies transposed, they are packed as rows.
    template <int PANELS>
    void multiply_rows(index_t s, index_t count, const Sums<T>& to) {
        const T* from = of.a_at(row + s * R, k);
        if (packs_first())
            for (index_t j = 0; j < depth; ++j)
                for (index_t r = 0; r < count; ++r) strip(s)[r * depth + j] = from[j * of.a_distance + r];
        const FromRows<T> first = of.a_turned ? FromRows<T>{strip(s), depth} : FromRows<T>{from, of.a_distance};
        multiply_few<T, PANELS>(count, first, from_panels(), depth, to);
    }

    void pack_second(index_t count) const {
        if (of.b_turned)
            return pack_transposed(of.b[0].rows + k, of.b[0].distance, depth, of.columns, panel, panel + count, packed());
        index_t begin = 0;
        for (const Piece<T>& piece : of.b) {
            const index_t from = std::max(begin, k), until = std::min(piece.end, k + depth);
            if (from < until)
                pack_panels(piece.rows + (from - begin) * piece.distance, piece.distance, until - from, of.columns, panel,
                            panel + count, packed() + (from - k) * W, depth * W);
            begin = piece.end;
        }
    }

    // What the next tiles read: strips, while the first panels are multiplied; else panels, unless they are in the caches.
    Prefetch next_tiles() const {
        if (panel == first_panel) {
            if (!of.a_turned) return lines(of.a_at(row + R, k), LINE, depth / LINE, of.a_distance, (rows - R) * depth / LINE);
            return k > 0 ? Prefetch() : lines(of.a_at(row + R, k), of.a_distance, depth, LINE, (rows - R) * depth / LINE);
        }
        if (panel + P >= last_panel) return Prefetch();
        if (packs_second()) return k > 0 ? Prefetch() : block_of_panels(k, panel + P, P);
        if ((last_panel - first_panel) * depth * PANEL_BYTES <= CACHED_PANELS) return Prefetch();
        return lines(packed() + P * depth * W, depth * W, P, W, P * depth * W / LINE);
    }

    void ask_for_block(index_t from) {
        block_of_first = block_of_second = Prefetch();
        if (from >= of.depth) return;
        block_of_second = block_of_panels(from, first_panel, last_panel - first_panel);
        const index_t part = last_row - first_row;
        if (of.a_turned) block_of_first = lines(of.a_at(first_row, from), LINE, part / LINE, of.a_distance, part * depth / LINE);
    }

    // The second matrix in some panels, for `depth` places that begin at `from`.
    Prefetch block_of_panels(index_t from, index_t first, index_t count) const {
        if (!of.b_in_one_piece()) return Prefetch();
        const index_t run = of.b_turned ? depth / LINE : count * W / LINE;
        return lines(of.b_at(from, first * W), LINE, run, of.b[0].distance, count * W * depth / LINE);
    }

    // `count` lines from `first` on: `run` of them `pace` values apart, then as many `next` values further.
    static Prefetch lines(const T* first, index_t pace, index_t run, index_t next, index_t count) {
        static constexpr index_t SIZE = sizeof(T);
        if (count <= 0 || run <= 0) return Prefetch();
        return {reinterpret_cast<uintptr_t>(first), pace * SIZE, run, (next - run * pace) * SIZE, count, run};
    }

    // Adds up the rows of a panel. There are four sums, because an addition waits for the one before it.
    void add_sum(const T* values, T* sum) const {
        using vector = typename Vector<T>::type;
        for (index_t j = 0; j < W; j += Vector<T>::lanes) {
            vector parts[4] = {};
            for (index_t r = 0; r < depth; ++r) parts[r % 4] += load(values + r * W + j);
            store(sum + j, load(sum + j) + ((parts[0] + parts[1]) + (parts[2] + parts[3])));
        }
    }
};
