// The common part of the walks that stay on the device for all time steps: the recurrent weights, which never leave the
// blocks of a cluster, the product of a time step, and the exchanges between blocks (sm_90 on).
//
// Macros: HIDDEN units; CLUSTER blocks of THREADS threads, each with OWN units and all their gates; ROWS rows of the batch
// for a cluster; UNITS of a lane (see cell.cuh). Of the product: EACH outputs of a thread, SLICES of the inputs, and of
// each slice KEPT inputs whose weights are in registers; the weights of the rest are in shared memory.
//
// Warp `row` works on row `row` of the cluster's batch and holds units lane, lane + 32, ... of the block; all warps compute
// the product. Sums over the units of a row are added within each block by shuffles, then over the blocks in rank order,
// so all blocks have the same bits.
#pragma once
#include "cell.cuh"
#include "cluster.cuh"

#define CLUSTERED __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)

constexpr int OWN = (HIDDEN + CLUSTER - 1) / CLUSTER;
static_assert((CLUSTER - 1) * OWN < HIDDEN, "a block without units sends nothing, so nobody knows what it has read");

__device__ constexpr int up_to_fours(int n) { return (n + 3) / 4 * 4; }

// The position of this thread: its block in the cluster, its row of the cluster, its lane, and its row of the batch.
struct Place {
    int rank, row, lane, b;
    bool works, inside;  // this warp has a row; the batch has it, too
};

__device__ __forceinline__ Place place(int batch) {
    Place p;
    p.rank = cluster_rank();
    p.row = int(threadIdx.x) / WARP;
    p.lane = int(threadIdx.x) % WARP;
    p.b = int(blockIdx.x) / CLUSTER * ROWS + p.row;
    p.works = p.row < ROWS;
    p.inside = p.works && p.b < batch;
    return p;
}

// Unit u of a lane: its index in the block, and among all units; the second is HIDDEN or more where there is none.
__device__ __forceinline__ int own_unit(int u, const Place& p) { return u * WARP + p.lane; }
__device__ __forceinline__ int unit_of(int own, int rank) { return own < OWN ? rank * OWN + own : HIDDEN; }

// f(u, unit) for the units of this lane that exist.
template <class F>
__device__ __forceinline__ void each_unit(const Place& p, F f) {
#pragma unroll
    for (int u = 0; u < UNITS; ++u) {
        const int unit = unit_of(own_unit(u, p), p.rank);
        if (unit < HIDDEN) f(u, unit);
    }
}

// Each of N values summed over the lanes of a warp; every lane gets the sums.
template <int N>
__device__ __forceinline__ void warp_sum(float (&value)[N]) { row_sum<WARP>(value); }

// The product of a time step --------------------------------------------------------------------------------------

// A thread's part of a matrix: OUTPUTS / EACH threads for each slice of the inputs.
template <int INPUTS, int OUTPUTS>
struct Part {
    static constexpr int AT_ONCE = (OUTPUTS + EACH - 1) / EACH, LENGTH = up_to_fours((INPUTS + SLICES - 1) / SLICES);
    static constexpr int STRIDE = LENGTH * SLICES;  // of a row of inputs; those behind the last one are zero
    static constexpr int WORKERS = AT_ONCE * SLICES;

    float kept[EACH][KEPT];
    float* rest;

    static __device__ __forceinline__ int slice() { return int(threadIdx.x) / AT_ONCE; }
    static __device__ __forceinline__ bool works() { return int(threadIdx.x) < WORKERS; }
    static __device__ __forceinline__ int output(int e) { return int(threadIdx.x) % AT_ONCE + e * AT_ONCE; }
    __device__ __forceinline__ float& in_rest(int e, int i) {
        return rest[((i - KEPT) * EACH + e) * WORKERS + int(threadIdx.x)];
    }

