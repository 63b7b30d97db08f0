// What may follow the norm: nothing, relu or tanh; and its slope, from the value before it.
#pragma once
#include "../portable.h"

FUNCTION real activated(real y, int activation) {
    return activation == 0 ? y : activation == 1 ? (y < 0 ? real(0) : y) : hyperbolic_tangent(y);
}

FUNCTION real slope(real y, int activation) {
    if (activation == 0) return 1;
    if (activation == 1) return y > 0 ? 1 : 0;
    const real tanh_y = hyperbolic_tangent(y);
    return 1 - tanh_y * tanh_y;
}
