// CUDA's words, over device.h.
#pragma once
#include "device.h"
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
#define __cluster_dims__(...)
#define __constant__ static const
#define __align__(n) alignas(n)

#define threadIdx (hostgpu::thread_index())
#define blockIdx (hostgpu::block_index())
#define blockDim (hostgpu::block_size())
#define gridDim (hostgpu::grid_size())
constexpr int warpSize = 32;

struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

inline void __syncthreads() { hostgpu::barrier(); }
inline void __threadfence() { hostgpu::fence(); }

// The words of kernels/recurrent/cluster.cuh.
struct Signal { unsigned long long state; };
inline int cluster_rank() { return hostgpu::cluster_rank(); }
inline void cluster_barrier() { hostgpu::cluster_barrier(); }
inline void make_signal(Signal& s) { hostgpu::make_signal(&s); }
inline void expect_at(Signal& s, int bytes) { hostgpu::expect_at(&s, bytes); }
inline void wait_at(Signal& s, int parity) { hostgpu::wait_at(&s, parity); }
inline void fence_pushes() {}  // the machine has one way to memory
inline void push_copy(float* to, const float* from, int bytes, int rank, Signal& s) {
    for (int i = 0; i < bytes / 4; i += 4) {
        const float4 v = *reinterpret_cast<const float4*>(from + i);
        hostgpu::push(to + i, &v, sizeof v, rank, &s);
    }
}
template <class T> HOSTGPU_UNSEEN void push(T* to, T v, int rank, Signal& s) { hostgpu::push(to, &v, sizeof v, rank, &s); }

namespace hostgpu {
// The source of a shuffle in a segment of `width` lanes; outside of it a lane reads itself.
inline unsigned within(int wanted, int width) {
    int lane = int(linear_index() % WARP), first = lane / width * width;
    return unsigned(wanted < first || wanted >= first + width ? lane : wanted);
}
}  // namespace hostgpu

inline void __syncwarp(unsigned mask = 0xffffffffu) {
    hostgpu::exchange(hostgpu::Together::wait, mask, 0, hostgpu::linear_index() % 32, nullptr, hostgpu::EVERYWHERE);
}
template <class T> T __shfl_sync(unsigned mask, T v, int source, int width = 32) {
    const int first = int(hostgpu::linear_index() % 32) / width * width;
    return hostgpu::value<T>(hostgpu::exchange(hostgpu::Together::shuffle, mask, hostgpu::bits(v),
                                               unsigned(first + source % width)));
}
template <class T> T __shfl_xor_sync(unsigned mask, T v, int by, int width = 32) {
    return hostgpu::value<T>(hostgpu::exchange(hostgpu::Together::shuffle_xor, mask, hostgpu::bits(v),
                                               hostgpu::within(int(hostgpu::linear_index() % 32) ^ by, width)));
}
template <class T> T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32) {
    return hostgpu::value<T>(hostgpu::exchange(hostgpu::Together::shuffle_down, mask, hostgpu::bits(v),
                                               hostgpu::within(int(hostgpu::linear_index() % 32 + by), width)));
}
template <class T> T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32) {
    return hostgpu::value<T>(hostgpu::exchange(hostgpu::Together::shuffle_up, mask, hostgpu::bits(v),
                                               hostgpu::within(int(hostgpu::linear_index() % 32) - int(by), width)));
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
    uint64_t all[32];
    hostgpu::exchange(hostgpu::Together::vote, mask, predicate != 0, hostgpu::linear_index() % 32, &all);
    unsigned votes = 0;
    for (unsigned i = 0; i < 32; ++i)
        if (mask >> i & 1) votes |= unsigned(all[i]) << i;
    return votes;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == mask; }

template <class T> T atomicAdd(T* p, T v) { return hostgpu::atomically(p, [=](T old) { return T(old + v); }); }
template <class T> T atomicMax(T* p, T v) { return hostgpu::atomically(p, [=](T old) { return std::max(old, v); }); }
template <class T> T atomicMin(T* p, T v) { return hostgpu::atomically(p, [=](T old) { return std::min(old, v); }); }
template <class T> T atomicExch(T* p, T v) { return hostgpu::atomically(p, [=](T) { return v; }); }
template <class T> T atomicCAS(T* p, T expected, T v) {
    return hostgpu::atomically(p, [=](T old) { return old == expected ? v : old; });
}

template <class T> T __ldg(const T* p) {
    hostgpu::read_only(p, sizeof *p);
    return *p;
}
template <class T> T __ldcg(const T* p) { return *p; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __expf(float x) { return expf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __uint_as_float(unsigned b) { return hostgpu::value<float>(b); }
inline unsigned __float_as_uint(float x) { return unsigned(hostgpu::bits(x)); }
using std::isfinite;
using std::max;
using std::min;
