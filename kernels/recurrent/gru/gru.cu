// One time step of a GRU between two products, and its gradient (Ba, Kiros, Hinton 2016, eq. 26-28).
//
// Macros: THREADS and UNITS (see cell.cuh); NORM_GATES 1 if x_proj and h_proj are normalised, each with one norm over
// z and r and one over n; STORAGE (see storage.cuh). Gates: z, r, n (update, reset and new gate).
//
// x_proj = x W_x and h_proj = h W_h (T, B, 3H); h (T + 1, B, H) begins with the first state; stats [norm][T * B][3].
// The state adds up over time, so h is float; h_stored is the same as the products take it, null where that is h.
#include "gates.cuh"

ENTRY(gru_forward, __launch_bounds__(BLOCK, 1)) {
    __shared__ float shared[SHARED];
    const int b = int(blockIdx.x * blockDim.y + threadIdx.y);
    const bool inside = b < batch;
    const size_t rows = size_t(time_steps) * batch, row = size_t(time_step) * batch + (inside ? b : 0);
    Values<Gru> v[2];
    load<Gru>(v[0], x_proj, row, hidden);
    load<Gru>(v[1], h_proj, row, hidden);
#if NORM_GATES
    standardise<Gru, 2>(v, hidden, eps, stats, row, rows, inside, shared);
#endif
    if (!inside) return;
    const bool masked = mask && !mask[row];
    each<State>(hidden, [&](int, int u) {
        const GatesOfUnit now = gates([&](int source, int gate) { return v[source][gate][u]; }, unit(u), gain_x, bias_x,
                                      gain_h, bias_h, hidden);
        const float h_before = h[row * hidden + unit(u)];
        const float h_new = masked ? h_before : gru_state(now.s, h_before);
        h[(row + batch) * hidden + unit(u)] = h_new;
        if (STORAGE) h_stored[(row + batch) * hidden + unit(u)] = stored(h_new);
    });
}

// The gradient of the state after the time step has three parts: dh comes through the h_proj of the next time step,
// carry around it, d_hs (T, B, H) from the outputs (null if there is none). The kernel writes carry anew, for the time
// step before, and d_x_proj and d_h_proj (T, B, 3H), the gradients before the norms; where there are norms also
// d_x_gates and d_h_gates, the gradients after them.
ENTRY(gru_backward, __launch_bounds__(BLOCK, 1)) {
    __shared__ float shared[SHARED];
    const int b = int(blockIdx.x * blockDim.y + threadIdx.y);
    const bool inside = b < batch;
    const size_t rows = size_t(time_steps) * batch, at = inside ? b : 0, row = size_t(time_step) * batch + at;
    const bool masked = mask && !mask[row];
    Values<Gru> v[2], d_v[2];
    load<Gru>(v[0], x_proj, row, hidden);
    load<Gru>(v[1], h_proj, row, hidden);
#if NORM_GATES
    standardise_again<Gru, 2>(v, hidden, stats, row, rows);
#endif
    each<State>(hidden, [&](int, int u) {
        const GatesOfUnit now = gates([&](int source, int gate) { return v[source][gate][u]; }, unit(u), gain_x, bias_x,
                                      gain_h, bias_h, hidden);
        const size_t here = at * hidden + unit(u);
        const float after = inside ? carry[here] : 0;  // row 0 writes its own anew
        const float upstream = dh[here] + after + (d_hs ? loaded(d_hs[row * hidden + unit(u)]) : 0);
        const float d = masked ? 0 : upstream;
        const GruGates d_s = gru_gradient(now.s, h[row * hidden + unit(u)], now.h_n, d);
        const float d_sum[3] = {d_s.z, d_s.r, d_s.n};
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
            const int place = gate * hidden + unit(u);
            const float d_h_sum = gate == 2 ? d_sum[gate] * now.s.r : d_sum[gate];
            d_v[0][gate][u] = gain_x ? d_sum[gate] * gain_x[place] : d_sum[gate];
            d_v[1][gate][u] = gain_h ? d_h_sum * gain_h[place] : d_h_sum;
            if (d_x_gates && inside) {
                d_x_gates[row * 3 * hidden + place] = stored(d_sum[gate]);
                d_h_gates[row * 3 * hidden + place] = stored(d_h_sum);
            }
        }
        if (inside) carry[here] = masked ? upstream : d * (1 - now.s.z);
    });
#if NORM_GATES
    standardise_gradient<Gru, 2>(d_v, v, hidden, stats, row, rows, shared);
#endif
    if (!inside) return;
    store<Gru>(d_v[0], d_x_proj, row, hidden);
    store<Gru>(d_v[1], d_h_proj, row, hidden);
}
