// The gradient of a layer norm over rows (Ba, Kiros, Hinton 2016, eq. 3), statistics computed again: x and dy are
// read once, dx is written once.
//
// Macros: THREADS a row, UNITS values a thread; HAS_GAIN, HAS_BIAS; WITH_DX, WITH_PARAMETERS: what is asked for;
// ACTIVATION as in activation.h. Inputs: x (rows, width), gain and bias (width), dy like x, eps. Outputs: dx like x,
// d_gain and d_bias (groups, width): what each threadgroup adds up in registers over its share of the rows, in float32.
#include "../common.metal.h"
#include "activation.h"
#include "gradient.h"

const int rows = x_shape[0], width = x_shape[1];
const int t = thread_position_in_threadgroup.x;
threadgroup float shared[2 * THREADS / SIMD];

float of_gain[UNITS], of_bias[UNITS];
for (int u = 0; u < UNITS; ++u) of_gain[u] = of_bias[u] = 0;
for (int row = threadgroup_position_in_grid.x; row < rows; row += threadgroups_per_grid.x) {
    const size_t start = size_t(row) * width;
    float normal[UNITS], g[UNITS], sum[1];
    for (int u = 0; u < UNITS; ++u) normal[u] = u * THREADS + t < width ? x[start + u * THREADS + t] : 0;
    // The mean is taken out twice: what rounds off a large mean is larger than the deviation's own rounding.
    for (int pass = 0; pass < 2; ++pass) {
        sum[0] = 0;
        for (int u = 0; u < UNITS; ++u)
            if (u * THREADS + t < width) sum[0] += normal[u];
        row_sum(sum, shared, t);
        for (int u = 0; u < UNITS; ++u) normal[u] -= sum[0] / width;
    }
    sum[0] = 0;
    for (int u = 0; u < UNITS; ++u)
        if (u * THREADS + t < width) sum[0] += normal[u] * normal[u];
    row_sum(sum, shared, t);
    const float rstd = 1.0f / sqrt(sum[0] / width + eps);

    float sums[2] = {0, 0};
    for (int u = 0; u < UNITS; ++u) {
        const int column = u * THREADS + t;
        if (column >= width) continue;
        normal[u] *= rstd;
        g[u] = dy[start + column];
        float scaled = normal[u];
#if HAS_GAIN
        scaled *= gain[column];
#endif
#if HAS_BIAS
        scaled += bias[column];
#endif
        if (ACTIVATION) g[u] *= slope(scaled, ACTIVATION);
        of_gain[u] += g[u] * normal[u];
        of_bias[u] += g[u];
#if HAS_GAIN
        g[u] *= gain[column];
#endif
        sums[0] += g[u];
        sums[1] += g[u] * normal[u];
    }
#if WITH_DX
    row_sum(sums, shared, t);
    for (int u = 0; u < UNITS; ++u)
        if (u * THREADS + t < width)
            dx[start + u * THREADS + t] = through_norm(g[u], normal[u], rstd, sums[0] / width, sums[1] / width);
#endif
}
#if WITH_PARAMETERS
for (int u = 0; u < UNITS; ++u) {
    const int column = u * THREADS + t;
    if (column >= width) continue;
    d_gain[size_t(threadgroup_position_in_grid.x) * width + column] = of_gain[u];
    d_bias[size_t(threadgroup_position_in_grid.x) * width + column] = of_bias[u];
}
#endif
