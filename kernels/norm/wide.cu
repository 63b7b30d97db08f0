// Layer norm or RMS norm of rows that are too wide for registers: THREADS threads (one block) read a row once for each
// sum, from cache where the row fits. Arguments, macros, sums and the kept numbers of a row are those of norm.cu.
#include "common.cuh"
#include "storage.cuh"
#include "activation.h"
#include "gradient.h"
#include "variant.h"

// The sum over a row of f(column), for every thread of the block.
template <class F>
__device__ __forceinline__ float sum_of_row(int width, float* shared, F f) {
    float sum[1] = {0};
    for (int i = threadIdx.x; i < width; i += THREADS) sum[0] += f(i);
    block_sum<THREADS>(sum, shared);
    return sum[0];
}

ENTRY(layer_norm_forward_wide, __launch_bounds__(BLOCK, 1)) {
    __shared__ float shared[WARP];
    for (int row = int(blockIdx.x); row < rows; row += int(gridDim.x)) {
        const size_t start = size_t(row) * width;
        // With RESIDUAL each sum adds x and residual again: `total` may be rounded.
        auto value_at = [&](int i) {
            return RESIDUAL ? loaded(x[start + i]) + loaded(residual[start + i]) : loaded(x[start + i]);
        };
        for (int i = threadIdx.x; RESIDUAL && i < width; i += THREADS) total[start + i] = stored(value_at(i));
        const float mean = CENTRED ? sum_of_row(width, shared, value_at) / width : 0;
        const float residue = CENTRED ? sum_of_row(width, shared, [&](int i) { return value_at(i) - mean; }) / width : 0;
        auto centred_at = [&](int i) { return value_at(i) - mean - residue; };
        float scale = SQUARE_SCALE;
        if (eps < LEAST_EPS)
            scale = square_scale(sum_of_row(width, shared, [&](int i) { return fabsf(centred_at(i)); }) / width);
        const float squares = sum_of_row(width, shared, [&](int i) {
            const float scaled = centred_at(i) * scale;
            return scaled * scaled;
        });
        const float rstd = scale / sqrtf(squares / width + eps * scale * scale);
        for (int i = threadIdx.x; i < width; i += THREADS) {
            float value = (value_at(i) - mean - residue) * rstd;
            if (gain) value *= gain[i];
            if (CENTRED && bias) value += bias[i];
            y[start + i] = stored(HAS_ACTIVATION ? activated(value, activation) : value);
        }
        if (threadIdx.x == 0) {
            float* stat = stats + size_t(row) * STATS;
            if (CENTRED) stat[0] = mean, stat[1] = residue;
            stat[STATS - 1] = rstd;
        }
    }
}

ENTRY(layer_norm_backward_wide, __launch_bounds__(BLOCK, 1)) {
    __shared__ float shared[2 * WARP];
    auto xhat_at = [&](int row, int i) {
        const size_t place = size_t(row) * stride + first + i;
        const float value = RESIDUAL && residual ? loaded(x[place]) + loaded(residual[place]) : loaded(x[place]);
        const float* stat = stats + size_t(row) * STATS;
        return (CENTRED ? value - stat[0] - stat[1] : value) * stat[STATS - 1];
    };
    // The gradient before the activation.
    auto d_at = [&](int row, int i, float xhat) {
        const float d = loaded(dy[size_t(row) * stride + first + i]);
        return HAS_ACTIVATION ? through_activation((gain ? xhat * gain[i] : xhat) + (bias ? bias[i] : 0), d, activation) : d;
    };
    for (int row = int(blockIdx.x); dx && row < rows; row += int(gridDim.x)) {
        float sums[1 + CENTRED] = {};
        for (int i = threadIdx.x; i < width; i += THREADS) {
            const float xhat = xhat_at(row, i), d = d_at(row, i, xhat) * (gain ? gain[i] : 1);
            if (CENTRED) sums[0] += d;
            sums[CENTRED] += d * xhat;
        }
        block_sum<THREADS>(sums, shared);
        for (int i = threadIdx.x; i < width; i += THREADS) {
            const float xhat = xhat_at(row, i), d = d_at(row, i, xhat) * (gain ? gain[i] : 1);
            const size_t place = size_t(row) * stride + first + i;
            const float rstd = stats[size_t(row) * STATS + STATS - 1];
            const float through = through_norm(d, xhat, rstd, CENTRED ? sums[0] / width : 0, sums[CENTRED] / width);
            dx[place] = stored(RESIDUAL && d_total ? through + loaded(d_total[place]) : through);
        }
    }
    // The rows are read again, which costs less than partial sums in memory that are read and written at each row.
    if (!d_gain && !d_bias) return;
    const size_t part = size_t(blockIdx.x) * width;
    for (int i = threadIdx.x; i < width; i += THREADS) {
        float of_gain = 0, of_bias = 0;
        for (int row = int(blockIdx.x); row < rows; row += int(gridDim.x)) {
            const float xhat = xhat_at(row, i), d = d_at(row, i, xhat);
            of_gain += d * xhat;
            of_bias += d;
        }
        if (d_gain) d_gain[part + i] = of_gain;
        if (CENTRED && d_bias) d_bias[part + i] = of_bias;
    }
}
