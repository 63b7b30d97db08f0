// The common Euclidean norm of many tensors: sums of squares of their chunks, and then the root of the sum of those.
#include "tensors.cuh"

ENTRY(sum_squares, __launch_bounds__(CHUNK_THREADS)) {
    const Chunk chunk(tensors);
    const float* values = chunk.of(tensors, 0);
    double sum = 0;
#pragma unroll 4
    for (int i = int(threadIdx.x); i < chunk.count; i += CHUNK_THREADS) sum += double(values[i]) * double(values[i]);
    sum = sum_of_block(sum);
    if (threadIdx.x == 0) squares[blockIdx.x] = sum;
}

// One block adds all sums.
ENTRY(root_of_sum, __launch_bounds__(CHUNK_THREADS)) {
    double sum = 0;
    for (int i = int(threadIdx.x); i < count; i += CHUNK_THREADS) sum += squares[i];
    sum = sum_of_block(sum);
    if (threadIdx.x == 0) *norm = float(sqrt(sum));
}
