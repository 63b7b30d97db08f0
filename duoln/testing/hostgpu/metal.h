// Metal's words, over device.h. A SIMD group has 32 threads, as on every Apple GPU.
//
// Stricter than Metal: all lanes of a SIMD group have to take part in a `simd_` function. (There it is the active ones,
// which a kernel that is meant to repeat to the bit must not rely on.)
#pragma once
#include "device.h"
#include <cmath>
#include <algorithm>

#define __METAL_VERSION__ 310
#define __global__
#define device
#define constant const
#define thread
#define threadgroup  // of a pointer; what a kernel declares there is rewritten before (text.py)

typedef unsigned uint;

// MLX's names for values of 16 bits.
typedef _Float16 float16_t;
struct bfloat16_t {
    uint16_t upper;  // of the float32 with the same value

    bfloat16_t() = default;
    explicit bfloat16_t(float x) {
        const uint32_t bits = uint32_t(hostgpu::bits(x));
        upper = x != x ? uint16_t(bits >> 16 | 0x40) : uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
    operator float() const { return hostgpu::value<float>(uint64_t(upper) << 16); }
};

#define thread_position_in_threadgroup (hostgpu::thread_index())
#define threadgroup_position_in_grid (hostgpu::block_index())
#define threads_per_threadgroup (hostgpu::block_size())
#define threadgroups_per_grid (hostgpu::grid_size())
#define thread_index_in_threadgroup (hostgpu::linear_index())
#define thread_index_in_simdgroup (hostgpu::linear_index() % hostgpu::WARP)
#define simdgroup_index_in_threadgroup (hostgpu::linear_index() / hostgpu::WARP)
#define threads_per_simdgroup (hostgpu::WARP)

namespace metal {

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
inline mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }

// Which memory a barrier orders, in the machine's words.
inline unsigned ordered_by(mem_flags flags) {
    return (int(flags) & 1 ? hostgpu::GLOBAL : 0u) | (int(flags) & 2 ? hostgpu::SHARED : 0u);
}
inline void threadgroup_barrier(mem_flags flags) { hostgpu::barrier(ordered_by(flags)); }
inline void simdgroup_barrier(mem_flags flags) {
    hostgpu::exchange(hostgpu::Together::wait, ~0u, 0, thread_index_in_simdgroup, nullptr, ordered_by(flags));
}

// What `bring` makes of the values of all lanes.
template <class T, class F>
T of_all(T mine, F bring) {
    uint64_t brought[hostgpu::WARP];
    hostgpu::exchange(hostgpu::Together::shuffle, ~0u, hostgpu::bits(mine), thread_index_in_simdgroup, &brought);
    T values[hostgpu::WARP];
    for (unsigned i = 0; i < hostgpu::WARP; ++i) values[i] = hostgpu::value<T>(brought[i]);
    return bring(values);
}

template <class T> T simd_sum(T v) {
    return of_all(v, [](T* all) {
        for (unsigned half = hostgpu::WARP / 2; half; half /= 2)
            for (unsigned i = 0; i < half; ++i) all[i] += all[i + half];
        return all[0];
    });
}
template <class T> T simd_max(T v) {
    return of_all(v, [](T* all) { return *std::max_element(all, all + hostgpu::WARP); });
}
template <class T> T simd_min(T v) {
    return of_all(v, [](T* all) { return *std::min_element(all, all + hostgpu::WARP); });
}
template <class T> T simd_shuffle(T v, unsigned from) {
    return of_all(v, [from](T* all) { return all[from % hostgpu::WARP]; });
}
template <class T> T simd_broadcast(T v, unsigned from) { return simd_shuffle(v, from); }
template <class T> T simd_shuffle_xor(T v, unsigned by) { return simd_shuffle(v, thread_index_in_simdgroup ^ by); }
template <class T> T simd_shuffle_down(T v, unsigned by) {
    unsigned from = thread_index_in_simdgroup + by;
    return simd_shuffle(v, from < hostgpu::WARP ? from : thread_index_in_simdgroup);
}

using std::exp;
using std::fabs;
using std::isfinite;
using std::log;
using std::max;
using std::min;
using std::sqrt;
using std::tanh;
inline float rsqrt(float x) { return 1.0f / sqrt(x); }

}  // namespace metal
