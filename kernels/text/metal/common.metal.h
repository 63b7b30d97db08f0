// The common part of the Metal kernels: sums over the threads of a row, added in one fixed order.
//
// THREADS work on a row, a multiple of 32, and are a whole threadgroup. Metal has no lambdas before its version 3.2
// and wants the address space of every pointer, so loops are written out, and functions that read from the caller's
// arrays take the pointer as a type of its own: MLX puts inputs of fewer than 8 values into `constant` memory.
#pragma once
#include "portable.h"

#define SIMD 32

// Values as an array stores them. MLX defines the names of 16 bits, bfloat16_t also where Metal has no bfloat.
// Macro: STORAGE, 0 for float, 1 for float16, 2 for bfloat16.
#if STORAGE == 2
typedef bfloat16_t storage_t;
#elif STORAGE == 1
typedef float16_t storage_t;
#else
typedef float storage_t;
#endif

// Each of N values summed over all threads, through `shared` of N floats for each 32 threads.
template <int N>
inline void row_sum(thread float (&value)[N], threadgroup float* shared, int t) {
    for (int n = 0; n < N; ++n) value[n] = simd_sum(value[n]);
    if (THREADS == SIMD) return;
    threadgroup_barrier(mem_flags::mem_threadgroup);  // other threads may still read the last sums
    if (t % SIMD == 0)
        for (int n = 0; n < N; ++n) shared[t / SIMD * N + n] = value[n];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int n = 0; n < N; ++n) {
        value[n] = 0;
        for (int group = 0; group < THREADS / SIMD; ++group) value[n] += shared[group * N + n];
    }
}
