// A GRU's gates and state, for one hidden unit, and their gradients (Ba, Kiros, Hinton 2016, eq. 26 to 28).
#pragma once
#include "../recurrent/sigmoid.h"

struct GruGates {
    float update, reset, candidate;
};

// From the input's sums and the state's; the reset gate acts on what the state brings to the candidate.
FUNCTION GruGates gru_gates(float x_update, float x_reset, float x_candidate, float h_update, float h_reset,
                            float h_candidate) {
    GruGates s;
    s.update = sigmoid(x_update + h_update);
    s.reset = sigmoid(x_reset + h_reset);
    s.candidate = tanh(x_candidate + s.reset * h_candidate);
    return s;
}

FUNCTION float gru_state(GruGates s, float before) { return before + s.update * (s.candidate - before); }

// Gradients before the non-linearities, from that of the new state. The candidate's is that of the input's side; the
// state's side of it is `candidate * s.reset`.
FUNCTION GruGates gru_gradient(GruGates s, float before, float h_candidate, float d) {
    GruGates g;
    g.candidate = d * s.update * (1 - s.candidate * s.candidate);
    g.update = d * (s.candidate - before) * s.update * (1 - s.update);
    g.reset = g.candidate * h_candidate * s.reset * (1 - s.reset);
    return g;
}
