// One step of an LSTM between two products, and its gradient (Ba, Kiros, Hinton 2016, eq. 20-22 and 29-31).
//
// Macros: THREADS and UNITS (see cell.cuh); NORM_SIDES 1 if the input's and the recurrent side are normalised,
// NORM_CELL 1 if the cell is before it is shown. Gates: forget, input, output, candidate.
//
// x_side (T, B, 4H) is the input's product, recurrent (T, B, 4H) the state's; c and h (T + 1, B, H) begin with the
// first states. stats [norm][T * B][3]: both sides, then the cell. A null mask means that no row is held.
#include "../recurrent/cell.cuh"
#include "lstm.h"

constexpr int CELL_STATS = NORM_SIDES ? 2 : 0;

__device__ __forceinline__ LstmGates gates(const Side<Lstm> (&v)[2], int u, const float* gain_x, const float* bias_x,
                                       const float* gain_h, const float* bias_h, const float* bias, int hidden) {
    float z[4];
#pragma unroll
    for (int gate = 0; gate < 4; ++gate) {
        const int at = gate * hidden + unit(u);
        z[gate] = affine(v[0][gate][u], gain_x, bias_x, at) + affine(v[1][gate][u], gain_h, bias_h, at) + bias[at];
    }
    return lstm_gates(z[0], z[1], z[2], z[3]);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
lstm_forward(const float* __restrict__ x_side, const float* __restrict__ recurrent, const float* __restrict__ gain_x,
             const float* __restrict__ bias_x, const float* __restrict__ gain_h, const float* __restrict__ bias_h,
             const float* __restrict__ bias, const float* __restrict__ gain_c, const float* __restrict__ bias_c,
             const bool* __restrict__ mask, float* __restrict__ h, float* __restrict__ c, float* __restrict__ stats,
             int step, int steps, int batch, int hidden, float eps) {
    __shared__ float shared[SHARED];
    const int b = int(blockIdx.x * blockDim.y + threadIdx.y);
    const bool inside = b < batch;
    const size_t rows = size_t(steps) * batch, row = size_t(step) * batch + (inside ? b : 0);
    Side<Lstm> v[2];
    load<Lstm>(v[0], x_side, row, hidden);
    load<Lstm>(v[1], recurrent, row, hidden);
#if NORM_SIDES
    standardise<Lstm, 2>(v, hidden, eps, stats, row, rows, inside, shared);
#endif
    Side<State> before, cell[1];
    load<State>(before, c, row, hidden);
    each<State>(hidden, [&](int, int u) {
        const LstmGates s = gates(v, u, gain_x, bias_x, gain_h, bias_h, bias, hidden);
        cell[0][0][u] = lstm_cell(s, before[0][u]);
        v[0][2][u] = s.out;
    });
    const bool held = mask && !mask[row];
    const size_t after = row + batch;
    if (inside)
        each<State>(hidden, [&](int, int u) { c[after * hidden + unit(u)] = held ? before[0][u] : cell[0][0][u]; });
#if NORM_CELL
    standardise<State, 1>(cell, hidden, eps, stats + CELL_STATS * rows * 3, row, rows, inside, shared);
#endif
    if (!inside) return;
    each<State>(hidden, [&](int, int u) {
        const float shown = v[0][2][u] * tanhf(affine(cell[0][0][u], gain_c, bias_c, unit(u)));
        h[after * hidden + unit(u)] = held ? h[row * hidden + unit(u)] : shown;
    });
}

// dh is what the product of the later step gave back, carry what reached its state beside the product (null without
// a mask), g_out (T, B, H) the gradient of the outputs (null if nobody asked). dc is that of the cell, in and out.
// Written: d_x (T, B, 4H) and d_recurrent (T, B, 4H), before the norms; dz (T, B, 4H), after them; d_shown (T, B, H),
// after the norm of the cell. The gains' gradients are sums over all steps, so they are left to layer_norm_backward.
extern "C" __global__ void __launch_bounds__(BLOCK)
lstm_backward(const float* __restrict__ x_side, const float* __restrict__ recurrent, const float* __restrict__ gain_x,
              const float* __restrict__ bias_x, const float* __restrict__ gain_h, const float* __restrict__ bias_h,
              const float* __restrict__ bias, const float* __restrict__ gain_c, const float* __restrict__ bias_c,
              const bool* __restrict__ mask, const float* __restrict__ c, const float* __restrict__ stats,
              const float* __restrict__ g_out, const float* __restrict__ dh, float* __restrict__ carry,
              float* __restrict__ dc, float* __restrict__ d_x, float* __restrict__ d_recurrent,
              float* __restrict__ dz, float* __restrict__ d_shown, int step, int steps, int batch, int hidden) {
    __shared__ float shared[SHARED];
    const int b = int(blockIdx.x * blockDim.y + threadIdx.y);
    const bool inside = b < batch;
    const size_t rows = size_t(steps) * batch, at = inside ? b : 0, row = size_t(step) * batch + at;
    const bool held = mask && !mask[row];
    Side<Lstm> v[2], g[2];
    load<Lstm>(v[0], x_side, row, hidden);
    load<Lstm>(v[1], recurrent, row, hidden);
#if NORM_SIDES
    standardise_again<Lstm, 2>(v, hidden, stats, row, rows);
#endif
    // The cell as it was before the mask is not kept: the gates give it again.
    Side<State> before, cell[1], upstream, d_cell[1];
    load<State>(before, c, row, hidden);
    load<State>(upstream, dh, at, hidden);
    each<State>(hidden, [&](int, int u) {
        const LstmGates s = gates(v, u, gain_x, bias_x, gain_h, bias_h, bias, hidden);
        cell[0][0][u] = lstm_cell(s, before[0][u]);
        if (g_out) upstream[0][u] += g_out[row * hidden + unit(u)];
        if (carry) upstream[0][u] += carry[at * hidden + unit(u)];
        g[0][0][u] = s.forget, g[0][1][u] = s.into, g[0][2][u] = s.out, g[0][3][u] = s.candidate;
    });
#if NORM_CELL
    Side<State> normal[1];
#pragma unroll
    for (int u = 0; u < UNITS; ++u) normal[0][0][u] = unit(u) < hidden ? cell[0][0][u] : 0;
    standardise_again<State, 1>(normal, hidden, stats + CELL_STATS * rows * 3, row, rows);
#else
    Side<State>(&normal)[1] = cell;
#endif
    float d_out[UNITS];
    each<State>(hidden, [&](int, int u) {
        const float shown = tanhf(affine(normal[0][0][u], gain_c, bias_c, unit(u)));
        const float upward = held ? 0 : upstream[0][u];
        d_out[u] = upward * shown;
        d_cell[0][0][u] = upward * g[0][2][u] * (1 - shown * shown);
#if NORM_CELL
        if (inside) d_shown[row * hidden + unit(u)] = d_cell[0][0][u];
        d_cell[0][0][u] *= gain_c[unit(u)];
#endif
    });
#if NORM_CELL
    standardise_gradient<State, 1>(d_cell, normal, hidden, stats + CELL_STATS * rows * 3, row, rows, shared);
#endif
    each<State>(hidden, [&](int, int u) {
        const size_t here = at * hidden + unit(u);
        const LstmGates s = {g[0][0][u], g[0][1][u], g[0][2][u], g[0][3][u]};
        const float later = dc[here], d = held ? 0 : later + d_cell[0][0][u];
        const LstmGates of_gates = lstm_gradient(s, before[0][u], d, d_out[u]);
        const float z[4] = {of_gates.forget, of_gates.into, of_gates.out, of_gates.candidate};
#pragma unroll
        for (int gate = 0; gate < 4; ++gate) {
            const int place = gate * hidden + unit(u);
            g[0][gate][u] = gain_x ? z[gate] * gain_x[place] : z[gate];
            g[1][gate][u] = gain_h ? z[gate] * gain_h[place] : z[gate];
            if (dz && inside) dz[row * 4 * hidden + place] = z[gate];
        }
        if (inside) {
            dc[here] = held ? later : d * s.forget;
            if (carry) carry[here] = held ? upstream[0][u] : 0;
        }
    });
#if NORM_SIDES
    standardise_gradient<Lstm, 2>(g, v, hidden, stats, row, rows, shared);
#endif
    if (!inside) return;
    store<Lstm>(g[0], d_x, row, hidden);
    if (d_recurrent) store<Lstm>(g[1], d_recurrent, row, hidden);
}
