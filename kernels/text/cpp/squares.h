// Means of squares that a dtype cannot hold: those of values near 1e20 and, without an epsilon, of values near 1e-25.
#pragma once
#include "common.h"

// The least sum of `count` squares that T holds with all its digits, if eps is added to their mean; there is none if eps hides them.
static inline T least_sum(T count, T eps) {
    return (std::numeric_limits<T>::min() / std::numeric_limits<T>::epsilon() - eps) * count;
}
static inline bool holds_squares(T sum, T least) { return sum > least && sum <= std::numeric_limits<T>::max(); }

// The sum of the squares of value(0), value(1) ..., in a wider type.
template <class Value>
__attribute__((noinline)) static long double sum_of_squares(index_t count, const Value& value) {
    long double sum = 0;
    for (index_t k = 0; k < count; ++k) {
        const long double x = value(k);
        sum += x * x;
    }
    return sum;
}
