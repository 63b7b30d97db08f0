// Vectors of this CPU, and e^x, tanh x and the sigmoid for one value and for a vector: the same steps, so the same bits.
//
// NaN and infinity go through them. Those of float do not depend on the compiler's library of mathematics.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
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

// The type of one value of R, a float or double or a vector of them, and what its bits mean.
template <class R>
struct Element {
    using type = std::remove_reference_t<decltype(std::declval<R&>()[0])>;
};
template <>
struct Element<float> {
    using type = float;
};
template <>
struct Element<double> {
    using type = double;
};
template <class R>
using element = typename Element<R>::type;

// TO_WHOLE is 1.5 * 2^FRACTION_BITS: adding it rounds a value to a whole number, which is then in the last bits. LN2_HIGH has so few
// bits that its products with exponents are exact.
template <class T>
struct Format;
template <>
struct Format<float> {
    using whole = int32_t;
    using bits = uint32_t;
    static constexpr int FRACTION_BITS = 23, BIAS = 127;
    static constexpr float TO_WHOLE = 12582912.0f, LOG2_E = 1.44269504088896341f, LN2_HIGH = 0.693359375f, LN2_LOW = -2.12194440e-4f;
};
template <>
struct Format<double> {
    using whole = int64_t;
    using bits = uint64_t;
    static constexpr int FRACTION_BITS = 52, BIAS = 1023;
    static constexpr double TO_WHOLE = 6755399441055744.0, LOG2_E = 1.44269504088896341, LN2_HIGH = 0.693145751953125,
                            LN2_LOW = 1.42860682030941723212e-6;
};
template <class R>
using FormatOf = Format<element<R>>;

