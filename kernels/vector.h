// Vectors of this CPU, and e^x, tanh x and the sigmoid for one value and for a vector: the same steps, so the same bits.
//
// NaN and infinity go through them. Those of float do not depend on the compiler's library of mathematics.
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
    else
        return folded<T, HALF / 2>(combine(vector, half_away<HALF>(vector, std::make_index_sequence<Vector<T>::lanes>())),
                                   combine);
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
    typedef uint32_t bits __attribute__((vector_size(VECTOR_BYTES)));
};
template <>
struct Whole<float> {
    typedef int32_t type;
    typedef uint32_t bits;
};

template <class To, class From>
static inline To same_bits(From from) {
    To to;
    std::memcpy(&to, &from, sizeof(to));
    return to;
}

// x, but at most `limit`, or at least; NaN stays NaN. For vectors these are single instructions, which compilers do not find.
template <class R>
static inline R at_most(R x, R limit) {
    return x > limit ? limit : x;
}
template <class R>
static inline R at_least(R x, R limit) {
    return x < limit ? limit : x;
}

// Adding 1.5 * 2^23 to a float rounds it to a whole number, which is then in the last bits.
static const float TO_WHOLE = 12582912.0f;

// value * 2^n for a whole number n of -150 to 128, rounded once: in two factors, because 2^n itself may not be a float.
template <class R>
static inline R scaled(R value, R n) {
    using whole = typename Whole<R>::type;
    using bits = typename Whole<R>::bits;  // a shift of unsigned bits does not overflow
    const whole power = same_bits<whole>(n + TO_WHOLE) - 0x4B400000, half = power >> 1;
    return value * same_bits<R>(same_bits<bits>(half + 127) << 23) * same_bits<R>(same_bits<bits>(power - half + 127) << 23);
}

// The same as instructions; the header that has functions for them takes a compiler half a second. If a source is NaN, the
// first two give the second source. The assembler writes the second source first.
#if VECTOR_BYTES >= 32
using floats = Vector<float>::type;
static inline floats at_most(floats x, floats limit) {
    asm("vminps %1, %2, %0" : "=v"(limit) : "v"(x), "v"(limit));
    return limit;
}
static inline floats at_least(floats x, floats limit) {
    asm("vmaxps %1, %2, %0" : "=v"(limit) : "v"(x), "v"(limit));
    return limit;
}
#endif
#if VECTOR_BYTES == 64
static inline floats scaled(floats value, floats n) {
    asm("vscalefps %1, %2, %0" : "=v"(value) : "v"(n), "v"(value));
    return value;
}
#endif

// n / d of floats for a d of 1 to 2^126. Where a division of 64 bytes takes as long as many multiplications, it is by the reciprocal to
// 14 bits and one step that doubles them. AMD's CPUs divide beside other operations; an older GCC takes the newer ones for znver3.
#if VECTOR_BYTES == 64 && !defined(__znver3__) && !defined(__znver4__) && !defined(__znver5__)
static inline floats near_reciprocal(floats d) {
    asm("vrcp14ps %1, %0" : "=v"(d) : "v"(d));
    return d;
}
static inline float near_reciprocal(float d) {
    asm("vrcp14ss %1, %1, %0" : "=v"(d) : "v"(d));
    return d;
}
template <class R>
static inline R quotient(R n, R d) {
    const R near = near_reciprocal(d), q = n * near;
    return q + (n - d * q) * near;
}
#else
template <class R>
static inline R quotient(R n, R d) { return n / d; }
#endif

// e^x = 2^n (1 + q) of floats: n is the whole number that makes q smallest. q keeps the digits that 1 + q would lose. It is
// the polynomial of the sixth degree that is nearest to e^r - 1, to 5e-9, and its terms are added in pairs, because a CPU waits for
// each operation of a long chain.
template <class R>
struct Power {
    R n, q;
};
template <class R>
static inline Power<R> natural_power(R x) {
    const R n = (x * 1.44269504088896341f + TO_WHOLE) - TO_WHOLE;
    R r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    const R square = r * r, high = r * 8.3689535e-3f + 4.1666204e-2f, low = r * 1.6666518e-1f + 5.0000001e-1f;
    return {n, ((square * 1.3950591e-3f + high) * square + low) * square + r};
}

// e^x of floats, to two units in the last place. An x beyond the limits counts as the nearer one.
template <class R>
static inline R exponential_within(R x, float least, float most) {
    const Power<R> power = natural_power(at_most(at_least(x, R{} + least), R{} + most));
    return scaled(power.q + 1.0f, power.n);
}

// Above 88.73 it is infinity, below -104 it is 0.
template <class R>
static inline R float_exponential(R x) { return exponential_within(x, -104.0f, 89.0f); }

// The hyperbolic tangent of floats, to three units in the last place: (e^2x - 1) / (e^2x + 1), where e^2x - 1 comes from q, so
// that nothing cancels near 0. It is 1 for all x above 10.
template <class R>
static inline R float_hyperbolic_tangent(R x) {
    using whole = typename Whole<R>::type;
    const whole bits = same_bits<whole>(x), sign = bits & whole(whole{} + INT32_MIN);
    const R size = same_bits<R>(bits ^ sign);
    const Power<R> power = natural_power(at_most(size + size, R{} + 20.0f));
    const R two_to_n = scaled(R{} + 1.0f, power.n);
    const R less_one = two_to_n * power.q + (two_to_n - 1.0f);
    return same_bits<R>(same_bits<whole>(quotient(less_one, less_one + 2.0f)) | sign);
}

// The sigmoid of floats, 1 / (1 + e^-x), to three units in the last place. As e^x / (1 + e^x) it keeps its digits where it is
// small. It is 1 for all x above 17.
template <class R>
static inline R float_sigmoid(R x) {
    const R power = exponential_within(x, -104.0f, 20.0f);
    return quotient(power, power + 1.0f);
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

static inline float sigmoid(float x) { return float_sigmoid(x); }
static inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
static inline Vector<float>::type sigmoid(Vector<float>::type x) { return float_sigmoid(x); }
static inline Vector<double>::type sigmoid(Vector<double>::type x) { return 1 / (1 + exponential(-x)); }
