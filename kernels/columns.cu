// The sum of each column, in one fixed order: the second half of every gradient that many rows share.
//
// A block has 32 columns; its warps take every blockDim.y-th row, and warp 0 adds their sums, in their order.
#include "common.cuh"

extern "C" __global__ void sum_columns(const float* __restrict__ x, float* __restrict__ sums, int rows, int width) {
    __shared__ float shared[WARP][WARP];
    const int column = int(blockIdx.x * WARP + threadIdx.x);
    float sum = 0;
    if (column < width)
        for (int row = threadIdx.y; row < rows; row += blockDim.y) sum += x[size_t(row) * width + column];
    shared[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || column >= width) return;
    for (int warp = 1; warp < int(blockDim.y); ++warp) sum += shared[warp][threadIdx.x];
    sums[column] = sum;
}
