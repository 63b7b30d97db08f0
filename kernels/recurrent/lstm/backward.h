// An LSTM's walk backward (sequence.h).
#pragma once
#include "forward.h"

static const index_t MOST_TOGETHER = 16;  // rows that go through the backward phases together: their values stay in L2

struct LstmGradients {
    const T* d_hidden;  // (steps, batch, hidden), or null
    T *dh, *dc;  // (batch, stride)
    T *d_x, *d_w_x;  // of few inputs: (positions, inputs), or null, and (blocks of rows, inputs, 4 * stride)
    T *d_bias, *d_gain_x, *d_gain_h;  // (blocks of rows, 4 * stride)
    T *d_gain_c, *d_bias_c;  // (blocks of rows, stride)
    T limit;  // of the gradients that a time step hands to the one before; 0 for none
};

// The means that the gradient through the norms of both products subtracts.
template <class Means>
struct ProductMeans {
    Means x, h;
};

// The same phases backward. `of_cell` keeps three vectors of each row for the second phase: the gradient of the normalised cell, its
// tanh, and the output gate. `of_sums` keeps the gradients of the gates' sums for the third. The second and the third phase take a
// few panels of all rows that go together, and then the next panels: so the sums of the parameters' gradients stay in L1.
struct StepBack : Step {
    static constexpr index_t CELL_VALUES = 3;

    const LstmGradients d;
    T *of_cell, *of_sums;

    T* kept_of(index_t place) const { return of_cell + place * CELL_VALUES * l.sizes.stride; }
    // Without norms the gradient of a sum replaces it.
    T* d_sums_of(index_t place, index_t slot) const { return NORMED ? of_sums + place * wide() : l.x_proj + slot * wide(); }
    // The row of a parameter's gradient that a row of the batch adds to.
    index_t block_of(index_t row) const { return OF_BATCH ? 0 : row / ROW_BLOCK; }

    // Through the hidden state and the norm's gain and bias.
    void through_cell_norm(index_t place, index_t row, index_t slot) const {
        const index_t S = l.sizes.stride, block = block_of(row) * S, ahead = this->ahead;
        const bool from_memory = !l.inputs.are_few();
        const auto products = Products::kept(l, l.x_place(place, slot), slot);
        const auto norm = kept_cell_norm(row, slot);
        const T *dh = d.dh + row * S, *dc = d.dc + row * S;
        T *kept = kept_of(place), *sums = sums_of(row), *d_gain = d.d_gain_c + block, *d_bias = d.d_bias_c + block;
        each_panels(s, [=](index_t first, index_t last) {
            for (index_t j = first * W; j < last * W; j += LANES) {
                fetch_ahead(norm.values + j, S);
                fetch_ahead(dh + j, S);
                for (index_t each = 0; each < CELL_VALUES; ++each) claim_ahead(kept + each * S + j, CELL_VALUES * S);
                if (from_memory) claim_ahead(products.x.values + 3 * S + j, ahead);
                if constexpr (APART) claim_ahead(products.h.values + 3 * S + j, ahead);
                store(kept + S + j, hyperbolic_tangent(norm.after(j)));
                store(kept + 2 * S + j, sigmoid(products.sum(3, j)));
            }
            for (index_t p = first; p < last; ++p) {
                vector sum{}, along{};
                for (index_t j = p * W; j < (p + 1) * W; j += LANES) {
                    const vector xhat = norm.xhat(j), tanh_c = load(kept + S + j), o = load(kept + 2 * S + j);
                    vector d_after = load(dh + j) * o * (1 - tanh_c * tanh_c);
                    if constexpr (CARRIED) d_after += load(dc + j);
                    const vector d_xhat = d_after * load(norm.gain + j);
                    add_to(d_gain + j, d_after * xhat);
                    add_to(d_bias + j, d_after);
                    store(kept + j, d_xhat);
                    sum += d_xhat;
                    along += d_xhat * xhat;
                }
                if constexpr (!OF_BATCH) {
                    sums[p * ROW_SUMS + OF_CELL] = total<T>(sum);
                    sums[p * ROW_SUMS + OF_CELL + 1] = total<T>(along);
                }
            }
        });
    }

