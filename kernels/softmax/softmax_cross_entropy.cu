// Negative log-likelihood of labels under a softmax of rows of any width, and its gradient.
//
// Macros: THREADS for a row (a power of two of at least 32); a block has blockDim.y rows if THREADS is 32, else one.
// STORAGE: in what the logits and their gradient are stored; all else is float.
// Kept for the gradient, two floats a row: the largest logit, and the sum of e^x, x being what a logit is above that.
#include "common.cuh"
#include "storage.cuh"

template <int PER_ROW>
__device__ __forceinline__ float row_max(float value, float* shared) {
    for (int by = WARP / 2; by > 0; by /= 2) value = fmaxf(value, __shfl_xor_sync(EVERY_LANE, value, by));
    if (PER_ROW <= WARP) return value;
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = value;
    __syncthreads();
    for (int warp = 0; warp < PER_ROW / WARP; ++warp) value = fmaxf(value, shared[warp]);
    return value;
}

ENTRY(cross_entropy_forward, __launch_bounds__(BLOCK, 1)) {
    __shared__ float for_max[WARP], for_sum[WARP];
    const int row = int(blockIdx.x * blockDim.y + threadIdx.y);
    const bool inside = row < rows;
    const storage_t* x = logits + size_t(inside ? row : 0) * classes;
    float top = loaded(x[0]), sum[1] = {0};
    for (int i = threadIdx.x; i < classes; i += THREADS) top = fmaxf(top, loaded(x[i]));
    top = row_max<THREADS>(top, for_max);
    for (int i = threadIdx.x; i < classes; i += THREADS) sum[0] += expf(loaded(x[i]) - top);
    block_sum<THREADS>(sum, for_sum);
    if (!inside || threadIdx.x != 0) return;
    // Nothing else checks labels on a device. The row of one that is no class has the sum NaN, and so its loss and its
    // gradient are NaN; the label must not read other memory.
    const int label = labels[row];
    const bool is_class = label >= 0 && label < classes;
    const float all = is_class ? sum[0] : logf(-1.0f);
    largest[row] = top;
    total[row] = all;
    loss[row] = logf(all) - (loaded(x[is_class ? label : 0]) - top);
}

// The gradient of row r is d_loss[r * d_loss_step]; a step of 0 means one number for all rows, as after a mean.
ENTRY(cross_entropy_backward, __launch_bounds__(BLOCK, 1)) {
    const int row = int(blockIdx.x * blockDim.y + threadIdx.y);
    if (row >= rows) return;
    const size_t start = size_t(row) * classes;
    const float top = largest[row], log_sum = logf(total[row]), by = d_loss[size_t(row) * d_loss_step];
    for (int i = threadIdx.x; i < classes; i += THREADS) {
        const float probability = expf(loaded(logits[start + i]) - top - log_sum);
        d_logits[start + i] = stored(by * (probability - (i == labels[row] ? 1.0f : 0.0f)));
    }
}
