// The common part of the cell kernels whose rows are too wide for registers: a block works on a row of the batch, each of
// its THREADS threads on every THREADS-th unit, and values are read again where they are needed again.
//
// Macro: UNITS is 1, since nothing of a row is kept.
#pragma once
#include "cell.cuh"

// The gates of one row from the input (source 0) or the state (source 1), before the norms or standardised.
struct GatesOfRow {
    const storage_t *x_proj, *h_proj;
    const float* stats;
    size_t row, rows;
    int width, parts;

    __device__ __forceinline__ const float* stat(int source, int part) const {
        return stats + ((source * parts + part) * rows + row) * 3;
    }
    __device__ __forceinline__ float operator()(int source, int part, int place) const {
        const float value = loaded((source ? h_proj : x_proj)[row * width + place]);
#if NORM_GATES
        const float* of = stat(source, part);
        return (value - of[0] - of[1]) * of[2];
#else
        return value;
#endif
    }
};

// Writes mean, residual and rstd of value(0) ... value(width - 1), as norm.cu has them. All threads must call it; value(i) is
// called by the thread that works on i.
template <class F>
__device__ __forceinline__ void keep_statistics(float* stat, int width, float eps, float* shared, F value) {
    float kept[3] = {0, 0, 0};
#pragma unroll
    for (int pass = 0; pass < 3; ++pass) {
        float sum[1] = {0};
        for (int i = threadIdx.x; i < width; i += THREADS) {
            const float centred = value(i) - kept[0] - kept[1];
            sum[0] += pass < 2 ? centred : centred * centred;
        }
        block_sum<THREADS>(sum, shared);
        kept[pass] = pass < 2 ? sum[0] / width : 1.0f / sqrtf(sum[0] / width + eps);
    }
    if (threadIdx.x == 0)
        for (int k = 0; k < 3; ++k) stat[k] = kept[k];
    __syncthreads();  // all threads read them next
}
