// A GRU over a whole sequence (Ba, Kiros, Hinton 2016, eq. 26-28), forward and backward. The file of a variant says its NORMS,
// and the gates whose product with the state has a bias, H_BIASES: none, n alone or all; it includes this one.
//
// The input's product x_proj for all positions is an argument, the gradients of both products are results; large products are
// not made here. With norms over a row both weights are used without the means of their rows, those of the columns of z and r and
// those of n, so that no norm need subtract one: the input's was before its product, the recurrent one is when it is packed.
#pragma once
#include "../one_step.h"
#include "gates_alone.h"

// The products of one row, with the parameters that make gates of them. The norms of z and r come before that of n.
struct Products {
    const index_t S;
    const T *const gain_x, *const bias_x, *const gain_h, *const bias_h;  // a store could change those of a Gru
    Product<GATES, PARTS> x, h;

    Products(const Gru& g, index_t slot)
        : S(g.sizes.stride), gain_x(g.gain_x), bias_x(g.bias), gain_h(g.gain_h), bias_h(g.bias_h), x{}, h{} {
        x.values = g.x_proj + slot * GATES * S;
        h.values = g.h_proj + slot * (APART ? GATES : 1) * S;
        if constexpr (OF_BATCH) {
            x.norm = g.batch_norm(slot / g.sizes.batch, Of::X);
            h.norm = g.batch_norm(slot / g.sizes.batch, Of::H);
        }
    }
    // With the norms that the walk forward has kept.
    static Products kept(const Gru& g, index_t slot) {
        Products products(g, slot);
        for (index_t k = 0; k < PARTS; ++k)
            if constexpr (PARTS > 0) {
                products.x.rstd[k] = g.norms[slot * 4 + k];
                products.h.rstd[k] = g.norms[slot * 4 + 2 + k];
            }
        return products;
    }
    vector of_x(index_t gate, index_t unit) const {
        const index_t k = gate * S + unit;
        if constexpr (APART) return x.xhat(gate, k) * load(gain_x + k) + load(bias_x + k);
        else return load(x.values + k) + load(bias_x + k);
    }
    vector of_h(index_t gate, index_t unit) const {
        const index_t k = gate * S + unit;
        vector value{};
        if constexpr (APART) value = h.xhat(gate, k) * load(gain_h + k);
        else if (gate == 2) value = load(h.values + unit);
        if constexpr (H_BIASES == GATES) value += load(bias_h + k);
        else if (H_BIASES == 1 && gate == 2) value += load(bias_h + unit);
        return value;
    }
    GruGates<vector> gates(index_t unit) const {
        return gru_gates(of_x(0, unit), of_x(1, unit), of_x(2, unit), of_h(0, unit), of_h(1, unit), of_h(2, unit));
    }
};

// The number of values of a norm.
static inline index_t norm_width(int norm, index_t hidden) { return norm == 0 ? 2 * hidden : hidden; }

// The common part of the phases of a time step. `panel_sums` has four sums of each row and panel: of the products of x over z and
// r and over n, and of those of h.
struct Step {
    const Gru g;
    T* panel_sums;
    const Share s;
    index_t ahead;  // the distance of prefetches of products in values

    index_t wide() const { return GATES * g.sizes.stride; }
    T* sums_of(index_t row) const { return panel_sums + row * g.sizes.panels * 4; }
    T mean_of_products(const T* sums, int norm) const {
        return row_sum(sums, g.sizes.panels, 4) / T(norm_width(norm, g.sizes.hidden));
    }
    void keep_sums(index_t row, index_t p, const vector* of_x, const vector* of_h) const {
        T* sums = sums_of(row) + p * 4;
        for (int k = 0; k < 2; ++k) {
            sums[k] = total<T>(of_x[k]);
            sums[2 + k] = total<T>(of_h[k]);
        }
    }

