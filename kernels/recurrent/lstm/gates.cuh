// The gates of one hidden unit of an LSTM. normed(source, gate) is the normalised value of the input (source 0) or the state
// (source 1) for a gate, before gain and bias.
#pragma once
#include "../cell.cuh"
#include "lstm.h"

constexpr int CELL_STATS = NORM_GATES ? 2 : 0;  // the norms of x_proj and h_proj stand before that of the cell

template <class F>
__device__ __forceinline__ LstmGates gates(F normed, int unit, const float* gain_x, const float* bias_x,
                                           const float* gain_h, const float* bias_h, const float* bias, int hidden) {
    float sum[4];
#pragma unroll
    for (int gate = 0; gate < 4; ++gate) {
        const int at = gate * hidden + unit;
        sum[gate] = affine(normed(0, gate), gain_x, bias_x, at) + affine(normed(1, gate), gain_h, bias_h, at) + bias[at];
    }
    return lstm_gates(sum[0], sum[1], sum[2], sum[3]);
}
