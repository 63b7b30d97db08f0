// An LSTM's gates and cell, for one hidden unit, and their gradients (Ba, Kiros, Hinton 2016, eq. 21 and 22).
#pragma once
#include "../recurrent/sigmoid.h"

struct LstmGates {
    float forget, into, out, candidate;
};

// From the four sums before the non-linearities.
FUNCTION LstmGates lstm_gates(float forget, float into, float out, float candidate) {
    LstmGates s;
    s.forget = sigmoid(forget);
    s.into = sigmoid(into);
    s.out = sigmoid(out);
    s.candidate = tanh(candidate);
    return s;
}

FUNCTION float lstm_cell(LstmGates s, float before) { return s.forget * before + s.into * s.candidate; }

// Gradients before the non-linearities, from that of the new cell and that of the output gate.
FUNCTION LstmGates lstm_gradient(LstmGates s, float before, float d_cell, float d_out) {
    LstmGates d;
    d.forget = d_cell * before * s.forget * (1 - s.forget);
    d.into = d_cell * s.candidate * s.into * (1 - s.into);
    d.out = d_out * s.out * (1 - s.out);
    d.candidate = d_cell * s.into * (1 - s.candidate * s.candidate);
    return d;
}
