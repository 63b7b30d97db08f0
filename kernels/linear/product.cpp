// Products of two matrices, each of which may be stored transposed, or the second one in pieces.
//
// A product of a small depth is made row by row (shallow.h). The result of another is divided into parts of rows and columns (part.h).
// A part belongs to one thread, and no thread waits for another. So a process that takes a core costs its share of time and no more;
// BLAS's threads wait for each other at each block.
// Each value of the result is one sum over each block of the depth, in order, so it has the same bits for any number of threads.
#include "part.h"
#include "shallow.h"

static const index_t LEAST_PART = 1 << 19;  // multiplications

// The parts of a thread: one whose core is taken leaves its rest to others. A transposed first matrix would be packed for each
// part, which costs more than that saves.
static int parts_each(bool a_turned) { return a_turned ? 1 : 2; }

// The numbers of parts of the rows and of the panels.
struct Grid {
    index_t of_rows, of_panels;
};

// The grid of enough parts that packs least: each part packs its columns, and its rows if the first matrix is transposed; packing
// a column takes about twice as long.
static Grid grid_of(const Operands& of, index_t strips, index_t groups, int threads) {
    if (threads <= 1) return {1, 1};
    const index_t parts = std::min<index_t>(threads * parts_each(of.a_turned), of.rows * of.columns * of.depth / LEAST_PART);
    const index_t wanted = std::min(std::max<index_t>(parts, threads), strips * groups);
    Grid best{strips, groups};
    const auto packed = [&](const Grid& grid) { return of.rows * grid.of_panels + 2 * of.columns * grid.of_rows; };
    for (index_t of_panels = 1; of_panels <= std::min(wanted, groups); ++of_panels) {
        const Grid grid{(wanted + of_panels - 1) / of_panels, of_panels};
        if (grid.of_rows <= strips && packed(grid) < packed(best)) best = grid;
    }
    return best;
}

// `sums` gets the sums of b's columns, unless it is null.
static void multiply(Operands of, T* sums, int threads) {
    const index_t panels = panels_of(of.columns), R = TALL_ROWS, P = TALL_PANELS;
    const Aligned<T> room(sums ? panels * W : 0);
    if (is_shallow(of) && !sums) return multiply_shallow(of, threads);
    if (sums) {
        std::fill_n(room.data(), panels * W, T(0));
        of.sums = room.data();
    }
    const index_t strips = (of.rows + R - 1) / R, groups = (panels + P - 1) / P;
    const Grid grid = grid_of(of, strips, groups, threads);
    in_parts(grid.of_rows * grid.of_panels, threads, [&](index_t first, index_t last) {
        for (index_t part = first; part < last; ++part) {
            const index_t r = part / grid.of_panels, p = part % grid.of_panels;
            Part(of, strips * r / grid.of_rows * R, std::min(strips * (r + 1) / grid.of_rows * R, of.rows),
                    groups * p / grid.of_panels * P, std::min(groups * (p + 1) / grid.of_panels * P, panels)).multiply();
        }
    });
    if (sums) std::copy_n(room.data(), of.columns, sums);
}

static void activation_backward(const T* y, const T* dy, T* dx, index_t size, int activation, int threads) {
    in_parts(size, threads, [=](index_t first, index_t last) {
#pragma omp simd
        for (index_t k = first; k < last; ++k) dx[k] = gradient_before(y[k], dy[k], activation);
    });
}

ENTRY(product) {
    guarded([&] {
        multiply({a, added, {{b, b_distance, depth}}, out, rows, depth, columns, a_distance, added_distance,
                  out_distance, a_turned != 0, b_turned != 0, nullptr, activation}, sums, threads);
    });
}

ENTRY(activation_backward) {
    guarded([&] {
        activation_backward(y, dy, dx, size, activation, threads);
    });
}

ENTRY(product_of_pieces) {
    guarded([&] {
        std::vector<Piece> b;
        for (index_t p = 0; p < pieces; ++p)
            b.push_back({reinterpret_cast<const T*>(addresses[p]), distances[p], ends[p]});
        multiply({a, nullptr, std::move(b), out, rows, depth, columns, a_distance, 0, columns, a_turned != 0,
                  false}, nullptr, threads);
    });
}
