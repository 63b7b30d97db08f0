// The gradient of all time steps of a tanh RNN in one launch: see walk.cu.
#include "../cluster_walk.cuh"

// dh (B, H) is the gradient of the last state and becomes that of the first; d_sums (T, B, H) is that of x_proj and of h_proj.
// With a norm, d_parameters (B, 2, H) are the sums over time of the gradients of gain and bias; else it is null.
extern "C" __global__ void CLUSTERED
rnn_walk_backward(const float* __restrict__ sums, const float* __restrict__ w_h, const float* __restrict__ w_stats,
                  const float* __restrict__ gain, const float* __restrict__ bias, const bool* __restrict__ mask,
                  const float* __restrict__ stats, const float* __restrict__ d_hs, float* __restrict__ dh,
                  float* __restrict__ d_sums, float* __restrict__ d_parameters, int time_steps, int batch, float limit) {
    extern __shared__ __align__(16) float rest[];
    __shared__ Gradients<State> d_states;
    const Place p = place(batch);
    const size_t rows = size_t(time_steps) * batch;
    Backward<State> weights;
    weights.load(rest, [&](int column, int state) { return weight_at<State>(w_h, w_stats, state, column, p.rank); });
    make<State>(d_states);
#if NORM_GATES
    __shared__ Told<2> gate_sums;
    make(gate_sums);
    Values<State> d_gain = {}, d_bias = {};
#endif
    Values<State> dh_now, carry = {};
    load_units<State>(dh_now, dh, p.b, p);
    cluster_barrier();

    for (int use = 0; use < time_steps; ++use) {
        const size_t row = size_t(time_steps - 1 - use) * batch + p.b;
        if (p.works) {
            Values<State> xhat, d_sum = {}, d_out = {};
            load_units<State>(xhat, sums, row, p);
            if (d_hs) load_units<State>(d_out, d_hs, row, p);
            const bool masked = p.inside && mask && !mask[row];
#if NORM_GATES
            Statistics<State> of_sum;
            of_sum.load(stats, row, rows, p);
            of_sum.standardise(xhat);
#endif
            if (use > 0) {
                receive<State>(d_states, use - 1, p, dh_now[0]);
                each_unit(p, [&](int u, int) { dh_now[0][u] = within(dh_now[0][u] + carry[0][u], limit); });
            }
            each_unit(p, [&](int u, int unit) {
                const float upstream = dh_now[0][u] + d_out[0][u];
                const float h_new = tanhf(affine(xhat[0][u], gain, bias, unit));
                const float d = masked ? 0 : upstream * (1 - h_new * h_new);
                carry[0][u] = masked ? upstream : 0;
                d_sum[0][u] = gain ? d * gain[unit] : d;
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
            keep<State>(d_states, use, p, d_sum);
            store_units<State>(d_sum, d_sums, row, p);
        }
        __syncthreads();
        distribute<State>(weights, d_states, use, p);
    }
    if (!p.works) return;
    receive<State>(d_states, time_steps - 1, p, dh_now[0]);
    each_unit(p, [&](int u, int) { dh_now[0][u] = within(dh_now[0][u] + carry[0][u], limit); });
    store_units<State>(dh_now, dh, p.b, p);
#if NORM_GATES
    store_sums<State>(d_gain, d_parameters, 0, 2, p);
    store_sums<State>(d_bias, d_parameters, 1, 2, p);
#endif
}
