// A tanh RNN over a whole sequence (Ba, Kiros, Hinton 2016, eq. 4), forward and backward. The file of a variant says its NORMS,
// and if each product has its own, APART; it includes this one.
//
// The input's product for all positions is an argument, to which that of the state is added unless they are apart; the gradients are
// results; large products are not made here. With norms over a row both weights are used without the means of their rows, so that no
// norm need subtract one: the input's was before its product, the recurrent one is when it is packed.
#pragma once
#include "../norms.h"

static const index_t GATES = 1, ROW_SUMS = APART ? 2 : 1;
#include "../products.h"

using Rnn = Arrays<GATES, 4>;  // norms of rows keep rstd of x_proj and h_proj, or of their sum

struct RnnGradients {
    const T* d_hidden;  // (steps, batch, hidden), or null
    T* dh;  // (batch, stride)
    T *d_x_proj, *d_h_proj;  // (positions, stride), as the products
    T *d_gain_x, *d_gain_h, *d_bias;  // (blocks of rows, stride)
    T limit;  // of the gradient that a time step hands to the one before; 0 for none

    T* state_products() const { return APART ? d_h_proj : d_x_proj; }
};

// The phases of a time step. `panel_sums` has ROW_SUMS sums of each row and panel.
struct Step {
    const Rnn n;
    T* panel_sums;
    const Share s;

    T* sums_of(index_t row) const { return panel_sums + row * n.sizes.panels * ROW_SUMS; }
    T mean_of_product(index_t row, index_t which) const {
        return row_sum(sums_of(row) + which, n.sizes.panels, ROW_SUMS) / T(n.sizes.hidden);
    }

    // The sums of squares of the products.
    void add_squares(index_t row, index_t slot) const {
        const Products products(n, slot, slot);
        for (index_t p = s.first_panel; p < s.last_panel; ++p) {
            vector of_x{}, of_h{};
            for (index_t k = p * W; k < (p + 1) * W; k += LANES) {
                if constexpr (APART) of_x += load(products.x.values + k) * load(products.x.values + k);
                of_h += load(products.h.values + k) * load(products.h.values + k);
            }
            if constexpr (APART) sums_of(row)[p * ROW_SUMS] = total<T>(of_x);
            sums_of(row)[p * ROW_SUMS + ROW_SUMS - 1] = total<T>(of_h);
        }
    }

    // The new state.
    void open(index_t t, index_t row, index_t slot) const {
        Products products(n, slot, slot);
        if constexpr (PARTS > 0)
            products.set_rstd([&](index_t k) {
                const T rstd = T(1) / std::sqrt(mean_of_product(row, k) + n.eps);
                if (s.first_panel == 0) n.norms[slot * ROW_SUMS + k] = rstd;
                return rstd;
            });
        T* h_new = n.sizes.state(n.hidden, n.sizes.after(t), row);
        for (index_t j = s.first_panel * W; j < s.last_panel * W; j += LANES) store(h_new + j, hyperbolic_tangent(products.sum(0, j)));
    }

    // All phases of some panels, if the norms are over the batch.
    void walk_columns(index_t t) const {
        const index_t B = n.sizes.batch;
        const BatchColumns columns{n.sizes, s.first_panel, s.last_panel};
        columns.normalise(n.x_proj + t * B * n.sizes.stride, 1, n.eps, n.batch_norm(t, Of::X));
        columns.normalise(n.h_proj + t * B * n.sizes.stride, 1, n.eps, n.batch_norm(t, Of::H));
        for (index_t r = 0; r < B; ++r) open(t, r, t * B + r);
    }
};

static void walk_rows(const Rnn& n, const T* packed, T* panel_sums, const Share& s, const Barrier& barrier) {
    const Sizes& sizes = n.sizes;
    const Step step{n, panel_sums, s};
    Rows rows;
    for (index_t position = 0; position < sizes.steps; ++position) {
        const index_t t = sizes.time(position);
        begin_step(rows, sizes, s, t, {n.hidden});
        multiply(n, packed, rows, s, t);
        if constexpr (NORMED) {
            for (index_t r = 0; r < rows.count(); ++r) step.add_squares(rows.row[r], rows.slot[r]);
            barrier.wait();
        }
        for (index_t r = 0; r < rows.count(); ++r) step.open(t, rows.row[r], rows.slot[r]);
        barrier.wait();
    }
}

