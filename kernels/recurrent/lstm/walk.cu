// All time steps of an LSTM in one launch (Ba, Kiros, Hinton 2016, eq. 20-22 and 29-31): see
// cluster_walk.cuh. Arrays, norms and macros NORM_GATES and NORM_CELL are those of lstm.cu.
#include "gates.cuh"
#include "../cluster_walk.cuh"

// h_proj (T, B, 4H) is written for the gradient; with norms it is that of the centred w_h. Of stats, x_proj's are known.
extern "C" __global__ void CLUSTERED
lstm_walk_forward(const float* __restrict__ x_proj, const float* __restrict__ w_h, const float* __restrict__ w_stats,
                  const float* __restrict__ gain_x, const float* __restrict__ bias_x, const float* __restrict__ gain_h,
                  const float* __restrict__ bias_h, const float* __restrict__ bias, const float* __restrict__ gain_c,
                  const float* __restrict__ bias_c, const bool* __restrict__ mask, float* __restrict__ h,
                  float* __restrict__ c, float* __restrict__ h_proj, float* __restrict__ stats, int time_steps, int batch,
                  float eps) {
    extern __shared__ __align__(16) float rest[];
    __shared__ States<Lstm> states;
    __shared__ Partial<Lstm> partial;
    const Place p = place(batch);
    const size_t rows = size_t(time_steps) * batch;
    Forward<Lstm> weights;
    weights.load(rest, [&](int state, int column) { return weight_at<Lstm>(w_h, w_stats, state, column, p.rank); });
    begin<Lstm>(states, h, batch);
#if NORM_GATES
    __shared__ Told<1> squares;
    make(squares);
#endif
#if NORM_CELL
    __shared__ Told<4> cells;
    make(cells);
#endif
    Values<State> c_now, h_now;
    load_units<State>(c_now, c, p.b, p);
    load_units<State>(h_now, h, p.b, p);
    cluster_barrier();

    for (int t = 0; t < time_steps; ++t) {
        const size_t row = size_t(t) * batch + p.b;
        Values<Lstm> v[2];
        load_units<Lstm>(v[0], x_proj, row, p);
#if NORM_GATES
        Statistics<Lstm> of_x;
        of_x.load(stats, row, rows, p);
#endif
        const bool masked = p.inside && mask && !mask[row];
        wait_for<Lstm>(states, t);
        product<Lstm>(weights, states, partial, t);
        __syncthreads();
        if (!p.works) continue;
        collect<Lstm>(partial, t, p, v[1]);
        store_units<Lstm>(v[1], h_proj, row, p);
#if NORM_GATES
        of_x.standardise(v[0]);
        standardise_centred<Lstm>(squares, t, p, eps, v[1]).store(stats + rows * 3, row, rows, p);
#endif
        Values<State> c_norm;
        float o[UNITS];
        each_unit(p, [&](int u, int unit) {
            const LstmGates s = gates([&](int source, int gate) { return v[source][gate][u]; }, unit, gain_x, bias_x,
                                      gain_h, bias_h, bias, HIDDEN);
            c_norm[0][u] = lstm_cell(s, c_now[0][u]);
            if (!masked) c_now[0][u] = c_norm[0][u];
            o[u] = s.o;
        });
#if NORM_CELL
        standardise_state(cells, t, p, eps, c_norm).store(stats + CELL_STATS * rows * 3, row, rows, p);
#endif
        each_unit(p, [&](int u, int unit) {
            if (!masked) h_now[0][u] = o[u] * tanhf(affine(c_norm[0][u], gain_c, bias_c, unit));
        });
        if (t + 1 < time_steps) send<Lstm>(states, t + 1, p, h_now[0]);
        store_units<State>(c_now, c, row + batch, p);
        store_units<State>(h_now, h, row + batch, p);
    }
}
