// One step of an LSTM after its product (Ba, Kiros, Hinton 2016, eq. 20-22 and 29-31).
//
// Macros: THREADS and UNITS (see cell.metal.h); NORM_SIDE 1 if the recurrent side is normalised; HAS_MASK. Gates:
// forget, input, output, candidate. Inputs: side (B, 4H), the input's side with its norm and bias; recurrent (B, 4H),
// the state's product; h and c (B, H); gains and biases; mask (B): a row that is 0 keeps its state; eps.
// Outputs: next_h and next_c (B, H); stats (norms, B, 3), of the recurrent side and of the cell.
#include "../recurrent/cell.metal.h"
#include "lstm.h"

const int batch = c_shape[0], hidden = c_shape[1];
const int row = threadgroup_position_in_grid.x, t = thread_position_in_threadgroup.x;
threadgroup float shared[SHARED];

float v[4][UNITS], cell[1][UNITS], out[UNITS], stat[1][STATS];
load<Lstm>(v, recurrent, row, hidden, t);
#if NORM_SIDE
standardise<Lstm>(v, stat, hidden, eps, shared, t);
if (t == 0)
    for (int k = 0; k < STATS; ++k) stats[row * STATS + k] = stat[0][k];
#endif
for (int u = 0; u < UNITS; ++u) cell[0][u] = 0;
EACH_UNIT(u) {
    const int at = u * THREADS + t, state = row * hidden + at;
    float z[4];
    for (int gate = 0; gate < 4; ++gate) {
        const int place = gate * hidden + at;
#if NORM_SIDE
        v[gate][u] = v[gate][u] * gain_h[place] + bias_h[place];
#endif
        z[gate] = side[row * 4 * hidden + place] + v[gate][u];
    }
    const LstmGates s = lstm_gates(z[0], z[1], z[2], z[3]);
    cell[0][u] = lstm_cell(s, c[state]);
    out[u] = s.out;
#if HAS_MASK
    next_c[state] = mask[row] ? cell[0][u] : c[state];
#else
    next_c[state] = cell[0][u];
#endif
}
standardise<State>(cell, stat, hidden, eps, shared, t);
if (t == 0)
    for (int k = 0; k < STATS; ++k) stats[(NORM_SIDE * batch + row) * STATS + k] = stat[0][k];
EACH_UNIT(u) {
    const int at = u * THREADS + t, state = row * hidden + at;
    const float shown = out[u] * tanh(cell[0][u] * gain_c[at] + bias_c[at]);
#if HAS_MASK
    next_h[state] = mask[row] ? shown : h[state];
#else
    next_h[state] = shown;
#endif
}
