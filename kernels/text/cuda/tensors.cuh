// A list of tensors, cut into chunks of CHUNK values; a block works on one chunk.
//
// Macros: ROLES, the arrays of each tensor; MOST, the tensors that a list has at most; CHUNK, a multiple of 4 BLOCK.
// The list is passed by value. A captured launch keeps it, and no copy to the device precedes a launch.
#pragma once
#include "common.cuh"

constexpr int CHUNK_THREADS = 256, AT_ONCE = 4;

struct Tensors {
    unsigned long long at[ROLES][MOST];  // addresses
    int sizes[MOST];                     // values
    int starts[MOST + 1];                // the first block of each tensor; behind the last one the number of blocks
};
static_assert(sizeof(Tensors) % 8 == 0 && sizeof(Tensors) < 4000, "the parameters of a kernel have 4096 bytes");

struct Chunk {
    int tensor = 0, first, count;

    __device__ __forceinline__ explicit Chunk(const Tensors& tensors) {
        const int block = int(blockIdx.x);
#pragma unroll
        for (int by = 64; by > 0; by /= 2)  // the last tensor that starts at this block or before it
            if (tensor + by < MOST && tensors.starts[tensor + by] <= block) tensor += by;
        first = (block - tensors.starts[tensor]) * CHUNK;
        count = min(CHUNK, tensors.sizes[tensor] - first);
    }

    // Where the chunk begins in the array of a role.
    __device__ __forceinline__ float* of(const Tensors& tensors, int role) const {
        return reinterpret_cast<float*>(tensors.at[role][tensor]) + first;
    }
};

// The sum over the threads of a block; each of them gets it. Sums of squares are double, which holds the squares of all floats.
__device__ __forceinline__ double sum_of_block(double sum) {
    __shared__ double shared[CHUNK_THREADS / WARP];
    double of_block[1] = {sum};
    block_sum<CHUNK_THREADS>(of_block, shared);
    return of_block[0];
}
