// One time step of an LSTM after its product (Ba, Kiros, Hinton 2016, eq. 20-22 and 29-31), and its gradient.
//
// Macros: LSTM_FORWARD or LSTM_BACKWARD; THREADS and UNITS (see cell.metal.h); NORM_H 1 if h_proj is normalised; HAS_MASK.
// Gates: i, f, g, o (input, forget, cell and output gate). Inputs: x_gates (B, 4H), the gates of the input, with norm and bias;
// h_proj = h W_h (B, 4H); h and c (B, H); gains and biases; mask (B): a row that is 0 keeps its state; eps.
// Outputs: next_h and next_c (B, H); stats (norms, B, 3), of h_proj and of the cell.
//
// Backward come in stats, and d_h and d_c (B, H), the gradients of the next states. Outputs: d_x_gates (B, 4H), which is also the
// gradient after the norm of h_proj; d_h_proj (B, 4H), before it (with NORM_H); d_c_norm (B, H), after the norm of the cell;
// d_c_before (B, H), of the cell before the time step; d_h_before (B, H), of the state before it where the row is masked (with
// HAS_MASK). The gains' gradients are sums over all time steps, so layer_norm_backward computes them later.
#include "../cell.metal.h"
#include "lstm.h"

const int batch = c_shape[0], hidden = c_shape[1];
const int row = threadgroup_position_in_grid.x, t = thread_position_in_threadgroup.x;
threadgroup float shared[SHARED];

float v[4][UNITS], c_new[1][UNITS], stat[1][STATS];
load<Lstm>(v, h_proj, row, hidden, t);
#ifdef LSTM_FORWARD
float o[UNITS];
#if NORM_H
standardise<Lstm>(v, stat, hidden, eps, shared, t);
if (t == 0)
    for (int k = 0; k < STATS; ++k) stats[row * STATS + k] = stat[0][k];
#endif
for (int u = 0; u < UNITS; ++u) c_new[0][u] = 0;
EACH_UNIT(u) {
    const int at = u * THREADS + t, state = row * hidden + at;
    float sum[4];
    for (int gate = 0; gate < 4; ++gate) {
        const int place = gate * hidden + at;
#if NORM_H
        v[gate][u] = v[gate][u] * gain_h[place] + bias_h[place];
#endif
        sum[gate] = x_gates[row * 4 * hidden + place] + v[gate][u];
    }
    const LstmGates s = lstm_gates(sum[0], sum[1], sum[2], sum[3]);
    c_new[0][u] = lstm_cell(s, c[state]);
    o[u] = s.o;
    next_c[state] = MASKED(row) ? c[state] : c_new[0][u];
}
standardise<State>(c_new, stat, hidden, eps, shared, t);
if (t == 0)
    for (int k = 0; k < STATS; ++k) stats[(NORM_H * batch + row) * STATS + k] = stat[0][k];
EACH_UNIT(u) {
    const int at = u * THREADS + t, state = row * hidden + at;
    const float h_new = o[u] * tanh(c_new[0][u] * gain_c[at] + bias_c[at]);
#if HAS_MASK
    next_h[state] = mask[row] ? h_new : h[state];
#else
    next_h[state] = h_new;
#endif
}
#else
const bool masked = MASKED(row);
float d_v[4][UNITS], dc_new[1][UNITS], d_o[UNITS], c_stat[1][STATS];
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
#endif