    // The sums of squares of both products.
    void add_squares(index_t row, index_t slot) const {
        const index_t S = g.sizes.stride;
        const T *x = g.x_proj + slot * wide(), *h = g.h_proj + slot * wide();
        for (index_t p = s.first_panel; p < s.last_panel; ++p) {
            vector of_x[2] = {}, of_h[2] = {};
            for (index_t gate = 0; gate < GATES; ++gate)
                for (index_t k = gate * S + p * W; k < gate * S + (p + 1) * W; k += LANES) {
                    fetch_ahead(x + k, ahead);
                    fetch_ahead(h + k, ahead);
                    of_x[gate == 2] += load(x + k) * load(x + k);
                    of_h[gate == 2] += load(h + k) * load(h + k);
                }
            keep_sums(row, p, of_x, of_h);
        }
    }

    // The new state.
    void open_gates(index_t t, index_t row, index_t slot) const {
        const T* h_before = g.sizes.state(g.hidden, g.sizes.before(t), row);
        T* h_new = g.sizes.state(g.hidden, g.sizes.after(t), row);
        Products products(g, slot);
        if constexpr (PARTS > 0)
            for (int k = 0; k < PARTS; ++k) {
                products.x.rstd[k] = T(1) / std::sqrt(mean_of_products(sums_of(row) + k, k) + g.eps);
                products.h.rstd[k] = T(1) / std::sqrt(mean_of_products(sums_of(row) + 2 + k, k) + g.eps);
                if (s.first_panel == 0) {
                    g.norms[slot * 4 + k] = products.x.rstd[k];
                    g.norms[slot * 4 + 2 + k] = products.h.rstd[k];
                }
            }
        for (index_t j = s.first_panel * W; j < s.last_panel * W; j += LANES) {
            fetch_ahead(h_before + j, g.sizes.stride);
            claim_ahead(h_new + j, g.sizes.stride);
            store(h_new + j, gru_state(products.gates(j), load(h_before + j)));
        }
    }

    // All phases of some panels, if the norms are over the batch.
    void walk_columns(index_t t) const {
        const Sizes& sizes = g.sizes;
        const BatchColumns columns{sizes, s.first_panel, s.last_panel};
        columns.normalise(g.x_proj + t * sizes.batch * wide(), GATES, g.eps, g.batch_norm(t, Of::X));
        columns.normalise(g.h_proj + t * sizes.batch * wide(), GATES, g.eps, g.batch_norm(t, Of::H));
        for (index_t r = 0; r < sizes.batch; ++r) open_gates(t, r, t * sizes.batch + r);
    }
};

static void walk(const Gru& g, const T* packed, T* panel_sums, const Share& s, const Barrier& barrier) {
    const index_t ahead = positions_ahead(g.sizes, barrier, false) * GATES * g.sizes.stride;
    const Step step{g, panel_sums, s, ahead};
    const auto open = [&](index_t t, index_t row, index_t slot) { step.open_gates(t, row, slot); };
    if constexpr (OF_BATCH) {
        walk_columns(g.sizes, s, barrier, g.masked, {g.hidden},
                     [&](const Rows& rows, index_t t) { multiply(g, packed, rows, s, t); },
                     [&](index_t t, const Share& share) { Step{g, panel_sums, share, ahead}.walk_columns(t); });
    } else if constexpr (GATES_ALONE) {
        const GatesAlone alone{g, panel_sums, s};
        walk_rows(g, packed, s, barrier, [&](auto... of) { alone.spread_z_r(of...); }, [&](auto... of) { alone.open_z_r(of...); },
                  [&](auto... of) { alone.open_n(of...); });
    } else if constexpr (APART) {
        walk_rows(g, packed, s, barrier, [&](index_t, index_t row, index_t slot) { step.add_squares(row, slot); }, open);
    } else walk_rows(g, packed, s, barrier, open);
}

// The same phases backward.
struct StepBack : Step {
    const GruGradients d;

    // The results of gru_gates, in loops of their own.
    static void store_gates(const Products& products, index_t first, index_t last, T* to) {
        const index_t S = products.S;
        for (index_t j = first * W; j < last * W; j += LANES) {
            store(to + j, sigmoid(products.of_x(0, j) + products.of_h(0, j)));
            store(to + S + j, sigmoid(products.of_x(1, j) + products.of_h(1, j)));
        }
        for (index_t j = first * W; j < last * W; j += LANES)
            store(to + 2 * S + j, hyperbolic_tangent(products.of_x(2, j) + load(to + S + j) * products.of_h(2, j)));
    }

