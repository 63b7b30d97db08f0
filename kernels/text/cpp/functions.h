// Elementary functions beside those of vector.h, for one value and for a vector: the same steps, so the same bits.
//
// NaN goes through all of them. Each gives every float to at most four units in the last place, also those below the least normal number.
// The polynomials are minimax fits of the relative error; a comment says the interval and the error.
#pragma once
#include "vector.h"

template <class T>
struct Coefficients;
template <>
struct Coefficients<float> {
    // 2 atanh s = 2 s + s z W(z), z = s^2: for |s| up to 0.1716, which is log m for m of sqrt(1/2) to sqrt 2 (to 2e-09); up to 1/3
    // (2e-10).
    static constexpr float LOGARITHM[] = {6.6666776e-01f, 3.9977583e-01f, 2.987084e-01f};
    static constexpr float LOGARITHM_TO_2[] = {6.6666675e-01f, 3.9998952e-01f, 2.8615087e-01f, 2.1445523e-01f, 2.423846e-01f};
    // erf x = x + x P(x^2) for |x| up to 0.81 (4e-09).
    static constexpr float ERROR[] = {1.2837917e-01f, -3.7612605e-01f, 1.12831146e-01f, -2.6819853e-02f, 5.0821463e-03f, -6.510208e-04f};
    // (t + 2) e^(t^2/2) Phi(-t) = P((t - 2) / (t + 2)) for t of 0 to 14.6 (3e-08).
    static constexpr float MILLS[] = {
        6.72408e-01f, -3.3140454e-01f, 2.8798638e-02f, 3.6721073e-02f, -4.8509147e-04f, -6.748802e-03f, -1.8845885e-03f, 8.7875413e-04f,
        7.1543164e-04f, 3.4353605e-05f, -7.1551294e-05f};
    static constexpr float MILLS_MIDDLE = 2;
    static constexpr float ERROR_LIMIT = 4.0f, GAUSSIAN_LIMIT = 14.6f, EXPONENTIAL_LIMIT = 110.0f;
    static constexpr uint32_t SQRT_HALF = 0x3F3504F3, LEADING_HALF = 0xFFFFF000;
};
template <>
struct Coefficients<double> {
    // As those of floats: to 3e-18 and 8e-20,
    static constexpr double LOGARITHM[] = {
        0.6666666666666736, 0.39999999999405034, 0.2857142874423165, 0.22222198403083, 0.18183572504150583, 0.1531385313789698,
        0.14797840067142343};
    static constexpr double LOGARITHM_TO_2[] = {
        0.6666666666666667, 0.3999999999999543, 0.2857142857232414, 0.22222222137813633, 0.1818182271845244, 0.1538446391963723,
        0.1333661363332256, 0.11717943919238048, 0.1095965788738237, 0.07041706680493907, 0.16392006865608558};
    // for |x| up to 0.81 (1e-17),
    static constexpr double ERROR[] = {
        0.1283791670955126, -0.37612638903183915, 0.11283791670961392, -0.026866170646246103, 0.005223977636426813,
        -0.0008548327680878757, 0.00012055357997609056, -1.4926262999518052e-05, 1.6471541612932508e-06, -1.6448945269386455e-07,
        1.5095316036303014e-08, -1.1239294036452804e-09};
    // with 3 for 2, for t of 0 to 38.7 (6e-17).
    static constexpr double MILLS[] = {
        0.729083690133373, -0.5093319819174895, 0.23001771997459877, -0.04726302514296638, -0.010462867023151523, 0.006972621240304922,
        0.0010275922567097343, -0.0010458286202280488, -0.0002565753264777153, 0.00015439443888261702, 7.881257692549409e-05,
        -1.3245846969313006e-05, -2.0688897550756763e-05, -3.5186101125874384e-06, 3.639922526009372e-06, 2.2591899210228247e-06,
        6.906292567971528e-09, -5.980589158747969e-07, -2.6999320949026536e-07, 4.832603182824285e-08, 9.10721892062959e-08,
        2.098680894146468e-08, -1.080747404889982e-08, -5.7870427053081e-09, -5.965263718590797e-10};
    static constexpr double MILLS_MIDDLE = 3;
    static constexpr double ERROR_LIMIT = 6.0, GAUSSIAN_LIMIT = 38.7, EXPONENTIAL_LIMIT = 752.0;
    static constexpr uint64_t SQRT_HALF = 0x3FE6A09E667F3BCD, LEADING_HALF = 0xFFFFFFFFF8000000;
};
template <class R>
using CoefficientsOf = Coefficients<element<R>>;

