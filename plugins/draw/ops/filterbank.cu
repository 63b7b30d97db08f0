// The filters of a grid for each image of a batch, and the gradient at the five numbers that place it.
//
// An image belongs to a block. The rows are those of axis Y times gamma. The gradient computes the filters again.
#include "grid.cuh"

// The filters in shared memory: [axis][point][pixel].
__device__ __forceinline__ void fill(Grid* grid, const float* where, int size, int pixels, float half, float span,
                                     float limit, float epsilon, int inverse, float* filters) {
    if (threadIdx.x == 0) *grid = placed(where, half, span, limit, inverse);
    __syncthreads();
    for (int line = warp_of_block(); line < 2 * size; line += WARPS)
        fill_line(*grid, line / size, line % size, size, pixels, epsilon, filters + line * pixels);
    __syncthreads();
}

ENTRY(filterbank_forward, __launch_bounds__(BLOCK_THREADS, 1)) {
    extern __shared__ float filters[];
    __shared__ Grid grid[1];
    const size_t first = size_t(blockIdx.x) * size * pixels;
    fill(grid, where + size_t(blockIdx.x) * WHERE, size, pixels, half, span, limit, epsilon, inverse, filters);
    for (int k = int(threadIdx.x); k < size * pixels; k += BLOCK_THREADS) {
        columns[first + k] = filters[k];
        rows[first + k] = filters[size * pixels + k] * grid->gamma;
    }
}

// d_rows or d_columns may be null: of a result that nothing used.
ENTRY(filterbank_backward, __launch_bounds__(BLOCK_THREADS, 1)) {
    extern __shared__ float filters[];
    __shared__ Grid grid[1];
    LineGradient* lines = reinterpret_cast<LineGradient*>(filters + 2 * size * pixels);
    const size_t first = size_t(blockIdx.x) * size * pixels;
    where += size_t(blockIdx.x) * WHERE;
    fill(grid, where, size, pixels, half, span, limit, epsilon, inverse, filters);
    for (int line = warp_of_block(); line < 2 * size; line += WARPS) {
        const int axis = line / size;
        const float* g = axis == X ? d_columns : d_rows;
        LineGradient gradient = {0, 0, 0};
        if (g)
            gradient = line_gradient(*grid, axis, line % size, size, pixels, axis == X ? 1 : grid->gamma,
                                     filters + line * pixels, g + first + size_t(line % size) * pixels);
        if (lane_of_warp() == 0) lines[line] = gradient;
    }
    __syncthreads();
    const int number = int(threadIdx.x);
    if (number < WHERE)
        d_where[size_t(blockIdx.x) * WHERE + number] =
            number_gradient(*grid, number, where[number], limit, half, inverse, size, size, lines);
}
