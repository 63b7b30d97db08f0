// The filters of a grid and their gradient, a warp for each line of pixels, of which a line is a point of an axis.
//
// `line` is a number from 0 to 2 points - 1: first the points of the axis X, then those of Y. A block has BLOCK_THREADS
// threads and one image. All sums are in a fixed order.
#pragma once
#include "common.cuh"
#include "grid.h"

constexpr int BLOCK_THREADS = 256, WARPS = BLOCK_THREADS / WARP;

__device__ __forceinline__ int warp_of_block() { return int(threadIdx.x) / WARP; }
__device__ __forceinline__ int lane_of_warp() { return int(threadIdx.x) % WARP; }

// A value summed over the lanes of a warp; all of them call it and get the sum.
__device__ __forceinline__ float warp_sum(float value) {
    float sum[1] = {value};
    row_sum<WARP>(sum);
    return sum[0];
}

// The sum of products of two lines, by a warp.
__device__ __forceinline__ float warp_dot(const float* a, const float* b, int pixels) {
    float sum = 0;
    for (int k = lane_of_warp(); k < pixels; k += WARP) sum += a[k] * b[k];
    return warp_sum(sum);
}

// The Gaussian of a point over the pixels, divided by its sum.
__device__ __forceinline__ void fill_line(const Grid& grid, int axis, int point, int points, int pixels, float epsilon,
                                          float* filter) {
    const float mean = grid_mean(grid, axis, point, points), sharpness = -0.5f * grid.precision;
    float sum = 0;
    for (int a = lane_of_warp(); a < pixels; a += WARP) {
        const float away = float(a) - mean, bell = exponential(away * away * sharpness);
        filter[a] = bell;
        sum += bell;
    }
    const float scale = 1 / (warp_sum(sum) + epsilon);
    for (int a = lane_of_warp(); a < pixels; a += WARP) filter[a] *= scale;
}

// What a line's gradient gives the numbers of its grid: the gradient at the mean, that at the log variance without its
// factor, and that at the filter's strength.
struct LineGradient {
    float mean, spread, strength;
};

// `g` is the gradient at the filter times `scale`. The gradient of the exponents is that of a softmax; epsilon is already
// in the filter.
__device__ __forceinline__ LineGradient line_gradient(const Grid& grid, int axis, int point, int points, int pixels,
                                                      float scale, const float* filter, const float* g) {
    const float mean = grid_mean(grid, axis, point, points), strength = warp_dot(g, filter, pixels) * scale;
    float sums[2] = {0, 0};
    for (int a = lane_of_warp(); a < pixels; a += WARP) {
        const float away = float(a) - mean;
        const float toward = (g[a] * scale - strength) * filter[a] * grid.precision * away;
        sums[0] += toward;
        sums[1] += toward * away;
    }
    row_sum<WARP>(sums);
    return {sums[0], sums[1], strength};
}

// The gradient at one of the five numbers. `lines` has the gradients of the lines of axis X, and `apart` lines behind
// them those of axis Y.
__device__ __forceinline__ float number_gradient(const Grid& grid, int number, float given, float limit, float half,
                                                 bool inverse, int points, int apart, const LineGradient* lines) {
    float sum = 0;
    for (int axis = X; axis <= Y; ++axis)
        for (int point = 0; point < points; ++point) {
            const LineGradient line = lines[axis * apart + point];
            if (number == axis) sum += line.mean * half;
            if (number == VARIANCE) sum += line.spread * 0.5f;
            if (number == STRIDE) sum += line.mean * grid_step(point, points) * grid.stride;
            if (number == GAMMA && axis == Y) sum += inverse ? -line.strength : line.strength;
        }
    return fabsf(given) < limit ? sum : 0;
}