    // Through the new state and the gates. Until its gradient is known, a gate is where that will be.
    void through_gates(index_t t, index_t row, index_t slot) const {
        const T* h_before = g.sizes.state(g.hidden, g.sizes.before(t), row);
        const index_t S = g.sizes.stride, block = OF_BATCH ? 0 : row / ROW_BLOCK, ahead = this->ahead;
        const auto products = Products::kept(g, slot);
        T *d_x = d.d_x_proj + slot * wide(), *d_h = d.d_h_proj + slot * wide(), *dh = d.dh + row * S;
        T *d_bias_x = d.d_bias_x + block * wide();
        T *d_bias_h = APART ? d.d_bias_h + block * wide() : H_BIASES ? d.d_bias_h + block * S : nullptr;
        T *d_gain_x = APART ? d.d_gain_x + block * wide() : nullptr, *d_gain_h = APART ? d.d_gain_h + block * wide() : nullptr;
        each_panels(s, [=](index_t first, index_t last) {
            store_gates(products, first, last, d_h);
            for (index_t p = first; p < last; ++p) {
                vector along_x[2] = {}, along_h[2] = {};
                for (index_t j = p * W; j < (p + 1) * W; j += LANES) {
                    const GruGates<vector> gates{load(d_h + j), load(d_h + S + j), load(d_h + 2 * S + j)};
                    fetch_ahead(h_before + j, S);
                    claim_ahead(dh + j, S);
                    const vector d_new = load(dh + j);
                    const GruGates<vector> of = gru_gradient(gates, load(h_before + j), products.of_h(2, j), d_new);
                    store(dh + j, d_new - d_new * gates.z);
                    const auto through_gate = [&](index_t gate, vector of_x, vector of_h) {
                        const index_t k = gate * S + j;
                        fetch_ahead(products.x.values + k, ahead);
                        claim_ahead(d_x + k, ahead);
                        claim_ahead(d_h + k, ahead);
                        store(d_x + k, of_x);
                        store(d_h + k, of_h);
                        add_to(d_bias_x + k, of_x);
                        if constexpr (APART) {
                            fetch_ahead(products.h.values + k, ahead);
                            add_to(d_bias_h + k, of_h);
                            const vector of_gain_x = of_x * products.x.xhat(gate, k);
                            const vector of_gain_h = of_h * products.h.xhat(gate, k);
                            add_to(d_gain_x + k, of_gain_x);
                            add_to(d_gain_h + k, of_gain_h);
                            along_x[gate == 2] += of_gain_x * load(products.gain_x + k);
                            along_h[gate == 2] += of_gain_h * load(products.gain_h + k);
                        } else if (H_BIASES == 1 && gate == 2) {
                            add_to(d_bias_h + j, of_h);
                        }
                    };
                    through_gate(0, of.z, of.z);
                    through_gate(1, of.r, of.r);
                    through_gate(2, of.n, of.n * gates.r);
                }
                if constexpr (PARTS > 0) keep_sums(row, p, along_x, along_h);
            }
        });
    }

    // Through the norms of both products, whose gradients less the gains' are where they will be.
    template <class Means>
    void through_norms(index_t slot, const Means& means_x, const Means& means_h) const {
        const auto products = Products::kept(g, slot);
        T *d_x = d.d_x_proj + slot * wide(), *d_h = d.d_h_proj + slot * wide();
        for (index_t gate = 0; gate < GATES; ++gate) {
            const index_t first = gate * g.sizes.stride + s.first_panel * W, last = gate * g.sizes.stride + s.last_panel * W;
            for (index_t k = first; k < last; k += LANES) {
                store(d_x + k, products.x.before(gate, k, load(d_x + k) * load(g.gain_x + k), means_x));
                store(d_h + k, products.h.before(gate, k, load(d_h + k) * load(g.gain_h + k), means_h));
            }
        }
    }

    // The same of a row's norms.
    void through_row_norms(index_t row, index_t slot) const {
        Product<GATES, PARTS>::OfParts of_x, of_h;
        for (int k = 0; k < PARTS; ++k) {
            of_x[k] = mean_of_products(sums_of(row) + k, k);
            of_h[k] = mean_of_products(sums_of(row) + 2 + k, k);
        }
        through_norms(slot, of_x, of_h);
    }

