// All time steps of a tanh RNN in one launch (Ba, Kiros, Hinton 2016, eq. 4): see cluster_walk.cuh. Arrays, the norm and the
// macro NORM_GATES are those of rnn.cu.
#include "../cluster_walk.cuh"

// sums (T, B, H) comes in as x_proj and becomes its sum with h_proj, with a norm without its mean. x_stats [T * B][3] are
// x_proj's, stats [T * B][3] those of the sums.
extern "C" __global__ void CLUSTERED
rnn_walk_forward(float* __restrict__ sums, const float* __restrict__ w_h, const float* __restrict__ w_stats,
                 const float* __restrict__ x_stats, const float* __restrict__ gain, const float* __restrict__ bias,
                 const bool* __restrict__ mask, float* __restrict__ h, float* __restrict__ stats, int time_steps,
                 int batch, float eps) {
    extern __shared__ __align__(16) float rest[];
    __shared__ States<State> states;
    __shared__ Partial<State> partial;
    const Place p = place(batch);
    const size_t rows = size_t(time_steps) * batch;
    Forward<State> weights;
    weights.load(rest, [&](int state, int column) { return weight_at<State>(w_h, w_stats, state, column, p.rank); });
    begin<State>(states, h, batch);
#if NORM_GATES
    __shared__ Told<1> squares;
    make(squares);
#endif
    Values<State> h_now;
    load_units<State>(h_now, h, p.b, p);
    cluster_barrier();

    for (int t = 0; t < time_steps; ++t) {
        const size_t row = size_t(t) * batch + p.b;
        Values<State> x, sum;
        load_units<State>(x, sums, row, p);
#if NORM_GATES
        Statistics<State> of_x;
        of_x.load(x_stats, row, rows, p);
        of_x.rstd[0] = 1;
        of_x.standardise(x);
#endif
        const bool masked = p.inside && mask && !mask[row];
        wait_for<State>(states, t);
        product<State>(weights, states, partial, t);
        __syncthreads();
        if (!p.works) continue;
        collect<State>(partial, t, p, sum);
        each_unit(p, [&](int u, int) { sum[0][u] += x[0][u]; });
        store_units<State>(sum, sums, row, p);
#if NORM_GATES
        standardise_centred<State>(squares, t, p, eps, sum).store(stats, row, rows, p);
#endif
        each_unit(p, [&](int u, int unit) {
            if (!masked) h_now[0][u] = tanhf(affine(sum[0][u], gain, bias, unit));
        });
        if (t + 1 < time_steps) send<State>(states, t + 1, p, h_now[0]);
        store_units<State>(h_now, h, row + batch, p);
    }
}
