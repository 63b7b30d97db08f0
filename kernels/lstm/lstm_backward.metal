// The gradient of `lstm_forward.metal`: macros and inputs as there, with its stats, and d_h and d_c (B, H), the
// gradients of the next states.
//
// Outputs: d_side (B, 4H), which is also the gradient after the recurrent side's norm; d_recurrent (B, 4H), before it
// (with NORM_SIDE); d_shown (B, H), after the norm of the cell; d_before (B, H), of the cell before the step; d_held
// (B, H), of the state before it beside the product (with HAS_MASK). The gains' gradients are sums over all steps, so
// they are left to layer_norm_backward.
#include "../recurrent/cell.metal.h"
#include "lstm.h"

const int batch = c_shape[0], hidden = c_shape[1];
const int row = threadgroup_position_in_grid.x, t = thread_position_in_threadgroup.x;
#if HAS_MASK
const bool held = !mask[row];
#else
const bool held = false;
#endif
threadgroup float shared[SHARED];

float v[4][UNITS], g[4][UNITS], cell[1][UNITS], d_cell[1][UNITS], d_out[UNITS], stat[1][STATS], of_cell[1][STATS];
load<Lstm>(v, recurrent, row, hidden, t);
#if NORM_SIDE
for (int k = 0; k < STATS; ++k) stat[0][k] = stats[row * STATS + k];
standardise_again<Lstm>(v, stat, hidden, t);
#endif
for (int k = 0; k < STATS; ++k) of_cell[0][k] = stats[(NORM_SIDE * batch + row) * STATS + k];
// The cell as it was before the mask is not kept: the gates give it again.
for (int u = 0; u < UNITS; ++u) cell[0][u] = d_cell[0][u] = 0;
EACH_UNIT(u) {
    const int at = u * THREADS + t;
    float z[4];
    for (int gate = 0; gate < 4; ++gate) {
        const int place = gate * hidden + at;
#if NORM_SIDE
        z[gate] = side[row * 4 * hidden + place] + v[gate][u] * gain_h[place] + bias_h[place];
#else
        z[gate] = side[row * 4 * hidden + place] + v[gate][u];
#endif
    }
    const LstmGates s = lstm_gates(z[0], z[1], z[2], z[3]);
    cell[0][u] = lstm_cell(s, c[row * hidden + at]);
    g[0][u] = s.forget;
    g[1][u] = s.into;
    g[2][u] = s.out;
    g[3][u] = s.candidate;
}
standardise_again<State>(cell, of_cell, hidden, t);
EACH_UNIT(u) {
    const int at = u * THREADS + t, state = row * hidden + at;
    const float shown = tanh(cell[0][u] * gain_c[at] + bias_c[at]), upward = held ? 0.0f : d_h[state];
    d_out[u] = upward * shown;
    d_cell[0][u] = upward * g[2][u] * (1 - shown * shown);
    d_shown[state] = d_cell[0][u];
    d_cell[0][u] *= gain_c[at];
#if HAS_MASK
    d_held[state] = held ? d_h[state] : 0.0f;
#endif
}
standardise_gradient<State>(d_cell, cell, of_cell, hidden, shared, t);
EACH_UNIT(u) {
    const int at = u * THREADS + t, state = row * hidden + at;
    LstmGates s;
    s.forget = g[0][u];
    s.into = g[1][u];
    s.out = g[2][u];
    s.candidate = g[3][u];
    const float d = held ? 0.0f : d_c[state] + d_cell[0][u];
    const LstmGates of_gates = lstm_gradient(s, c[state], d, d_out[u]);
    const float z[4] = {of_gates.forget, of_gates.into, of_gates.out, of_gates.candidate};
    for (int gate = 0; gate < 4; ++gate) {
        const int place = gate * hidden + at;
        d_side[row * 4 * hidden + place] = z[gate];
#if NORM_SIDE
        g[gate][u] = z[gate] * gain_h[place];
#endif
    }
    d_before[state] = held ? d_c[state] : d * s.forget;
}
#if NORM_SIDE
standardise_gradient<Lstm>(g, v, stat, hidden, shared, t);
store<Lstm>(g, d_recurrent, row, hidden, t);
#endif
