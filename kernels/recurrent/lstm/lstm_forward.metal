// One time step of an LSTM after its product (Ba, Kiros, Hinton 2016, eq. 20-22 and 29-31).
//
// Macros: THREADS and UNITS (see cell.metal.h); NORM_H 1 if h_proj is normalised; HAS_MASK. Gates: i, f, g, o
// (input, forget, cell and output gate). Inputs: x_gates (B, 4H), the gates of the input, with norm and bias;
// h_proj = h W_h (B, 4H); h and c (B, H); gains and biases; mask (B): a row that is 0 keeps its state; eps.
// Outputs: next_h and next_c (B, H); stats (norms, B, 3), of h_proj and of the cell.
#include "../cell.metal.h"
#include "lstm.h"

const int batch = c_shape[0], hidden = c_shape[1];
const int row = threadgroup_position_in_grid.x, t = thread_position_in_threadgroup.x;
threadgroup float shared[SHARED];

float v[4][UNITS], c_new[1][UNITS], o[UNITS], stat[1][STATS];
load<Lstm>(v, h_proj, row, hidden, t);
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
