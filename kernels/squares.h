// Means of squares that a dtype cannot hold: those of values near 1e20 and, without an epsilon, of values near 1e-25.
#pragma once
#include "native.h"

// Whether T holds such a mean, plus eps, with all its digits.
template <class T>
static inline bool holds_square(T mean, T eps) {
    using Limits = std::numeric_limits<T>;
    return mean <= Limits::max() && mean + eps > Limits::min() / Limits::epsilon();
}

// The sum of the squares of value(0), value(1) ..., in a wider type.
template <class Value>
static long double sum_of_squares(index_t count, const Value& value) {
    long double sum = 0;
    for (index_t k = 0; k < count; ++k) {
        const long double x = value(k);
        sum += x * x;
    }
    return sum;
}
