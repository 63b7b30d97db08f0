// The gradient of all time steps of a GRU in one launch: see walk.cu.
#include "gates.cuh"
#include "../walk.cuh"

// dh (B, H) is the gradient of the last state and becomes that of the first. With norms, d_parameters (B, 12, H) are the sums
// over time of the gradients of gain_x, bias_x, gain_h and bias_h, three gates each; else it is null.
ENTRY(gru_walk_backward, CLUSTERED) {
    extern __shared__ __align__(16) float rest[];
    const Place p = place(batch);
#if NORM_GATES
    __shared__ Told<8> gate_sums;
    make(gate_sums);
    Values<Gru> d_gain_x = {}, d_bias_x = {}, d_gain_h = {}, d_bias_h = {};
#endif
    walk_backward<Gru>(rest, w_h, w_stats, mask, d_hs, dh, time_steps, batch, limit, p,
                       [&](int use, size_t row, size_t rows, bool masked, const Values<State>& d_out, const Receiver<Gru>& received,
                           const Values<State>& dh_now, Values<State>& carry, Values<Gru> (&d_v)[2]) {
        Values<Gru> v[2];
        Values<State> h_before;
        load_units<Gru>(v[0], x_proj, row, p);
        load_units<Gru>(v[1], h_proj, row, p);
        load_units<State>(h_before, h, row, p);
#if NORM_GATES
        Statistics<Gru> of_x, of_h;
        of_x.load(stats, row, rows, p);
        of_h.load(stats + 2 * rows * 3, row, rows, p);
        of_x.standardise(v[0]);
        of_h.standardise(v[1]);
#endif
        received.before(use);
        each_unit(p, [&](int u, int unit) {
            const GatesOfUnit now = gates([&](int source, int gate) { return v[source][gate][u]; }, unit, gain_x, bias_x,
                                          gain_h, bias_h, HIDDEN);
            const float upstream = dh_now[0][u] + d_out[0][u], d = masked ? 0 : upstream;
            const GruGates d_s = gru_gradient(now.s, h_before[0][u], now.h_n, d);
            const float d_sum[3] = {d_s.z, d_s.r, d_s.n};
            carry[0][u] = masked ? upstream : d * (1 - now.s.z);
#pragma unroll
            for (int gate = 0; gate < 3; ++gate) {
                const int at = gate * HIDDEN + unit;
                const float d_h_sum = gate == 2 ? d_sum[gate] * now.s.r : d_sum[gate];
                d_v[0][gate][u] = gain_x ? d_sum[gate] * gain_x[at] : d_sum[gate];
                d_v[1][gate][u] = gain_h ? d_h_sum * gain_h[at] : d_h_sum;
#if NORM_GATES
                d_gain_x[gate][u] += d_sum[gate] * v[0][gate][u];
                d_bias_x[gate][u] += d_sum[gate];
                d_gain_h[gate][u] += d_h_sum * v[1][gate][u];
                d_bias_h[gate][u] += d_h_sum;
#endif
            }
        });
#if NORM_GATES
        float gate_sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        add_norm_sums<Gru>(p, d_v[0], v[0], gate_sum);
        add_norm_sums<Gru>(p, d_v[1], v[1], gate_sum + 4);
        cluster_sum(gate_sums, use, p, gate_sum);
        through_norms<Gru>(p, d_v[0], v[0], gate_sum, of_x.rstd);
        through_norms<Gru>(p, d_v[1], v[1], gate_sum + 4, of_h.rstd);
#endif
        store_units<Gru>(d_v[0], d_x_proj, row, p);
        store_units<Gru>(d_v[1], d_h_proj, row, p);
    });
#if NORM_GATES
    store_sums<Gru>(d_gain_x, d_parameters, 0, 12, p);
    store_sums<Gru>(d_bias_x, d_parameters, 3, 12, p);
    store_sums<Gru>(d_gain_h, d_parameters, 6, 12, p);
    store_sums<Gru>(d_bias_h, d_parameters, 9, 12, p);
#endif
}