    // weight(input, output) is called for those that exist.
    template <class F>
    __device__ __forceinline__ void load(float* shared, F weight) {
        rest = shared;
        if (!works()) return;
        auto at = [&](int e, int i) {
            const int input = slice() * LENGTH + i;
            return input < INPUTS && output(e) < OUTPUTS ? weight(input, output(e)) : 0.0f;
        };
        for (int e = 0; e < EACH; ++e)
#pragma unroll 1
            for (int i = KEPT; i < LENGTH; ++i) in_rest(e, i) = at(e, i);
#pragma unroll
        for (int e = 0; e < EACH; ++e)
#pragma unroll
            for (int i = 0; i < KEPT; ++i) kept[e][i] = at(e, i);
    }

    // inputs [ROWS][STRIDE] in shared memory.
    __device__ __forceinline__ void multiply(const float* inputs, float (&sum)[EACH][ROWS]) {
        const float* mine = inputs + slice() * LENGTH;
#pragma unroll
        for (int e = 0; e < EACH; ++e)
#pragma unroll
            for (int r = 0; r < ROWS; ++r) sum[e][r] = 0;
#pragma unroll
        for (int i = 0; i < KEPT; i += 4) add(mine, i, sum, [&](int e, int k) { return kept[e][i + k]; });
#pragma unroll 2
        for (int i = KEPT; i < LENGTH; i += 4) add(mine, i, sum, [&](int e, int k) { return in_rest(e, i + k); });
    }

    template <class F>
    static __device__ __forceinline__ void add(const float* mine, int i, float (&sum)[EACH][ROWS], F weight) {
        float w[EACH][4];
#pragma unroll
        for (int e = 0; e < EACH; ++e)
#pragma unroll
            for (int k = 0; k < 4; ++k) w[e][k] = weight(e, k);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const float4 v = *reinterpret_cast<const float4*>(mine + r * STRIDE + i);
#pragma unroll
            for (int e = 0; e < EACH; ++e)
                sum[e][r] += w[e][0] * v.x + w[e][1] * v.y + w[e][2] * v.z + w[e][3] * v.w;
        }
    }
};

// The forward product has the states as inputs and the block's gates as outputs, the gradient's the reverse.
template <class Cell>
using Forward = Part<HIDDEN, Cell::GATES * OWN>;
template <class Cell>
using Backward = Part<Cell::GATES * OWN, HIDDEN>;

// w_h (H, GATES * H) at a state and a column of this block (gate * OWN + unit), less the mean of its row and norm where
// there are norms: the product then has no mean. w_stats [part][H][3] as in row_statistics.cu.
template <class Cell>
__device__ __forceinline__ float weight_at(const float* __restrict__ w_h, const float* __restrict__ w_stats, int state,
                                           int column, int rank) {
    const int gate = column / OWN, unit = unit_of(column % OWN, rank);
    if (unit >= HIDDEN) return 0;
    const float w = w_h[(size_t(state) * Cell::GATES + gate) * HIDDEN + unit];
#if NORM_GATES
    const float* stat = w_stats + (Cell::part(gate) * HIDDEN + state) * 3;
    return w - stat[0] - stat[1];
#else
    return w;
#endif
}

// Exchanges between blocks ----------------------------------------------------------------------------------------

// Pushed values are double-buffered, so a block may go on while a lane of another one still reads. `use` counts the exchanges.
// A phase of a signal cannot be missed: a lane that is late keeps its block from the next barrier.
__device__ __forceinline__ int slot_of(int use) { return use & 1; }
__device__ __forceinline__ int parity_of(int use) { return use >> 1 & 1; }

// N values of every row from every block.
template <int N>
struct __align__(16) Told {
    float values[2][CLUSTER][ROWS][N];
    Signal signals[2];
};

template <int N>
__device__ __forceinline__ void make(Told<N>& told) {
    if (threadIdx.x == 0) make_signal(told.signals[0]), make_signal(told.signals[1]);
}

