// Formulas of elementwise operators: FORMULAn(name, n arguments, value) is a function of n arrays that writes one. TESTn gives 1 or 0.
//
// The arguments and the value are vectors R.
#pragma once
#include "functions.h"
#include "rows.h"

using R = vector;

// Results that are `past_caches` begin on a cache line.
template <class Value>
static inline void each_value(T* out, int64_t count, int32_t past_caches, const Value& value) {
    const WholeVector<T> whole;
    int64_t k = 0;
    for (; k + Vector<T>::lanes <= count; k += Vector<T>::lanes) {
        if (past_caches) store_past_caches(out + k, value(k, whole));
        else store(out + k, value(k, whole));
    }
    const PartOfVector<T> part{count - k};
    if (part.count) part.store(out + k, value(k, part));
}

#define DEFINED(NAME, TAKEN, ...)                                                                                     \
    extern "C" void NAMED(NAME)(const T* const* in, const int64_t* masks, T* out, int64_t count, int32_t past_caches) { \
        each_value(out, count, past_caches, [=](int64_t k, const auto& lanes) -> R { TAKEN return __VA_ARGS__; });    \
    }
// The mask of a number is 0: all its vectors are one. A block ahead is prefetched, because the hardware's own prefetch begins anew
// at each page.
#define TAKEN(N) (fetch_ahead(in[N] + k, 1024), lanes.load(in[N] + (k & masks[N])));
#define TAKEN1(A) const R A = TAKEN(0)
#define TAKEN2(A, B) TAKEN1(A) const R B = TAKEN(1)
#define TAKEN3(A, B, C) TAKEN2(A, B) const R C = TAKEN(2)
#define TAKEN4(A, B, C, D) TAKEN3(A, B, C) const R D = TAKEN(3)
#define FORMULA1(NAME, A, ...) DEFINED(NAME, TAKEN1(A), __VA_ARGS__)
#define FORMULA2(NAME, A, B, ...) DEFINED(NAME, TAKEN2(A, B), __VA_ARGS__)
#define FORMULA3(NAME, A, B, C, ...) DEFINED(NAME, TAKEN3(A, B, C), __VA_ARGS__)
#define FORMULA4(NAME, A, B, C, D, ...) DEFINED(NAME, TAKEN4(A, B, C, D), __VA_ARGS__)
#define TEST1(NAME, A, ...) FORMULA1(NAME, A, (__VA_ARGS__) ? R{} + 1 : R{})
#define TEST2(NAME, A, B, ...) FORMULA2(NAME, A, B, (__VA_ARGS__) ? R{} + 1 : R{})
