// The phases of a GRU whose gates are normalised alone: z and r, of the sum of both products, and n after r has multiplied its h_n.
#pragma once
#include "arrays.h"

// The values of a gate of one row before their norm, and the norm.
struct Gate : Centred<OfRow> {
    const T *gain, *bias;
    vector after(index_t unit) const { return xhat(unit) * load(gain + unit) + load(bias + unit); }
};

// `panel_sums` has two sums of each gate, row and panel. The sum of n's products with r replaces its x_proj.
struct GatesAlone {
    const Gru g;
    T* panel_sums;
    const Share s;

    T* sums_of(index_t row) const { return panel_sums + row * g.sizes.panels * SUMS_OF_ROW; }
    T* x_of(index_t slot, index_t gate) const { return g.x_proj + (slot * GATES + gate) * g.sizes.stride; }
    Gate gate_of(index_t slot, index_t gate, OfRow norm) const {
        return {{x_of(slot, gate), norm}, g.gain_h + gate * g.sizes.stride, g.bias_h + gate * g.sizes.stride};
    }
    Gate kept(index_t slot, index_t gate) const {
        const T* norm = g.norms + slot * SUMS_OF_ROW + 2 * gate;
        return gate_of(slot, gate, {norm[0], norm[1]});
    }
    // Calls work(j) for the first unit of each vector of a panel.
    template <class Work>
    void each_unit(index_t p, const Work& work) const {
        for (index_t j = p * W; j < (p + 1) * W; j += LANES) work(j);
    }

    // A panel's share of the norm of a gate.
    void spread(index_t row, index_t slot, index_t gate, index_t p) const {
        panel_spread(x_of(slot, gate) + p * W, std::min(W, g.sizes.hidden - p * W), sums_of(row) + p * SUMS_OF_ROW + 2 * gate);
    }
    // The gate with its norm, from those shares.
    Gate normed(index_t row, index_t slot, index_t gate) const {
        const Spread of = merged(sums_of(row) + 2 * gate, SUMS_OF_ROW, g.sizes.hidden, g.eps);
        if (s.first_panel == 0) {
            T* norm = g.norms + slot * SUMS_OF_ROW + 2 * gate;
            norm[0] = of.mean;
            norm[1] = of.rstd;
        }
        return gate_of(slot, gate, {of.mean, of.rstd});
    }

    void spread_z_r(index_t, index_t row, index_t slot) const {
        for (index_t p = s.first_panel; p < s.last_panel; ++p)
            for (index_t gate = 0; gate < 2; ++gate) spread(row, slot, gate, p);
    }
    // The gates z, which is where the new state will be, and r.
    void open_z_r(index_t t, index_t row, index_t slot) const {
        const Gate z = normed(row, slot, 0), r = normed(row, slot, 1);
        const T* h_n = g.h_proj + slot * g.sizes.stride;
        T *n = x_of(slot, 2), *h_new = g.sizes.state(g.hidden, g.sizes.after(t), row);
        for (index_t p = s.first_panel; p < s.last_panel; ++p) {
            each_unit(p, [=](index_t j) {
                store(h_new + j, sigmoid(z.after(j)));
                store(n + j, load(n + j) + sigmoid(r.after(j)) * load(h_n + j));
            });
            spread(row, slot, 2, p);
        }
    }
    void open_n(index_t t, index_t row, index_t slot) const {
        const Gate n = normed(row, slot, 2);
        const T* h_before = g.sizes.state(g.hidden, g.sizes.before(t), row);
        T* h_new = g.sizes.state(g.hidden, g.sizes.after(t), row);
        for (index_t p = s.first_panel; p < s.last_panel; ++p)
            each_unit(p, [=](index_t j) {
                const vector h = load(h_before + j);
                store(h_new + j, h + load(h_new + j) * (hyperbolic_tangent(n.after(j)) - h));
            });
    }
};

// The same backward. d_x_proj has the gradients of the normalised values, until those before the norms replace them; in d_h_proj r is
// where its own gradient will be.
struct GatesAloneBack : GatesAlone {
    const GruGradients d;

