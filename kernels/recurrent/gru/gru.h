// A GRU's gates and state, for one hidden unit, and their gradients (Ba, Kiros, Hinton 2016, eq. 26 to 28).
#pragma once
#include "../sigmoid.h"

STRUCT GruGates {  // update gate, reset gate, new gate
    real z, r, n;
};

// Gates from x_gates and h_gates; the reset gate multiplies h_gates of the new gate.
FUNCTION OF(GruGates) gru_gates(real x_z, real x_r, real x_n, real h_z, real h_r, real h_n) {
    OF(GruGates) s;
    s.z = sigmoid(x_z + h_z);
    s.r = sigmoid(x_r + h_r);
    s.n = hyperbolic_tangent(x_n + s.r * h_n);
    return s;
}

FUNCTION real gru_state(OF(GruGates) s, real h_before) { return h_before + s.z * (s.n - h_before); }

// Gradients before the non-linearities, from dh, that of the new state. The new gate's is the gradient of x_n; that of
// h_n is the same times s.r.
FUNCTION OF(GruGates) gru_gradient(OF(GruGates) s, real h_before, real h_n, real dh) {
    OF(GruGates) d;
    d.n = dh * s.z * (1 - s.n * s.n);
    d.z = dh * (s.n - h_before) * s.z * (1 - s.z);
    d.r = d.n * h_n * s.r * (1 - s.r);
    return d;
}