static void walk(const Rnn& n, const T* packed, T* panel_sums, const Share& s, const Barrier& barrier) {
    if constexpr (OF_BATCH)
        walk_columns(n.sizes, s, barrier, n.masked, {n.hidden},
                     [&](const Rows& rows, index_t t) { multiply(n, packed, rows, s, t); },
                     [&](index_t t, const Share& share) { Step{n, panel_sums, share}.walk_columns(t); });
    else walk_rows(n, packed, panel_sums, s, barrier);
}

// The same phases backward.
struct StepBack : Step {
    const RnnGradients d;

    // Through tanh. The gradient of the sum is where that of the state's product will be.
    void through_tanh(index_t t, index_t row, index_t slot) const {
        const index_t S = n.sizes.stride, block = OF_BATCH ? 0 : row / ROW_BLOCK * S;
        const auto products = Products::kept(n, slot, slot);
        const T *h = n.sizes.state(n.hidden, n.sizes.after(t), row), *dh = d.dh + row * S;
        T* d_sums = d.state_products() + slot * S;
        for (index_t p = s.first_panel; p < s.last_panel; ++p) {
            vector along_x{}, along_h{};
            for (index_t j = p * W; j < (p + 1) * W; j += LANES) {
                const vector tanh_j = load(h + j), value = load(dh + j) * (1 - tanh_j * tanh_j);
                add_to(d.d_bias + block + j, value);
                store(d_sums + j, value);
                if constexpr (APART) {
                    const vector of_gain = value * products.x.xhat(0, j);
                    add_to(d.d_gain_x + block + j, of_gain);
                    along_x += of_gain * load(products.gain_x + j);
                }
                if constexpr (NORMED) {
                    const vector of_gain = value * products.h.xhat(0, j);
                    add_to(d.d_gain_h + block + j, of_gain);
                    along_h += of_gain * load(products.gain_h + j);
                }
            }
            if constexpr (PARTS > 0) {
                if (APART) sums_of(row)[p * ROW_SUMS] = total<T>(along_x);
                sums_of(row)[p * ROW_SUMS + ROW_SUMS - 1] = total<T>(along_h);
            }
        }
    }

    // Through the norms of the products.
    template <class Means>
    void through_norms(index_t slot, const Means& means_x, const Means& means_h) const {
        const index_t S = n.sizes.stride;
        const auto products = Products::kept(n, slot, slot);
        T *d_x = d.d_x_proj + slot * S, *d_h = d.state_products() + slot * S;
        for (index_t j = s.first_panel * W; j < s.last_panel * W; j += LANES) {
            const vector value = load(d_h + j);
            if constexpr (APART) store(d_x + j, products.x.before(0, j, value * load(products.gain_x + j), means_x));
            store(d_h + j, products.h.before(0, j, value * load(products.gain_h + j), means_h));
        }
    }

    // The same of a row's norms.
    void through_row_norms(index_t row, index_t slot) const {
        through_norms(slot, std::array<T, 1>{mean_of_product(row, 0)}, std::array<T, 1>{mean_of_product(row, ROW_SUMS - 1)});
    }

    // All phases of some panels, if the norms are over the batch; the gradients of the parameters are those of the time step. `means`
    // gets the numbers that the gradients through the norms subtract.
    void walk_columns(index_t t, T* means) const {
        const index_t B = n.sizes.batch;
        const BatchColumns columns{n.sizes, s.first_panel, s.last_panel};
        const OfColumns of_x = n.columns(means, Of::X), of_h = n.columns(means, Of::H);
        for (index_t r = 0; r < B; ++r) through_tanh(t, r, t * B + r);
        columns.gradient_means(d.d_bias, d.d_gain_x, n.gain_x, 1, of_x);
        columns.gradient_means(d.d_bias, d.d_gain_h, n.gain_h, 1, of_h);
        for (index_t r = 0; r < B; ++r) through_norms(t * B + r, of_x, of_h);
    }
};