    // The gates but the output gate if there is a norm of the cell, which has computed it.
    static void store_gates(const Products& products, index_t first, index_t last, T* gates) {
        for (index_t j = first * W; j < last * W; j += LANES) {
            store(gates + j, sigmoid(products.sum(0, j)));
            store(gates + products.S + j, sigmoid(products.sum(1, j)));
            store(gates + 2 * products.S + j, hyperbolic_tangent(products.sum(2, j)));
            if constexpr (!CELL) store(gates + 3 * products.S + j, sigmoid(products.sum(3, j)));
        }
    }

    // Through the cell and the gates of some rows.
    void through_gates(const Rows& rows, index_t first_row, index_t last_row) const {
        OfRow means[MOST_TOGETHER] = {};
        for (index_t r = first_row; CELL && r < last_row; ++r)
            means[r - first_row] = {mean_of_units(rows.row[r], OF_CELL), mean_of_units(rows.row[r], OF_CELL + 1)};
        each_panels(s, [&](index_t first, index_t last) {
            for (index_t r = first_row; r < last_row; ++r)
                through_gates_of(r - first_row, rows.row[r], rows.slot[r], means[r - first_row], first, last);
        });
    }

    // The same for some panels of one row, with the means that the gradient through the cell's norm subtracts. Until its gradient is
    // known, a gate is where that will be.
    template <class Means>
    void through_gates_of(index_t place, index_t row, index_t slot, const Means means, index_t first, index_t last) const {
        const index_t S = l.sizes.stride, block = block_of(row) * wide(), ahead = this->ahead;
        const bool from_memory = !l.inputs.are_few();
        const auto products = Products::kept(l, l.x_place(place, slot), slot);
        const T *c_before = state(l.cells, before, row), *kept = kept_of(place), *dh = d.dh + row * S;
        T *dc = d.dc + row * S, *d_gates = d_sums_of(place, slot), *sums = sums_of(row);
        T* d_bias = d.d_bias + block;
        T *d_gain_x = APART ? d.d_gain_x + block : nullptr, *d_gain_h = NORMED ? d.d_gain_h + block : nullptr;
        const auto norm = kept_cell_norm(row, slot);
        store_gates(products, first, last, d_gates);
        for (index_t p = first; p < last; ++p) {
            vector of_parts[OF_CELL] = {};
            for (index_t j = p * W; j < (p + 1) * W; j += LANES) {
                const T* o = CELL ? kept + 2 * S : d_gates + 3 * S;
                const LstmGates<vector> gates{load(d_gates + j), load(d_gates + S + j), load(d_gates + 2 * S + j), load(o + j)};
                fetch_ahead(c_before + j, S);
                claim_ahead(dc + j, S);
                vector tanh_c, d_c{};
                if constexpr (!CARRIED) d_c = load(dc + j);
                if constexpr (CELL) {
                    tanh_c = load(kept + S + j);
                    d_c += norm.before(j, load(kept + j), means);
                } else {
                    tanh_c = hyperbolic_tangent(load(norm.values + j));
                    d_c += load(dh + j) * gates.o * (1 - tanh_c * tanh_c);
                }
                const LstmGates<vector> of = lstm_gradient(gates, load(c_before + j), d_c, load(dh + j) * tanh_c);
                store(dc + j, d_c * gates.f);
                const auto through_sum = [&](index_t gate, vector value) {
                    const index_t k = gate * S + j;
                    if (from_memory) claim_ahead(products.x.values + k, ahead);
                    store(d_gates + k, value);
                    add_to(d_bias + k, value);
                    if constexpr (APART) {
                        claim_ahead(products.h.values + k, ahead);
                        const vector of_gain_x = value * products.x.xhat(gate, k);
                        add_to(d_gain_x + k, of_gain_x);
                        of_parts[0] += of_gain_x * load(products.gain_x + k);
                    }
                    if constexpr (NORMED) {
                        const vector of_gain_h = value * products.h.xhat(gate, k);
                        add_to(d_gain_h + k, of_gain_h);
                        of_parts[APART ? 1 : gate] += of_gain_h * load(products.gain_h + k);
                    }
                };
                through_sum(0, of.i);
                through_sum(1, of.f);
                through_sum(2, of.g);
                through_sum(3, of.o);
            }
            if constexpr (PARTS > 0)
                for (index_t k = 0; k < OF_CELL; ++k) sums[p * ROW_SUMS + k] = total<T>(of_parts[k]);
        }
    }

