// A list of tensors, cut into chunks of CHUNK values; a block works on one chunk.
//
// Macro: CHUNK, a multiple of 4 BLOCK. `pointers` (roles, tensors) has addresses, `sizes` (tensors) the number of values,
// `chunks` (blocks, 2) the tensor of each block and where in it the chunk begins.
#pragma once
#include "common.cuh"

constexpr int CHUNK_THREADS = 256, AT_ONCE = 4;

struct Chunk {
    int tensor, first, count;

    __device__ __forceinline__ Chunk(const int* __restrict__ chunks, const int* __restrict__ sizes)
        : tensor(chunks[2 * blockIdx.x]), first(chunks[2 * blockIdx.x + 1]), count(min(CHUNK, sizes[tensor] - first)) {}

    // Where the chunk begins in the array of a role.
    __device__ __forceinline__ float* of(const unsigned long long* __restrict__ pointers, int role, int tensors) const {
        return reinterpret_cast<float*>(pointers[role * tensors + tensor]) + first;
    }
};

// The sum over the threads of a block; each of them gets it.
__device__ __forceinline__ float sum_of_block(float sum) {
    __shared__ float shared[CHUNK_THREADS / WARP];
    float of_block[1] = {sum};
    block_sum<CHUNK_THREADS>(of_block, shared);
    return of_block[0];
}
