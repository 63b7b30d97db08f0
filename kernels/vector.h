// Vectors of this CPU, and e^x and tanh x for one value and for a vector: the same steps, so the same bits.
//
// NaN and infinity go through them; they do not depend on the compiler's library of mathematics.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif

using index_t = int64_t;

template <class T>
struct Vector {
    typedef T type __attribute__((vector_size(VECTOR_BYTES)));
    typedef T anywhere __attribute__((vector_size(VECTOR_BYTES), may_alias, aligned(sizeof(T))));
    static constexpr index_t lanes = VECTOR_BYTES / sizeof(T);
};

template <class T>
static inline typename Vector<T>::type load(const T* values) {
    return *reinterpret_cast<const typename Vector<T>::anywhere*>(values);
}

template <class T>
static inline void store(T* values, typename Vector<T>::type vector) {
    *reinterpret_cast<typename Vector<T>::anywhere*>(values) = vector;
}

// The values of a vector that are HALF places away, each in the place of the one that it is away from.
template <int HALF, class V, std::size_t... LANE>
static inline V half_away(V vector, std::index_sequence<LANE...>) {
    return __builtin_shufflevector(vector, vector, (LANE ^ HALF)...);
}

// One value of all that a vector has, by halves: one half is combined with the other until one value is left. One value after
// the other would take four times as long.
template <class T, int HALF = int(Vector<T>::lanes) / 2, class Combine>
static inline T folded(typename Vector<T>::type vector, const Combine& combine) {
    if constexpr (HALF == 0) return vector[0];
    else return folded<T, HALF / 2>(combine(vector, half_away<HALF>(vector, std::make_index_sequence<Vector<T>::lanes>())), combine);
}

template <class T>
static inline T total(typename Vector<T>::type vector) {
    return folded<T>(vector, [](auto a, auto b) { return a + b; });
}

template <class T>
static inline T greatest(typename Vector<T>::type vector) {
    return folded<T>(vector, [](auto a, auto b) { return a > b ? a : b; });
}

// Whole numbers of the size of a float, or of a vector of floats.
template <class R>
struct Whole {
    typedef int32_t type __attribute__((vector_size(VECTOR_BYTES)));
};
template <>
struct Whole<float> {
    typedef int32_t type;
};

template <class To, class From>
static inline To same_bits(From from) {
    To to;
    std::memcpy(&to, &from, sizeof(to));
    return to;
}

// e^x of floats, to two units in the last place. Above 88.73 it is infinity, below -104 it is 0.
template <class R>
static inline R float_exponential(R x) {
    using whole = typename Whole<R>::type;
    const R low = R{} - 104.0f, high = R{} + 89.0f;
    x = x < low ? low : x;
    x = x > high ? high : x;
    const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    const R shifted = x * 1.44269504088896341f + magic;
    const R n = shifted - magic;
    R r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    R p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    // 2^n in two factors, so that results near the largest and below the smallest normal number come out.
    const whole power = same_bits<whole>(shifted) - 0x4B400000, half = power >> 1;
    return p * same_bits<R>((half + 127) << 23) * same_bits<R>((power - half + 127) << 23);
}

// The hyperbolic tangent of floats: a polynomial near 0, where 1 - 2 / (e^2x + 1) would cancel.
template <class R>
static inline R float_hyperbolic_tangent(R x) {
    const R size = x < 0.0f ? -x : x, square = x * x;
    R p = square * -5.70498872745e-3f + 2.06390887954e-2f;
    p = p * square - 5.37397155531e-2f;
    p = p * square + 1.33314422036e-1f;
    p = p * square - 3.33332819422e-1f;
    const R near = p * square * x + x;
    const R beyond = 1.0f - 2.0f / (float_exponential(size + size) + 1.0f);
    const R far = x < 0.0f ? -beyond : beyond;
    return size < 0.625f ? near : far;
}

static inline float exponential(float x) { return float_exponential(x); }
static inline double exponential(double x) { return std::exp(x); }
static inline Vector<float>::type exponential(Vector<float>::type x) { return float_exponential(x); }
static inline Vector<double>::type exponential(Vector<double>::type x) {
    for (index_t k = 0; k < Vector<double>::lanes; ++k) x[k] = std::exp(x[k]);
    return x;
}

static inline float hyperbolic_tangent(float x) { return float_hyperbolic_tangent(x); }
static inline double hyperbolic_tangent(double x) { return std::tanh(x); }
static inline Vector<float>::type hyperbolic_tangent(Vector<float>::type x) { return float_hyperbolic_tangent(x); }
static inline Vector<double>::type hyperbolic_tangent(Vector<double>::type x) {
    for (index_t k = 0; k < Vector<double>::lanes; ++k) x[k] = std::tanh(x[k]);
    return x;
}