static void walk_rows_back(const Rnn& n, const RnnGradients& d, const T* packed, T* panel_sums, const Share& s, const Barrier& barrier) {
    const Sizes& sizes = n.sizes;
    const StepBack step{{n, panel_sums, s}, d};
    Rows rows;
    for (index_t position = sizes.steps - 1; position >= 0; --position) {
        const index_t t = sizes.time(position);
        begin_step_back(rows, sizes, s, t, d.d_hidden, d.dh);
        for (index_t r = 0; r < rows.count(); ++r) step.through_tanh(t, rows.row[r], rows.slot[r]);
        barrier.wait();
        if constexpr (NORMED) {
            for (index_t r = 0; r < rows.count(); ++r) step.through_row_norms(rows.row[r], rows.slot[r]);
            barrier.wait();
        }
        multiply_products(rows, d.state_products(), sizes.stride, packed, s, sizes, d.dh, false);
        bound(d.dh, rows, sizes, s, d.limit);
    }
}

static void walk_back(const Rnn& n, RnnGradients d, const T* packed, T* panel_sums, const Share& s, const Barrier& barrier) {
    const Sizes& sizes = n.sizes;
    const OwnSums own(sizes, s, barrier, {{&d.d_gain_x, 1}, {&d.d_gain_h, 1}, {&d.d_bias, 1}});
    if constexpr (OF_BATCH) {
        const Aligned<T> means(4 * sizes.stride);
        const StepSums of_step(sizes.stride, {{&d.d_gain_x, 1}, {&d.d_gain_h, 1}, {&d.d_bias, 1}});
        const auto multiply_back = [&](const Rows& rows) {
            multiply_products(rows, d.d_h_proj, sizes.stride, packed, s, sizes, d.dh, false);
        };
        walk_columns_back(sizes, s, barrier, n.masked, d.d_hidden, {d.dh}, d.limit, multiply_back,
                          [&](index_t t, const Share& share) {
            StepBack{{n, panel_sums, share}, d}.walk_columns(t, means.data());
            of_step.add({sizes, share.first_panel, share.last_panel});
        });
    } else walk_rows_back(n, d, packed, panel_sums, s, barrier);
}

static void backward(const Rnn& n, const RnnGradients& d, const T* w_h, bool turned, int threads, bool by_units) {
    const Weights weights{w_h, n.sizes.hidden, GATES, PARTS, threads, turned};
    walk_backward(weights, n.sizes, ROW_SUMS, by_units, [&](const T* packed, T* panel_sums, const Share& share, const Barrier& barrier) {
        walk_back(n, d, packed, panel_sums, share, barrier);
    });
}

// The objects made of the arguments that forward and backward share.
#define SHARED_VALUES                                                                                                 \
    const Rnn n{sizes_of(steps, batch, units, reverse != 0, OF_BATCH ? nullptr : slots), T(eps), x_proj, h_proj,      \
                gain_x, gain_h, bias_x, hidden, norms, OF_BATCH ? slots : nullptr};

ENTRY(rnn_forward) {
    guarded([&] {
        SHARED_VALUES
        forward(n, {x, w_x, inputs}, w_h, transposed != 0, threads, by_units != 0, walk);
    });
}

// One time step outside of a gradient: nothing is kept, and the caller pads no array.
ENTRY(rnn_step) {
    guarded([&] {
        const Sizes sizes = sizes_of(1, batch, units, false, nullptr);
        const index_t S = sizes.stride, of_norms = OF_BATCH ? 4 * S : panels_of(batch * ROW_SUMS) * W;
        Room room((4 * batch + 3) * S + of_norms);
        const Rnn n{sizes, T(eps), room.products(inner_bias, GATES, sizes), APART ? room.take(batch * S) : nullptr,
                    room.padded(gain_x, GATES, sizes), room.padded(gain_h, GATES, sizes),
                    room.padded_sum(bias, bias_2, bias_3, GATES, sizes), room.states(h, sizes), room.take(of_norms), nullptr};
        forward(n, {x, w_x, inputs}, w_h, transposed != 0, threads, false, walk);
        take_out(n.hidden, sizes, h_new);
    });
}

ENTRY(rnn_backward) {
    guarded([&] {
        SHARED_VALUES
        backward(n, {d_hidden, dh, d_x_proj, d_h_proj, d_gain_x, d_gain_h, d_bias_x, T(limit)}, w_h, transposed != 0, threads,
                 by_units != 0);
    });
}
