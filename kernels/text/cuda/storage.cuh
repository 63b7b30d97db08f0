// Values as an array stores them: in float32, or in 16 bits as float16 or bfloat16. All arithmetic is float.
//
// Macro: STORAGE, 0 for float32, 1 for float16, 2 for bfloat16. Rounding is to nearest, and to even at a tie.
#pragma once

#ifndef STORAGE
#define STORAGE 0
#endif

__device__ __forceinline__ float loaded(float value) { return value; }

#if STORAGE == 0
typedef float storage_t;
__device__ __forceinline__ float stored(float value) { return value; }
#else
typedef unsigned short storage_t;  // the bits

#if STORAGE == 2
__device__ __forceinline__ float loaded(storage_t value) { return __uint_as_float(unsigned(value) << 16); }

__device__ __forceinline__ storage_t stored(float value) {
    const unsigned bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return storage_t(bits >> 16 | 0x40);  // a NaN may not become infinity
    return storage_t((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}
#elif defined(__CUDA_ARCH__)
__device__ __forceinline__ float loaded(storage_t value) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value));
    return wide;
}

__device__ __forceinline__ storage_t stored(float value) {
    storage_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
#else  // a compiler for CPUs, which does not know the GPU's instructions
__device__ __forceinline__ float loaded(storage_t value) {
    const unsigned sign = unsigned(value & 0x8000) << 16;
    const float size = __uint_as_float(unsigned(value & 0x7fff) << 13) * 0x1p112f;
    return __uint_as_float(sign | __float_as_uint(size) | ((value & 0x7c00) == 0x7c00 ? 0x7f800000u : 0u));
}

__device__ __forceinline__ storage_t stored(float value) {
    const unsigned sign = __float_as_uint(value) >> 16 & 0x8000u, size = __float_as_uint(value) & 0x7fffffffu;
    if (size > 0x7f800000u) return storage_t(sign | 0x7e00u);
    if (size >= 0x477ff000u) return storage_t(sign | 0x7c00u);
    if (size < 0x38800000u)  // below 2^-14: adding 1/2 rounds to a multiple of 2^-24
        return storage_t(sign | (__float_as_uint(__uint_as_float(size) + 0.5f) - 0x3f000000u));
    return storage_t(sign | (size - 0x38000000u + 0xfffu + (size >> 13 & 1)) >> 13);
}
#endif

// Two values in the order of memory.
__device__ __forceinline__ void unpack(float* to, unsigned two) {
    to[0] = loaded(storage_t(two & 0xffffu));
    to[1] = loaded(storage_t(two >> 16));
}

__device__ __forceinline__ unsigned packed(const float* two) {
    return unsigned(stored(two[0])) | unsigned(stored(two[1])) << 16;
}
#endif
