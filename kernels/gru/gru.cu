// One step of a GRU between two products, and its gradient (Ba, Kiros, Hinton 2016, eq. 26-28).
//
// Macros: THREADS and UNITS (see cell.cuh); NORM_SIDES 1 if the input's and the recurrent side are normalised, each
// with one norm over update and reset and one over the candidate. Gates: update, reset, candidate.
//
// x_side and recurrent (T, B, 3H); h (T + 1, B, H) begins with the first state; stats [norm][T * B][3].
#include "../recurrent/cell.cuh"
#include "gru.h"

struct Gates {
    GruGates s;
    float of_state;  // the candidate's recurrent side, before the reset
};

__device__ __forceinline__ Gates gates(const Side<Gru> (&v)[2], int u, const float* gain_x, const float* bias_x,
                                       const float* gain_h, const float* bias_h, int hidden) {
    float x[3], h[3];
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) {
        const int at = gate * hidden + unit(u);
        x[gate] = affine(v[0][gate][u], gain_x, bias_x, at);
        h[gate] = affine(v[1][gate][u], gain_h, bias_h, at);
    }
    return {gru_gates(x[0], x[1], x[2], h[0], h[1], h[2]), h[2]};
}

extern "C" __global__ void __launch_bounds__(BLOCK)
gru_forward(const float* __restrict__ x_side, const float* __restrict__ recurrent, const float* __restrict__ gain_x,
            const float* __restrict__ bias_x, const float* __restrict__ gain_h, const float* __restrict__ bias_h,
            const bool* __restrict__ mask, float* __restrict__ h, float* __restrict__ stats, int step, int steps,
            int batch, int hidden, float eps) {
    __shared__ float shared[SHARED];
    const int b = int(blockIdx.x * blockDim.y + threadIdx.y);
    const bool inside = b < batch;
    const size_t rows = size_t(steps) * batch, row = size_t(step) * batch + (inside ? b : 0);
    Side<Gru> v[2];
    load<Gru>(v[0], x_side, row, hidden);
    load<Gru>(v[1], recurrent, row, hidden);
#if NORM_SIDES
    standardise<Gru, 2>(v, hidden, eps, stats, row, rows, inside, shared);
#endif
    if (!inside) return;
    const bool held = mask && !mask[row];
    each<State>(hidden, [&](int, int u) {
        const Gates now = gates(v, u, gain_x, bias_x, gain_h, bias_h, hidden);
        const float before = h[row * hidden + unit(u)];
        h[(row + batch) * hidden + unit(u)] = held ? before : gru_state(now.s, before);
    });
}

// carry is what reaches the earlier state beside the product, in and out; dh is what the product of the later step
// gave back; g_out (T, B, H) may be null. Written: d_x and d_recurrent (T, B, 3H), before the norms; dz_x and dz_h,
// after them, where there are norms.
extern "C" __global__ void __launch_bounds__(BLOCK)
gru_backward(const float* __restrict__ x_side, const float* __restrict__ recurrent, const float* __restrict__ gain_x,
             const float* __restrict__ bias_x, const float* __restrict__ gain_h, const float* __restrict__ bias_h,
             const bool* __restrict__ mask, const float* __restrict__ h, const float* __restrict__ stats,
             const float* __restrict__ g_out, const float* __restrict__ dh, float* __restrict__ carry,
             float* __restrict__ d_x, float* __restrict__ d_recurrent, float* __restrict__ dz_x,
             float* __restrict__ dz_h, int step, int steps, int batch, int hidden) {
    __shared__ float shared[SHARED];
    const int b = int(blockIdx.x * blockDim.y + threadIdx.y);
    const bool inside = b < batch;
    const size_t rows = size_t(steps) * batch, at = inside ? b : 0, row = size_t(step) * batch + at;
    const bool held = mask && !mask[row];
    Side<Gru> v[2], g[2];
    load<Gru>(v[0], x_side, row, hidden);
    load<Gru>(v[1], recurrent, row, hidden);
#if NORM_SIDES
    standardise_again<Gru, 2>(v, hidden, stats, row, rows);
#endif
    each<State>(hidden, [&](int, int u) {
        const Gates now = gates(v, u, gain_x, bias_x, gain_h, bias_h, hidden);
        const size_t here = at * hidden + unit(u);
        const float upstream = dh[here] + carry[here] + (g_out ? g_out[row * hidden + unit(u)] : 0);
        const float d = held ? 0 : upstream;
        const GruGates of_gates = gru_gradient(now.s, h[row * hidden + unit(u)], now.of_state, d);
        const float z[3] = {of_gates.update, of_gates.reset, of_gates.candidate};
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
            const int place = gate * hidden + unit(u);
            const float of_state = gate == 2 ? z[gate] * now.s.reset : z[gate];
            g[0][gate][u] = gain_x ? z[gate] * gain_x[place] : z[gate];
            g[1][gate][u] = gain_h ? of_state * gain_h[place] : of_state;
            if (dz_x && inside) {
                dz_x[row * 3 * hidden + place] = z[gate];
                dz_h[row * 3 * hidden + place] = of_state;
            }
        }
        if (inside) carry[here] = held ? upstream : d * (1 - now.s.update);
    });
#if NORM_SIDES
    standardise_gradient<Gru, 2>(g, v, hidden, stats, row, rows, shared);
#endif
    if (!inside) return;
    store<Gru>(g[0], d_x, row, hidden);
    store<Gru>(g[1], d_recurrent, row, hidden);
}
