// What the C++ kernels share: an entry for each dtype, threads over rows (team.h), and functions that the compiler can turn into
// vector instructions. NaN and infinity go through all of them.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "team.h"

// ENTRIES(M) defines what M makes of both types and their names, such as `extern "C" void f_float32(...)`.
#define ENTRIES(M) M(float, float32) M(double, float64)

// e^x, to two units in the last place. Above 88.73 it is infinity, below -104 it is 0.
static inline float exponential(float x) {
    const float low = -104.0f, high = 89.0f;
    x = x < low ? low : x;
    x = x > high ? high : x;
    const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    const float shifted = x * 1.44269504088896341f + magic;
    const float n = shifted - magic;
    float r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    // 2^n in two factors, so that results near the largest and below the smallest normal number come out.
    int32_t bits;
    std::memcpy(&bits, &shifted, 4);
    const int32_t power = bits - 0x4B400000, half = power >> 1;
    const int32_t first = (half + 127) << 23, second = (power - half + 127) << 23;
    float a, b;
    std::memcpy(&a, &first, 4);
    std::memcpy(&b, &second, 4);
    return p * a * b;
}

static inline double exponential(double x) { return std::exp(x); }

// The hyperbolic tangent: a polynomial near 0, where 1 - 2 / (e^2x + 1) would cancel.
static inline float hyperbolic_tangent(float x) {
    const float size = std::fabs(x), square = x * x;
    float p = -5.70498872745e-3f;
    p = p * square + 2.06390887954e-2f;
    p = p * square - 5.37397155531e-2f;
    p = p * square + 1.33314422036e-1f;
    p = p * square - 3.33332819422e-1f;
    const float near = p * square * x + x;
    const float far = 1.0f - 2.0f / (exponential(2.0f * size) + 1.0f);
    return size < 0.625f ? near : std::copysign(far, x);
}

static inline double hyperbolic_tangent(double x) { return std::tanh(x); }
