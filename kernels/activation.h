// What may follow a norm or a product: nothing, relu or tanh; and its slope, from the value before it. `real` may be a vector.
#pragma once
#include "portable.h"

enum Activation { NONE = 0, RELU = 1, TANH = 2 };

FUNCTION real activated(real y, int activation) {
    return activation == NONE ? y : activation == RELU ? (y < real{} ? real{} : y) : hyperbolic_tangent(y);
}

FUNCTION real slope(real y, int activation) {
    const real one = real{} + 1;
    if (activation == NONE) return one;
    if (activation == RELU) return y > real{} ? one : real{};
    const real tanh_y = hyperbolic_tangent(y);
    return one - tanh_y * tanh_y;
}

// The gradient before relu or tanh, from that after it and the value after it.
FUNCTION real gradient_before(real value, real gradient, int activation) {
    if (activation == RELU) return value > real{} ? gradient : real{};
    return gradient * (real{} + 1 - value * value);
}
