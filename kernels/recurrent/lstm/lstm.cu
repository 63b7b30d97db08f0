// One time step of an LSTM between two products, and its gradient (Ba, Kiros, Hinton 2016, eq. 20-22 and 29-31).
//
// Macros: THREADS and UNITS (see cell.cuh); NORM_GATES 1 if x_proj and h_proj are normalised, NORM_CELL 1 if the cell
// is normalised for the output; STORAGE (see storage.cuh). Gates: i, f, g, o (input, forget, cell and output gate).
//
// x_proj = x W_x and h_proj = h W_h (T, B, 4H); c and h (T + 1, B, H) begin with the first states.
// stats [norm][T * B][3]: x_proj, h_proj, then the cell. A null mask means that no row is masked.
#include "gates.cuh"

ENTRY(lstm_forward, __launch_bounds__(BLOCK, 1)) {
    __shared__ float shared[SHARED];
    const int b = int(blockIdx.x * blockDim.y + threadIdx.y);
    const bool inside = b < batch;
    const size_t rows = size_t(time_steps) * batch, row = size_t(time_step) * batch + (inside ? b : 0);
    Values<Lstm> v[2];
    load<Lstm>(v[0], x_proj, row, hidden);
    load<Lstm>(v[1], h_proj, row, hidden);
#if NORM_GATES
    standardise<Lstm, 2>(v, hidden, eps, stats, row, rows, inside, shared);
#endif
    Values<State> c_before, c_new[1];
    load<State>(c_before, c, row, hidden);
    each<State>(hidden, [&](int, int u) {
        const LstmGates s = gates([&](int source, int gate) { return v[source][gate][u]; }, unit(u), gain_x, bias_x,
                                  gain_h, bias_h, bias, hidden);
        c_new[0][0][u] = lstm_cell(s, c_before[0][u]);
        v[0][3][u] = s.o;
    });
    const bool masked = mask && !mask[row];
    const size_t after = row + batch;
    if (inside)
        each<State>(hidden, [&](int, int u) {
            c[after * hidden + unit(u)] = masked ? c_before[0][u] : c_new[0][0][u];
        });
#if NORM_CELL
    standardise<State, 1>(c_new, hidden, eps, stats + CELL_STATS * rows * 3, row, rows, inside, shared);
#endif
    if (!inside) return;
    each<State>(hidden, [&](int, int u) {
        const storage_t h_new = stored(v[0][3][u] * tanhf(affine(c_new[0][0][u], gain_c, bias_c, unit(u))));
        h[after * hidden + unit(u)] = masked ? h[row * hidden + unit(u)] : h_new;
    });
}

// The gradient of the state after the time step has three parts: dh comes through the h_proj of the next time step,
// carry around it (null without a mask), d_hs (T, B, H) from the outputs (null if there is none). dc is the cell's
// gradient: the kernel reads that after the time step and writes that before it. It also writes d_x_proj and d_h_proj
// (T, B, 4H), the gradients before the norms; d_x_gates (T, B, 4H), after them; d_c_norm (T, B, H), after the norm of the
// cell. The gains' gradients are sums over all time steps, so layer_norm_backward computes them later.
ENTRY(lstm_backward, __launch_bounds__(BLOCK, 1)) {
    __shared__ float shared[SHARED];
    const int b = int(blockIdx.x * blockDim.y + threadIdx.y);
    const bool inside = b < batch;
    const size_t rows = size_t(time_steps) * batch, at = inside ? b : 0, row = size_t(time_step) * batch + at;
    const bool masked = mask && !mask[row];
    Values<Lstm> v[2], d_v[2];
    load<Lstm>(v[0], x_proj, row, hidden);
    load<Lstm>(v[1], h_proj, row, hidden);
#if NORM_GATES
    standardise_again<Lstm, 2>(v, hidden, stats, row, rows);
#endif
    // The cell before masking is not kept: the gates give it again.
    Values<State> c_before, c_new[1], upstream, dc_new[1];
    load<State>(c_before, c, row, hidden);
    load<State>(upstream, dh, at, hidden);
    each<State>(hidden, [&](int, int u) {
        const LstmGates s = gates([&](int source, int gate) { return v[source][gate][u]; }, unit(u), gain_x, bias_x,
                                  gain_h, bias_h, bias, hidden);
        c_new[0][0][u] = lstm_cell(s, c_before[0][u]);
        if (d_hs) upstream[0][u] += loaded(d_hs[row * hidden + unit(u)]);
        if (carry && inside) upstream[0][u] += carry[at * hidden + unit(u)];  // row 0 writes its own anew
        d_v[0][0][u] = s.i, d_v[0][1][u] = s.f, d_v[0][2][u] = s.g, d_v[0][3][u] = s.o;
    });
#if NORM_CELL
    Values<State> xhat[1];
#pragma unroll
    for (int u = 0; u < UNITS; ++u) xhat[0][0][u] = unit(u) < hidden ? c_new[0][0][u] : 0;
    standardise_again<State, 1>(xhat, hidden, stats + CELL_STATS * rows * 3, row, rows);
#else
    Values<State>(&xhat)[1] = c_new;
#endif
    float d_o[UNITS];
    each<State>(hidden, [&](int, int u) {
        const float tanh_c = tanhf(affine(xhat[0][0][u], gain_c, bias_c, unit(u)));
        const float d_h = masked ? 0 : upstream[0][u];
        d_o[u] = d_h * tanh_c;
        dc_new[0][0][u] = d_h * d_v[0][3][u] * (1 - tanh_c * tanh_c);
#if NORM_CELL
        if (inside) d_c_norm[row * hidden + unit(u)] = dc_new[0][0][u];
        dc_new[0][0][u] *= gain_c[unit(u)];
#endif
    });
#if NORM_CELL
    standardise_gradient<State, 1>(dc_new, xhat, hidden, stats + CELL_STATS * rows * 3, row, rows, shared);
#endif
    each<State>(hidden, [&](int, int u) {
        const size_t here = at * hidden + unit(u);
        const LstmGates s = {d_v[0][0][u], d_v[0][1][u], d_v[0][2][u], d_v[0][3][u]};
        const float dc_after = inside ? dc[here] : 0, d = masked ? 0 : dc_after + dc_new[0][0][u];
        const LstmGates d_s = lstm_gradient(s, c_before[0][u], d, d_o[u]);
        const float d_sum[4] = {d_s.i, d_s.f, d_s.g, d_s.o};
#pragma unroll
        for (int gate = 0; gate < 4; ++gate) {
            const int place = gate * hidden + unit(u);
            d_v[0][gate][u] = gain_x ? d_sum[gate] * gain_x[place] : d_sum[gate];
            d_v[1][gate][u] = gain_h ? d_sum[gate] * gain_h[place] : d_sum[gate];
            if (d_x_gates && inside) d_x_gates[row * 4 * hidden + place] = stored(d_sum[gate]);
        }
        if (inside) {
            dc[here] = masked ? dc_after : d * s.f;
            if (carry) carry[here] = masked ? upstream[0][u] : 0;
        }
    });
#if NORM_GATES
    standardise_gradient<Lstm, 2>(d_v, v, hidden, stats, row, rows, shared);
#endif
    if (!inside) return;
    store<Lstm>(d_v[0], d_x_proj, row, hidden);
    if (d_h_proj) store<Lstm>(d_v[1], d_h_proj, row, hidden);
}