    // All phases of some panels, if the norms are over the batch; the gradients of the parameters are those of the time step. `means`
    // gets the numbers that the gradients through the norms subtract.
    void walk_columns(index_t t, T* means) const {
        const Sizes& sizes = g.sizes;
        const BatchColumns columns{sizes, s.first_panel, s.last_panel};
        const OfColumns of_x = g.columns(means, Of::X), of_h = g.columns(means, Of::H);
        for (index_t r = 0; r < sizes.batch; ++r) through_gates(t, r, t * sizes.batch + r);
        columns.gradient_means(d.d_bias_x, d.d_gain_x, g.gain_x, GATES, of_x);
        columns.gradient_means(d.d_bias_h, d.d_gain_h, g.gain_h, GATES, of_h);
        for (index_t r = 0; r < sizes.batch; ++r) through_norms(t * sizes.batch + r, of_x, of_h);
    }
};

static void walk_batch_back(const Gru& g, GruGradients d, const T* packed, T* panel_sums, const Share& s, const Barrier& barrier) {
    const index_t wide = GATES * g.sizes.stride, ahead = positions_ahead(g.sizes, barrier, true) * wide;
    const Aligned<T> means(4 * wide), unused(wide);  // there is no bias of h, but the norm needs the sums of its gradients
    std::fill_n(d.d_bias_h = unused.data(), wide, T(0));
    const StepSums of_step(g.sizes.stride, {{&d.d_gain_x, GATES}, {&d.d_bias_x, GATES}, {&d.d_gain_h, GATES}, {&d.d_bias_h, GATES}});
    walk_columns_back(g.sizes, s, barrier, g.masked, d.d_hidden, {d.dh}, d.limit,
                      [&](const Rows& rows) { multiply_products(rows, d.d_h_proj, wide, packed, s, g.sizes, d.dh, true); },
                      [&](index_t t, const Share& share) {
        StepBack{{g, panel_sums, share, ahead}, d}.walk_columns(t, means.data());
        of_step.add({g.sizes, share.first_panel, share.last_panel});
    });
}

static void walk_back(const Gru& g, GruGradients d, const T* packed, T* panel_sums, const Share& s, const Barrier& barrier) {
    const Sizes& sizes = g.sizes;
    const OwnSums own(sizes, s, barrier, {{&d.d_gain_x, GATES}, {&d.d_bias_x, GATES}, {&d.d_gain_h, GATES}, {&d.d_bias_h, H_BIASES}});
    const StepBack step{{g, panel_sums, s, positions_ahead(sizes, barrier, true) * GATES * sizes.stride}, d};
    const auto through_gates = [&](index_t t, index_t row, index_t slot) { step.through_gates(t, row, slot); };
    if constexpr (OF_BATCH) {
        walk_batch_back(g, d, packed, panel_sums, s, barrier);
    } else if constexpr (GATES_ALONE) {
        const GatesAloneBack alone{{g, panel_sums, s}, d};
        walk_rows_back(g, d, packed, s, barrier, [&](auto... of) { alone.through_z_n(of...); },
                       [&](auto... of) { alone.through_r(of...); }, [&](auto... of) { alone.through_norm_of_r(of...); });
    } else if constexpr (APART) {
        walk_rows_back(g, d, packed, s, barrier, through_gates,
                       [&](index_t, index_t row, index_t slot) { step.through_row_norms(row, slot); });
    } else walk_rows_back(g, d, packed, s, barrier, through_gates);
}

// PyTorch's gates are r, z, n, and its z keeps the state that ours renews: before the sigmoid it is the negative of ours.
static index_t place_of(index_t gate, bool theirs) { return theirs && gate < 2 ? 1 - gate : gate; }
static void negate_z(T* gates, const Sizes& sizes) {
    for (index_t j = 0; j < sizes.hidden; ++j) gates[j] = -gates[j];
}

