// The gradient of a layer norm, for one value of a row (Ba, Kiros, Hinton 2016, eq. 3).
#pragma once
#include "../portable.h"

// From g, the gradient after the norm times the gain, to the one before it. `normal` is the normalised value,
// `mean_g` the mean of g over the row and `mean_along` that of g * normal.
FUNCTION float through_norm(float g, float normal, float rstd, float mean_g, float mean_along) {
    return rstd * (g - mean_g - normal * mean_along);
}
