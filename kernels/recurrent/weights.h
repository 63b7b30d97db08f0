// Recurrent weights, packed once for all time steps of a sequence.
#pragma once
#include "packing.h"
#include "rows.h"

// Recurrent weights (hidden, gates * hidden) to be packed, or, if `turned`, their transpose in memory, as PyTorch's lie. With norms
// their rows lose their means, so that the product has none: a row has a mean for each of `parts` parts of its gates, as many as there
// are norms. With 0 parts it stays as it is.
struct Weights {
    const T* w;
    index_t hidden, gates, parts;
    int threads;
    bool turned = false;

    index_t panels() const { return panels_of(hidden); }
    const T* row(index_t k, index_t gate) const { return w + (k * gates + gate) * hidden; }
    // The values of a column of a gate, in weights that lie transposed.
    const T* column(index_t gate, index_t j) const { return w + (gate * hidden + j) * hidden; }
    index_t part_of(index_t gate) const { return gate * parts / gates; }
    // The mean of a row's part, of which this is the first gate.
    T mean(index_t k, index_t gate) const { return row_mean(row(k, gate), (end_of_part(gate) - gate) * hidden); }
    bool begins_part(index_t gate) const { return parts && (gate == 0 || part_of(gate) != part_of(gate - 1)); }

    // Into panels of each gate: (gates * panels, hidden, width). Some rows are packed into all panels before the next ones: their means
    // take them into the caches, and each panel gets several lines that follow one another.
    void pack(T* packed) const {
        if (turned) return pack_turned(packed);
        in_parts((hidden + ROWS - 1) / ROWS, threads, [=](index_t first, index_t last) {
            for (index_t block = first; block < last; ++block) pack_rows(block * ROWS, std::min((block + 1) * ROWS, hidden), packed);
        });
    }

    // Transposed, for the gradient: (panels, gates * stride, width), from the gates to the units.
    void pack_transposed(T* packed) const {
        const index_t stride = panels() * W;
        const std::vector<T> of_turned = turned ? means_of_turned() : std::vector<T>();
        in_parts(panels(), threads, [&](index_t first, index_t last) {
            for (index_t p = first; p < last; ++p) {
                T means[W] = {};
                const index_t width = std::min(W, hidden - p * W);
                for (index_t gate = 0; gate < gates; ++gate) {
                    T* panel = packed + (p * gates + gate) * stride * W;
                    for (index_t k = 0; begins_part(gate) && k < width; ++k)
                        means[k] = turned ? of_turned[part_of(gate) * hidden + p * W + k] : mean(p * W + k, gate);
                    if (turned) pack_panels(column(gate, 0) + p * W, hidden, hidden, width, 0, 1, panel, 0);
                    else ::pack_transposed(row(0, gate), gates * hidden, hidden, hidden, p, p + 1, panel);
                    for (index_t k = 0; parts && k < hidden * W; k += W)
                        for (index_t c = 0; c < W; c += LANES) store(panel + k + c, load(panel + k + c) - load(means + c));
                    std::fill(panel + hidden * W, panel + stride * W, T(0));
                }
            }
        });
    }

  private:
    static constexpr index_t ROWS = 8, COLUMNS_OF_SUM = 64;

    index_t end_of_part(index_t gate) const {
        index_t end = gate;
        while (end < gates && part_of(end) == part_of(gate)) ++end;
        return end;
    }

    // The means of weights that lie transposed: (parts, hidden). Sums of some columns are added up apart: one sum of all would lose digits.
    std::vector<T> means_of_turned() const {
        std::vector<T> means(parts * hidden);
        in_parts(panels(), threads, [&](index_t first, index_t last) {
            const index_t begin = first * W, count = std::min(last * W, hidden) - begin;
            std::vector<T> some(count);
            for (index_t gate = 0; gate < gates; ++gate) {
                if (!begins_part(gate)) continue;
                T* total = means.data() + part_of(gate) * hidden + begin;
                const index_t columns = (end_of_part(gate) - gate) * hidden;
                for (index_t j = 0; j < columns; ++j) {
                    const T* from = column(gate, j) + begin;
                    for (index_t k = 0; k < count; ++k) some[k] += from[k];
                    if ((j + 1) % COLUMNS_OF_SUM && j + 1 < columns) continue;
                    for (index_t k = 0; k < count; ++k) total[k] += some[k];
                    std::fill(some.begin(), some.end(), T(0));
                }
                for (index_t k = 0; k < count; ++k) total[k] /= T(columns);
            }
        });
        return means;
    }

    void pack_turned(T* packed) const {
        const std::vector<T> means = means_of_turned();
        in_parts(gates * panels(), threads, [&](index_t first, index_t last) {
            for (index_t place = first; place < last; ++place) {
                const index_t gate = place / panels(), p = place % panels(), width = std::min(W, hidden - p * W);
                T* panel = packed + place * hidden * W;
                ::pack_transposed(column(gate, 0), hidden, hidden, hidden, p, p + 1, panel);
                for (index_t k = 0; parts && k < hidden; ++k) {
                    const T mean = means[part_of(gate) * hidden + k];
                    pack_row(panel + k * W, width, mean, panel + k * W);
                }
            }
        });
    }

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