static void forward(const Gru& g, const OneStep& one, const T* w_h, bool turned, int threads, bool by_units, bool theirs = false) {
    const Weights weights{w_h, g.sizes.hidden, GATES, PARTS, threads, turned};
    const auto by = [&](const T* packed, T* panel_sums, const Share& share, const Barrier& barrier) {
        for (index_t row = 0; theirs && !APART && row < g.sizes.batch; ++row) negate_z(g.x_proj + row * GATES * g.sizes.stride, g.sizes);
        walk(g, packed, panel_sums, share, barrier);
    };
    if (!one.x) return walk_forward(weights, g.sizes, SUMS_OF_ROW, by_units, by);
    const index_t S = g.sizes.stride, wide = GATES * S, of_h = APART ? wide : S;
    std::fill_n(g.h_proj, g.sizes.batch * of_h, T(0));
    const auto x_gate = [=](index_t row, index_t gate) { return g.x_proj + row * wide + place_of(gate, theirs) * S; };
    walk_one_step(one, g.hidden, weights, g.sizes, SUMS_OF_ROW, x_gate, [=](index_t row, index_t gate) {
        if (APART) return g.h_proj + row * of_h + place_of(gate, theirs) * S;
        return gate == 2 ? g.h_proj + row * of_h : x_gate(row, gate);
    }, by);
}

static void backward(const Gru& g, const GruGradients& d, const T* w_h, bool turned, int threads, bool by_units) {
    const Weights weights{w_h, g.sizes.hidden, GATES, PARTS, threads, turned};
    walk_backward(weights, g.sizes, SUMS_OF_ROW, by_units, [&](const T* packed, T* panel_sums, const Share& share, const Barrier& barrier) {
        walk_back(g, d, packed, panel_sums, share, barrier);
    });
}

// The objects made of the arguments that forward and backward share.
#define SHARED_VALUES                                                                                                 \
    const Gru g{{sizes_of(steps, batch, units, reverse != 0, OF_BATCH ? nullptr : slots), T(eps), x_proj, h_proj,     \
                 gain_x, gain_h, bias_x, hidden, norms, OF_BATCH ? slots : nullptr}, bias_h};

ENTRY(gru_forward) {
    guarded([&] {
        SHARED_VALUES
        forward(g, {x, w_x, inputs}, w_h, transposed != 0, threads, by_units != 0);
    });
}

// One time step outside of a gradient: nothing is kept, and the caller pads no array. With `theirs` all parameters are PyTorch's, and
// where n alone has a bias, `bias_h` is that of all gates.
ENTRY(gru_step) {
    guarded([&] {
        const Sizes sizes = sizes_of(1, batch, units, false, nullptr);
        const index_t S = sizes.stride, of_norms = OF_BATCH ? 4 * GATES * S : panels_of(batch * SUMS_OF_ROW) * W;
        Room room((2 * batch + 4) * GATES * S + 2 * batch * S + of_norms);
        const auto ours = [&](T* gates, bool turns) {
            if (gates && theirs) std::swap_ranges(gates, gates + S, gates + S);
            if (gates && theirs && turns) negate_z(gates, sizes);
            return gates;
        };
        T *of_x = room.padded_sum(bias, bias_2, bias_3, GATES, sizes), *of_h = nullptr;
        if (theirs && H_BIASES == 1) {
            of_h = room.padded(bias_h, GATES, sizes);
            for (index_t k = 0; k < 2 * S; ++k) of_x[k] += of_h[k];
            of_h += 2 * S;
        } else of_h = room.padded(bias_h, H_BIASES ? H_BIASES : 1, sizes);
        if (H_BIASES == GATES) ours(of_h, true);
        const Gru g{{sizes, T(eps), room.products(inner_bias, GATES, sizes), room.take(batch * (APART ? GATES : 1) * S),
                     ours(room.padded(gain_x, GATES, sizes), APART), ours(room.padded(gain_h, GATES, sizes), APART), ours(of_x, true),
                     room.states(h, sizes), room.take(of_norms), nullptr}, of_h};
        forward(g, {x, w_x, inputs}, w_h, transposed != 0, threads, false, theirs != 0);
        take_out(g.hidden, sizes, h_new);
    });
}

ENTRY(gru_backward) {
    guarded([&] {
        SHARED_VALUES
        backward(g, {d_hidden, dh, d_x_proj, d_h_proj, d_gain_x, d_bias_x, d_gain_h, d_bias_h, T(limit)}, w_h,
                 transposed != 0, threads, by_units != 0);
    });
}
