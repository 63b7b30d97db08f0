// Metal's words, over hostgpu.h. A SIMD group has 32 threads, as on every Apple GPU.
//
// Stricter than Metal: all lanes of a SIMD group have to take part in a `simd_` function. (There it is the active ones,
// which a kernel that is meant to repeat to the bit must not rely on.)
#pragma once
#include "hostgpu.h"
#include <cmath>
#include <algorithm>

namespace hostgpu {  // before `thread` is a word
inline uint3 position() { return now->thread; }
}  // namespace hostgpu

#define __METAL_VERSION__ 310
#define __global__
#define device
#define constant const
#define thread
#define THREADGROUP_MEMORY static __attribute__((section("hostgpu_shared")))
#define threadgroup  // of a pointer; the runner marks what a kernel declares with THREADGROUP_MEMORY

typedef unsigned uint;

#define thread_position_in_threadgroup (hostgpu::position())
#define threadgroup_position_in_grid (hostgpu::now->block->index)
#define threads_per_threadgroup (hostgpu::launch->block)
#define threadgroups_per_grid (hostgpu::launch->grid)
#define thread_index_in_threadgroup (hostgpu::now->linear)
#define thread_index_in_simdgroup (hostgpu::now->linear % hostgpu::WARP)
#define simdgroup_index_in_threadgroup (hostgpu::now->linear / hostgpu::WARP)
#define threads_per_simdgroup (hostgpu::WARP)

namespace metal {

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
inline mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }

inline void threadgroup_barrier(mem_flags) { hostgpu::barrier(); }
inline void simdgroup_barrier(mem_flags) { hostgpu::exchange(~0u, 0, thread_index_in_simdgroup); }

// What `bring` makes of the values of all lanes.
template <class T, class F>
T of_all(T mine, F bring) {
    uint64_t brought[hostgpu::WARP], bits = 0;
    static_assert(sizeof(T) <= 8, "a SIMD group moves at most 8 bytes a lane");
    memcpy(&bits, &mine, sizeof mine);
    hostgpu::exchange(~0u, bits, thread_index_in_simdgroup, &brought);
    T values[hostgpu::WARP];
    for (unsigned i = 0; i < hostgpu::WARP; ++i) memcpy(&values[i], &brought[i], sizeof(T));
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
