// The common part of the Metal cell kernels: h_proj of a row in registers, its norms, and their gradients.
//
// A row of the batch belongs to one threadgroup of THREADS threads, each with UNITS hidden units: unit u of thread t
// is u * THREADS + t. x_gates is normalised before, for all time steps at once, so a kernel normalises only what
// depends on the state. Values of a row are [gate][unit of the thread]; those that do not exist are zero.
#pragma once
#include "common.metal.h"
#include "../norm/gradient.h"

// Which gates are normalised together: all of an LSTM's, a GRU's z and r, apart from its n (eq. 26, 27).
struct Lstm {
    enum { GATES = 4, PARTS = 1 };
    static int part(int gate) { return 0; }
    static int width(int part, int hidden) { return 4 * hidden; }
};
struct Gru {
    enum { GATES = 3, PARTS = 2 };
    static int part(int gate) { return gate == 2; }
    static int width(int part, int hidden) { return part ? hidden : 2 * hidden; }
};
struct State {  // a cell by itself
    enum { GATES = 1, PARTS = 1 };
    static int part(int gate) { return 0; }
    static int width(int part, int hidden) { return hidden; }
};

#define STATS 3  // of each norm and row: mean, residual and rstd, as in norm.cu
#define SHARED (4 * THREADS / SIMD)  // two sums of two norms
#if HAS_MASK
#define MASKED(row) (!mask[row])  // such a row keeps its state
#else
#define MASKED(row) false
#endif
#define EACH_UNIT(u) for (int u = 0; u < UNITS; ++u) if (u * THREADS + t < hidden)

template <class Cell, class Floats>
inline void load(thread float (&v)[Cell::GATES][UNITS], Floats from, int row, int hidden, int t) {
    for (int gate = 0; gate < Cell::GATES; ++gate)
        for (int u = 0; u < UNITS; ++u)
            v[gate][u] = u * THREADS + t < hidden ? from[(row * Cell::GATES + gate) * hidden + u * THREADS + t] : 0;
}

template <class Cell>
inline void store(thread const float (&v)[Cell::GATES][UNITS], device float* to, int row, int hidden, int t) {
    for (int gate = 0; gate < Cell::GATES; ++gate)
        EACH_UNIT(u) to[(row * Cell::GATES + gate) * hidden + u * THREADS + t] = v[gate][u];
}

// Layer norm in place; `stat` receives the statistics for the gradient.
template <class Cell>
inline void standardise(thread float (&v)[Cell::GATES][UNITS], thread float (&stat)[Cell::PARTS][STATS], int hidden,
                        float eps, threadgroup float* shared, int t) {
    for (int pass = 0; pass < STATS; ++pass) {
        float sums[Cell::PARTS];
        for (int part = 0; part < Cell::PARTS; ++part) sums[part] = 0;
        for (int gate = 0; gate < Cell::GATES; ++gate)
            EACH_UNIT(u) sums[Cell::part(gate)] += pass < 2 ? v[gate][u] : v[gate][u] * v[gate][u];
        row_sum(sums, shared, t);
        for (int part = 0; part < Cell::PARTS; ++part) {
            const float mean = sums[part] / Cell::width(part, hidden);
            stat[part][pass] = pass < 2 ? mean : 1.0f / sqrt(mean + eps);
        }
        for (int gate = 0; gate < Cell::GATES; ++gate)
            EACH_UNIT(u) {
                const float of_norm = stat[Cell::part(gate)][pass];
                v[gate][u] = pass < 2 ? v[gate][u] - of_norm : v[gate][u] * of_norm;
            }
    }
}

// The same values again, from the statistics that were kept.
template <class Cell>
inline void standardise_again(thread float (&v)[Cell::GATES][UNITS], thread const float (&stat)[Cell::PARTS][STATS],
                              int hidden, int t) {
    for (int gate = 0; gate < Cell::GATES; ++gate)
        EACH_UNIT(u) {
            const int part = Cell::part(gate);
            v[gate][u] = (v[gate][u] - stat[part][0] - stat[part][1]) * stat[part][2];
        }
}

// From the gradient after the norms (times the gain) to the one before the norms, in place.
template <class Cell>
inline void standardise_gradient(thread float (&d)[Cell::GATES][UNITS],
                                 thread const float (&xhat)[Cell::GATES][UNITS],
                                 thread const float (&stat)[Cell::PARTS][STATS], int hidden,
                                 threadgroup float* shared, int t) {
    float sums[2 * Cell::PARTS];
    for (int n = 0; n < 2 * Cell::PARTS; ++n) sums[n] = 0;
    for (int gate = 0; gate < Cell::GATES; ++gate)
        EACH_UNIT(u) {
            sums[2 * Cell::part(gate)] += d[gate][u];
            sums[2 * Cell::part(gate) + 1] += d[gate][u] * xhat[gate][u];
        }
    row_sum(sums, shared, t);
    for (int gate = 0; gate < Cell::GATES; ++gate)
        EACH_UNIT(u) {
            const int part = Cell::part(gate), width = Cell::width(part, hidden);
            d[gate][u] = through_norm(d[gate][u], xhat[gate][u], stat[part][2], sums[2 * part] / width,
                                      sums[2 * part + 1] / width);
        }
}