template <class R>
static inline R absolute(R x) {
    using whole = typename Whole<R>::type;
    return same_bits<R>(same_bits<whole>(x) & ~same_bits<whole>(-R{}));
}

// The size of `size`, which is not negative, with the sign of x.
template <class R>
static inline R with_sign(R size, R x) {
    using whole = typename Whole<R>::type;
    return same_bits<R>(same_bits<whole>(size) | (same_bits<whole>(x) & same_bits<whole>(-R{})));
}

// 2^n for a whole number n whose power is a normal number.
template <class R>
static inline R two_to(R n) {
    using bits = typename Whole<R>::bits;
    return same_bits<R>((same_bits<bits>(n + FormatOf<R>::TO_WHOLE) + FormatOf<R>::BIAS) << FormatOf<R>::FRACTION_BITS);
}

// e^x - 1: 2^n (q + (1 - 2^-n)) loses no digits near 0, and 2^n itself may not be a number. It is -1 for all x below -20 (-40).
template <class R>
static inline R exponential_less_one(R x) {
    const Power<R> power = natural_power(at_most(at_least(x, limit<R>(-20.0f, -40.0)), limit<R>(89.0f, 710.0)));
    const R rest = 1 - two_to(at_least(-power.n, R{} - 100));
    const R value = scaled(power.q + rest, power.n);
    return with_sign(absolute(value), x);
}

// log(2^e (1 + f)) for a 1 + f of sqrt(1/2) to sqrt 2: with s = f / (2 + f), log(1 + f) = f - s (f - s^2 W(s^2)).
template <class R>
static inline R logarithm_of_parts(R e, R f) {
    const R s = quotient(f, f + 2), z = s * s;
    const R value = f - s * (f - polynomial(z, CoefficientsOf<R>::LOGARITHM) * z);
    return (value + e * FormatOf<R>::LN2_LOW) + e * FormatOf<R>::LN2_HIGH;
}

// x = 2^e m for a normal positive x, where m is from sqrt(1/2) to sqrt 2.
template <class R>
struct Parts {
    R e, m;
};
template <class R>
static inline Parts<R> parts(R x) {
    using bits = typename Whole<R>::bits;
    constexpr auto BITS = FormatOf<R>::FRACTION_BITS, AWAY = FormatOf<R>::BIAS + 1;
    const bits whole_of_x = same_bits<bits>(x);
    const bits steps = (whole_of_x - CoefficientsOf<R>::SQRT_HALF + (typename FormatOf<R>::bits(AWAY) << BITS)) >> BITS;  // e + AWAY
    const R to_whole = R{} + FormatOf<R>::TO_WHOLE;
    const R e = same_bits<R>(steps + same_bits<bits>(to_whole)) - (FormatOf<R>::TO_WHOLE + AWAY);
    return {e, same_bits<R>(whole_of_x - ((steps - AWAY) << BITS))};
}

template <class R>
static inline R infinite() {
    return R{} + element<R>(INFINITY);
}

// log x, given that of a positive finite x: -infinity at 0, NaN below.
template <class R>
static inline R logarithm_beyond(R x, R value) {
    const R at_or_below_zero = x == R{} ? -infinite<R>() : R{} + element<R>(NAN);
    const R finite = x < infinite<R>() ? value : x;
    return x > R{} ? finite : at_or_below_zero;
}