    T* d_x_of(index_t slot, index_t gate) const { return d.d_x_proj + (slot * GATES + gate) * g.sizes.stride; }
    T* d_h_of(index_t slot, index_t gate) const { return d.d_h_proj + (slot * GATES + gate) * g.sizes.stride; }
    OfRow means(index_t row, index_t gate) const {
        const auto mean = [&](index_t which) { return row_sum(sums_of(row) + which, g.sizes.panels, SUMS_OF_ROW) / T(g.sizes.hidden); };
        return {mean(2 * gate), mean(2 * gate + 1)};
    }

    // The sums of a gate's gradient over a panel, and the gradients of its gain and bias.
    struct Sums {
        const Gate of;
        T *d_gain, *d_bias, *d_xhat;
        vector sum{}, along{};

        Sums(const GatesAloneBack& step, index_t row, index_t slot, index_t gate) : of(step.kept(slot, gate)) {
            const index_t k = (row / ROW_BLOCK * GATES + gate) * step.g.sizes.stride;
            d_gain = step.d.d_gain_h + k;
            d_bias = step.d.d_bias_h + k;
            d_xhat = step.d_x_of(slot, gate);
        }
        void through(index_t j, vector value) {
            const vector xhat = of.xhat(j), of_xhat = value * load(of.gain + j);
            add_to(d_gain + j, value * xhat);
            add_to(d_bias + j, value);
            store(d_xhat + j, of_xhat);
            sum += of_xhat;
            along += of_xhat * xhat;
        }
        void keep(T* sums) {
            sums[0] = total<T>(sum);
            sums[1] = total<T>(along);
            sum = along = vector{};
        }
    };

    void through_z_n(index_t t, index_t row, index_t slot) const {
        const T* h_before = g.sizes.state(g.hidden, g.sizes.before(t), row);
        T *dh = d.dh + row * g.sizes.stride, *r = d_h_of(slot, 1);
        const Gate of_r = kept(slot, 1);
        Sums z(*this, row, slot, 0), n(*this, row, slot, 2);
        for (index_t p = s.first_panel; p < s.last_panel; ++p) {
            each_unit(p, [&](index_t j) {
                const vector z_j = sigmoid(z.of.after(j)), n_j = hyperbolic_tangent(n.of.after(j)), d_new = load(dh + j);
                store(r + j, sigmoid(of_r.after(j)));
                store(dh + j, d_new - d_new * z_j);
                z.through(j, d_new * (n_j - load(h_before + j)) * z_j * (1 - z_j));
                n.through(j, d_new * z_j * (1 - n_j * n_j));
            });
            z.keep(sums_of(row) + p * SUMS_OF_ROW);
            n.keep(sums_of(row) + p * SUMS_OF_ROW + 4);
        }
    }
    void through_r(index_t, index_t row, index_t slot) const {
        const OfRow of_z = means(row, 0), of_n = means(row, 2);
        const Gate z = kept(slot, 0), n = kept(slot, 2);
        const T* h_n = g.h_proj + slot * g.sizes.stride;
        T *d_z = d_x_of(slot, 0), *d_n = d_x_of(slot, 2), *d_h_z = d_h_of(slot, 0), *d_h_n = d_h_of(slot, 2);
        const T* of_r = d_h_of(slot, 1);
        Sums r(*this, row, slot, 1);
        for (index_t p = s.first_panel; p < s.last_panel; ++p) {
            each_unit(p, [&](index_t j) {
                const vector through_z = z.before(j, load(d_z + j), of_z), through_n = n.before(j, load(d_n + j), of_n);
                const vector r_j = load(of_r + j);
                store(d_z + j, through_z);
                store(d_h_z + j, through_z);
                store(d_n + j, through_n);
                store(d_h_n + j, through_n * r_j);
                r.through(j, through_n * load(h_n + j) * r_j * (1 - r_j));
            });
            r.keep(sums_of(row) + p * SUMS_OF_ROW + 2);
        }
    }
    void through_norm_of_r(index_t, index_t row, index_t slot) const {
        const OfRow of_r = means(row, 1);
        const Gate r = kept(slot, 1);
        T *d_r = d_x_of(slot, 1), *d_h_r = d_h_of(slot, 1);
        for (index_t p = s.first_panel; p < s.last_panel; ++p)
            each_unit(p, [=](index_t j) {
                const vector through = r.before(j, load(d_r + j), of_r);
                store(d_r + j, through);
                store(d_h_r + j, through);
            });
    }
};
