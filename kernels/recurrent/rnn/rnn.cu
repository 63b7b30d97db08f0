// One time step of a tanh RNN after its product, and its gradient (Ba, Kiros, Hinton 2016, eq. 4).
//
// Macros: THREADS and UNITS (see cell.cuh); NORM_GATES 1 if the sum of x_proj and h_proj is normalised; STORAGE (see
// storage.cuh).
//
// sums (T, B, H) comes in as x_proj = x W_x and becomes its sum with h_proj; h_proj = h W_h (B, H), of floats;
// h (T + 1, B, H) begins with the first state; stats [T * B][3]. The state is that of the sum as it is stored.
#include "../cell.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK, 1)
rnn_forward(storage_t* __restrict__ sums, const float* __restrict__ h_proj, const float* __restrict__ gain,
            const float* __restrict__ bias, const bool* __restrict__ mask, storage_t* __restrict__ h,
            float* __restrict__ stats, int time_step, int time_steps, int batch, int hidden, float eps) {
    __shared__ float shared[SHARED];
    const int b = int(blockIdx.x * blockDim.y + threadIdx.y);
    const bool inside = b < batch;
    const size_t rows = size_t(time_steps) * batch, at = inside ? b : 0, row = size_t(time_step) * batch + at;
    Values<State> v[1];
    load<State>(v[0], sums, row, inside ? hidden : 0);  // row 0 writes its own anew
    each<State>(hidden, [&](int, int u) {
        const storage_t sum = stored(v[0][0][u] + h_proj[at * hidden + unit(u)]);
        if (inside) sums[row * hidden + unit(u)] = sum;
        v[0][0][u] = loaded(sum);
    });
#if NORM_GATES
    standardise<State, 1>(v, hidden, eps, stats, row, rows, inside, shared);
#endif
    if (!inside) return;
    const bool masked = mask && !mask[row];
    each<State>(hidden, [&](int, int u) {
        const storage_t h_new = stored(tanhf(affine(v[0][0][u], gain, bias, unit(u))));
        h[(row + batch) * hidden + unit(u)] = masked ? h[row * hidden + unit(u)] : h_new;
    });
}

// As in lstm.cu: dh, carry and d_hs come in; written are d_sums (T, B, H), before the norm, and d_gates, after it.
extern "C" __global__ void __launch_bounds__(BLOCK, 1)
rnn_backward(const storage_t* __restrict__ sums, const float* __restrict__ gain, const float* __restrict__ bias,
             const bool* __restrict__ mask, const float* __restrict__ stats, const storage_t* __restrict__ d_hs,
             const float* __restrict__ dh, float* __restrict__ carry, storage_t* __restrict__ d_sums,
             storage_t* __restrict__ d_gates, int time_step, int time_steps, int batch, int hidden) {
    __shared__ float shared[SHARED];
    const int b = int(blockIdx.x * blockDim.y + threadIdx.y);
    const bool inside = b < batch;
    const size_t rows = size_t(time_steps) * batch, at = inside ? b : 0, row = size_t(time_step) * batch + at;
    const bool masked = mask && !mask[row];
    Values<State> v[1], d_v[1];
    load<State>(v[0], sums, row, hidden);
#if NORM_GATES
    standardise_again<State, 1>(v, hidden, stats, row, rows);
#endif
    each<State>(hidden, [&](int, int u) {
        const size_t here = at * hidden + unit(u);
        float upstream = dh[here];
        if (d_hs) upstream += loaded(d_hs[row * hidden + unit(u)]);
        if (carry && inside) upstream += carry[here];  // row 0 writes its own anew
        const float h_new = tanhf(affine(v[0][0][u], gain, bias, unit(u)));
        const float d_sum = masked ? 0 : upstream * (1 - h_new * h_new);
        d_v[0][0][u] = gain ? d_sum * gain[unit(u)] : d_sum;
        if (!inside) return;
        if (d_gates) d_gates[row * hidden + unit(u)] = stored(d_sum);
        if (carry) carry[here] = masked ? upstream : 0;
    });
#if NORM_GATES
    standardise_gradient<State, 1>(d_v, v, hidden, stats, row, rows, shared);
#endif
    if (inside) store<State>(d_v[0], d_sums, row, hidden);
}
