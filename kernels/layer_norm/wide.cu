// Layer norm of rows that are too wide for registers: THREADS threads (one block) read a row once for each sum, from
// cache where the row fits. The sums and the three floats kept are those of layer_norm.cu.
#include "../common.cuh"
#include "../storage.cuh"
#include "activation.h"
#include "gradient.h"

// The sum over a row of f(column), for every thread of the block.
template <class F>
__device__ __forceinline__ float total(int width, float* shared, F f) {
    float sum[1] = {0};
    for (int i = threadIdx.x; i < width; i += THREADS) sum[0] += f(i);
    block_sum<THREADS>(sum, shared);
    return sum[0];
}

extern "C" __global__ void __launch_bounds__(BLOCK, 1)
layer_norm_forward_wide(const storage_t* __restrict__ x, const float* __restrict__ gain, const float* __restrict__ bias,
                        storage_t* __restrict__ y, float* __restrict__ stats, int rows, int width, float eps,
                        int activation) {
    __shared__ float shared[WARP];
    for (int row = int(blockIdx.x); row < rows; row += int(gridDim.x)) {
        const storage_t* from = x + size_t(row) * width;
        storage_t* to = y + size_t(row) * width;
        const float mean = total(width, shared, [&](int i) { return loaded(from[i]); }) / width;
        const float residual = total(width, shared, [&](int i) { return loaded(from[i]) - mean; }) / width;
        const float squares = total(width, shared, [&](int i) {
            const float centred = loaded(from[i]) - mean - residual;
            return centred * centred;
        });
        const float rstd = 1.0f / sqrtf(squares / width + eps);
        for (int i = threadIdx.x; i < width; i += THREADS) {
            float value = (loaded(from[i]) - mean - residual) * rstd;
            if (gain) value *= gain[i];
            to[i] = stored(activated(bias ? value + bias[i] : value, activation));
        }
        if (threadIdx.x == 0) {
            stats[size_t(row) * 3] = mean;
            stats[size_t(row) * 3 + 1] = residual;
            stats[size_t(row) * 3 + 2] = rstd;
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK, 1)
layer_norm_backward_wide(const storage_t* __restrict__ x, const float* __restrict__ stats,
                         const float* __restrict__ gain, const float* __restrict__ bias,
                         const storage_t* __restrict__ dy, storage_t* __restrict__ dx, float* __restrict__ d_gain,
                         float* __restrict__ d_bias, int rows, int width, int stride, int first, int activation) {
    __shared__ float shared[2 * WARP];
    auto xhat_at = [&](int row, int i) {
        const float* stat = stats + size_t(row) * 3;
        return (loaded(x[size_t(row) * stride + first + i]) - stat[0] - stat[1]) * stat[2];
    };
    // The gradient before the activation.
    auto d_at = [&](int row, int i, float xhat) {
        const float y = (gain ? xhat * gain[i] : xhat) + (bias ? bias[i] : 0);
        return loaded(dy[size_t(row) * stride + first + i]) * slope(y, activation);
    };
    for (int row = int(blockIdx.x); dx && row < rows; row += int(gridDim.x)) {
        float sums[2] = {0, 0};
        for (int i = threadIdx.x; i < width; i += THREADS) {
            const float xhat = xhat_at(row, i), d = d_at(row, i, xhat) * (gain ? gain[i] : 1);
            sums[0] += d;
            sums[1] += d * xhat;
        }
        block_sum<THREADS>(sums, shared);
        for (int i = threadIdx.x; i < width; i += THREADS) {
            const float xhat = xhat_at(row, i), d = d_at(row, i, xhat) * (gain ? gain[i] : 1);
            dx[size_t(row) * stride + first + i] =
                stored(through_norm(d, xhat, stats[size_t(row) * 3 + 2], sums[0] / width, sums[1] / width));
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
        if (d_bias) d_bias[part + i] = of_bias;
    }
}
