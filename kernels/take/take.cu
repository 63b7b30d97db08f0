// Rows taken from a table, and their gradient: each row of the table adds up what was taken from it, in the order in
// which it was taken. No atomics, so it repeats to the bit. An index out of range takes a row of NaN, and adds nothing.
//
// Macro: STORAGE of `g` and of the table's gradient; the sums are float.
// `sorted` (taken) has the indices in order and `order` where each stood. Block (r, c) has row r of the table, and of its
// columns every gridDim.y-th group of blockDim.x, from group c on.
#include "storage.cuh"

// Block (k, c) has the row that index k takes, and of its columns those that it has in the gradient.
ENTRY(take_forward) {
    const int index = indices[blockIdx.x], row = index < 0 ? index + words : index;
    const bool inside = row >= 0 && row < words;
    storage_t* to = rows + size_t(blockIdx.x) * width;
    for (int i = blockIdx.y * blockDim.x + threadIdx.x; i < width; i += gridDim.y * blockDim.x)
        to[i] = inside ? table[size_t(row) * width + i] : stored(logf(-1.0f));
}

__device__ __forceinline__ int first_at_least(const int* __restrict__ sorted, int taken, int row) {
    int low = 0, high = taken;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (sorted[middle] < row) low = middle + 1;
        else high = middle;
    }
    return low;
}

ENTRY(take_backward) {
    const int row = int(blockIdx.x), first = first_at_least(sorted, taken, row);
    for (int i = blockIdx.y * blockDim.x + threadIdx.x; i < width; i += gridDim.y * blockDim.x) {
        float sum = 0;
        for (int k = first; k < taken && sorted[k] == row; ++k) sum += loaded(g[size_t(order[k]) * width + i]);
        d_table[size_t(row) * width + i] = stored(sum);
    }
}
