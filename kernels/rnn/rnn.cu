// One step of a tanh RNN after its product, and its gradient (Ba, Kiros, Hinton 2016, eq. 4).
//
// Macros: THREADS and UNITS (see cell.cuh); NORM_SIDES 1 if the sum of both sides is normalised.
//
// sums (T, B, H) holds the input's side and becomes the sum of both; recurrent (B, H) is the state's product;
// h (T + 1, B, H) begins with the first state; stats [T * B][3].
#include "../recurrent/cell.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK)
rnn_forward(float* __restrict__ sums, const float* __restrict__ recurrent, const float* __restrict__ gain,
            const float* __restrict__ bias, const bool* __restrict__ mask, float* __restrict__ h,
            float* __restrict__ stats, int step, int steps, int batch, int hidden, float eps) {
    __shared__ float shared[SHARED];
    const int b = int(blockIdx.x * blockDim.y + threadIdx.y);
    const bool inside = b < batch;
    const size_t rows = size_t(steps) * batch, at = inside ? b : 0, row = size_t(step) * batch + at;
    Side<State> v[1];
    load<State>(v[0], sums, row, hidden);
    each<State>(hidden, [&](int, int u) {
        v[0][0][u] += recurrent[at * hidden + unit(u)];
        if (inside) sums[row * hidden + unit(u)] = v[0][0][u];
    });
#if NORM_SIDES
    standardise<State, 1>(v, hidden, eps, stats, row, rows, inside, shared);
#endif
    if (!inside) return;
    const bool held = mask && !mask[row];
    each<State>(hidden, [&](int, int u) {
        const float shown = tanhf(affine(v[0][0][u], gain, bias, unit(u)));
        h[(row + batch) * hidden + unit(u)] = held ? h[row * hidden + unit(u)] : shown;
    });
}

// As in lstm.cu: dh, carry and g_out come in; written are d_sums (T, B, H), before the norm, and dz, after it.
extern "C" __global__ void __launch_bounds__(BLOCK)
rnn_backward(const float* __restrict__ sums, const float* __restrict__ gain, const float* __restrict__ bias,
             const bool* __restrict__ mask, const float* __restrict__ stats, const float* __restrict__ g_out,
             const float* __restrict__ dh, float* __restrict__ carry, float* __restrict__ d_sums,
             float* __restrict__ dz, int step, int steps, int batch, int hidden) {
    __shared__ float shared[SHARED];
    const int b = int(blockIdx.x * blockDim.y + threadIdx.y);
    const bool inside = b < batch;
    const size_t rows = size_t(steps) * batch, at = inside ? b : 0, row = size_t(step) * batch + at;
    const bool held = mask && !mask[row];
    Side<State> v[1], g[1];
    load<State>(v[0], sums, row, hidden);
#if NORM_SIDES
    standardise_again<State, 1>(v, hidden, stats, row, rows);
#endif
    each<State>(hidden, [&](int, int u) {
        const size_t here = at * hidden + unit(u);
        float upstream = dh[here];
        if (g_out) upstream += g_out[row * hidden + unit(u)];
        if (carry) upstream += carry[here];
        const float shown = tanhf(affine(v[0][0][u], gain, bias, unit(u)));
        const float z = held ? 0 : upstream * (1 - shown * shown);
        g[0][0][u] = gain ? z * gain[unit(u)] : z;
        if (!inside) return;
        if (dz) dz[row * hidden + unit(u)] = z;
        if (carry) carry[here] = held ? upstream : 0;
    });
#if NORM_SIDES
    standardise_gradient<State, 1>(g, v, hidden, stats, row, rows, shared);
#endif
    if (inside) store<State>(g[0], d_sums, row, hidden);
}
