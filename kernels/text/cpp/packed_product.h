// Products of rows with a matrix that is packed once and used many times (tile.h).
#pragma once
#include "tile.h"

static const index_t CACHED_BYTES = 1 << 20;  // of panels that stay in L2

// The tall tiles of some rows; returns the remaining prefetches. If one row to three are left over, they share two groups with a
// strip, because the sums of so few would wait for each other.
template <int PANELS, class First>
static Prefetch tall_tiles(const First& a, index_t rows, const FromPanels& panels, index_t depth, T* out, index_t distance,
                           bool add, const Prefetch& asked) {
    const bool shared = rows > TALL_ROWS && rows % TALL_ROWS > 0 && rows % TALL_ROWS < TALL_ROWS / 2;
    const index_t strips = rows / TALL_ROWS - shared, end = strips * TALL_ROWS, last = shared ? (end + rows) / 2 : end;
    const auto to = [&](index_t row) {
        T* first = out + row * distance;
        return Sums{first, distance, add ? first : nullptr, distance};
    };
    const Prefetch left = multiply_each<PANELS>(strips, a, panels, depth, to(0), asked);
    multiply_few<PANELS>(last - end, a.from(end, 0), panels, depth, to(end));
    multiply_few<PANELS>(rows - last, a.from(last, 0), panels, depth, to(last));
    return left;
}

// The columns of some panels, by flat tiles or by tall ones; a panel begins `between` values after the one before. Strips use the
// same panels; where these come from memory, the first strip would wait for them, so strips prefetch the next panels. A single
// strip reads the panels in order, which the hardware prefetches. Where panels stay in L2, tiles prefetch the lines `wanted` after
// the product.
template <int PANELS, bool FLAT, class First>
static void columns_of(const First& a, index_t rows, const T* packed, index_t between, index_t depth, T* out, index_t distance,
                       bool add, bool from_memory, Prefetch& wanted) {
    constexpr index_t SIZE = sizeof(T);
    for (index_t k = 0; k < depth; k += DEPTH_BLOCK) {
        const index_t now = std::min(DEPTH_BLOCK, depth - k);
        const FromPanels panels{packed + k * W, between};
        if constexpr (FLAT) {
            const Sums to{out, distance, add || k > 0 ? out : nullptr, distance};
            multiply_few<PANELS, FLAT_ROWS>(rows, a.from(0, k), panels, now, to);
            continue;
        }
        if (!from_memory) {
            wanted = tall_tiles<PANELS>(a.from(0, k), rows, panels, now, out, distance, add || k > 0, wanted);
            continue;
        }
        Prefetch next;
        if (rows > TALL_ROWS) {
            const T* after = packed + (k + now < depth ? (k + now) * W : PANELS * between);
            next = {reinterpret_cast<uintptr_t>(after), between * SIZE, PANELS, PANEL_BYTES - PANELS * between * SIZE, PANELS * now,
                    PANELS};
            if (PANELS * STEP > rows / TALL_ROWS) next = next.by_two();
        }
        tall_tiles<PANELS>(a.from(0, k), rows, panels, now, out, distance, add || k > 0, next);
    }
}

// The panels [first, last) of a product with the first `depth` rows of panels that begin `between` values one after another:
// out = a * packed, or out += a * packed. The row stride of `out` is `distance`. `wanted` are lines that are read afterwards.
template <class First>
__attribute__((noinline)) static void product(const First& a, index_t rows, const T* packed, index_t between, index_t first,
                                              index_t last, index_t depth, T* out, index_t distance, bool add,
                                              Prefetch wanted = Prefetch()) {
    const bool from_memory = (last - first) * depth * PANEL_BYTES > CACHED_BYTES;
    index_t p = first;
    for (; rows <= FLAT_ROWS && p + FLAT_PANELS <= last; p += FLAT_PANELS)
        columns_of<FLAT_PANELS, true>(a, rows, packed + p * between, between, depth, out + p * W, distance, add, from_memory, wanted);
    for (; p + TALL_PANELS <= last; p += TALL_PANELS)
        columns_of<TALL_PANELS, false>(a, rows, packed + p * between, between, depth, out + p * W, distance, add, from_memory, wanted);
    for (; p < last; ++p)
        columns_of<1, false>(a, rows, packed + p * between, between, depth, out + p * W, distance, add, from_memory, wanted);
}

// The same with all rows of the panels.
template <class First>
static void product(const First& a, index_t rows, const T* packed, index_t first, index_t last, index_t depth, T* out,
                    index_t distance, bool add, const Prefetch& wanted = Prefetch()) {
    product(a, rows, packed, depth * W, first, last, depth, out, distance, add, wanted);
}
