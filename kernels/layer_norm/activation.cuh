#pragma once

// What may follow the norm: nothing, relu or tanh; and the slope of it, from the value before.
__device__ __forceinline__ float activated(float y, int activation) {
    return activation == 0 ? y : activation == 1 ? fmaxf(y, 0.0f) : tanhf(y);
}

__device__ __forceinline__ float slope(float y, int activation) {
    if (activation == 0) return 1;
    if (activation == 1) return y > 0 ? 1 : 0;
    const float shown = tanhf(y);
    return 1 - shown * shown;
}