// The natural logarithm.
template <class R>
static inline R logarithm(R x) {
    constexpr auto BITS = FormatOf<R>::FRACTION_BITS;
    const R least = limit<R>(1.17549435e-38f, 2.2250738585072014e-308), many = limit<R>(8388608.0f, 4503599627370496.0);
    const Parts<R> p = parts(x < least ? x * many : x);
    return logarithm_beyond(x, logarithm_of_parts(x < least ? p.e - BITS : p.e, p.m - 1));
}

// log(1 + x): 1 + f = 2^-e (1 + x) is made of x, so that it has the digits that 1 + x lost.
template <class R>
static inline R logarithm_of_one_plus(R x) {
    const R sum = x + 1;
    const Parts<R> p = parts(sum);
    const R smaller = two_to(at_least(-p.e, R{} - 100));
    const R f = p.e > 99 ? p.m - 1 : x * smaller + (smaller - 1);
    return with_sign(absolute(logarithm_beyond(sum, logarithm_of_parts(p.e, f))), x);
}

// log(1 + x) for an x of 0 to 1.
template <class R>
static inline R logarithm_to_2(R x) {
    const R s = quotient(x, x + 2), z = s * s;
    return polynomial(z, CoefficientsOf<R>::LOGARITHM_TO_2) * z * s + (s + s);
}

// log(1 + e^x) = max(x, 0) + log(1 + e^-|x|).
template <class R>
static inline R softplus(R x) {
    return at_least(x, R{}) + logarithm_to_2(exponential(-absolute(x)));
}

// t^2 and the digits that it lost. Without fused multiply-adds they come from the square of the leading half of t's digits.
template <class R>
struct Square {
    R high, low;
};
template <class R>
static inline Square<R> exact_square(R t) {
#if defined(__FMA__) || defined(__aarch64__)
    const R high = t * t;
    return {high, opaque(t) * t - high};
#else
    using bits = typename Whole<R>::bits;
    const R leading = same_bits<R>(same_bits<bits>(t) & CoefficientsOf<R>::LEADING_HALF);
    return {leading * leading, (t - leading) * (t + leading)};
#endif
}

// e^(-times t^2) for a t of at least 0; `times` is 1 or 1/2.
template <class R>
static inline Power<R> gaussian_power(R t, element<R> times = 0.5) {
    using Real = FormatOf<R>;
    t = at_least(t, R{} + element<R>(1e-9));  // the power is 1 there, and its square is far from the slow numbers near 0
    const Square<R> square = exact_square(t);
    const R n = (Real::TO_WHOLE - t * t * (times * Real::LOG2_E)) - Real::TO_WHOLE;
    const R r = -(square.high * times + n * Real::LN2_HIGH) - n * Real::LN2_LOW;
    return {n, small_exponential_less_one(r - square.low * times)};
}

// e^(t^2/2) Phi(-t) for a t of 0 to GAUSSIAN_LIMIT, and that times t.
template <class R>
struct Mills {
    R ratio, times_t;
};
template <class R>
static inline Mills<R> mills(R t) {
    using C = CoefficientsOf<R>;
    const R near = near_reciprocal(t + C::MILLS_MIDDLE);  // of a sum that was rounded
    const R reciprocal = near + ((1 - near * C::MILLS_MIDDLE) - near * t) * near, part = t * reciprocal;
    const R series = polynomial(part * 2 - 1, C::MILLS);
    return {series * reciprocal, series * part};
}

// The error function: beyond 0.8 it is 1 - 2 Phi(-sqrt(2) |x|), where errors are small beside 1. It is 1 for all x above 4 (6).
template <class R>
static inline R error_function(R x) {
    using C = CoefficientsOf<R>;
    const R size = at_most(absolute(x), R{} + C::ERROR_LIMIT), t = size * limit<R>(1.41421356237309505f, 1.41421356237309505);
    const R not_slow = at_least(size, R{} + element<R>(1e-9));  // a square near the least number takes many times as long
    const R square = not_slow * not_slow, small = polynomial(square, C::ERROR) * size + size;
    const Power<R> power = natural_power(-square);
    const R ratio = mills(t).ratio;
    return with_sign(size < limit<R>(0.8f, 0.8) ? small : 1 - scaled(power.q * ratio + ratio, power.n + 1), x);
}

