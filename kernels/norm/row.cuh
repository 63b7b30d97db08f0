// A row in registers: CHUNKS x 4 values a thread, read and written VECTOR values at a time.
//
// Values behind the end of the row are zero. With VECTOR 4 a chunk of a thread is 4 neighbours, one 16-byte access;
// with VECTOR 8, for values of 16 bits, two chunks are 8 neighbours, one 16-byte access; with VECTOR 1, for odd widths
// and addresses, neighbours lie in neighbouring threads. All else is the same.
#pragma once
#include "common.cuh"
#include "storage.cuh"

struct Row {
    float v[CHUNKS][4];

    static __device__ __forceinline__ int column(int chunk, int k) {
        return VECTOR == 8   ? (chunk / 2 * THREADS + int(threadIdx.x)) * 8 + chunk % 2 * 4 + k
               : VECTOR == 4 ? (chunk * THREADS + int(threadIdx.x)) * 4 + k
                             : (chunk * 4 + k) * THREADS + int(threadIdx.x);
    }

    // A chunk of `from`; zero behind the end of the row.
    static __device__ __forceinline__ void read(float (&to)[4], const float* __restrict__ from, int c, int width) {
#if VECTOR >= 4
        const float4 four = column(c, 0) < width ? *reinterpret_cast<const float4*>(from + column(c, 0))
                                                 : make_float4(0, 0, 0, 0);
        to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
#else
#pragma unroll
        for (int k = 0; k < 4; ++k) to[k] = column(c, k) < width ? from[column(c, k)] : 0;
#endif
    }

    // A chunk of a parameter that may be null: then all its values are `absent`.
    static __device__ __forceinline__ void read_parameter(float (&to)[4], const float* __restrict__ from, int c, int width,
                                                          float absent) {
        if (from) return read(to, from, c, width);
#pragma unroll
        for (int k = 0; k < 4; ++k) to[k] = absent;
    }

    __device__ __forceinline__ void load(const float* __restrict__ from, int width) {
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) read(v[c], from, c, width);
    }

    __device__ __forceinline__ void store(float* __restrict__ to, int width) const {
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
#if VECTOR >= 4
            if (column(c, 0) < width)
                *reinterpret_cast<float4*>(to + column(c, 0)) = make_float4(v[c][0], v[c][1], v[c][2], v[c][3]);
#else
#pragma unroll
            for (int k = 0; k < 4; ++k)
                if (column(c, k) < width) to[column(c, k)] = v[c][k];
#endif
        }
    }

#if STORAGE
    __device__ __forceinline__ void load(const storage_t* __restrict__ from, int width) {
#if VECTOR == 8
#pragma unroll
        for (int c = 0; c < CHUNKS; c += 2) {
            const uint4 eight = column(c, 0) < width ? *reinterpret_cast<const uint4*>(from + column(c, 0))
                                                     : make_uint4(0, 0, 0, 0);
            unpack(v[c], eight.x), unpack(v[c] + 2, eight.y);
            unpack(v[c + 1], eight.z), unpack(v[c + 1] + 2, eight.w);
        }
#else
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
#if VECTOR == 4
            const uint2 four = column(c, 0) < width ? *reinterpret_cast<const uint2*>(from + column(c, 0))
                                                    : make_uint2(0, 0);
            unpack(v[c], four.x), unpack(v[c] + 2, four.y);
#else
#pragma unroll
            for (int k = 0; k < 4; ++k) v[c][k] = column(c, k) < width ? loaded(from[column(c, k)]) : 0;
#endif
        }
#endif
    }

    __device__ __forceinline__ void store(storage_t* __restrict__ to, int width) const {
#if VECTOR == 8
#pragma unroll
        for (int c = 0; c < CHUNKS; c += 2)
            if (column(c, 0) < width)
                *reinterpret_cast<uint4*>(to + column(c, 0)) =
                    make_uint4(packed(v[c]), packed(v[c] + 2), packed(v[c + 1]), packed(v[c + 1] + 2));
#else
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
#if VECTOR == 4
            if (column(c, 0) < width)
                *reinterpret_cast<uint2*>(to + column(c, 0)) = make_uint2(packed(v[c]), packed(v[c] + 2));
#else
#pragma unroll
            for (int k = 0; k < 4; ++k)
                if (column(c, k) < width) to[column(c, k)] = stored(v[c][k]);
#endif
        }
#endif
    }
#endif

    // Adds a row that lies in memory.
    __device__ __forceinline__ void add(const storage_t* __restrict__ from, int width) {
        Row more;
        more.load(from, width);
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c)
#pragma unroll
            for (int k = 0; k < 4; ++k) v[c][k] += more.v[c][k];
    }

    // f(value, column) for every value of the row that this thread has.
    template <class F>
    __device__ __forceinline__ void each(int width, F f) {
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c)
#pragma unroll
            for (int k = 0; k < 4; ++k)
                if (column(c, k) < width) f(v[c][k], c, k);
    }
};
