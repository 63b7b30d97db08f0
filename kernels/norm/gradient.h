// The arithmetic of a layer norm (Ba, Kiros, Hinton 2016, eq. 3) for one row, and its gradient for one value of it.
#pragma once
#include "portable.h"

// From d, the gradient after the norm times the gain, to the one before the norm. xhat is the normalised value,
// mean_d the mean of d over the row, and mean_d_xhat the mean of d * xhat.
FUNCTION real through_norm(real d, real xhat, real rstd, real mean_d, real mean_d_xhat) {
    return rstd * (d - mean_d - xhat * mean_d_xhat);
}

// The scale of the values of a row before they are squared: a power of two, which changes no bit of the usual results. Without
// it the squares of 1e20 are infinite and those of 1e-25 are 0. It depends on the mean of the sizes of the values only if epsilon
// is so small that small squares count beside it.
#define LEAST_EPS 1e-12f
#define SQUARE_SCALE 9.094947017729282e-13f  // 2^-40
FUNCTION real square_scale(real size) {
    return size > 1073741824.0f           ? 8.271806125530277e-25f   // 2^30, 2^-80
           : size < 9.313225746154785e-10f ? 1.2089258196146292e24f  // 2^-30, 2^80
                                           : 1.0f;
}
