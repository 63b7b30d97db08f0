// The activation after a norm or a product: none, relu or tanh; and its gradient. `real` may be a vector.
#pragma once
#include "portable.h"

enum Activation { NONE = 0, RELU = 1, TANH = 2 };

FUNCTION real activated(real y, int activation) {
    return activation == NONE ? y : activation == RELU ? (y < real{} ? real{} : y) : hyperbolic_tangent(y);
}

// The gradient before an activation, from that after it and the value before it. Where relu is 0 it is 0, even if the gradient after
// it is not finite.
FUNCTION real through_activation(real y, real gradient, int activation) {
    if (activation == NONE) return gradient;
    if (activation == RELU) return y > real{} ? gradient : real{};
    const real tanh_y = hyperbolic_tangent(y);
    return gradient * (real{} + 1 - tanh_y * tanh_y);
}

// The gradient before relu or tanh, from that after it and the value after it.
FUNCTION real gradient_before(real value, real gradient, int activation) {
    if (activation == RELU) return value > real{} ? gradient : real{};
    return gradient * (real{} + 1 - value * value);
}