__device__ __forceinline__ void push_values(float* to, const float (&v)[1], int rank, Signal& s) { push(to, v[0], rank, s); }
__device__ __forceinline__ void push_values(float* to, const float (&v)[2], int rank, Signal& s) {
    push(reinterpret_cast<float2*>(to), make_float2(v[0], v[1]), rank, s);
}
__device__ __forceinline__ void push_values(float* to, const float (&v)[4], int rank, Signal& s) {
    push(reinterpret_cast<float4*>(to), make_float4(v[0], v[1], v[2], v[3]), rank, s);
}
__device__ __forceinline__ void push_values(float* to, const float (&v)[8], int rank, Signal& s) {
    push(reinterpret_cast<float4*>(to), make_float4(v[0], v[1], v[2], v[3]), rank, s);
    push(reinterpret_cast<float4*>(to + 4), make_float4(v[4], v[5], v[6], v[7]), rank, s);
}

// Sends this block's values of a row to all blocks, and waits for theirs; every lane of the warps that have rows calls it.
// `use` counts the calls.
template <int N>
__device__ __forceinline__ void tell(Told<N>& told, int use, const Place& p, const float (&v)[N]) {
    const int slot = slot_of(use);
    Signal& signal = told.signals[slot];
    if (threadIdx.x == 0) expect_at(signal, int(sizeof(told.values[0])));
    fence_pushes();
    if (p.lane < CLUSTER) push_values(told.values[slot][p.rank][p.row], v, p.lane, signal);
    wait_at(signal, parity_of(use));
}

// Sums of the exchanged values over all blocks, in rank order.
template <int N>
__device__ __forceinline__ void sum_told(const Told<N>& told, int use, const Place& p, float (&sum)[N]) {
#pragma unroll
    for (int n = 0; n < N; ++n) sum[n] = 0;
#pragma unroll(N > 4 ? 1 : 4)
    for (int rank = 0; rank < CLUSTER; ++rank)
#pragma unroll
        for (int n = 0; n < N; ++n) sum[n] += told.values[slot_of(use)][rank][p.row][n];
}

// The sums of N values over a row: over the lanes of this warp, then over the blocks.
template <int N>
__device__ __forceinline__ void cluster_sum(Told<N>& told, int use, const Place& p, float (&v)[N]) {
    warp_sum(v);
    tell(told, use, p, v);
    sum_told(told, use, p, v);
}

// The new states, which all blocks need for their next product.
template <class Cell>
struct __align__(16) States {
    float values[2][ROWS][Forward<Cell>::STRIDE];
    Signal signals[2];
};

// The first states; each block reads all of them.
template <class Cell>
__device__ __forceinline__ void begin(States<Cell>& states, const float* __restrict__ h, int batch) {
    constexpr int STRIDE = Forward<Cell>::STRIDE;
    const int first = int(blockIdx.x) / CLUSTER * ROWS;
    for (int i = threadIdx.x; i < 2 * ROWS * STRIDE; i += THREADS) {
        const int row = i / STRIDE % ROWS, state = i % STRIDE, slot = i / STRIDE / ROWS;
        const bool known = slot == 0 && state < HIDDEN && first + row < batch;
        // The second slot's states come from the blocks; the padding behind the last state is never pushed.
        if (slot == 0 || state >= HIDDEN)
            states.values[slot][row][state] = known ? h[size_t(first + row) * HIDDEN + state] : 0;
    }
    if (threadIdx.x == 0) make_signal(states.signals[0]), make_signal(states.signals[1]);
    fence_pushes();
}

// For the product of time step `t`; the first states are known.
template <class Cell>
__device__ __forceinline__ void wait_for(States<Cell>& states, int t) {
    if (t > 0) wait_at(states.signals[slot_of(t)], parity_of(t - 1));
}

// The states that time step `t` needs; by every lane of the warps that have rows.
template <class Cell>
__device__ __forceinline__ void send(States<Cell>& states, int t, const Place& p, const float (&h)[UNITS]) {
    const int slot = slot_of(t);
    if (threadIdx.x == 0) expect_at(states.signals[slot], ROWS * HIDDEN * int(sizeof(float)));
    fence_pushes();
    each_unit(p, [&](int u, int unit) {
#pragma unroll 4
        for (int rank = 0; rank < CLUSTER; ++rank)
            push(&states.values[slot][p.row][unit], h[u], rank, states.signals[slot]);
    });
}

