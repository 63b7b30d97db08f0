// An LSTM's gates and cell, for one hidden unit, and their gradients (Ba, Kiros, Hinton 2016, eq. 21 and 22).
#pragma once
#include "../sigmoid.h"

STRUCT LstmGates {  // input gate, forget gate, cell gate, output gate: the order of PyTorch's, MLX's and Keras's LSTM
    real i, f, g, o;
};

// From the gates' values before the non-linearities.
FUNCTION OF(LstmGates) lstm_gates(real i, real f, real g, real o) {
    OF(LstmGates) s;
    s.i = sigmoid(i);
    s.f = sigmoid(f);
    s.g = hyperbolic_tangent(g);
    s.o = sigmoid(o);
    return s;
}

FUNCTION real lstm_cell(OF(LstmGates) s, real c_before) { return s.f * c_before + s.i * s.g; }

// Gradients before the non-linearities, from dc, that of the new cell, and d_o, that of the output gate.
FUNCTION OF(LstmGates) lstm_gradient(OF(LstmGates) s, real c_before, real dc, real d_o) {
    OF(LstmGates) d;
    d.i = dc * s.g * s.i * (1 - s.i);
    d.f = dc * c_before * s.f * (1 - s.f);
    d.g = dc * s.i * (1 - s.g * s.g);
    d.o = d_o * s.o * (1 - s.o);
    return d;
}
