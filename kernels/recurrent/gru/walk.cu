// All time steps of a GRU in one launch (Ba, Kiros, Hinton 2016, eq. 26-28): see cluster_walk.cuh. Arrays, norms and the
// macro NORM_GATES are those of gru.cu.
#include "gates.cuh"
#include "../cluster_walk.cuh"

// h_proj (T, B, 3H) is written for the gradient; with norms it is that of the centred w_h. Of stats, x_proj's are known.
extern "C" __global__ void CLUSTERED
gru_walk_forward(const float* __restrict__ x_proj, const float* __restrict__ w_h, const float* __restrict__ w_stats,
                 const float* __restrict__ gain_x, const float* __restrict__ bias_x, const float* __restrict__ gain_h,
                 const float* __restrict__ bias_h, const bool* __restrict__ mask, float* __restrict__ h,
                 float* __restrict__ h_proj, float* __restrict__ stats, int time_steps, int batch, float eps) {
    extern __shared__ __align__(16) float rest[];
    __shared__ States<Gru> states;
    __shared__ Partial<Gru> partial;
    const Place p = place(batch);
    const size_t rows = size_t(time_steps) * batch;
    Forward<Gru> weights;
    weights.load(rest, [&](int state, int column) { return weight_at<Gru>(w_h, w_stats, state, column, p.rank); });
    begin<Gru>(states, h, batch);
#if NORM_GATES
    __shared__ Told<2> squares;
    make(squares);
#endif
    Values<State> h_now;
    load_units<State>(h_now, h, p.b, p);
    cluster_barrier();

    for (int t = 0; t < time_steps; ++t) {
        const size_t row = size_t(t) * batch + p.b;
        Values<Gru> v[2];
        load_units<Gru>(v[0], x_proj, row, p);
#if NORM_GATES
        Statistics<Gru> of_x;
        of_x.load(stats, row, rows, p);
#endif
        const bool masked = p.inside && mask && !mask[row];
        wait_for<Gru>(states, t);
        product<Gru>(weights, states, partial, t);
        __syncthreads();
        if (!p.works) continue;
        collect<Gru>(partial, t, p, v[1]);
        store_units<Gru>(v[1], h_proj, row, p);
#if NORM_GATES
        of_x.standardise(v[0]);
        standardise_centred<Gru>(squares, t, p, eps, v[1]).store(stats + 2 * rows * 3, row, rows, p);
#endif
        each_unit(p, [&](int u, int unit) {
            const GatesOfUnit now = gates([&](int source, int gate) { return v[source][gate][u]; }, unit, gain_x, bias_x,
                                          gain_h, bias_h, HIDDEN);
            if (!masked) h_now[0][u] = gru_state(now.s, h_now[0][u]);
        });
        if (t + 1 < time_steps) send<Gru>(states, t + 1, p, h_now[0]);
        store_units<State>(h_now, h, row + batch, p);
    }
}
