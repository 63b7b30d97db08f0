// An LSTM's gates and cell, for one hidden unit, and their gradients (Ba, Kiros, Hinton 2016, eq. 21 and 22).
#pragma once
#include "../recurrent/sigmoid.h"

struct LstmGates {  // forget gate, input gate, output gate, cell gate
    float f, i, o, g;
};

// From the gates' values before the non-linearities.
FUNCTION LstmGates lstm_gates(float f, float i, float o, float g) {
    LstmGates s;
    s.f = sigmoid(f);
    s.i = sigmoid(i);
    s.o = sigmoid(o);
    s.g = tanh(g);
    return s;
}

FUNCTION float lstm_cell(LstmGates s, float c_before) { return s.f * c_before + s.i * s.g; }

// Gradients before the non-linearities, from dc, that of the new cell, and d_o, that of the output gate.
FUNCTION LstmGates lstm_gradient(LstmGates s, float c_before, float dc, float d_o) {
    LstmGates d;
    d.f = dc * c_before * s.f * (1 - s.f);
    d.i = dc * s.g * s.i * (1 - s.i);
    d.o = d_o * s.o * (1 - s.o);
    d.g = dc * s.i * (1 - s.g * s.g);
    return d;
}
