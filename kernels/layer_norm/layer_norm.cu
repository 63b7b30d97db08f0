// Layer norm of rows of up to THREADS * CHUNKS * 4 values (Ba, Kiros, Hinton 2016, eq. 3), and its gradient.
//
// Macros: THREADS a row (a power of two), CHUNKS of four values a thread, VECTOR 4 or 1 (see row.cuh).
// A row is read once and stays in registers. The variance is that of centred values; the mean is taken out twice,
// because what rounds off a large mean is larger than the deviation's own rounding.
// Kept for the gradient, three floats a row: the mean, what was left of it, and one over the deviation.
#include "activation.h"
#include "gradient.h"
#include "row.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK)
layer_norm_forward(const float* __restrict__ x, const float* __restrict__ gain, const float* __restrict__ bias,
                   float* __restrict__ y, float* __restrict__ stats, int rows, int width, float eps, int activation) {
    __shared__ float shared[WARP];
    const int row = int(blockIdx.x * blockDim.y + threadIdx.y);
    const bool inside = row < rows;
    Row r;
    r.load(x + size_t(inside ? row : 0) * width, inside ? width : 0);

    float mean[2], sum[1];
#pragma unroll
    for (int pass = 0; pass < 2; ++pass) {
        sum[0] = 0;
        r.each(width, [&](float& value, int, int) { sum[0] += value; });
        block_sum<THREADS>(sum, shared);
        mean[pass] = sum[0] / width;
        r.each(width, [&](float& value, int, int) { value -= mean[pass]; });
    }
    sum[0] = 0;
    r.each(width, [&](float& value, int, int) { sum[0] += value * value; });
    block_sum<THREADS>(sum, shared);
    const float rstd = 1.0f / sqrtf(sum[0] / width + eps);

    if (!inside) return;
    r.each(width, [&](float& value, int c, int k) {
        value *= rstd;
        if (gain) value *= gain[Row::column(c, k)];
        if (bias) value += bias[Row::column(c, k)];
        value = activated(value, activation);
    });
    r.store(y + size_t(row) * width, width);
    if (threadIdx.x == 0) {
        stats[size_t(row) * 3] = mean[0];
        stats[size_t(row) * 3 + 1] = mean[1];
        stats[size_t(row) * 3 + 2] = rstd;
    }
}

// One pass over x and dy. A block takes every gridDim.x-th group of rows and keeps its share of the gradients of gain
// and bias in registers; each row of threads writes one partial row, and `sum_columns` adds those in order.
//
// `activation` as in activation.h: y before it is computed again, so nothing more is kept or read.
// dx may be null, and so may the two partials. x and dy may be columns [first, first + width) of wider rows.
extern "C" __global__ void __launch_bounds__(BLOCK)
layer_norm_backward(const float* __restrict__ x, const float* __restrict__ stats, const float* __restrict__ gain,
                    const float* __restrict__ bias, const float* __restrict__ dy, float* __restrict__ dx,
                    float* __restrict__ d_gain, float* __restrict__ d_bias, int rows, int width, int stride, int first,
                    int activation) {
    __shared__ float shared[2 * WARP];
    Row gains, of_gain, of_bias;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c)
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            of_gain.v[c][k] = of_bias.v[c][k] = 0;
            gains.v[c][k] = gain && Row::column(c, k) < width ? gain[Row::column(c, k)] : 1;
        }
    const int step = int(gridDim.x * blockDim.y);
    for (int base = int(blockIdx.x * blockDim.y); base < rows; base += step) {
        const int row = base + int(threadIdx.y);
        const bool inside = row < rows;
        const size_t start = size_t(inside ? row : 0) * stride + first;
        Row normal, g;
        normal.load(x + start, inside ? width : 0);
        g.load(dy + start, inside ? width : 0);
        const float* stat = stats + size_t(inside ? row : 0) * 3;
        const float mean = stat[0], left = stat[1], rstd = stat[2];
        float sums[2] = {0, 0};
        normal.each(width, [&](float& value, int c, int k) {
            value = (value - mean - left) * rstd;
            if (activation)
                g.v[c][k] *= slope(value * gains.v[c][k] + (bias ? bias[Row::column(c, k)] : 0), activation);
            of_gain.v[c][k] += g.v[c][k] * value;
            of_bias.v[c][k] += g.v[c][k];
            g.v[c][k] *= gains.v[c][k];
            sums[0] += g.v[c][k];
            sums[1] += g.v[c][k] * value;
        });
        if (!dx) continue;
        block_sum<THREADS>(sums, shared);
        if (!inside) continue;
        g.each(width, [&](float& value, int c, int k) {
            value = through_norm(value, normal.v[c][k], rstd, sums[0] / width, sums[1] / width);
        });
        g.store(dx + start, width);
    }
    const size_t part = (size_t(blockIdx.x) * blockDim.y + threadIdx.y) * width;
    if (d_gain) of_gain.store(d_gain + part, width);
    if (d_bias) of_bias.store(d_bias + part, width);
}
