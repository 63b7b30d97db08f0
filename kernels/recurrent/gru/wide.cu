// A time step of a GRU whose rows are too wide for registers, and its gradient. Arguments and results are those of gru.cu.
#include "../wide.cuh"
#include "gates.cuh"

ENTRY(gru_forward_wide, __launch_bounds__(BLOCK, 1)) {
    __shared__ float shared[SHARED];
    const size_t rows = size_t(time_steps) * batch, row = size_t(time_step) * batch + blockIdx.x;
#if NORM_GATES
    for (int source = 0; source < 2; ++source)
        for (int part = 0; part < Gru::PARTS; ++part) {
            const storage_t* values = (source ? h_proj : x_proj) + row * 3 * hidden + part * 2 * hidden;
            keep_statistics(stats + ((source * Gru::PARTS + part) * rows + row) * 3, Gru::width(part, hidden), eps, shared,
                            [&](int i) { return loaded(values[i]); });
        }
#endif
    const GatesOfRow normed = {x_proj, h_proj, stats, row, rows, 3 * hidden, Gru::PARTS};
    auto gates_of = [&](int u) {
        return gates([&](int source, int gate) { return normed(source, Gru::part(gate), gate * hidden + u); }, u, gain_x,
                     bias_x, gain_h, bias_h, hidden);
    };
    const bool masked = mask && !mask[row];
#pragma unroll 1
    for (int u = threadIdx.x; u < hidden; u += THREADS) {
        const float h_before = h[row * hidden + u];
        const float h_new = masked ? h_before : gru_state(gates_of(u).s, h_before);
        h[(row + batch) * hidden + u] = h_new;
        if (STORAGE) h_stored[(row + batch) * hidden + u] = stored(h_new);
    }
}

ENTRY(gru_backward_wide, __launch_bounds__(BLOCK, 1)) {
    __shared__ float shared[SHARED];
    const size_t rows = size_t(time_steps) * batch, at = blockIdx.x, row = size_t(time_step) * batch + at;
    const bool masked = mask && !mask[row];
    const GatesOfRow normed = {x_proj, h_proj, stats, row, rows, 3 * hidden, Gru::PARTS};
    auto gates_of = [&](int u) {
        return gates([&](int source, int gate) { return normed(source, Gru::part(gate), gate * hidden + u); }, u, gain_x,
                     bias_x, gain_h, bias_h, hidden);
    };
    float sums[4 * Gru::PARTS] = {};  // of source and part: the gradient, and its product with the standardised value
#pragma unroll 1
    for (int u = threadIdx.x; u < hidden; u += THREADS) {
        const size_t here = at * hidden + u;
        const GatesOfUnit now = gates_of(u);
        const float upstream = dh[here] + carry[here] + (d_hs ? loaded(d_hs[row * hidden + u]) : 0);
        const float d = masked ? 0 : upstream;
        const GruGates d_s = gru_gradient(now.s, h[row * hidden + u], now.h_n, d);
        const float d_x[3] = {d_s.z, d_s.r, d_s.n}, d_state[3] = {d_s.z, d_s.r, d_s.n * now.s.r};
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
            const int place = gate * hidden + u;
#if NORM_GATES
            const storage_t kept_x = stored(d_x[gate]), kept_state = stored(d_state[gate]);  // these values are read again below
            d_x_gates[row * 3 * hidden + place] = kept_x;
            d_h_gates[row * 3 * hidden + place] = kept_state;
            float* of_part = sums + 4 * Gru::part(gate);
            of_part[0] += loaded(kept_x) * gain_x[place];
            of_part[1] += loaded(kept_x) * gain_x[place] * normed(0, Gru::part(gate), place);
            of_part[2] += loaded(kept_state) * gain_h[place];
            of_part[3] += loaded(kept_state) * gain_h[place] * normed(1, Gru::part(gate), place);
#else
            d_x_proj[row * 3 * hidden + place] = stored(d_x[gate]);
            d_h_proj[row * 3 * hidden + place] = stored(d_state[gate]);
#endif
        }
        carry[here] = masked ? upstream : d * (1 - now.s.z);
    }
#if NORM_GATES
    block_sum<THREADS>(sums, shared);
#pragma unroll 1
    for (int u = threadIdx.x; u < hidden; u += THREADS)
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
            const int part = Gru::part(gate), place = gate * hidden + u, width = Gru::width(part, hidden);
            const size_t of_gate = row * 3 * hidden + place;
            const float* of_part = sums + 4 * part;
            d_x_proj[of_gate] = stored(through_norm(loaded(d_x_gates[of_gate]) * gain_x[place], normed(0, part, place),
                                                    normed.stat(0, part)[2], of_part[0] / width, of_part[1] / width));
            d_h_proj[of_gate] = stored(through_norm(loaded(d_h_gates[of_gate]) * gain_h[place], normed(1, part, place),
                                                    normed.stat(1, part)[2], of_part[2] / width, of_part[3] / width));
        }
#endif
}
