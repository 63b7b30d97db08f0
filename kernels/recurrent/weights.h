// Recurrent weights, packed once for all time steps of a sequence.
#pragma once
#include "../packing.h"
#include "../rows.h"

// Recurrent weights (hidden, gates * hidden) to be packed. With norms their rows lose their means, so that the product has none: a
// row has a mean for each of `parts` parts of its gates, as many as there are norms. With 0 parts it stays as it is.
template <class T>
struct Weights {
    static constexpr index_t W = Panel<T>::width, L = Vector<T>::lanes;
    const T* w;
    index_t hidden, gates, parts;
    int threads;

    index_t panels() const { return Panel<T>::count(hidden); }
    const T* row(index_t k, index_t gate) const { return w + (k * gates + gate) * hidden; }
    index_t part_of(index_t gate) const { return gate * parts / gates; }
    // The mean of a row's part, of which this is the first gate.
    T mean(index_t k, index_t gate) const {
        index_t end = gate;
        while (end < gates && part_of(end) == part_of(gate)) ++end;
        return row_mean(row(k, gate), (end - gate) * hidden);
    }
    bool begins_part(index_t gate) const { return parts && (gate == 0 || part_of(gate) != part_of(gate - 1)); }

    // Into panels of each gate: (gates * panels, hidden, width).
    void pack(T* packed) const {
        std::vector<T> means(std::max<index_t>(parts, 1) * hidden);
        T* const all_means = means.data();
        in_parts(parts ? hidden : 0, threads, [=](index_t first, index_t last) {
            for (index_t k = first; k < last; ++k)
                for (index_t gate = 0; gate < gates; ++gate)
                    if (begins_part(gate)) all_means[part_of(gate) * hidden + k] = mean(k, gate);
        });
        in_parts(gates * panels(), threads, [=](index_t first, index_t last) {
            for (index_t each = first; each < last; ++each)
                pack_panel(each / panels(), each % panels() * W, all_means + part_of(each / panels()) * hidden,
                           packed + each * hidden * W);
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
                        for (index_t c = 0; c < W; c += L) store(panel + k + c, load(panel + k + c) - load(means + c));
                    std::fill(panel + hidden * W, panel + stride * W, T(0));
                }
            }
        });
    }

  private:
    // The columns of a gate from `column` on, without the rows' means.
    void pack_panel(index_t gate, index_t column, const T* means, T* panel) const {
        static constexpr index_t AHEAD = 8;
        const index_t columns = std::min(W, hidden - column);
        for (index_t k = 0; k < hidden; ++k, panel += W) {
            const T* from = row(k, gate) + column;
            fetch_ahead(from, AHEAD * gates * hidden);
            if (columns == W)
                for (index_t c = 0; c < W; c += L) store(panel + c, load(from + c) - means[k]);
            else
                for (index_t c = 0; c < W; ++c) panel[c] = c < columns ? from[c] - means[k] : T(0);
        }
    }
};
