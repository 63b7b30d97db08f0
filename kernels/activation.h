// What may follow a norm or a product: nothing, relu or tanh; and its slope, from the value before it. `real` may be a vector.
#pragma once
#include "portable.h"

FUNCTION real activated(real y, int activation) {
    return activation == 0 ? y : activation == 1 ? (y < real{} ? real{} : y) : hyperbolic_tangent(y);
}

FUNCTION real slope(real y, int activation) {
    const real one = real{} + 1;
    if (activation == 0) return one;
    if (activation == 1) return y > real{} ? one : real{};
    const real tanh_y = hyperbolic_tangent(y);
    return one - tanh_y * tanh_y;
}