    // Through the norms of both products of some rows. The products' gradients replace them.
    void through_norms(const Rows& rows, index_t first_row, index_t last_row) const {
        ProductMeans<Product<GATES, PARTS>::OfParts> means[MOST_TOGETHER];
        for (index_t r = first_row; r < last_row; ++r) {
            if (APART) means[r - first_row].x[0] = mean_of_part(rows.row[r], 0);
            for (index_t k = 0; k < PARTS; ++k) means[r - first_row].h[k] = mean_of_part(rows.row[r], APART + k);
        }
        each_panels(s, [&](index_t first, index_t last) {
            for (index_t r = first_row; r < last_row; ++r)
                through_norms_of(r - first_row, rows.slot[r], means[r - first_row], first, last);
        });
    }

    // The same for some panels of one row.
    template <class Means>
    void through_norms_of(index_t place, index_t slot, const ProductMeans<Means> means, index_t first, index_t last) const {
        const index_t S = l.sizes.stride;
        const auto products = Products::kept(l, l.x_place(place, slot), slot);
        const T* d_sums = d_sums_of(place, slot);
        T *x = l.x_of(place, slot), *h = l.state_products() + slot * wide();
        for (index_t gate = 0; gate < GATES; ++gate)
            for (index_t k = gate * S + first * W; k < gate * S + last * W; k += LANES) {
                const vector value = load(d_sums + k);
                if constexpr (APART) store(x + k, products.x.before(gate, k, value * load(products.gain_x + k), means.x));
                store(h + k, products.h.before(gate, k, value * load(products.gain_h + k), means.h));
            }
    }

    // All phases of some panels, if the norms are over the batch; the gradients of the parameters are those of the time step. `means`
    // gets the numbers that the gradients through the norms subtract.
    void walk_columns(index_t t, T* means) const {
        const BatchColumns columns{l.sizes, s.first_panel, s.last_panel};
        const index_t B = l.sizes.batch;
        const OfColumns of_x = l.columns(means, Of::X), of_h = l.columns(means, Of::H), of_c = l.columns(means, Of::CELL);
        for (index_t r = 0; r < B; ++r) through_cell_norm(r, r, t * B + r);
        columns.gradient_means(d.d_bias_c, d.d_gain_c, l.gain_c, 1, of_c);
        for (index_t r = 0; r < B; ++r) through_gates_of(r, r, t * B + r, of_c, s.first_panel, s.last_panel);
        columns.gradient_means(d.d_bias, d.d_gain_x, l.gain_x, GATES, of_x);
        columns.gradient_means(d.d_bias, d.d_gain_h, l.gain_h, GATES, of_h);
        for (index_t r = 0; r < B; ++r) through_norms_of(r, t * B + r, ProductMeans<OfColumns>{of_x, of_h}, s.first_panel, s.last_panel);
    }
};

