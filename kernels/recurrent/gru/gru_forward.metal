// One time step of a GRU after its product (Ba, Kiros, Hinton 2016, eq. 26-28), with norms: x W_x and h W_h each have
// one norm over z and r and one over n.
//
// Macros: THREADS and UNITS (see cell.metal.h); HAS_MASK. Gates: z, r, n (update, reset and new gate). Inputs:
// x_gates (B, 3H), the gates of the input, with norms and bias; h_proj = h W_h (B, 3H); h (B, H); gain_h and
// bias_h (3H); mask (B): a row that is 0 keeps its state; eps. Outputs: next_h (B, H); stats (2, B, 3).
#include "../cell.metal.h"
#include "gru.h"

const int batch = h_shape[0], hidden = h_shape[1];
const int row = threadgroup_position_in_grid.x, t = thread_position_in_threadgroup.x;
threadgroup float shared[SHARED];

float v[3][UNITS], stat[2][STATS];
load<Gru>(v, h_proj, row, hidden, t);
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
