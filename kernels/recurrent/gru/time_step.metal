// One time step of a GRU after its product (Ba, Kiros, Hinton 2016, eq. 26-28), with norms, and its gradient: x W_x and h W_h each
// have one norm over z and r and one over n.
//
// Macros: GRU_FORWARD or GRU_BACKWARD; THREADS and UNITS (see cell.metal.h); HAS_MASK. Gates: z, r, n (update, reset and new gate).
// Inputs: x_gates (B, 3H), the gates of the input, with norms and bias; h_proj = h W_h (B, 3H); h (B, H); gain_h and
// bias_h (3H); mask (B): a row that is 0 keeps its state; eps. Outputs: next_h (B, H); stats (2, B, 3).
//
// Backward come in stats, and d_h (B, H), the gradient of the next state. Outputs: d_x_gates (B, 3H); d_h_gates (B, 3H), after the
// norms of h_proj; d_h_proj (B, 3H), before them; d_h_before (B, H), the part of the gradient of the state before the time step
// that does not come through h_proj.
#include "../cell.metal.h"
#include "gru.h"

const int batch = h_shape[0], hidden = h_shape[1];
const int row = threadgroup_position_in_grid.x, t = thread_position_in_threadgroup.x;
threadgroup float shared[SHARED];

float v[3][UNITS], stat[2][STATS];
load<Gru>(v, h_proj, row, hidden, t);
#ifdef GRU_FORWARD
standardise<Gru>(v, stat, hidden, eps, shared, t);
if (t == 0)
    for (int part = 0; part < 2; ++part)
        for (int k = 0; k < STATS; ++k) stats[(part * batch + row) * STATS + k] = stat[part][k];
EACH_UNIT(u) {
    const int at = u * THREADS + t, state = row * hidden + at;
    float x[3], h_gates[3];
    for (int gate = 0; gate < 3; ++gate) {
        const int place = gate * hidden + at;
        x[gate] = x_gates[row * 3 * hidden + place];
        h_gates[gate] = v[gate][u] * gain_h[place] + bias_h[place];
    }
    const float next = gru_state(gru_gates(x[0], x[1], x[2], h_gates[0], h_gates[1], h_gates[2]), h[state]);
    next_h[state] = MASKED(row) ? h[state] : next;
}
#else
const bool masked = MASKED(row);
float d_v[3][UNITS];
for (int part = 0; part < 2; ++part)
    for (int k = 0; k < STATS; ++k) stat[part][k] = stats[(part * batch + row) * STATS + k];
standardise_again<Gru>(v, stat, hidden, t);
EACH_UNIT(u) {
    const int at = u * THREADS + t, state = row * hidden + at;
    float x[3], h_gates[3];
    for (int gate = 0; gate < 3; ++gate) {
        const int place = gate * hidden + at;
        x[gate] = x_gates[row * 3 * hidden + place];
        h_gates[gate] = v[gate][u] * gain_h[place] + bias_h[place];
    }
    const GruGates s = gru_gates(x[0], x[1], x[2], h_gates[0], h_gates[1], h_gates[2]);
    const float d = masked ? 0.0f : d_h[state];
    const GruGates d_s = gru_gradient(s, h[state], h_gates[2], d);
    const float d_sum[3] = {d_s.z, d_s.r, d_s.n};
    for (int gate = 0; gate < 3; ++gate) {
        const int place = gate * hidden + at;
        const float d_h_sum = gate == 2 ? d_sum[gate] * s.r : d_sum[gate];
        d_x_gates[row * 3 * hidden + place] = d_sum[gate];
        d_h_gates[row * 3 * hidden + place] = d_h_sum;
        d_v[gate][u] = d_h_sum * gain_h[place];
    }
    d_h_before[state] = masked ? d_h[state] : d * (1 - s.z);
}
standardise_gradient<Gru>(d_v, v, stat, hidden, shared, t);
store<Gru>(d_v, d_h_proj, row, hidden, t);
#endif
