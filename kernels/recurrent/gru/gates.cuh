// The gates of one hidden unit of a GRU. normed(source, gate) is the normalised value of the input (source 0) or the state (source
// 1) for a gate, before gain and bias.
#pragma once
#include "../cell.cuh"
#include "gru.h"

struct GatesOfUnit {
    GruGates s;
    float h_n;  // h_gates of the new gate, before the reset
};

template <class F>
__device__ __forceinline__ GatesOfUnit gates(F normed, int unit, const float* gain_x, const float* bias_x,
                                             const float* gain_h, const float* bias_h, int hidden) {
    float x[3], h[3];
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) {
        const int at = gate * hidden + unit;
        x[gate] = affine(normed(0, gate), gain_x, bias_x, at);
        h[gate] = affine(normed(1, gate), gain_h, bias_h, at);
    }
    return {gru_gates(x[0], x[1], x[2], h[0], h[1], h[2]), h[2]};
}
