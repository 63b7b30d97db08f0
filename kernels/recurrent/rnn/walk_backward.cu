// The gradient of all time steps of a tanh RNN in one launch: see walk.cu.
#include "../walk.cuh"

// dh (B, H) is the gradient of the last state and becomes that of the first; d_x_proj (T, B, H) is that of x_proj and of h_proj.
// With a norm, d_parameters (B, 2, H) are the x_proj over time of the gradients of gain_h and bias_h; else it is null.
ENTRY(rnn_walk_backward, CLUSTERED) {
    extern __shared__ __align__(16) float rest[];
    const Place p = place(batch);
#if NORM_GATES
    __shared__ Told<2> gate_sums;
    make(gate_sums);
    Values<State> d_gain = {}, d_bias = {};
#endif
    walk_backward<State>(rest, w_h, w_stats, mask, d_hs, dh, time_steps, batch, limit, p,
                         [&](int use, size_t row, size_t rows, bool masked, const Values<State>& d_out, const Receiver<State>& received,
                             const Values<State>& dh_now, Values<State>& carry, Values<State> (&d_v)[2]) {
        Values<State> xhat, &d_sum = d_v[1];
        load_units<State>(xhat, x_proj, row, p);
#if NORM_GATES
        Statistics<State> of_sum;
        of_sum.load(stats, row, rows, p);
        of_sum.standardise(xhat);
#endif
        received.before(use);
        each_unit(p, [&](int u, int unit) {
            const float upstream = dh_now[0][u] + d_out[0][u];
            const float h_new = tanhf(affine(xhat[0][u], gain_h, bias_h, unit));
            const float d = masked ? 0 : upstream * (1 - h_new * h_new);
            carry[0][u] = masked ? upstream : 0;
            d_sum[0][u] = gain_h ? d * gain_h[unit] : d;
#if NORM_GATES
            d_gain[0][u] += d * xhat[0][u];
            d_bias[0][u] += d;
#endif
        });
#if NORM_GATES
        float gate_sum[2] = {0, 0};
        add_norm_sums<State>(p, d_sum, xhat, gate_sum);
        cluster_sum(gate_sums, use, p, gate_sum);
        through_norms<State>(p, d_sum, xhat, gate_sum, of_sum.rstd);
#endif
        store_units<State>(d_sum, d_x_proj, row, p);
    });
#if NORM_GATES
    store_sums<State>(d_gain, d_parameters, 0, 2, p);
    store_sums<State>(d_bias, d_parameters, 1, 2, p);
#endif
}
