// CUDA's words, over hostgpu.h.
#pragma once
#include "hostgpu.h"
#include <cmath>
#include <cfloat>
#include <climits>
#include <algorithm>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("hostgpu_shared")))
#define __constant__ static const
#define __align__(n) alignas(n)

#define threadIdx (hostgpu::now->thread)
#define blockIdx (hostgpu::now->block->index)
#define blockDim (hostgpu::launch->block)
#define gridDim (hostgpu::launch->grid)
constexpr int warpSize = 32;

struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }

inline void __syncthreads() { hostgpu::barrier(); }
inline void __syncwarp(unsigned mask = 0xffffffffu) { hostgpu::exchange(mask, 0, hostgpu::now->linear % 32); }
inline void __threadfence() {}

namespace hostgpu {
template <class T> uint64_t bits(T value) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    uint64_t b = 0;
    memcpy(&b, &value, sizeof value);
    return b;
}
template <class T> T value(uint64_t b) {
    T v;
    memcpy(&v, &b, sizeof v);
    return v;
}
// The source of a shuffle in a segment of `width` lanes; outside of it a lane reads itself.
inline unsigned within(int wanted, int width) {
    int lane = int(now->linear % WARP), first = lane / width * width;
    return unsigned(wanted < first || wanted >= first + width ? lane : wanted);
}
}  // namespace hostgpu

template <class T> T __shfl_sync(unsigned mask, T v, int source, int width = 32) {
    int first = int(hostgpu::now->linear % 32) / width * width;
    return hostgpu::value<T>(hostgpu::exchange(mask, hostgpu::bits(v), unsigned(first + source % width)));
}
template <class T> T __shfl_xor_sync(unsigned mask, T v, int by, int width = 32) {
    return hostgpu::value<T>(
        hostgpu::exchange(mask, hostgpu::bits(v), hostgpu::within(int(hostgpu::now->linear % 32) ^ by, width)));
}
template <class T> T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32) {
    return hostgpu::value<T>(
        hostgpu::exchange(mask, hostgpu::bits(v), hostgpu::within(int(hostgpu::now->linear % 32 + by), width)));
}
template <class T> T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32) {
    return hostgpu::value<T>(
        hostgpu::exchange(mask, hostgpu::bits(v), hostgpu::within(int(hostgpu::now->linear % 32) - int(by), width)));
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
    uint64_t all[32];
    hostgpu::exchange(mask, predicate != 0, hostgpu::now->linear % 32, &all);
    unsigned votes = 0;
    for (unsigned i = 0; i < 32; ++i)
        if (mask >> i & 1) votes |= unsigned(all[i]) << i;
    return votes;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == mask; }

// Fibers do not interrupt each other, so a plain read and write is atomic.
template <class T> T atomicAdd(T* p, T v) { T old = *p; *p = old + v; return old; }
template <class T> T atomicMax(T* p, T v) { T old = *p; *p = std::max(old, v); return old; }
template <class T> T atomicMin(T* p, T v) { T old = *p; *p = std::min(old, v); return old; }
template <class T> T atomicExch(T* p, T v) { T old = *p; *p = v; return old; }
template <class T> T atomicCAS(T* p, T expected, T v) { T old = *p; if (old == expected) *p = v; return old; }

template <class T> T __ldg(const T* p) { return *p; }
template <class T> T __ldcg(const T* p) { return *p; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __expf(float x) { return expf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __uint_as_float(unsigned b) { return hostgpu::value<float>(b); }
inline unsigned __float_as_uint(float x) { return unsigned(hostgpu::bits(x)); }
using std::isfinite;
using std::max;
using std::min;

namespace cooperative_groups {
struct grid_group {
    void sync() const { hostgpu::grid_barrier(); }
};
inline grid_group this_grid() { return {}; }
}  // namespace cooperative_groups
