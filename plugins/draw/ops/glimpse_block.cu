// A glimpse of DRAW for each image of a batch: the decoder writes on the canvas and reads for the next glimpse.
//
// An image belongs to a block. `looked` (B, 10 + write^2) has the numbers of the grid that reads, those of the grid that
// writes, and the patch. Filters are [axis][point][pixel], the points of the grid that reads first, and stay in shared
// memory; the gradient computes them again. Kept for it: `chances` (B, P, P), the sigmoid of the canvas, and `seen_rows`
// (B, 2 read, P), the image and then its chances between the rows of the grid that reads.
#include "recurrent/sigmoid.h"
#include "grid.cuh"

constexpr int READS = 0, WRITES = 1;

// The sizes of a glimpse and where its parts lie in `looked`.
struct Glimpse {
    int pixels, read, write;

    __device__ int points() const { return read + write; }
    __device__ int filters() const { return 2 * points() * pixels; }
    __device__ int looked() const { return 2 * WHERE + write * write; }
    __device__ bool reads(int line) const { return line % points() < read; }
    // The point of its own grid that a line belongs to, and how many the grid has.
    __device__ int point(int line) const { return reads(line) ? line % points() : line % points() - read; }
    __device__ int own_points(int line) const { return reads(line) ? read : write; }
};

// The numbers that place both grids.
__device__ __forceinline__ void place(Grid* grids, const float* looked, float half, float read_span, float write_span,
                                      float limit) {
    if (threadIdx.x == READS) grids[READS] = placed(looked, half, read_span, limit, false);
    if (threadIdx.x == WRITES) grids[WRITES] = placed(looked + WHERE, half, write_span, limit, true);
    __syncthreads();
}

__device__ __forceinline__ void fill(const Grid* grids, const Glimpse& s, float epsilon, float* filters) {
    for (int line = warp_of_block(); line < 2 * s.points(); line += WARPS)
        fill_line(grids[s.reads(line) ? READS : WRITES], line / s.points(), s.point(line), s.own_points(line), s.pixels,
                  epsilon, filters + line * s.pixels);
    __syncthreads();
}

// The patch between the columns of the grid that writes: [write][pixel].
__device__ __forceinline__ void land(const float* patch, const float* columns, const Glimpse& s, float* landed) {
    for (int k = int(threadIdx.x); k < s.write * s.pixels; k += BLOCK_THREADS) {
        float sum = 0;
        for (int j = 0; j < s.write; ++j)
            sum += patch[k / s.pixels * s.write + j] * columns[(s.read + j) * s.pixels + k % s.pixels];
        landed[k] = sum;
    }
}

ENTRY(glimpse_forward, __launch_bounds__(BLOCK_THREADS, 1)) {
    extern __shared__ float memory[];
    __shared__ Grid grids[2];
    const Glimpse s = {pixels, read, write};
    float *columns = memory, *rows = columns + s.points() * pixels, *landed = rows + s.points() * pixels;
    float* between = landed + write * pixels;  // what `seen_rows` keeps
    const size_t first = size_t(blockIdx.x) * pixels * pixels;
    looked += size_t(blockIdx.x) * s.looked();
    place(grids, looked, half, read_span, write_span, limit);
    fill(grids, s, epsilon, columns);
    land(looked + 2 * WHERE, columns, s, landed);
    __syncthreads();
    for (int k = int(threadIdx.x); k < pixels * pixels; k += BLOCK_THREADS) {
        float sum = 0;
        for (int w = 0; w < write; ++w) sum += rows[(read + w) * pixels + k / pixels] * landed[w * pixels + k % pixels];
        const float logit = canvas[first + k] + sum * grids[WRITES].gamma;
        drawn[first + k] = logit;
        chances[first + k] = sigmoid(logit);
    }
    __syncthreads();
    for (int k = int(threadIdx.x); k < 2 * read * pixels; k += BLOCK_THREADS) {
        const int i = k / pixels, x = k % pixels;
        const float *from = (i < read ? image : chances) + first, *filter = rows + i % read * pixels;
        float sum = 0;
        for (int y = 0; y < pixels; ++y) sum += filter[y] * from[y * pixels + x];
        between[k] = sum * grids[READS].gamma;
        seen_rows[size_t(blockIdx.x) * 2 * read * pixels + k] = between[k];
    }
    __syncthreads();
    const int patch = read * read;
    for (int k = warp_of_block(); k < patch; k += WARPS) {
        const float* filter = columns + k % read * pixels;
        const float of_image = warp_dot(between + k / read * pixels, filter, pixels);
        const float of_chances = warp_dot(between + (read + k / read) * pixels, filter, pixels);
        if (lane_of_warp() != 0) continue;
        seen[size_t(blockIdx.x) * 2 * patch + k] = of_image;
        seen[size_t(blockIdx.x) * 2 * patch + patch + k] = of_image - of_chances;
    }
}