// Parts of the product of a time step, to be added up over the slices. They are double-buffered too, so that the next product
// may begin while a slow warp still reads.
template <class Cell>
struct __align__(16) Partial {
    float values[2][SLICES][ROWS][Cell::GATES * OWN];
};

template <class Cell>
__device__ __forceinline__ void product(Forward<Cell>& weights, const States<Cell>& states, Partial<Cell>& partial, int t) {
    if (!Forward<Cell>::works()) return;
    float sum[EACH][ROWS];
    weights.multiply(&states.values[slot_of(t)][0][0], sum);
#pragma unroll
    for (int e = 0; e < EACH; ++e)
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            if (Forward<Cell>::output(e) < Cell::GATES * OWN)
                partial.values[slot_of(t)][Forward<Cell>::slice()][r][Forward<Cell>::output(e)] = sum[e][r];
}

// h_proj of this lane's units: the product, summed over the slices.
template <class Cell>
__device__ __forceinline__ void collect(const Partial<Cell>& partial, int t, const Place& p, Values<Cell>& v) {
#pragma unroll
    for (int gate = 0; gate < Cell::GATES; ++gate)
#pragma unroll
        for (int u = 0; u < UNITS; ++u) {
            v[gate][u] = 0;
            if (own_unit(u, p) >= OWN) continue;
#pragma unroll 2
            for (int slice = 0; slice < SLICES; ++slice)
                v[gate][u] += partial.values[slot_of(t)][slice][p.row][gate * OWN + own_unit(u, p)];
        }
}

// The gradient of the states: every block has a part of it, from its own gates, and sends to each block the part of that
// block's units.
template <class Cell>
struct __align__(16) Gradients {
    float gates[2][ROWS][Backward<Cell>::STRIDE];  // d_h_proj of this block's gates
    float values[2][CLUSTER * SLICES][ROWS][OWN];
    Signal signals[2];
};

template <class Cell>
__device__ __forceinline__ void make(Gradients<Cell>& d) {
    for (int i = threadIdx.x; i < 2 * ROWS * Backward<Cell>::STRIDE; i += THREADS) (&d.gates[0][0][0])[i] = 0;
    if (threadIdx.x == 0) make_signal(d.signals[0]), make_signal(d.signals[1]);
    fence_pushes();
}

// d_h_proj of this lane's units, for the product.
template <class Cell>
__device__ __forceinline__ void keep(Gradients<Cell>& d, int use, const Place& p, const Values<Cell>& v) {
#pragma unroll
    for (int gate = 0; gate < Cell::GATES; ++gate)
        each_unit(p, [&](int u, int) { d.gates[slot_of(use)][p.row][gate * OWN + own_unit(u, p)] = v[gate][u]; });
}

// The product and its distribution; by all threads, after a barrier.
template <class Cell>
__device__ __forceinline__ void distribute(Backward<Cell>& weights, Gradients<Cell>& d, int use, const Place& p) {
    const int slot = slot_of(use), units = min(OWN, HIDDEN - p.rank * OWN);
    if (threadIdx.x == 0)
        expect_at(d.signals[slot], CLUSTER * SLICES * ROWS * max(units, 0) * int(sizeof(float)));
    if (!Backward<Cell>::works()) return;
    float sum[EACH][ROWS];
    weights.multiply(&d.gates[slot][0][0], sum);
    fence_pushes();
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
        const int state = Backward<Cell>::output(e);
        if (state >= HIDDEN) continue;
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            push(&d.values[slot][p.rank * SLICES + Backward<Cell>::slice()][r][state % OWN], sum[e][r], state / OWN,
                 d.signals[slot]);
    }
}

