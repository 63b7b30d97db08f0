// The loops over time of the walks of a cluster: what a cell has of its own is a function of one time step.
//
// `rest` is the kernel's dynamic shared memory. A cell makes its signals (Told) before it calls the loop.
#pragma once
#include "cluster_walk.cuh"

// step(t, row, rows, masked, of_x, v, h) makes the new state h of this lane's units from the products v of the input and of the state;
// of_x are the statistics of the first. A masked row keeps its state.
template <class Cell, class Step>
__device__ __forceinline__ void walk_forward(float* rest, const float* x_proj, const float* __restrict__ w_h,
                                             const float* __restrict__ w_stats, const float* x_stats,
                                             const bool* __restrict__ mask, float* __restrict__ h, int time_steps, int batch,
                                             const Place& p, Step step) {
    __shared__ States<Cell> states;
    __shared__ Partial<Cell> partial;
    const size_t rows = size_t(time_steps) * batch;
    Forward<Cell> weights;
    weights.load(rest, [&](int state, int column) { return weight_at<Cell>(w_h, w_stats, state, column, p.rank); });
    begin<Cell>(states, h, batch);
    Values<State> h_now;
    load_units<State>(h_now, h, p.b, p);
    cluster_barrier();

    for (int t = 0; t < time_steps; ++t) {
        const size_t row = size_t(t) * batch + p.b;
        Values<Cell> v[2];
        load_units<Cell>(v[0], x_proj, row, p);
        Statistics<Cell> of_x;
#if NORM_GATES
        of_x.load(x_stats, row, rows, p);
#endif
        const bool masked = p.inside && mask && !mask[row];
        wait_for<Cell>(states, t);
        product<Cell>(weights, states, partial, t);
        __syncthreads();
        if (!p.works) continue;
        collect<Cell>(partial, t, p, v[1]);
        step(t, row, rows, masked, of_x, v, h_now);
        if (t + 1 < time_steps) send<Cell>(states, t + 1, p, h_now[0]);
        store_units<State>(h_now, h, row + batch, p);
    }
}

// The gradient of the state after a time step: of the first one it is known, that of the others comes from all blocks.
template <class Cell>
struct Receiver {
    Gradients<Cell>& d;
    const Place& p;
    Values<State>& dh;
    const Values<State>& carry;
    float limit;

    __device__ __forceinline__ void before(int use) const {
        if (use == 0) return;
        receive<Cell>(d, use - 1, p, dh[0]);
        each_unit(p, [&](int u, int) { dh[0][u] = within(dh[0][u] + carry[0][u], limit); });
    }
};

// The same backward. step(use, row, rows, masked, d_out, received, dh, carry, d_v) makes the gradients d_v of the products of the input
// and of the state, and carry, that of the state before which comes around its product. `use` counts time steps; received.before(use)
// completes dh, the gradient of the state after the time step, to which d_out, that of the output, is added.
template <class Cell, class Step>
__device__ __forceinline__ void walk_backward(float* rest, const float* __restrict__ w_h, const float* __restrict__ w_stats,
                                              const bool* __restrict__ mask, const float* __restrict__ d_hs,
                                              float* __restrict__ dh, int time_steps, int batch, float limit, const Place& p,
                                              Step step) {
    __shared__ Gradients<Cell> d_states;
    const size_t rows = size_t(time_steps) * batch;
    Backward<Cell> weights;
    weights.load(rest, [&](int column, int state) { return weight_at<Cell>(w_h, w_stats, state, column, p.rank); });
    make<Cell>(d_states);
    Values<State> dh_now, carry = {};
    load_units<State>(dh_now, dh, p.b, p);
    cluster_barrier();

    const Receiver<Cell> received = {d_states, p, dh_now, carry, limit};
    for (int use = 0; use < time_steps; ++use) {
        const size_t row = size_t(time_steps - 1 - use) * batch + p.b;
        if (p.works) {
            Values<Cell> d_v[2] = {};
            Values<State> d_out = {};
            if (d_hs) load_units<State>(d_out, d_hs, row, p);
            const bool masked = p.inside && mask && !mask[row];
            step(use, row, rows, masked, d_out, received, dh_now, carry, d_v);
            keep<Cell>(d_states, use, p, d_v[1]);
        }
        __syncthreads();
        distribute<Cell>(weights, d_states, use, p);
    }
    if (!p.works) return;
    received.before(time_steps);
    store_units<State>(dh_now, dh, p.b, p);
}
