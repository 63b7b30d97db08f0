// A sequence of one time step and few rows, such as a token that is sampled. Both weights are read once, unpacked: to pack them, or
// to subtract the means of their rows, would take longer than the products.
#pragma once
#include "../linear/few_rows.h"
#include "walk.h"

// The inputs of such a sequence; without `x` there is none, and a walk has its products from elsewhere.
struct OneStep {
    const T* x;  // (batch, inputs)
    const T* w_x;  // (inputs, gates * hidden)
    index_t inputs;
};

// Adds to gates the product of rows (count, depth) with stride `distance` and of weights (depth, gates * hidden). Its means are
// subtracted where those of the weights' rows would be. `gate_of(row, gate)` is the address of the `hidden` values of a gate.
template <class GateOf>
static void add_product(const T* rows, index_t distance, index_t count, index_t depth, const Weights& weights, const GateOf& gate_of) {
    const index_t H = weights.hidden, wide = weights.gates * H;
    std::vector<T> side_by_side(count * depth), products(count * wide);
    for (index_t r = 0; r < count; ++r) std::copy_n(rows + r * distance, depth, side_by_side.data() + r * depth);
    few_rows::multiply(side_by_side.data(), weights.w, nullptr, products.data(), count, depth, wide, weights.threads);
    const Weights of_products{products.data(), H, weights.gates, weights.parts, 1};  // a product has the parts of a weight's row
    for (index_t r = 0; r < count; ++r) {
        T mean = 0;
        for (index_t gate = 0; gate < weights.gates; ++gate) {
            if (weights.begins_part(gate)) mean = of_products.mean(r, gate);
            const T* from = of_products.row(r, gate);
            T* to = gate_of(r, gate);
            for (index_t j = 0; j < H; ++j) to[j] += from[j] - mean;
        }
    }
}

// Adds the products of the inputs and of the first states (batch, stride) to the gates, and walks the step with them:
// walk(packed, panel_sums, share, barrier), where no weights are packed. `panel_sums` has `sums` numbers of each row and panel.
template <class XGate, class HGate, class Walk>
static void walk_one_step(const OneStep& one, const T* states, const Weights& w_h, const Sizes& sizes, index_t sums,
                          const XGate& x_gate, const HGate& h_gate, const Walk& walk) {
    const Weights w_x{one.w_x, w_h.hidden, w_h.gates, w_h.parts, w_h.threads};
    add_product(one.x, one.inputs, sizes.batch, one.inputs, w_x, x_gate);
    add_product(states + sizes.before(0) * sizes.batch * sizes.stride, sizes.stride, sizes.batch, sizes.hidden, w_h, h_gate);
    const Aligned<T> panel_sums(sizes.batch * sizes.panels * sums);
    walk(static_cast<const T*>(nullptr), panel_sums.data(), Share{0, sizes.batch, 0, sizes.panels}, Barrier{nullptr, 1});
}
