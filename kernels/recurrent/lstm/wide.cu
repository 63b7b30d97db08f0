// A time step of an LSTM whose rows are too wide for registers, and its gradient. Arguments and results are those of lstm.cu.
#include "../wide.cuh"
#include "gates.cuh"

ENTRY(lstm_forward_wide, __launch_bounds__(BLOCK, 1)) {
    __shared__ float shared[SHARED];
    const size_t rows = size_t(time_steps) * batch, row = size_t(time_step) * batch + blockIdx.x, after = row + batch;
    const bool masked = mask && !mask[row];
#if NORM_GATES
    keep_statistics(stats + row * 3, 4 * hidden, eps, shared,
                    [&](int i) { return loaded(x_proj[row * 4 * hidden + i]); });
    keep_statistics(stats + (rows + row) * 3, 4 * hidden, eps, shared,
                    [&](int i) { return loaded(h_proj[row * 4 * hidden + i]); });
#endif
    const GatesOfRow normed = {x_proj, h_proj, stats, row, rows, 4 * hidden, 1};
    auto gates_of = [&](int u) {
        return gates([&](int source, int gate) { return normed(source, 0, gate * hidden + u); }, u, gain_x, bias_x, gain_h,
                     bias_h, bias, hidden);
    };
#pragma unroll 1
    for (int u = threadIdx.x; u < hidden; u += THREADS) {
        const float c_before = c[row * hidden + u];
        c[after * hidden + u] = masked ? c_before : lstm_cell(gates_of(u), c_before);
    }
#if NORM_CELL
    // Those of a masked row, whose cell is the one before, are not used: its gradient is zero.
    float* stat = stats + (CELL_STATS * rows + row) * 3;
    keep_statistics(stat, hidden, eps, shared, [&](int i) { return c[after * hidden + i]; });
#endif
#pragma unroll 1
    for (int u = threadIdx.x; u < hidden; u += THREADS) {
        float c_new = c[after * hidden + u];
#if NORM_CELL
        c_new = affine((c_new - stat[0] - stat[1]) * stat[2], gain_c, bias_c, u);
#endif
        const float o = gates_of(u).o;
        h[after * hidden + u] = masked ? h[row * hidden + u] : stored(o * tanhf(c_new));
    }
}

ENTRY(lstm_backward_wide, __launch_bounds__(BLOCK, 1)) {
    __shared__ float shared[SHARED];
    const size_t rows = size_t(time_steps) * batch, at = blockIdx.x, row = size_t(time_step) * batch + at;
    const bool masked = mask && !mask[row];
    const GatesOfRow normed = {x_proj, h_proj, stats, row, rows, 4 * hidden, 1};
    auto gates_of = [&](int u) {
        return gates([&](int source, int gate) { return normed(source, 0, gate * hidden + u); }, u, gain_x, bias_x, gain_h,
                     bias_h, bias, hidden);
    };
    auto d_state = [&](int u) {
        const size_t here = at * hidden + u;
        const float d = dh[here] + (d_hs ? loaded(d_hs[row * hidden + u]) : 0) + (carry ? carry[here] : 0);
        return d;
    };
#if NORM_CELL
    const float* cell_stat = stats + (CELL_STATS * rows + row) * 3;
    float of_cell[2] = {0, 0};
#pragma unroll 1
    for (int u = threadIdx.x; u < hidden; u += THREADS) {
        const LstmGates s = gates_of(u);
        const float xhat = (lstm_cell(s, c[row * hidden + u]) - cell_stat[0] - cell_stat[1]) * cell_stat[2];
        const float tanh_c = tanhf(affine(xhat, gain_c, bias_c, u));
        const float d = (masked ? 0 : d_state(u)) * s.o * (1 - tanh_c * tanh_c);
        d_c_norm[row * hidden + u] = d;
        of_cell[0] += d * gain_c[u];
        of_cell[1] += d * gain_c[u] * xhat;
    }
    block_sum<THREADS>(of_cell, shared);
#endif
    float sums[4] = {0, 0, 0, 0};
#pragma unroll 1
    for (int u = threadIdx.x; u < hidden; u += THREADS) {
        const size_t here = at * hidden + u;
        const LstmGates s = gates_of(u);
        const float c_before = c[row * hidden + u], upstream = d_state(u), d_h = masked ? 0 : upstream;
#if NORM_CELL
        const float xhat = (lstm_cell(s, c_before) - cell_stat[0] - cell_stat[1]) * cell_stat[2];
        const float tanh_c = tanhf(affine(xhat, gain_c, bias_c, u));
        const float d_c = through_norm(d_c_norm[row * hidden + u] * gain_c[u], xhat, cell_stat[2], of_cell[0] / hidden,
                                       of_cell[1] / hidden);
#else
        const float tanh_c = tanhf(lstm_cell(s, c_before));
        const float d_c = d_h * s.o * (1 - tanh_c * tanh_c);
#endif
        const float dc_after = dc[here], d = masked ? 0 : dc_after + d_c;
        const LstmGates d_s = lstm_gradient(s, c_before, d, d_h * tanh_c);
        const float d_sum[4] = {d_s.i, d_s.f, d_s.g, d_s.o};
#pragma unroll
        for (int gate = 0; gate < 4; ++gate) {
            const int place = gate * hidden + u;
#if NORM_GATES
            const storage_t kept = stored(d_sum[gate]);  // this value is read again below
            d_x_gates[row * 4 * hidden + place] = kept;
            const float d_x = loaded(kept) * gain_x[place], d_state_part = loaded(kept) * gain_h[place];
            sums[0] += d_x;
            sums[1] += d_x * normed(0, 0, place);
            sums[2] += d_state_part;
            sums[3] += d_state_part * normed(1, 0, place);
#else
            d_x_proj[row * 4 * hidden + place] = stored(d_sum[gate]);
            if (d_h_proj) d_h_proj[row * 4 * hidden + place] = stored(d_sum[gate]);
#endif
        }
        dc[here] = masked ? dc_after : d * s.f;
        if (carry) carry[here] = masked ? upstream : 0;
    }
#if NORM_GATES
    block_sum<THREADS>(sums, shared);
#pragma unroll 1
    for (int u = threadIdx.x; u < hidden; u += THREADS)
#pragma unroll
        for (int gate = 0; gate < 4; ++gate) {
            const int place = gate * hidden + u;
            const float d = loaded(d_x_gates[row * 4 * hidden + place]);
            d_x_proj[row * 4 * hidden + place] =
                stored(through_norm(d * gain_x[place], normed(0, 0, place), normed.stat(0, 0)[2],
                                    sums[0] / (4 * hidden), sums[1] / (4 * hidden)));
            d_h_proj[row * 4 * hidden + place] =
                stored(through_norm(d * gain_h[place], normed(1, 0, place), normed.stat(1, 0)[2],
                                    sums[2] / (4 * hidden), sums[3] / (4 * hidden)));
        }
#endif
}
