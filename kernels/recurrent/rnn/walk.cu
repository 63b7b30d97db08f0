// All time steps of a tanh RNN in one launch (Ba, Kiros, Hinton 2016, eq. 4): see cluster_walk.cuh. Arrays, the norm and the
// macro NORM_GATES are those of rnn.cu.
#include "../walk.cuh"

// x_proj (T, B, H) becomes its sum with h_proj, with a norm without its mean. x_stats [T * B][3] are those of x_proj as it
// comes in, stats [T * B][3] those of the sums.
ENTRY(rnn_walk_forward, CLUSTERED) {
    extern __shared__ __align__(16) float rest[];
    const Place p = place(batch);
#if NORM_GATES
    __shared__ Told<1> squares;
    make(squares);
#endif
    walk_forward<State>(rest, x_proj, w_h, w_stats, x_stats, mask, h, time_steps, batch, p,
                        [&](int t, size_t row, size_t rows, bool masked, Statistics<State>& of_x, Values<State> (&v)[2],
                            Values<State>& h_now) {
#if NORM_GATES
        of_x.rstd[0] = 1;
        of_x.standardise(v[0]);
#endif
        Values<State>& sum = v[1];
        each_unit(p, [&](int u, int) { sum[0][u] += v[0][0][u]; });
        store_units<State>(sum, x_proj, row, p);
#if NORM_GATES
        standardise_centred<State>(squares, t, p, eps, sum).store(stats, row, rows, p);
#endif
        each_unit(p, [&](int u, int unit) {
            if (!masked) h_now[0][u] = tanhf(affine(sum[0][u], gain_h, bias_h, unit));
        });
    });
}
