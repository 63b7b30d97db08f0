// The gradient of a layer norm, for one value of a row (Ba, Kiros, Hinton 2016, eq. 3).
#pragma once
#include "../portable.h"

// From d, the gradient after the norm times the gain, to the one before the norm. xhat is the normalised value,
// mean_d the mean of d over the row, and mean_d_xhat the mean of d * xhat.
FUNCTION real through_norm(real d, real xhat, real rstd, real mean_d, real mean_d_xhat) {
    return rstd * (d - mean_d - xhat * mean_d_xhat);
}
