// The gradient of all time steps of an LSTM in one launch: see walk.cu.
#include "gates.cuh"
#include "../walk.cuh"

// dh and dc (B, H) are the gradients of the last states and become those of the first. d_parameters (B, kinds, H) are the
// sums over time of the gradients of gain_x, gain_h and the bias (four gates each), with a norm of the cell also gain_c
// and bias_c; without norms of the gates only the bias's. Without those, d_x_proj is d_h_proj too, and d_h_proj null.
ENTRY(lstm_walk_backward, CLUSTERED) {
    extern __shared__ __align__(16) float rest[];
    const Place p = place(batch);
#if NORM_GATES
    __shared__ Told<4> gate_sums;
    make(gate_sums);
    Values<Lstm> d_gain_x = {}, d_gain_h = {};
#endif
#if NORM_CELL
    __shared__ Told<2> cell_sums;
    make(cell_sums);
    Values<State> d_gain_c = {}, d_bias_c = {};
#endif
    Values<Lstm> d_bias = {};
    Values<State> dc_now;
    load_units<State>(dc_now, dc, p.b, p);
    const auto bound_cell = [&] { each_unit(p, [&](int u, int) { dc_now[0][u] = within(dc_now[0][u], limit); }); };
    walk_backward<Lstm>(rest, w_h, w_stats, mask, d_hs, dh, time_steps, batch, limit, p,
                        [&](int use, size_t row, size_t rows, bool masked, const Values<State>& d_out, const Receiver<Lstm>& received,
                            const Values<State>& dh_now, Values<State>& carry, Values<Lstm> (&d_v)[2]) {
        Values<Lstm> v[2];
        Values<State> c_before;
        load_units<Lstm>(v[0], x_proj, row, p);
        load_units<Lstm>(v[1], h_proj, row, p);
        load_units<State>(c_before, c, row, p);
#if NORM_GATES
        Statistics<Lstm> of_x, of_h;
        of_x.load(stats, row, rows, p);
        of_h.load(stats + rows * 3, row, rows, p);
        of_x.standardise(v[0]);
        of_h.standardise(v[1]);
#endif
        Values<Lstm> s_of;
        Values<State> c_new;
        each_unit(p, [&](int u, int unit) {
            const LstmGates s = gates([&](int source, int gate) { return v[source][gate][u]; }, unit, gain_x, bias_x,
                                      gain_h, bias_h, bias, HIDDEN);
            c_new[0][u] = lstm_cell(s, c_before[0][u]);
            s_of[0][u] = s.i, s_of[1][u] = s.f, s_of[2][u] = s.g, s_of[3][u] = s.o;
        });
#if NORM_CELL
        Statistics<State> of_c;
        of_c.load(stats + CELL_STATS * rows * 3, row, rows, p);
        of_c.standardise(c_new);
#endif
        received.before(use);
        if (use > 0) bound_cell();
        Values<State> d_cell = {};
        float d_o[UNITS];
        each_unit(p, [&](int u, int unit) {
            const float upstream = dh_now[0][u] + d_out[0][u], d = masked ? 0 : upstream;
            carry[0][u] = masked ? upstream : 0;
            const float tanh_c = tanhf(affine(c_new[0][u], gain_c, bias_c, unit));
            d_o[u] = d * tanh_c;
            d_cell[0][u] = d * s_of[3][u] * (1 - tanh_c * tanh_c);
#if NORM_CELL
            d_gain_c[0][u] += d_cell[0][u] * c_new[0][u];
            d_bias_c[0][u] += d_cell[0][u];
            d_cell[0][u] *= gain_c[unit];
#endif
        });
#if NORM_CELL
        float cell_sum[2] = {0, 0};
        add_norm_sums<State>(p, d_cell, c_new, cell_sum);
        cluster_sum(cell_sums, use, p, cell_sum);
        through_norms<State>(p, d_cell, c_new, cell_sum, of_c.rstd);
#endif
        each_unit(p, [&](int u, int unit) {
            const LstmGates s = {s_of[0][u], s_of[1][u], s_of[2][u], s_of[3][u]};
            const float d = masked ? 0 : dc_now[0][u] + d_cell[0][u];
            const LstmGates d_s = lstm_gradient(s, c_before[0][u], d, d_o[u]);
            const float d_sum[4] = {d_s.i, d_s.f, d_s.g, d_s.o};
            if (!masked) dc_now[0][u] = d * s.f;
#pragma unroll
            for (int gate = 0; gate < 4; ++gate) {
                d_bias[gate][u] += d_sum[gate];
                d_v[0][gate][u] = gain_x ? d_sum[gate] * gain_x[gate * HIDDEN + unit] : d_sum[gate];
                d_v[1][gate][u] = gain_h ? d_sum[gate] * gain_h[gate * HIDDEN + unit] : d_sum[gate];
#if NORM_GATES
                d_gain_x[gate][u] += d_sum[gate] * v[0][gate][u];
                d_gain_h[gate][u] += d_sum[gate] * v[1][gate][u];
#endif
            }
        });
#if NORM_GATES
        float gate_sum[4] = {0, 0, 0, 0};
        add_norm_sums<Lstm>(p, d_v[0], v[0], gate_sum);
        add_norm_sums<Lstm>(p, d_v[1], v[1], gate_sum + 2);
        cluster_sum(gate_sums, use, p, gate_sum);
        through_norms<Lstm>(p, d_v[0], v[0], gate_sum, of_x.rstd);
        through_norms<Lstm>(p, d_v[1], v[1], gate_sum + 2, of_h.rstd);
        store_units<Lstm>(d_v[1], d_h_proj, row, p);
#endif
        store_units<Lstm>(d_v[0], d_x_proj, row, p);
    });
    if (!p.works) return;
    bound_cell();
    store_units<State>(dc_now, dc, p.b, p);
    constexpr int KINDS = (NORM_GATES ? 12 : 4) + (NORM_CELL ? 2 : 0);
#if NORM_GATES
    store_sums<Lstm>(d_gain_x, d_parameters, 0, KINDS, p);
    store_sums<Lstm>(d_gain_h, d_parameters, 4, KINDS, p);
#endif
    store_sums<Lstm>(d_bias, d_parameters, NORM_GATES ? 8 : 0, KINDS, p);
#if NORM_CELL
    store_sums<State>(d_gain_c, d_parameters, KINDS - 2, KINDS, p);
    store_sums<State>(d_bias_c, d_parameters, KINDS - 1, KINDS, p);
#endif
}