// 2 e^(-x^2) / sqrt(pi).
template <class R>
static inline R error_function_slope(R x) {
    const Power<R> power = gaussian_power(at_most(absolute(x), limit<R>(10.4f, 27.4)), 1);
    const R peak = limit<R>(1.12837916709551257f, 1.12837916709551257);
    return scaled(power.q * peak + peak, power.n);
}

// x Phi(x) = max(x, 0) - |x| Phi(-|x|), and its slope Phi(x) + x phi(x), of which slope(x) + slope(-x) = 1.
template <class R>
static inline R gelu(R x) {
    const R t = at_most(absolute(x), R{} + CoefficientsOf<R>::GAUSSIAN_LIMIT);
    const Power<R> power = gaussian_power(t);
    const R scale = mills(t).times_t;
    return at_least(x, -R{}) - scaled(power.q * scale + scale, power.n);  // -0 for what is too near 0
}
template <class R>
static inline R gelu_slope(R x) {
    const R t = at_most(absolute(x), R{} + CoefficientsOf<R>::GAUSSIAN_LIMIT);
    const Power<R> power = gaussian_power(t);
    const R peak = limit<R>(0.398942280401432677940f, 0.398942280401432677940);
    const R scale = mills(t).ratio - peak * t, below = scaled(power.q * scale + scale, power.n);
    return x < R{} ? below : 1 - below;
}

// e^-t = 2^n (1 + q) for a t of at least 0.
template <class R>
struct Decay {
    R n, q, value;
    R one_more() const { return value + 1; }
    R square_of_one_more() const { return value * (value + 2) + 1; }  // rounded once
    R times(R scale) const { return scaled(q * scale + scale, n); }
};
template <class R>
static inline Decay<R> decay(R t) {
    const Power<R> power = natural_power(-at_most(t, R{} + CoefficientsOf<R>::EXPONENTIAL_LIMIT));
    return {power.n, power.q, scaled(power.q + 1, power.n)};
}

// The slope of the sigmoid, e^-|x| / (1 + e^-|x|)^2: a sigmoid y near 1 has lost the digits of 1 - y.
template <class R>
static inline R sigmoid_slope(R x) {
    const Decay<R> e = decay(absolute(x));
    return e.times(quotient(R{} + 1, e.square_of_one_more()));
}

// The slope of the hyperbolic tangent, 4 e^-2|x| / (1 + e^-2|x|)^2.
template <class R>
static inline R hyperbolic_tangent_slope(R x) {
    const Decay<R> e = decay(absolute(x + x));
    return e.times(quotient(R{} + 4, e.square_of_one_more()));
}

// x sigmoid(x), and its slope, of which slope(x) + slope(-x) = 1.
template <class R>
static inline R silu(R x) {
    const Decay<R> e = decay(absolute(x));
    const R part = quotient(x < R{} ? e.q + 1 : R{} + 1, e.one_more());
    const R below = scaled(at_least(x, R{} - CoefficientsOf<R>::EXPONENTIAL_LIMIT) * part, e.n);
    return x < R{} ? below : x * part;
}
template <class R>
static inline R silu_slope(R x) {
    const R t = at_most(absolute(x), R{} + CoefficientsOf<R>::EXPONENTIAL_LIMIT);
    const Decay<R> e = decay(t);
    const R below = e.times(quotient(e.one_more() - t, e.square_of_one_more()));
    return x < R{} ? below : 1 - below;
}

// The square root; for vectors a single instruction, which compilers do not find.
template <class R>
static inline R square_root(R x) {
    if constexpr (std::is_same_v<element<R>, R>) return std::sqrt(x);
    else {
#if defined(__AVX__)
        if constexpr (std::is_same_v<R, floats>) asm("vsqrtps %1, %0" : "=v"(x) : "v"(x));
        else asm("vsqrtpd %1, %0" : "=v"(x) : "v"(x));
#else
        for (index_t k = 0; k < Vector<element<R>>::lanes; ++k) x[k] = std::sqrt(x[k]);
#endif
        return x;
    }
}
