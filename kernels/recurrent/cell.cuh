// The common part of the cell kernels: the gates of a row in registers, their norms, and the gradients of those.
//
// A row of the batch belongs to THREADS threads (32 or more), each with UNITS hidden units: unit u of a thread is
// u * THREADS + threadIdx.x. A block has blockDim.y rows if THREADS is 32, else one. All arrays of a sequence are
// in the order of the walk; in (T, B, .), time step t begins at row t * B.
//
// Operands and results of a sequence's products are storage_t (see storage.cuh): x_proj, h_proj, their gradients, hidden
// states. Parameters, statistics and sums are float, and so are values that accumulate over time steps: an LSTM's cell, a
// GRU's state, the gradients of states.
//
// Values<Cell> is [gate][unit of the thread]: the gates of a row from one source, before its norms or after them.
// Source 0 is the input (x_proj), source 1 the state (h_proj).
#pragma once
#include "common.cuh"
#include "../norm/gradient.h"
#include "storage.cuh"
#include "sigmoid.h"

// Which gates are normalised together: all of an LSTM's, a GRU's z and r, apart from its n (eq. 26, 27).
struct Lstm {
    static constexpr int GATES = 4, PARTS = 1;
    static __device__ constexpr int part(int) { return 0; }
    static __device__ int width(int, int hidden) { return 4 * hidden; }
};
struct Gru {
    static constexpr int GATES = 3, PARTS = 2;
    static __device__ constexpr int part(int gate) { return gate == 2; }
    static __device__ int width(int part, int hidden) { return part ? hidden : 2 * hidden; }
};
struct State {  // a hidden state or a cell by itself, and the one pre-activation of an RNN
    static constexpr int GATES = 1, PARTS = 1;
    static __device__ constexpr int part(int) { return 0; }
    static __device__ int width(int, int hidden) { return hidden; }
};

constexpr int SHARED = 8 * WARP;  // the sums of four norms, two each, from 32 warps

__device__ __forceinline__ int unit(int u) { return u * THREADS + int(threadIdx.x); }

template <class Cell>
using Values = float[Cell::GATES][UNITS];

// f(gate, u) for all values that exist.
template <class Cell, class F>
__device__ __forceinline__ void each(int hidden, F f) {
#pragma unroll
    for (int gate = 0; gate < Cell::GATES; ++gate)
#pragma unroll
        for (int u = 0; u < UNITS; ++u)
            if (unit(u) < hidden) f(gate, u);
}

// A row of (rows, GATES * H), of floats or as stored; values that do not exist are zero.
template <class Cell, class Stored>
__device__ __forceinline__ void load(Values<Cell>& v, const Stored* __restrict__ from, size_t row, int hidden) {
#pragma unroll
    for (int gate = 0; gate < Cell::GATES; ++gate)
#pragma unroll
        for (int u = 0; u < UNITS; ++u)
            v[gate][u] = unit(u) < hidden ? loaded(from[(row * Cell::GATES + gate) * hidden + unit(u)]) : 0;
}

template <class Cell>
__device__ __forceinline__ void store(const Values<Cell>& v, storage_t* __restrict__ to, size_t row, int hidden) {
    each<Cell>(hidden, [&](int gate, int u) {
        to[(row * Cell::GATES + gate) * hidden + unit(u)] = stored(v[gate][u]);
    });
}

// Parameters of a layer: gain and bias, (GATES * H) each. A null gain is one, a null bias zero.
__device__ __forceinline__ float affine(float v, const float* gain, const float* bias, int at) {
    if (gain) v *= gain[at];
    return bias ? v + bias[at] : v;
}

// Layer norm of the values of SOURCES sources at once, in place. `stats` keeps mean, residual and rstd of every norm,
// [norm][row][3] (see norm.cu): the gradient and layer_norm_backward read them.
template <class Cell, int SOURCES>
__device__ __forceinline__ void standardise(Values<Cell> (&v)[SOURCES], int hidden, float eps,
                                            float* __restrict__ stats, size_t row, size_t rows, bool inside,
                                            float* shared) {
    constexpr int NORMS = SOURCES * Cell::PARTS;
    float sums[NORMS], stat[3][NORMS];
#pragma unroll
    for (int pass = 0; pass < 3; ++pass) {
#pragma unroll
        for (int n = 0; n < NORMS; ++n) sums[n] = 0;
#pragma unroll
        for (int source = 0; source < SOURCES; ++source)
            each<Cell>(hidden, [&](int gate, int u) {
                const float value = v[source][gate][u];
                sums[source * Cell::PARTS + Cell::part(gate)] += pass < 2 ? value : value * value;
            });
        block_sum<THREADS>(sums, shared);
#pragma unroll
        for (int n = 0; n < NORMS; ++n) {
            const float mean = sums[n] / Cell::width(n % Cell::PARTS, hidden);
            stat[pass][n] = pass < 2 ? mean : 1.0f / sqrtf(mean + eps);
        }
#pragma unroll
        for (int source = 0; source < SOURCES; ++source)
            each<Cell>(hidden, [&](int gate, int u) {
                const float of_norm = stat[pass][source * Cell::PARTS + Cell::part(gate)];
                v[source][gate][u] = pass < 2 ? v[source][gate][u] - of_norm : v[source][gate][u] * of_norm;
            });
    }
    if (threadIdx.x != 0 || !inside) return;
#pragma unroll
    for (int n = 0; n < NORMS; ++n)
#pragma unroll
        for (int k = 0; k < 3; ++k) stats[(n * rows + row) * 3 + k] = stat[k][n];
}

// The same values again, from the statistics that were kept.
template <class Cell, int SOURCES>
__device__ __forceinline__ void standardise_again(Values<Cell> (&v)[SOURCES], int hidden,
                                                  const float* __restrict__ stats, size_t row, size_t rows) {
#pragma unroll
    for (int source = 0; source < SOURCES; ++source)
        each<Cell>(hidden, [&](int gate, int u) {
            const float* stat = stats + ((source * Cell::PARTS + Cell::part(gate)) * rows + row) * 3;
            v[source][gate][u] = (v[source][gate][u] - stat[0] - stat[1]) * stat[2];
        });
}

// From the gradient after the norms (times the gain) to the one before the norms, in place.
template <class Cell, int SOURCES>
__device__ __forceinline__ void standardise_gradient(Values<Cell> (&d)[SOURCES], const Values<Cell> (&xhat)[SOURCES],
                                                     int hidden, const float* __restrict__ stats, size_t row,
                                                     size_t rows, float* shared) {
    constexpr int NORMS = SOURCES * Cell::PARTS;
    float sums[2 * NORMS];
#pragma unroll
    for (int n = 0; n < 2 * NORMS; ++n) sums[n] = 0;
#pragma unroll
    for (int source = 0; source < SOURCES; ++source)
        each<Cell>(hidden, [&](int gate, int u) {
            const int n = source * Cell::PARTS + Cell::part(gate);
            sums[2 * n] += d[source][gate][u];
            sums[2 * n + 1] += d[source][gate][u] * xhat[source][gate][u];
        });
    block_sum<THREADS>(sums, shared);
#pragma unroll
    for (int source = 0; source < SOURCES; ++source)
        each<Cell>(hidden, [&](int gate, int u) {
            const int n = source * Cell::PARTS + Cell::part(gate), width = Cell::width(Cell::part(gate), hidden);
            const float rstd = stats[(n * rows + row) * 3 + 2];
            d[source][gate][u] = through_norm(d[source][gate][u], xhat[source][gate][u], rstd, sums[2 * n] / width,
                                            sums[2 * n + 1] / width);
        });
}
