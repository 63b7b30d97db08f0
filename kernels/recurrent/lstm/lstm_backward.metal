// The gradient of `lstm_forward.metal`: macros and inputs as there, with its stats, and d_h and d_c (B, H), the
// gradients of the next states.
//
// Outputs: d_x_gates (B, 4H), which is also the gradient after the norm of h_proj; d_h_proj (B, 4H), before it (with
// NORM_H); d_c_norm (B, H), after the norm of the cell; d_c_before (B, H), of the cell before the time step; d_h_before
// (B, H), of the state before it where the row is masked (with HAS_MASK). The gains' gradients are sums over all time
// steps, so layer_norm_backward computes them later.
#include "../cell.metal.h"
#include "lstm.h"

const int batch = c_shape[0], hidden = c_shape[1];
const int row = threadgroup_position_in_grid.x, t = thread_position_in_threadgroup.x;
const bool masked = MASKED(row);
threadgroup float shared[SHARED];

float v[4][UNITS], d_v[4][UNITS], c_new[1][UNITS], dc_new[1][UNITS], d_o[UNITS], stat[1][STATS], c_stat[1][STATS];
load<Lstm>(v, h_proj, row, hidden, t);
#if NORM_H
for (int k = 0; k < STATS; ++k) stat[0][k] = stats[row * STATS + k];
standardise_again<Lstm>(v, stat, hidden, t);
#endif
for (int k = 0; k < STATS; ++k) c_stat[0][k] = stats[(NORM_H * batch + row) * STATS + k];
// The cell before masking is not kept: the gates give it again.
for (int u = 0; u < UNITS; ++u) c_new[0][u] = dc_new[0][u] = 0;
EACH_UNIT(u) {
    const int at = u * THREADS + t;
    float sum[4];
    for (int gate = 0; gate < 4; ++gate) {
        const int place = gate * hidden + at;
#if NORM_H
        sum[gate] = x_gates[row * 4 * hidden + place] + v[gate][u] * gain_h[place] + bias_h[place];
#else
        sum[gate] = x_gates[row * 4 * hidden + place] + v[gate][u];
#endif
    }
    const LstmGates s = lstm_gates(sum[0], sum[1], sum[2], sum[3]);
    c_new[0][u] = lstm_cell(s, c[row * hidden + at]);
    d_v[0][u] = s.i;
    d_v[1][u] = s.f;
    d_v[2][u] = s.g;
    d_v[3][u] = s.o;
}
standardise_again<State>(c_new, c_stat, hidden, t);
EACH_UNIT(u) {
    const int at = u * THREADS + t, state = row * hidden + at;
    const float tanh_c = tanh(c_new[0][u] * gain_c[at] + bias_c[at]), dh = masked ? 0.0f : d_h[state];
    d_o[u] = dh * tanh_c;
    dc_new[0][u] = dh * d_v[3][u] * (1 - tanh_c * tanh_c);
    d_c_norm[state] = dc_new[0][u];
    dc_new[0][u] *= gain_c[at];
#if HAS_MASK
    d_h_before[state] = masked ? d_h[state] : 0.0f;
#endif
}
standardise_gradient<State>(dc_new, c_new, c_stat, hidden, shared, t);
EACH_UNIT(u) {
    const int at = u * THREADS + t, state = row * hidden + at;
    LstmGates s;
    s.i = d_v[0][u];
    s.f = d_v[1][u];
    s.g = d_v[2][u];
    s.o = d_v[3][u];
    const float d = masked ? 0.0f : d_c[state] + dc_new[0][u];
    const LstmGates d_s = lstm_gradient(s, c[state], d, d_o[u]);
    const float d_sum[4] = {d_s.i, d_s.f, d_s.g, d_s.o};
    for (int gate = 0; gate < 4; ++gate) {
        const int place = gate * hidden + at;
        d_x_gates[row * 4 * hidden + place] = d_sum[gate];
#if NORM_H
        d_v[gate][u] = d_sum[gate] * gain_h[place];
#endif
    }
    d_c_before[state] = masked ? d_c[state] : d * s.f;
}
#if NORM_H
standardise_gradient<Lstm>(d_v, v, stat, hidden, shared, t);
store<Lstm>(d_v, d_h_proj, row, hidden, t);
#endif
