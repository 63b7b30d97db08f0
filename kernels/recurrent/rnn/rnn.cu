// One time step of a tanh RNN after its product, and its gradient (Ba, Kiros, Hinton 2016, eq. 4).
//
// Macros: THREADS and UNITS (see cell.cuh); NORM_GATES 1 if the sum of x_proj and h_proj is normalised; STORAGE (see
// storage.cuh).
//
// x_proj (T, B, H) comes in as x_proj = x W_x and becomes its sum with h_proj; h_proj = h W_h (B, H), of floats;
// h (T + 1, B, H) begins with the first state; stats [T * B][3]. The state is that of the sum as it is stored.
#include "../cell.cuh"

ENTRY(rnn_forward, __launch_bounds__(BLOCK, 1)) {
    __shared__ float shared[SHARED];
    const int b = int(blockIdx.x * blockDim.y + threadIdx.y);
    const bool inside = b < batch;
    const size_t rows = size_t(time_steps) * batch, at = inside ? b : 0, row = size_t(time_step) * batch + at;
    Values<State> v[1];
    load<State>(v[0], x_proj, row, inside ? hidden : 0);  // row 0 writes its own anew
    each<State>(hidden, [&](int, int u) {
        const storage_t sum = stored(v[0][0][u] + h_proj[at * hidden + unit(u)]);
        if (inside) x_proj[row * hidden + unit(u)] = sum;
        v[0][0][u] = loaded(sum);
    });
#if NORM_GATES
    standardise<State, 1>(v, hidden, eps, stats, row, rows, inside, shared);
#endif
    if (!inside) return;
    const bool masked = mask && !mask[row];
    each<State>(hidden, [&](int, int u) {
        const storage_t h_new = stored(tanhf(affine(v[0][0][u], gain_h, bias_h, unit(u))));
        h[(row + batch) * hidden + unit(u)] = masked ? h[row * hidden + unit(u)] : h_new;
    });
}

// As in lstm.cu: dh, carry and d_hs come in; written are d_x_proj (T, B, H), before the norm, and d_x_gates, after it.
ENTRY(rnn_backward, __launch_bounds__(BLOCK, 1)) {
    __shared__ float shared[SHARED];
    const int b = int(blockIdx.x * blockDim.y + threadIdx.y);
    const bool inside = b < batch;
    const size_t rows = size_t(time_steps) * batch, at = inside ? b : 0, row = size_t(time_step) * batch + at;
    const bool masked = mask && !mask[row];
    Values<State> v[1], d_v[1];
    load<State>(v[0], x_proj, row, hidden);
#if NORM_GATES
    standardise_again<State, 1>(v, hidden, stats, row, rows);
#endif
    each<State>(hidden, [&](int, int u) {
        const size_t here = at * hidden + unit(u);
        float upstream = dh[here];
        if (d_hs) upstream += loaded(d_hs[row * hidden + unit(u)]);
        if (carry && inside) upstream += carry[here];  // row 0 writes its own anew
        const float h_new = tanhf(affine(v[0][0][u], gain_h, bias_h, unit(u)));
        const float d_sum = masked ? 0 : upstream * (1 - h_new * h_new);
        d_v[0][0][u] = gain_h ? d_sum * gain_h[unit(u)] : d_sum;
        if (!inside) return;
        if (d_x_gates) d_x_gates[row * hidden + unit(u)] = stored(d_sum);
        if (carry) carry[here] = masked ? upstream : 0;
    });
#if NORM_GATES
    standardise_gradient<State, 1>(d_v, v, hidden, stats, row, rows, shared);
#endif
    if (inside) store<State>(d_v[0], d_x_proj, row, hidden);
}
