// A grid of Gaussians on an image, from the five numbers that place it (Gregor et al. 2015, eq. 19-26).
#pragma once
#include "portable.h"

enum { X, Y, VARIANCE, STRIDE, GAMMA, WHERE };  // the numbers: x, y, log variance, log stride, log gamma

STRUCT Grid {
    real x, y, precision, stride, gamma;
};

// NaN stays NaN.
FUNCTION real clamped(real number, real limit) {
    const real low = number < -limit ? -limit : number;
    return low > limit ? limit : low;
}

// `half` is what a centre in -1 .. 1 is multiplied by, `span` the stride of a grid whose log stride is 0. With `inverse`
// the grid writes: gamma divides.
FUNCTION OF(Grid) placed(const real* where, real half, real span, real limit, bool inverse) {
    OF(Grid) grid;
    grid.x = (clamped(where[X], limit) + 1) * half;
    grid.y = (clamped(where[Y], limit) + 1) * half;
    grid.precision = 1 / exponential(clamped(where[VARIANCE], limit));
    grid.stride = exponential(clamped(where[STRIDE], limit)) * span;
    grid.gamma = exponential(clamped(where[GAMMA], limit));
    if (inverse) grid.gamma = 1 / grid.gamma;
    return grid;
}

// The strides from the centre of a grid of so many points an axis to a point of it.
FUNCTION real grid_step(real point, real points) { return point - (points / 2 - real(0.5)); }

FUNCTION real grid_mean(OF(Grid) grid, int axis, real point, real points) {
    return (axis == X ? grid.x : grid.y) + grid.stride * grid_step(point, points);
}
