// The common part of all kernels: sums over the threads of a row, and rows in registers.
//
// PER_ROW threads work on a row: a power of two. Up to 32 they are part of one warp, and a block has several rows
// (threadIdx.y); above, a block has one row. Sums are added in one fixed order, so results repeat to the bit.
#pragma once

#ifdef THREADS
// The most threads that a block has: the compiler must leave registers for all of them.
#define BLOCK (THREADS < 128 ? 128 : THREADS)
#endif

constexpr unsigned EVERY_LANE = 0xffffffffu;
constexpr int WARP = 32;

// Each of N values summed over the threads of a row; every thread gets the sums. All threads of a block must call it.
template <int PER_ROW, int N, class T>
__device__ __forceinline__ void row_sum(T (&value)[N]) {
    constexpr int LANES = PER_ROW < WARP ? PER_ROW : WARP;
#pragma unroll
    for (int by = LANES / 2; by > 0; by /= 2)
#pragma unroll
        for (int n = 0; n < N; ++n) value[n] += __shfl_xor_sync(EVERY_LANE, value[n], by);
}

// The same across warps, through `shared`: N values for each warp of the row.
template <int PER_ROW, int N, class T>
__device__ __forceinline__ void block_sum(T (&value)[N], T* shared) {
    row_sum<PER_ROW>(value);
    if (PER_ROW <= WARP) return;
    __syncthreads();  // other threads may still read the last sums
    if (threadIdx.x % WARP == 0)
#pragma unroll
        for (int n = 0; n < N; ++n) shared[threadIdx.x / WARP * N + n] = value[n];
    __syncthreads();
#pragma unroll
    for (int n = 0; n < N; ++n) {
        value[n] = 0;
        for (int warp = 0; warp < PER_ROW / WARP; ++warp) value[n] += shared[warp * N + n];
    }
}
