// A sequence of one time step and few rows, such as a token that is sampled. Both weights are read once, unpacked: to pack them, or
// to subtract the means of their rows, would take longer than the products.
#pragma once
#include <utility>

#include "../linear/few_rows.h"
#include "walk.h"

// The inputs of such a sequence; without `x` there is none, and a walk has its products from elsewhere.
struct OneStep {
    const T* x;  // (batch, inputs)
    const T* w_x;  // (inputs, gates * hidden); transposed in memory if the recurrent weights are
    index_t inputs;
};

// The product of rows (count, depth) with stride `distance` and of weights (depth, gates * hidden).
static std::vector<T> product_of(const T* rows, index_t distance, index_t count, index_t depth, const Weights& weights) {
    const index_t wide = weights.gates * weights.hidden;
    std::vector<T> side_by_side(count * depth), products(count * wide);
    for (index_t r = 0; r < count; ++r) std::copy_n(rows + r * distance, depth, side_by_side.data() + r * depth);
    if (weights.turned) few_rows::multiply_transposed(side_by_side.data(), weights.w, products.data(), count, wide, depth, weights.threads);
    else few_rows::multiply(side_by_side.data(), weights.w, nullptr, products.data(), count, depth, wide, weights.threads);
    return products;
}

// Adds a product to gates. Its means are subtracted where those of the weights' rows would be. `gate_of(row, gate)` is the address of
// the `hidden` values of a gate.
template <class GateOf>
static void add_product(const std::vector<T>& products, index_t count, const Weights& weights, const GateOf& gate_of) {
    const index_t H = weights.hidden;
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
// Two threads take a product each.
template <class XGate, class HGate, class Walk>
static void walk_one_step(const OneStep& one, const T* states, const Weights& w_h, const Sizes& sizes, index_t sums,
                          const XGate& x_gate, const HGate& h_gate, const Walk& walk) {
    Weights alone = w_h, w_x = w_h;
    alone.threads = w_x.threads = 1;
    w_x.w = one.w_x;
    std::vector<T> x_proj, h_proj;
    in_parts(2, w_h.threads, [&](index_t first, index_t last) {
        for (index_t k = first; k < last; ++k)
            if (k == 0) x_proj = product_of(one.x, one.inputs, sizes.batch, one.inputs, w_x);
            else h_proj = product_of(states + sizes.before(0) * sizes.batch * sizes.stride, sizes.stride, sizes.batch, sizes.hidden, alone);
    });
    add_product(x_proj, sizes.batch, w_x, x_gate);
    add_product(h_proj, sizes.batch, alone, h_gate);
    const Aligned<T> panel_sums(sizes.batch * sizes.panels * sums);
    walk(static_cast<const T*>(nullptr), panel_sums.data(), Share{0, sizes.batch, 0, sizes.panels}, Barrier{nullptr, 1});
}

// Room for the arrays of a step whose caller has none: one allocation.
class Room {
  public:
    explicit Room(index_t size) : memory_(size), next_(memory_.data()) {}
    // Values that are to be written.
    T* take(index_t count) { return std::exchange(next_, next_ + count); }
    // The gates of rows, padded with zeros: (rows, gates * hidden) to (rows, gates * stride); null for null.
    T* padded(const T* from, index_t gates, const Sizes& sizes) {
        if (!from) return nullptr;
        T* to = take(gates * sizes.stride);
        for (index_t gate = 0; gate < gates; ++gate) {
            std::copy_n(from + gate * sizes.hidden, sizes.hidden, to + gate * sizes.stride);
            std::fill(to + gate * sizes.stride + sizes.hidden, to + (gate + 1) * sizes.stride, T(0));
        }
        return to;
    }
    // The same of a sum of up to three terms.
    T* padded_sum(const T* first, const T* second, const T* third, index_t gates, const Sizes& sizes) {
        T* sum = padded(first, gates, sizes);
        for (const T* term : {second, third})
            for (index_t k = 0; term && k < gates * sizes.hidden; ++k) sum[k / sizes.hidden * sizes.stride + k % sizes.hidden] += term[k];
        return sum;
    }
    // States before and after the step, of which the first are given: (2, batch, stride).
    T* states(const T* first, const Sizes& sizes) {
        T* before = padded(first, sizes.batch, sizes);
        take(sizes.batch * sizes.stride);
        return before;
    }
    // The products of the inputs, which begin with the bias inside their norm, or with zeros.
    T* products(const T* inner_bias, index_t gates, const Sizes& sizes) {
        T* all = take(sizes.batch * gates * sizes.stride);
        std::fill_n(all, sizes.batch * gates * sizes.stride, T(0));
        for (index_t k = 0; inner_bias && k < sizes.batch * gates; ++k)
            std::copy_n(inner_bias + k % gates * sizes.hidden, sizes.hidden, all + k * sizes.stride);
        return all;
    }

  private:
    const Aligned<T> memory_;
    T* next_;
};

// The states after the step, without padding.
static inline void take_out(const T* states, const Sizes& sizes, T* to) {
    for (index_t r = 0; r < sizes.batch; ++r) std::copy_n(states + (sizes.batch + r) * sizes.stride, sizes.hidden, to + r * sizes.hidden);
}
