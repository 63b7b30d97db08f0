// The gradient of `gru_forward.metal`: macros and inputs as there, with its stats, and d_h (B, H), the gradient of the
// next state.
//
// Outputs: d_side (B, 3H); d_state (B, 3H), after the recurrent side's norms; d_recurrent (B, 3H), before them;
// d_before (B, H), of the state before the step beside the product.
#include "../recurrent/cell.metal.h"
#include "gru.h"

const int batch = h_shape[0], hidden = h_shape[1];
const int row = threadgroup_position_in_grid.x, t = thread_position_in_threadgroup.x;
#if HAS_MASK
const bool held = !mask[row];
#else
const bool held = false;
#endif
threadgroup float shared[SHARED];

float v[3][UNITS], g[3][UNITS], stat[2][STATS];
load<Gru>(v, recurrent, row, hidden, t);
for (int part = 0; part < 2; ++part)
    for (int k = 0; k < STATS; ++k) stat[part][k] = stats[(part * batch + row) * STATS + k];
standardise_again<Gru>(v, stat, hidden, t);
EACH_UNIT(u) {
    const int at = u * THREADS + t, state = row * hidden + at;
    float x[3], s[3];
    for (int gate = 0; gate < 3; ++gate) {
        const int place = gate * hidden + at;
        x[gate] = side[row * 3 * hidden + place];
        s[gate] = v[gate][u] * gain_h[place] + bias_h[place];
    }
    const GruGates now = gru_gates(x[0], x[1], x[2], s[0], s[1], s[2]);
    const float d = held ? 0.0f : d_h[state];
    const GruGates of_gates = gru_gradient(now, h[state], s[2], d);
    const float z[3] = {of_gates.update, of_gates.reset, of_gates.candidate};
    for (int gate = 0; gate < 3; ++gate) {
        const int place = gate * hidden + at;
        const float of_state = gate == 2 ? z[gate] * now.reset : z[gate];
        d_side[row * 3 * hidden + place] = z[gate];
        d_state[row * 3 * hidden + place] = of_state;
        g[gate][u] = of_state * gain_h[place];
    }
    d_before[state] = held ? d_h[state] : d * (1 - now.update);
}
standardise_gradient<Gru>(g, v, stat, hidden, shared, t);
store<Gru>(g, d_recurrent, row, hidden, t);
