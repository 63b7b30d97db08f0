// The products of a tanh RNN and of an LSTM, whose gates are functions of the sum of both. The file of a cell says its GATES, if each
// product has a norm of its own, APART, and ROW_SUMS, the numbers of each row and panel; it includes this one.
#pragma once
#include "norms.h"
#include "one_step.h"

static constexpr bool NORMED = OVER != Over::NOTHING, OF_BATCH = OVER == Over::BATCH;
static constexpr index_t PARTS = parts_of(GATES, 1);

// The products of one row, with the parameters that make gates of them. If there is only their sum, it is h.
struct Products {
    const index_t S;
    const T *const gain_x, *const gain_h, *const bias;  // here, because a store could change those of a cell
    Product<GATES, PARTS> x, h;

    // `place` is the index of the row's x_proj; that of the rest is `slot`.
    template <class Cell>
    Products(const Cell& cell, index_t place, index_t slot)
        : S(cell.sizes.stride), gain_x(cell.gain_x), gain_h(cell.gain_h), bias(cell.bias), x{}, h{} {
        x.values = cell.x_proj + place * GATES * S;
        h.values = cell.state_products() + slot * GATES * S;
        if constexpr (OF_BATCH) {
            x.norm = cell.batch_norm(slot / cell.sizes.batch, Of::X);
            h.norm = cell.batch_norm(slot / cell.sizes.batch, Of::H);
        }
    }
    // With the norms that the walk forward has kept.
    template <class Cell>
    static Products kept(const Cell& cell, index_t place, index_t slot) {
        Products products(cell, place, slot);
        if constexpr (PARTS > 0) products.set_rstd([&](index_t k) { return cell.norms[slot * ROW_SUMS + k]; });
        return products;
    }
    template <class Of>
    void set_rstd(const Of& of) {
        if constexpr (APART) x.rstd[0] = of(0);
        for (index_t k = 0; k < PARTS; ++k) h.rstd[k] = of(APART + k);
    }
    // A gate before its non-linearity.
    vector sum(index_t gate, index_t unit) const {
        const index_t k = gate * S + unit;
        if constexpr (APART) return x.xhat(gate, k) * load(gain_x + k) + h.xhat(gate, k) * load(gain_h + k) + load(bias + k);
        else if constexpr (NORMED) return h.xhat(gate, k) * load(gain_h + k) + load(bias + k);
        else return load(h.values + k) + load(bias + k);
    }
};

// The products of the states before a time step.
template <class Cell>
static void multiply(const Cell& cell, const T* packed, const Rows& rows, const Share& s, index_t t) {
    const Sizes& sizes = cell.sizes;
    for (index_t gate = 0; packed && gate < GATES; ++gate)
        multiply_states(rows, cell.hidden + sizes.before(t) * sizes.batch * sizes.stride, sizes.stride, packed,
                        gate * sizes.panels + s.first_panel, gate * sizes.panels + s.last_panel, sizes.hidden, cell.state_products(),
                        GATES * sizes.stride, !APART);
}

// Walks forward: walk(cell, packed, panel_sums, share, barrier) on each thread, or for one time step with unpacked weights.
template <class Cell, class Walk>
static void forward(const Cell& cell, const OneStep& one, const T* w_h, bool turned, int threads, bool by_units, const Walk& walk) {
    const Sizes& sizes = cell.sizes;
    const Weights weights{w_h, sizes.hidden, GATES, PARTS, threads, turned};
    const auto by = [&](const T* packed, T* panel_sums, const Share& share, const Barrier& barrier) {
        walk(cell, packed, panel_sums, share, barrier);
    };
    if (!one.x) return walk_forward(weights, sizes, ROW_SUMS, by_units, by);
    const index_t S = sizes.stride, wide = GATES * S;
    if (APART) std::fill_n(cell.h_proj, sizes.batch * wide, T(0));
    walk_one_step(one, cell.hidden, weights, sizes, ROW_SUMS, [=](index_t row, index_t gate) { return cell.x_proj + row * wide + gate * S; },
                  [=](index_t row, index_t gate) { return cell.state_products() + row * wide + gate * S; }, by);
}