// The walk backward whose norms are over the rows, if there are norms; `of_inputs` as in inputs.h.
static void walk_rows_back(Lstm l, const LstmGradients& d, const T* packed, T* panel_sums, T* of_inputs, const Share& s,
                           const Barrier& barrier) {
    const Sizes& sizes = l.sizes;
    const index_t S = sizes.stride, wide = GATES * S, ahead = positions_ahead(sizes, barrier, true) * wide;
    const index_t together = std::min(barrier.together(sizes.batch, l.inputs.rows_together()), MOST_TOGETHER);
    const bool few_inputs = NORMED && l.inputs.are_few();
    const Aligned<T> of_cell(CELL ? together * StepBack::CELL_VALUES * S : 0), of_sums(NORMED ? together * wide : 0),
        few_x_proj(few_inputs ? together * wide : 0);
    if (few_inputs) l.x_proj = few_x_proj.data();
    Rows rows;
    for (index_t position = sizes.steps - 1; position >= 0; --position) {
        const index_t t = sizes.time(position);
        begin_step_back(rows, sizes, s, t, d.d_hidden, d.dh);
        const StepBack step{{l, panel_sums, s, sizes.before(t), sizes.after(t), ahead}, d, of_cell.data(), of_sums.data()};
        for (index_t first = 0; first < rows.count(); first += together) {
            const index_t last = std::min(first + together, rows.count());
            if (few_inputs) l.inputs.multiply(rows, first, last, s, sizes, GATES, l.x_proj);
            if constexpr (CELL) {
                for (index_t r = first; r < last; ++r) step.through_cell_norm(r - first, rows.row[r], rows.slot[r]);
                barrier.wait();
            }
            step.through_gates(rows, first, last);
            if constexpr (NORMED) {
                barrier.wait();
                step.through_norms(rows, first, last);
            }
            if (few_inputs) l.inputs.differentiate(rows, first, last, s, sizes, GATES, l.x_proj, d.d_w_x, of_inputs);
        }
        barrier.wait();
        if (of_inputs) l.inputs.add_panels(rows, s, sizes, of_inputs, d.d_x);
        Prefetch wanted;
        if (barrier.members == 1 && position > 0)
            wanted = lines_of_products(sizes, s, sizes.time(position - 1), few_inputs ? l.h_proj : l.x_proj,
                                       few_inputs ? nullptr : l.h_proj, wide);
        multiply_products(rows, l.state_products(), wide, packed, s, sizes, d.dh, false, wanted);
        bound(d.dh, rows, sizes, s, d.limit);
        bound(d.dc, rows, sizes, s, d.limit);
    }
}

// The same whose norms are over the batch.
static void walk_batch_back(const Lstm& l, LstmGradients d, const T* packed, T* panel_sums, const Share& s, const Barrier& barrier) {
    const Sizes& sizes = l.sizes;
    const index_t S = sizes.stride, wide = GATES * S, ahead = positions_ahead(sizes, barrier, true) * wide;
    const Aligned<T> of_cell(sizes.batch * StepBack::CELL_VALUES * S), of_sums(sizes.batch * wide), means(OF_STEP * S);
    const StepSums of_step(S, {{&d.d_bias, GATES}, {&d.d_gain_x, GATES}, {&d.d_gain_h, GATES}, {&d.d_gain_c, 1},
                               {&d.d_bias_c, 1}});
    const auto multiply_back = [&](const Rows& rows) {
        multiply_products(rows, l.state_products(), wide, packed, s, sizes, d.dh, false);
    };
    walk_columns_back(sizes, s, barrier, l.masked, d.d_hidden, {d.dh, d.dc}, d.limit, multiply_back,
                      [&](index_t t, const Share& share) {
        const Step step{l, panel_sums, share, sizes.before(t), sizes.after(t), ahead};
        StepBack{step, d, of_cell.data(), of_sums.data()}.walk_columns(t, means.data());
        of_step.add({sizes, share.first_panel, share.last_panel});
    });
}

static void walk_back(const Lstm& l, LstmGradients d, const T* packed, T* panel_sums, T* of_inputs, const Share& s,
                      const Barrier& barrier) {
    const Sizes& sizes = l.sizes;
    const OwnSums own(sizes, s, barrier, {{&d.d_bias, GATES}, {&d.d_gain_x, GATES}, {&d.d_gain_h, GATES}, {&d.d_gain_c, 1},
                                          {&d.d_bias_c, 1}, {&d.d_w_x, l.inputs.count * GATES}});
    if constexpr (OF_BATCH) walk_batch_back(l, d, packed, panel_sums, s, barrier);
    else walk_rows_back(l, d, packed, panel_sums, of_inputs, s, barrier);
}
