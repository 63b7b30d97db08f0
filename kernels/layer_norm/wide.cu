// Layer norm of rows that are too wide for registers: THREADS threads (one block) read a row once for each sum, from
// cache where the row fits. The sums and the three floats kept are those of layer_norm.cu.
#include "../common.cuh"
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

extern "C" __global__ void __launch_bounds__(BLOCK)
layer_norm_forward_wide(const float* __restrict__ x, const float* __restrict__ gain, const float* __restrict__ bias,
                        float* __restrict__ y, float* __restrict__ stats, int rows, int width, float eps,
                        int activation) {
    __shared__ float shared[WARP];
    for (int row = int(blockIdx.x); row < rows; row += int(gridDim.x)) {
        const float* from = x + size_t(row) * width;
        float* to = y + size_t(row) * width;
        const float mean = total(width, shared, [&](int i) { return from[i]; }) / width;
        const float residual = total(width, shared, [&](int i) { return from[i] - mean; }) / width;
        const float squares = total(width, shared, [&](int i) {
            const float centred = from[i] - mean - residual;
            return centred * centred;
        });
        const float rstd = 1.0f / sqrtf(squares / width + eps);
        for (int i = threadIdx.x; i < width; i += THREADS) {
            float value = (from[i] - mean - residual) * rstd;
            if (gain) value *= gain[i];
            to[i] = activated(bias ? value + bias[i] : value, activation);
        }
        if (threadIdx.x == 0) {
            stats[size_t(row) * 3] = mean;
            stats[size_t(row) * 3 + 1] = residual;
            stats[size_t(row) * 3 + 2] = rstd;
        }
    }
}

// The partial rows of d_gain and d_bias must begin as zeros: a block adds to its own.
extern "C" __global__ void __launch_bounds__(BLOCK)
layer_norm_backward_wide(const float* __restrict__ x, const float* __restrict__ stats, const float* __restrict__ gain,
                         const float* __restrict__ bias, const float* __restrict__ dy, float* __restrict__ dx,
                         float* __restrict__ d_gain, float* __restrict__ d_bias, int rows, int width, int stride,
                         int first, int activation) {
    __shared__ float shared[2 * WARP];
    const size_t part = size_t(blockIdx.x) * width;
    for (int row = int(blockIdx.x); row < rows; row += int(gridDim.x)) {
        const size_t start = size_t(row) * stride + first;
        const float mean = stats[size_t(row) * 3], residual = stats[size_t(row) * 3 + 1];
        const float rstd = stats[size_t(row) * 3 + 2];
        // The gradient before the activation.
        auto before = [&](int i, float xhat) {
            const float y = (gain ? xhat * gain[i] : xhat) + (bias ? bias[i] : 0);
            return dy[start + i] * slope(y, activation);
        };
        float sums[2] = {0, 0};
        for (int i = threadIdx.x; i < width; i += THREADS) {
            const float xhat = (x[start + i] - mean - residual) * rstd;
            const float d = before(i, xhat);
            if (d_gain) d_gain[part + i] += d * xhat;
            if (d_bias) d_bias[part + i] += d;
            sums[0] += gain ? d * gain[i] : d;
            sums[1] += (gain ? d * gain[i] : d) * xhat;
        }
        if (!dx) continue;
        block_sum<THREADS>(sums, shared);
        for (int i = threadIdx.x; i < width; i += THREADS) {
            const float xhat = (x[start + i] - mean - residual) * rstd;
            const float d = gain ? before(i, xhat) * gain[i] : before(i, xhat);
            dx[start + i] = through_norm(d, xhat, rstd, sums[0] / width, sums[1] / width);
        }
    }
}
