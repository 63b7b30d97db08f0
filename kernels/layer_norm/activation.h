// What may follow the norm: nothing, relu or tanh; and its slope, from the value before it.
#pragma once
#include "../portable.h"

FUNCTION float activated(float y, int activation) {
    return activation == 0 ? y : activation == 1 ? (y > 0 ? y : 0.0f) : tanh(y);
}

FUNCTION float slope(float y, int activation) {
    if (activation == 0) return 1;
    if (activation == 1) return y > 0 ? 1 : 0;
    const float tanh_y = tanh(y);
    return 1 - tanh_y * tanh_y;
}
