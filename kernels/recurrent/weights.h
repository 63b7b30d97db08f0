// Recurrent weights, packed once for all time steps of a sequence.
#pragma once
#include "../packing.h"
#include "../rows.h"

// Recurrent weights (hidden, gates * hidden) to be packed. With norms their rows lose their means, so that the product has none: a
// row has a mean for each of `parts` parts of its gates, as many as there are norms. With 0 parts it stays as it is.
struct Weights {
    const T* w;
    index_t hidden, gates, parts;
    int threads;

    index_t panels() const { return panels_of(hidden); }
    const T* row(index_t k, index_t gate) const { return w + (k * gates + gate) * hidden; }
    index_t part_of(index_t gate) const { return gate * parts / gates; }
    // The mean of a row's part, of which this is the first gate.
    T mean(index_t k, index_t gate) const {
        index_t end = gate;
        while (end < gates && part_of(end) == part_of(gate)) ++end;
        return row_mean(row(k, gate), (end - gate) * hidden);
    }
    bool begins_part(index_t gate) const { return parts && (gate == 0 || part_of(gate) != part_of(gate - 1)); }

    // Into panels of each gate: (gates * panels, hidden, width). Some rows are packed into all panels before the next ones: their means
    // take them into the caches, and each panel gets several lines that follow one another.
    void pack(T* packed) const {
        in_parts((hidden + ROWS - 1) / ROWS, threads, [=](index_t first, index_t last) {
            for (index_t block = first; block < last; ++block) pack_rows(block * ROWS, std::min((block + 1) * ROWS, hidden), packed);
        });
    }

    // Transposed, for the gradient: (panels, gates * stride, width), from the gates to the units.
    void pack_transposed(T* packed) const {
        const index_t stride = panels() * W;
        in_parts(panels(), threads, [=](index_t first, index_t last) {
            for (index_t p = first; p < last; ++p) {
                T means[W] = {};
                for (index_t gate = 0; gate < gates; ++gate) {
                    T* panel = packed + (p * gates + gate) * stride * W;
                    for (index_t k = 0; begins_part(gate) && k < std::min(W, hidden - p * W); ++k) means[k] = mean(p * W + k, gate);
                    ::pack_transposed(row(0, gate), gates * hidden, hidden, hidden, p, p + 1, panel);
                    for (index_t k = 0; parts && k < hidden * W; k += W)
                        for (index_t c = 0; c < W; c += LANES) store(panel + k + c, load(panel + k + c) - load(means + c));
                    std::fill(panel + hidden * W, panel + stride * W, T(0));
                }
            }
        });
    }

  private:
    static constexpr index_t ROWS = 8;

    void pack_rows(index_t first, index_t last, T* packed) const {
        T means[ROWS] = {};
        for (index_t gate = 0; gate < gates; ++gate) {
            for (index_t k = first; begins_part(gate) && k < last; ++k) means[k - first] = mean(k, gate);
            for (index_t p = 0; p < panels(); ++p)
                for (index_t k = first; k < last; ++k)
                    pack_row(row(k, gate) + p * W, std::min(W, hidden - p * W), means[k - first],
                             packed + ((gate * panels() + p) * hidden + k) * W);
        }
    }

    // One row of a panel, of `columns` values less their mean; zeros fill it up.
    static void pack_row(const T* from, index_t columns, T mean, T* to) {
        if (columns == W)
            for (index_t c = 0; c < W; c += LANES) store(to + c, load(from + c) - mean);
        else
            for (index_t c = 0; c < W; ++c) to[c] = c < columns ? from[c] - mean : T(0);
    }
};
