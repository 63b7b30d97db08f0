// Layer norm or RMS norm of rows of up to THREADS * CHUNKS * 4 values, and its gradient.
//
// Macros: THREADS a row (a power of two), CHUNKS of four values a thread, VECTOR 8, 4 or 1 (see row.cuh), STORAGE of x,
// residual, total, y and their gradients (see storage.cuh), CENTRED and RESIDUAL (see variant.h).
// Gain, bias, statistics and sums are float.
// A row is read once and stays in registers. With RESIDUAL it is x + residual, which is normalised before it is rounded,
// and written to `total`. The variance is that of centred values; the mean is taken out twice, because a large mean
// rounds by more than the deviation does.
// Kept for the gradient of layer norm, three floats a row: mean, residue (the mean of the row after subtracting the first)
// and rstd (one over the deviation); for that of RMS norm rstd alone.
#include "activation.h"
#include "gradient.h"
#include "row.cuh"
#include "variant.h"

ENTRY(layer_norm_forward, __launch_bounds__(BLOCK, 1)) {
    __shared__ float shared[WARP];
    const int row = int(blockIdx.x * blockDim.y + threadIdx.y);
    const bool inside = row < rows;
    const size_t start = size_t(inside ? row : 0) * width;
    Row r;
    r.load(x + start, inside ? width : 0);
    if (RESIDUAL) {
        r.add(residual + start, inside ? width : 0);
        if (inside) r.store(total + start, width);
    }

    float mean[2], sum[1];
#pragma unroll
    for (int pass = 0; CENTRED && pass < 2; ++pass) {
        sum[0] = 0;
        r.each(width, [&](float& value, int, int) { sum[0] += value; });
        block_sum<THREADS>(sum, shared);
        mean[pass] = sum[0] / width;
        r.each(width, [&](float& value, int, int) { value -= mean[pass]; });
    }
    float scale = SQUARE_SCALE;
    if (eps < LEAST_EPS) {
        sum[0] = 0;
        r.each(width, [&](float& value, int, int) { sum[0] += fabsf(value); });
        block_sum<THREADS>(sum, shared);
        scale = square_scale(sum[0] / width);
    }
    sum[0] = 0;
    r.each(width, [&](float& value, int, int) { sum[0] += (value * scale) * (value * scale); });
    block_sum<THREADS>(sum, shared);
    const float rstd = scale / sqrtf(sum[0] / width + eps * scale * scale);

    if (!inside) return;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        float g[4], b[4];
        Row::read_parameter(g, gain, c, width, 1);
        Row::read_parameter(b, CENTRED ? bias : nullptr, c, width, 0);
#pragma unroll
        for (int k = 0; k < 4; ++k) r.v[c][k] = activated(r.v[c][k] * rstd * g[k] + b[k], HAS_ACTIVATION ? activation : 0);
    }
    r.store(y + start, width);
    if (threadIdx.x == 0) {
        float* stat = stats + size_t(row) * STATS;
        if (CENTRED) stat[0] = mean[0], stat[1] = mean[1];
        stat[STATS - 1] = rstd;
    }
}

// One pass over x and dy. A block takes every gridDim.x-th group of rows and keeps its share of the gradients of gain
// and bias in registers; each row of threads writes one partial row, and `sum_columns` adds those in order.
//
// With RESIDUAL, dx is the gradient of x and of residual; d_total, the gradient of the sum itself, may be null. Where the
// sum was not rounded, x is the sum and residual is null.
// `activation` as in activation.h: the value before it is computed again, so nothing more is kept or read.
// dx may be null, and so may the two partials. x and dy, and without RESIDUAL alone, may be columns
// [first, first + width) of wider rows.
ENTRY(layer_norm_backward, __launch_bounds__(BLOCK, 1)) {
    __shared__ float shared[2 * WARP];
    Row gains, gain_sums, bias_sums;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        Row::read_parameter(gains.v[c], gain, c, width, 1);
#pragma unroll
        for (int k = 0; k < 4; ++k) gain_sums.v[c][k] = bias_sums.v[c][k] = 0;
    }
    const int rows_at_once = int(gridDim.x * blockDim.y);
    for (int base = int(blockIdx.x * blockDim.y); base < rows; base += rows_at_once) {
        const int row = base + int(threadIdx.y);
        const bool inside = row < rows;
        const size_t start = size_t(inside ? row : 0) * stride + first;
        Row xhat, d;
        xhat.load(x + start, inside ? width : 0);
        if (RESIDUAL && residual) xhat.add(residual + start, inside ? width : 0);
        d.load(dy + start, inside ? width : 0);
        const float* stat = stats + size_t(inside ? row : 0) * STATS;
        const float mean = CENTRED ? stat[0] : 0, residue = CENTRED ? stat[1] : 0, rstd = stat[STATS - 1];
        float sums[1 + CENTRED] = {};
        xhat.each(width, [&](float& value, int, int) { value = (value - mean - residue) * rstd; });
        if (HAS_ACTIVATION && activation) {
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c) {
                float b[4];
                Row::read_parameter(b, bias, c, width, 0);
#pragma unroll
                for (int k = 0; k < 4; ++k)
                    d.v[c][k] = through_activation(xhat.v[c][k] * gains.v[c][k] + b[k], d.v[c][k], activation);
            }
        }
        xhat.each(width, [&](float& value, int c, int k) {
            gain_sums.v[c][k] += d.v[c][k] * value;
            if (CENTRED) bias_sums.v[c][k] += d.v[c][k];
            d.v[c][k] *= gains.v[c][k];
            if (CENTRED) sums[0] += d.v[c][k];
            sums[CENTRED] += d.v[c][k] * value;
        });
        if (!dx) continue;
        block_sum<THREADS>(sums, shared);
        if (!inside) continue;
        d.each(width, [&](float& value, int c, int k) {
            value = through_norm(value, xhat.v[c][k], rstd, CENTRED ? sums[0] / width : 0, sums[CENTRED] / width);
        });
        if (RESIDUAL && d_total) d.add(d_total + start, width);
        d.store(dx + start, width);
    }
    const size_t part = (size_t(blockIdx.x) * blockDim.y + threadIdx.y) * width;
    if (d_gain) gain_sums.store(d_gain + part, width);
    if (CENTRED && d_bias) bias_sums.store(d_bias + part, width);
}
