// Rows divided by their Euclidean norm, and the gradient of that: a block of THREADS for each row.
// storage_t is float or 16 bits; loaded() and stored() convert. block_sum() gives every thread the sum over its block.
#include "common.cuh"
#include "storage.cuh"

ENTRY(l2_rows_forward) {
    __shared__ float shared[WARP];
    const storage_t* in = x + size_t(blockIdx.x) * width;
    float sum[1] = {0};
    for (int k = threadIdx.x; k < width; k += THREADS) sum[0] += loaded(in[k]) * loaded(in[k]);
    block_sum<THREADS>(sum, shared);
    const float by = rsqrtf(sum[0] + eps);
    for (int k = threadIdx.x; k < width; k += THREADS) y[size_t(blockIdx.x) * width + k] = stored(loaded(in[k]) * by);
    if (threadIdx.x == 0) scale[blockIdx.x] = by;
}

ENTRY(l2_rows_backward) {
    __shared__ float shared[WARP];
    const size_t start = size_t(blockIdx.x) * width;
    const float by = scale[blockIdx.x];
    float sum[1] = {0};
    for (int k = threadIdx.x; k < width; k += THREADS) sum[0] += loaded(dy[start + k]) * loaded(x[start + k]);
    block_sum<THREADS>(sum, shared);
    const float along = sum[0] * by * by;
    for (int k = threadIdx.x; k < width; k += THREADS)
        dx[start + k] = stored((loaded(dy[start + k]) - loaded(x[start + k]) * along) * by);
}