// The gradient of the states of this lane's units: the parts of all blocks, added in rank order.
template <class Cell>
__device__ __forceinline__ void receive(Gradients<Cell>& d, int use, const Place& p, float (&dh)[UNITS]) {
    const int slot = slot_of(use);
    wait_at(d.signals[slot], parity_of(use));
    each_unit(p, [&](int u, int) {
        dh[u] = 0;
#pragma unroll 4
        for (int part = 0; part < CLUSTER * SLICES; ++part) dh[u] += d.values[slot][part][p.row][own_unit(u, p)];
    });
}

// Rows of a sequence ------------------------------------------------------------------------------------------------

// This lane's values of a row of (rows, GATES * H); zero where there is none.
template <class Cell>
__device__ __forceinline__ void load_units(Values<Cell>& v, const float* __restrict__ from, size_t row, const Place& p) {
#pragma unroll
    for (int gate = 0; gate < Cell::GATES; ++gate)
#pragma unroll
        for (int u = 0; u < UNITS; ++u) {
            const int unit = unit_of(own_unit(u, p), p.rank);
            v[gate][u] = p.inside && unit < HIDDEN ? from[(row * Cell::GATES + gate) * HIDDEN + unit] : 0;
        }
}

// The same of `kinds` such rows one after the other, from row `first` on: sums over time that a row of the batch has.
template <class Cell>
__device__ __forceinline__ void store_sums(const Values<Cell>& v, float* __restrict__ to, int first, int kinds,
                                           const Place& p) {
    if (!p.inside) return;
#pragma unroll
    for (int gate = 0; gate < Cell::GATES; ++gate)
        each_unit(p, [&](int u, int unit) { to[(size_t(p.b) * kinds + first + gate) * HIDDEN + unit] = v[gate][u]; });
}

template <class Cell>
__device__ __forceinline__ void store_units(const Values<Cell>& v, float* __restrict__ to, size_t row, const Place& p) {
    if (!p.inside) return;
#pragma unroll
    for (int gate = 0; gate < Cell::GATES; ++gate)
        each_unit(p, [&](int u, int unit) { to[(row * Cell::GATES + gate) * HIDDEN + unit] = v[gate][u]; });
}

// Norms -----------------------------------------------------------------------------------------------------------

// The statistics of one row, for each part of a cell; stats [part][rows][3] as in row_statistics.cu.
template <class Cell>
struct Statistics {
    float mean[Cell::PARTS], residual[Cell::PARTS], rstd[Cell::PARTS];

    __device__ __forceinline__ void load(const float* stats, size_t row, size_t rows, const Place& p) {
#pragma unroll
        for (int part = 0; part < Cell::PARTS; ++part) {
            const float* stat = stats + (part * rows + row) * 3;
            mean[part] = p.inside ? stat[0] : 0;
            residual[part] = p.inside ? stat[1] : 0;
            rstd[part] = p.inside ? stat[2] : 0;
        }
    }
    // By one lane of one block.
    __device__ __forceinline__ void store(float* stats, size_t row, size_t rows, const Place& p) const {
        if (!p.inside || p.rank != 0 || p.lane != 0) return;
#pragma unroll
        for (int part = 0; part < Cell::PARTS; ++part) {
            float* stat = stats + (part * rows + row) * 3;
            stat[0] = mean[part], stat[1] = residual[part], stat[2] = rstd[part];
        }
    }
    __device__ __forceinline__ void standardise(Values<Cell>& v) const {
#pragma unroll
        for (int gate = 0; gate < Cell::GATES; ++gate)
#pragma unroll
            for (int u = 0; u < UNITS; ++u)
                v[gate][u] = (v[gate][u] - mean[Cell::part(gate)] - residual[Cell::part(gate)]) * rstd[Cell::part(gate)];
    }
};

