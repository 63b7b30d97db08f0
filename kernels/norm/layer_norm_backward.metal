// The gradient of a layer norm or RMS norm over rows, or over the sums of two arrays, statistics computed again: each
// array is read once, dx is written once.
//
// Macros: THREADS a row, UNITS values a thread; HAS_RESIDUAL, HAS_GAIN, HAS_BIAS, HAS_D_TOTAL; HAS_DX, HAS_D_GAIN,
// HAS_D_BIAS: the wanted gradients; ACTIVATION as in activation.h; CENTRED (see variant.h); STORAGE (see common.metal.h), for x, residual,
// dy, d_total and dx. Inputs: x (rows, width); residual like x, which is added to it; gain and bias (width); dy like x;
// d_total like x, the gradient of the sum itself; eps. Outputs: dx like x, that of the sum; d_gain and, for layer norm,
// d_bias (groups, width): the sums of each threadgroup over its share of the rows, in float32 registers.
#include "common.metal.h"
#include "activation.h"
#include "gradient.h"
#include "variant.h"

const int rows = x_shape[0], width = x_shape[1];
const int t = thread_position_in_threadgroup.x;
threadgroup float shared[2 * THREADS / SIMD];

float gain_sums[UNITS], bias_sums[UNITS];
for (int u = 0; u < UNITS; ++u) gain_sums[u] = bias_sums[u] = 0;
for (int row = threadgroup_position_in_grid.x; row < rows; row += threadgroups_per_grid.x) {
    const size_t start = size_t(row) * width;
    float xhat[UNITS], d[UNITS], sum[1];
    for (int u = 0; u < UNITS; ++u) xhat[u] = u * THREADS + t < width ? float(x[start + u * THREADS + t]) : 0;
#if HAS_RESIDUAL
    for (int u = 0; u < UNITS; ++u)
        if (u * THREADS + t < width) xhat[u] += float(residual[start + u * THREADS + t]);
#endif
    // The mean is taken out twice: a large mean rounds by more than the deviation does.
    for (int pass = 0; CENTRED && pass < 2; ++pass) {
        sum[0] = 0;
        for (int u = 0; u < UNITS; ++u)
            if (u * THREADS + t < width) sum[0] += xhat[u];
        row_sum(sum, shared, t);
        for (int u = 0; u < UNITS; ++u) xhat[u] -= sum[0] / width;
    }
    float scale = SQUARE_SCALE;
    if (eps < LEAST_EPS) {
        sum[0] = 0;
        for (int u = 0; u < UNITS; ++u)
            if (u * THREADS + t < width) sum[0] += fabs(xhat[u]);
        row_sum(sum, shared, t);
        scale = square_scale(sum[0] / width);
    }
    sum[0] = 0;
    for (int u = 0; u < UNITS; ++u)
        if (u * THREADS + t < width) sum[0] += (xhat[u] * scale) * (xhat[u] * scale);
    row_sum(sum, shared, t);
    const float rstd = scale / sqrt(sum[0] / width + eps * scale * scale);

    float sums[1 + CENTRED] = {};
    for (int u = 0; u < UNITS; ++u) {
        const int column = u * THREADS + t;
        if (column >= width) continue;
        xhat[u] *= rstd;
        d[u] = float(dy[start + column]);
        float scaled = xhat[u];
#if HAS_GAIN
        scaled *= gain[column];
#endif
#if HAS_BIAS
        scaled += bias[column];
#endif
        if (ACTIVATION) d[u] = through_activation(scaled, d[u], ACTIVATION);
        gain_sums[u] += d[u] * xhat[u];
        if (CENTRED) bias_sums[u] += d[u];
#if HAS_GAIN
        d[u] *= gain[column];
#endif
        if (CENTRED) sums[0] += d[u];
        sums[CENTRED] += d[u] * xhat[u];
    }
#if HAS_DX
    row_sum(sums, shared, t);
    for (int u = 0; u < UNITS; ++u) {
        const int column = u * THREADS + t;
        if (column >= width) continue;
        float through = through_norm(d[u], xhat[u], rstd, CENTRED ? sums[0] / width : 0.0f, sums[CENTRED] / width);
#if HAS_D_TOTAL
        through += float(d_total[start + column]);
#endif
        dx[start + column] = storage_t(through);
    }
#endif
}
#if HAS_D_GAIN || HAS_D_BIAS
for (int u = 0; u < UNITS; ++u) {
    const int column = u * THREADS + t;
    if (column >= width) continue;
#if HAS_D_GAIN
    d_gain[size_t(threadgroup_position_in_grid.x) * width + column] = gain_sums[u];
#endif
#if HAS_D_BIAS
    d_bias[size_t(threadgroup_position_in_grid.x) * width + column] = bias_sums[u];
#endif
}
#endif