// Whole numbers of the size of R's values, as many as R has.
template <class R>
struct Whole {
    using type = typename Vector<typename FormatOf<R>::whole>::type;
    using bits = typename Vector<typename FormatOf<R>::bits>::type;  // a shift of unsigned bits does not overflow
};
template <>
struct Whole<float> : Format<float> {
    using type = whole;
};
template <>
struct Whole<double> : Format<double> {
    using type = whole;
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

// value * 2^n for a whole number n of -250 to 128, rounded once: in two factors, because 2^n itself may not be a float. For double n is
// -2000 to 1024.
template <class R>
static inline R scaled(R value, R n) {
    using whole = typename Whole<R>::type;
    using bits = typename Whole<R>::bits;
    constexpr auto BITS = FormatOf<R>::FRACTION_BITS, BIAS = FormatOf<R>::BIAS;
    const R zero = R{} + FormatOf<R>::TO_WHOLE;
    const whole power = same_bits<whole>(n + FormatOf<R>::TO_WHOLE) - same_bits<whole>(zero), half = power >> 1;
    return value * same_bits<R>(same_bits<bits>(half + BIAS) << BITS) * same_bits<R>(same_bits<bits>(power - half + BIAS) << BITS);
}

// The same as instructions; the header that has functions for them takes a compiler half a second. If a source is NaN, the
// first two give the second source. The assembler writes the second source first.
using floats = Vector<float>::type;
using doubles = Vector<double>::type;
#if VECTOR_BYTES >= 32
#define LIMITS(V, SUFFIX)                                                     \
    static inline V at_most(V x, V limit) {                                   \
        asm("vmin" SUFFIX " %1, %2, %0" : "=v"(limit) : "v"(x), "v"(limit)); \
        return limit;                                                         \
    }                                                                         \
    static inline V at_least(V x, V limit) {                                  \
        asm("vmax" SUFFIX " %1, %2, %0" : "=v"(limit) : "v"(x), "v"(limit)); \
        return limit;                                                         \
    }
LIMITS(floats, "ps")
LIMITS(doubles, "pd")
#undef LIMITS
#endif
#if VECTOR_BYTES == 64
static inline floats scaled(floats value, floats n) {
    asm("vscalefps %1, %2, %0" : "=v"(value) : "v"(n), "v"(value));
    return value;
}
static inline doubles scaled(doubles value, doubles n) {
    asm("vscalefpd %1, %2, %0" : "=v"(value) : "v"(n), "v"(value));
    return value;
}
#endif

// The same value, which the compiler takes for another one.
template <class R>
static inline R opaque(R x) {
#if defined(__x86_64__)
    asm("" : "+v"(x));
#elif defined(__aarch64__)
    asm("" : "+w"(x));
#endif
    return x;
}

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
static inline double near_reciprocal(double d) { return 1 / d; }
static inline doubles near_reciprocal(doubles d) { return 1 / d; }
static inline double quotient(double n, double d) { return n / d; }
static inline doubles quotient(doubles n, doubles d) { return n / d; }
template <class R>
static inline R quotient(R n, R d) {
    const R near = near_reciprocal(d), q = n * near;
    return q + (n - d * q) * near;
}
#else
template <class R>
static inline R near_reciprocal(R d) { return 1 / d; }
template <class R>
static inline R quotient(R n, R d) { return n / d; }
#endif

// c[0] + c[1] x + c[2] x^2 + ...
template <class R, class T, std::size_t COUNT>
static inline R polynomial(R x, const T (&c)[COUNT]) {
    R sum = R{} + c[COUNT - 1];
    for (std::size_t k = COUNT - 1; k-- > 0;) sum = sum * x + c[k];
    return sum;
}

// e^x = 2^n (1 + q): n is the whole number that makes q smallest. q keeps the digits that 1 + q would lose.
template <class R>
struct Power {
    R n, q;
};

// e^r - 1 for an |r| of at most 0.347. That of floats is the polynomial of the sixth degree that is nearest, to 5e-9; its terms are
// added in pairs, because a CPU waits for each operation of a long chain. That of doubles has the eleventh degree and is as near as 2e-17 r.
static constexpr double EXPONENTIAL[] = {
    0.5000000000000006, 0.16666666666666677, 0.04166666666657285, 0.008333333333321381, 0.0013888888932764433, 0.00019841269886838284,
    2.4801503875900035e-05, 2.7557243421775654e-06, 2.762658504149415e-07, 2.510933371211467e-08};
template <class R>
static inline R small_exponential_less_one(R r) {
    const R square = r * r;
    if constexpr (std::is_same_v<element<R>, double>) return polynomial(r, EXPONENTIAL) * square + r;
    else {
        const R high = r * 8.3689535e-3f + 4.1666204e-2f, low = r * 1.6666518e-1f + 5.0000001e-1f;
        return ((square * 1.3950591e-3f + high) * square + low) * square + r;
    }
}

template <class R>
static inline Power<R> natural_power(R x) {
    using Real = FormatOf<R>;
    const R n = (x * Real::LOG2_E + Real::TO_WHOLE) - Real::TO_WHOLE;
    R r = x - n * Real::LN2_HIGH;
    r = r - n * Real::LN2_LOW;
    return {n, small_exponential_less_one(r)};
}

// Limits for the exponents of floats and of doubles.
template <class R>
static inline R limit(float of_floats, double of_doubles) {
    if constexpr (std::is_same_v<element<R>, float>) return R{} + of_floats;
    else return R{} + of_doubles;
}

// e^x, to two units in the last place. Above 88.73 (709.8) it is infinity, below -104 (-745.2) it is 0.
template <class R>
static inline R exponential(R x) {
    const Power<R> power = natural_power(at_most(at_least(x, limit<R>(-104.0f, -746.0)), limit<R>(89.0f, 710.0)));
    return scaled(power.q + 1, power.n);
}

// The hyperbolic tangent, to three units in the last place: (e^2x - 1) / (e^2x + 1), where e^2x - 1 comes from q, so
// that nothing cancels near 0. It is 1 for all x above 10 (20).
template <class R>
static inline R hyperbolic_tangent(R x) {
    using whole = typename Whole<R>::type;
    const whole bits = same_bits<whole>(x), sign = bits & same_bits<whole>(-R{});
    const R size = same_bits<R>(bits ^ sign);
    const Power<R> power = natural_power(at_most(size + size, limit<R>(20.0f, 40.0)));
    const R two_to_n = scaled(R{} + 1, power.n);
    const R less_one = two_to_n * power.q + (two_to_n - 1);
    return same_bits<R>(same_bits<whole>(quotient(less_one, less_one + 2)) | sign);
}

// The sigmoid, 1 / (1 + e^-x), to three units in the last place. As e^x / (1 + e^x) it keeps its digits where it is
// small. It is 1 for all x above 17 (37).
template <class R>
static inline R sigmoid(R x) {
    const Power<R> e = natural_power(at_most(at_least(x, limit<R>(-104.0f, -746.0)), limit<R>(20.0f, 40.0)));
    const R power = scaled(e.q + 1, e.n);
    return quotient(power, power + 1);
}
