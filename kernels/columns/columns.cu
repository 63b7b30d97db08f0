// The sum of each column, in one fixed order: the second half of every gradient that many rows share.
//
// Macro: STORAGE of x and y (see storage.cuh); the sums are float.
// A block has COLUMNS columns, 32 bytes of a row of floats, of array blockIdx.z, and the blockIdx.y-th group of its
// rows; a warp reads four rows at once. `sums` (arrays, groups, width) gets the sum of each group. `y` is the second array, or null.
#include "common.cuh"
#include "storage.cuh"

constexpr int COLUMNS = 8, SUM_THREADS = 512, WARPS = SUM_THREADS / WARP, ROWS_AT_ONCE = SUM_THREADS / COLUMNS;

ENTRY(sum_columns, __launch_bounds__(SUM_THREADS)) {
    __shared__ float shared[WARPS][COLUMNS];
    const int column = int(blockIdx.x * COLUMNS + threadIdx.x);
    const unsigned first = blockIdx.y * unsigned(rows_of_group), last = min(first + rows_of_group, unsigned(rows));
    const storage_t* from = blockIdx.z ? y : x;
    float sum = 0;
    if (column < width)
#pragma unroll 4
        for (unsigned row = first + threadIdx.y; row < last; row += ROWS_AT_ONCE)
            sum += loaded(from[size_t(row) * width + column]);
#pragma unroll
    for (int by = COLUMNS; by < WARP; by *= 2) sum += __shfl_xor_sync(EVERY_LANE, sum, by);
    const int linear = int(threadIdx.y) * COLUMNS + int(threadIdx.x);
    if (linear % WARP < COLUMNS) shared[linear / WARP][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || column >= width) return;
    sum = 0;
    for (int warp = 0; warp < WARPS; ++warp) sum += shared[warp][threadIdx.x];
    sums[(size_t(blockIdx.z) * gridDim.y + blockIdx.y) * width + column] = sum;
}