// Null may be: d_drawn and d_seen, of results that nothing used; d_image and d_looked, that nobody needs.
ENTRY(glimpse_backward, __launch_bounds__(BLOCK_THREADS, 1)) {
    extern __shared__ float memory[];
    __shared__ Grid grids[2];
    const Glimpse s = {pixels, read, write};
    const int patch = read * read;
    float *columns = memory, *rows = columns + s.points() * pixels, *d_columns = rows + s.points() * pixels;
    float *d_rows = d_columns + s.points() * pixels, *d_between = d_rows + s.points() * pixels;
    float *landed = d_between + 2 * read * pixels, *d_landed = landed + write * pixels;
    LineGradient* lines = reinterpret_cast<LineGradient*>(d_landed + write * pixels);
    const size_t first = size_t(blockIdx.x) * pixels * pixels;
    looked += size_t(blockIdx.x) * s.looked();
    seen_rows += size_t(blockIdx.x) * 2 * read * pixels;
    if (d_seen) d_seen += size_t(blockIdx.x) * 2 * patch;
    place(grids, looked, half, read_span, write_span, limit);
    fill(grids, s, epsilon, columns);
    land(looked + 2 * WHERE, columns, s, landed);
    for (int k = int(threadIdx.x); k < 2 * read * pixels; k += BLOCK_THREADS) {  // d_between: at what is kept as seen_rows
        const int i = k / pixels, x = k % pixels;
        float sum = 0;
        for (int j = 0; d_seen && j < read; ++j) {
            const float error = d_seen[patch + i % read * read + j];
            sum += (i < read ? d_seen[i * read + j] + error : -error) * columns[j * pixels + x];
        }
        d_between[k] = sum;
    }
    for (int k = int(threadIdx.x); k < read * pixels; k += BLOCK_THREADS) {
        const int j = k / pixels, x = k % pixels;
        float sum = 0;
        for (int i = 0; d_seen && i < read; ++i) {
            const float error = d_seen[patch + i * read + j];
            sum += (d_seen[i * read + j] + error) * seen_rows[i * pixels + x] - error * seen_rows[(read + i) * pixels + x];
        }
        d_columns[k] = sum;
    }
    __syncthreads();
    for (int k = int(threadIdx.x); k < pixels * pixels; k += BLOCK_THREADS) {
        const int y = k / pixels, x = k % pixels;
        float of_image = 0, of_chance = 0;
        for (int i = 0; i < read; ++i) {
            of_image += rows[i * pixels + y] * d_between[i * pixels + x];
            of_chance += rows[i * pixels + y] * d_between[(read + i) * pixels + x];
        }
        const float gamma = grids[READS].gamma, chance = chances[first + k];
        const float through = d_seen ? of_chance * gamma * (chance - chance * chance) : 0;
        d_canvas[first + k] = d_drawn ? through + d_drawn[first + k] : through;
        if (d_image) d_image[first + k] = d_seen ? of_image * gamma : 0;
    }
    if (!d_looked) return;
    __syncthreads();
    for (int k = warp_of_block(); k < s.points() * pixels; k += WARPS) {  // at the rows times gamma
        const int point = k / pixels;
        const size_t row = first + size_t(k % pixels) * pixels;
        const float sum = point >= read ? warp_dot(landed + (point - read) * pixels, d_canvas + row, pixels)
                          : d_seen      ? warp_dot(d_between + point * pixels, image + row, pixels) +
                                         warp_dot(d_between + (read + point) * pixels, chances + row, pixels)
                                        : 0;
        if (lane_of_warp() == 0) d_rows[k] = sum;
    }
    for (int k = int(threadIdx.x); k < write * pixels; k += BLOCK_THREADS) {
        float sum = 0;
        for (int y = 0; y < pixels; ++y)
            sum += rows[(read + k / pixels) * pixels + y] * d_canvas[first + size_t(y) * pixels + k % pixels];
        d_landed[k] = sum * grids[WRITES].gamma;
    }
    __syncthreads();
    d_looked += size_t(blockIdx.x) * s.looked();
    for (int k = warp_of_block(); k < write * write; k += WARPS) {
        const float sum = warp_dot(d_landed + k / write * pixels, columns + (read + k % write) * pixels, pixels);
        if (lane_of_warp() == 0) d_looked[2 * WHERE + k] = sum;
    }
    for (int k = int(threadIdx.x); k < write * pixels; k += BLOCK_THREADS) {
        float sum = 0;
        for (int w = 0; w < write; ++w)
            sum += looked[2 * WHERE + w * write + k / pixels] * d_landed[w * pixels + k % pixels];
        d_columns[read * pixels + k] = sum;
    }
    __syncthreads();
    for (int line = warp_of_block(); line < 2 * s.points(); line += WARPS) {
        const Grid& grid = grids[s.reads(line) ? READS : WRITES];
        const int axis = line / s.points();
        const LineGradient gradient = line_gradient(grid, axis, s.point(line), s.own_points(line), pixels,
                                                    axis == X ? 1 : grid.gamma, columns + line * pixels,
                                                    d_columns + line * pixels);
        if (lane_of_warp() == 0) lines[line] = gradient;
    }
    __syncthreads();
    const int k = int(threadIdx.x), grid = k / WHERE;
    if (k < 2 * WHERE)
        d_looked[k] = number_gradient(grids[grid], k % WHERE, looked[k], limit, half, grid == WRITES,
                                      grid == READS ? read : write, s.points(), lines + (grid == READS ? 0 : read));
}