// Layer norm of values that have no mean, in place.
template <class Cell>
__device__ __forceinline__ Statistics<Cell> standardise_centred(Told<Cell::PARTS>& told, int use, const Place& p, float eps,
                                                                Values<Cell>& v) {
    float squares[Cell::PARTS];
#pragma unroll
    for (int part = 0; part < Cell::PARTS; ++part) squares[part] = 0;
#pragma unroll
    for (int gate = 0; gate < Cell::GATES; ++gate)
        each_unit(p, [&](int u, int) { squares[Cell::part(gate)] += v[gate][u] * v[gate][u]; });
    cluster_sum(told, use, p, squares);
    Statistics<Cell> s;
#pragma unroll
    for (int part = 0; part < Cell::PARTS; ++part) {
        s.mean[part] = s.residual[part] = 0;
        s.rstd[part] = 1.0f / sqrtf(squares[part] / Cell::width(part, HIDDEN) + eps);
    }
    s.standardise(v);
    return s;
}

// Layer norm of one value for each unit, in place. A block sends its mean, and the sums of the centred values and of their
// squares; all are merged about the first block's mean (Chan, Golub, LeVeque 1979).
__device__ __forceinline__ Statistics<State> standardise_state(Told<4>& told, int use, const Place& p, float eps,
                                                               Values<State>& v) {
    const int own = max(min(OWN, HIDDEN - p.rank * OWN), 0);
    float sum[1] = {0}, left[2] = {0, 0};
    each_unit(p, [&](int u, int) { sum[0] += v[0][u]; });
    warp_sum(sum);
    const float mean = own > 0 ? sum[0] / own : 0;
    each_unit(p, [&](int u, int) {
        const float centred = v[0][u] - mean;
        left[0] += centred, left[1] += centred * centred;
    });
    warp_sum(left);
    const float mine[4] = {mean, left[0], left[1], 0};
    tell(told, use, p, mine);
    auto told_by = [&](int rank) { return *reinterpret_cast<const float4*>(told.values[slot_of(use)][rank][p.row]); };
    auto units = [](int rank) { return float(max(min(OWN, HIDDEN - rank * OWN), 0)); };
    Statistics<State> s;
    s.mean[0] = told_by(0).x;
    float offset = 0, squares = 0;
#pragma unroll 4
    for (int rank = 0; rank < CLUSTER; ++rank) {
        const float4 block = told_by(rank);
        offset += units(rank) * (block.x - s.mean[0]) + block.y;
    }
    s.residual[0] = offset / HIDDEN;
#pragma unroll 4
    for (int rank = 0; rank < CLUSTER; ++rank) {
        const float4 block = told_by(rank);
        const float from_mean = block.x - s.mean[0] - s.residual[0];
        squares += block.z + from_mean * (2 * block.y + units(rank) * from_mean);
    }
    s.rstd[0] = 1.0f / sqrtf(squares / HIDDEN + eps);
    s.standardise(v);
    return s;
}

// The sums that the gradients of norms need, from d (after the norm, times the gain) and xhat: of d and of d * xhat, for each
// part of a cell.
template <class Cell>
__device__ __forceinline__ void add_norm_sums(const Place& p, const Values<Cell>& d, const Values<Cell>& xhat,
                                              float* sums) {
#pragma unroll
    for (int gate = 0; gate < Cell::GATES; ++gate)
        each_unit(p, [&](int u, int) {
            sums[2 * Cell::part(gate)] += d[gate][u];
            sums[2 * Cell::part(gate) + 1] += d[gate][u] * xhat[gate][u];
        });
}

template <class Cell>
__device__ __forceinline__ void through_norms(const Place& p, Values<Cell>& d, const Values<Cell>& xhat, const float* sums,
                                              const float (&rstd)[Cell::PARTS]) {
#pragma unroll
    for (int gate = 0; gate < Cell::GATES; ++gate)
        each_unit(p, [&](int u, int) {
            const int part = Cell::part(gate), width = Cell::width(part, HIDDEN);
            d[gate][u] = through_norm(d[gate][u], xhat[gate][u], rstd[part], sums[2 * part] / width,
                                      sums[2 * part + 1] / width);
        });
}

// NaN stays NaN.
__device__ __forceinline__ float within(float v, float limit) { return v > limit ? limit : v < -limit ? -limit : v; }
