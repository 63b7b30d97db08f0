#pragma once
#include "vector.h"
template <class V, class F> static inline V tmp_each(V x, F f) { for (size_t k = 0; k < sizeof(V)/sizeof(x[0]); ++k) x[k] = f(x[k]); return x; }
template <class V> static inline V exponential_less_one(V x) { return tmp_each(x, [](auto v) { return std::expm1(v); }); }
template <class V> static inline V logarithm(V x) { return tmp_each(x, [](auto v) { return std::log(v); }); }
template <class V> static inline V logarithm_of_one_plus(V x) { return tmp_each(x, [](auto v) { return std::log1p(v); }); }
template <class V> static inline V error_function(V x) { return tmp_each(x, [](auto v) { return std::erf(v); }); }
template <class V> static inline V gaussian_distribution(V x) { return tmp_each(x, [](auto v) { return decltype(v)(0.5 * std::erfc(-double(v) * 0.70710678118654752440)); }); }
template <class V> static inline V gaussian_density(V x) { return tmp_each(x, [](auto v) { return decltype(v)(std::exp(-0.5 * double(v) * double(v)) * 0.39894228040143267794); }); }
template <class V> static inline V softplus(V x) { return tmp_each(x, [](auto v) { return std::fmax(v, decltype(v)(0)) + std::log1p(std::exp(-std::fabs(v))); }); }
template <class V> static inline V square_root(V x) { return tmp_each(x, [](auto v) { return std::sqrt(v); }); }
template <class V> static inline V absolute(V x) { return tmp_each(x, [](auto v) { return std::fabs(v); }); }
