// All time steps of a GRU in one launch (Ba, Kiros, Hinton 2016, eq. 26-28): see cluster_walk.cuh. Arrays, norms and the
// macro NORM_GATES are those of gru.cu.
#include "gates.cuh"
#include "../walk.cuh"

// h_proj (T, B, 3H) is written for the gradient; with norms it is that of the centred w_h. Of stats, x_proj's are known.
ENTRY(gru_walk_forward, CLUSTERED) {
    extern __shared__ __align__(16) float rest[];
    const Place p = place(batch);
#if NORM_GATES
    __shared__ Told<2> squares;
    make(squares);
#endif
    walk_forward<Gru>(rest, x_proj, w_h, w_stats, stats, mask, h, time_steps, batch, p,
                      [&](int t, size_t row, size_t rows, bool masked, const Statistics<Gru>& of_x, Values<Gru> (&v)[2],
                          Values<State>& h_now) {
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
    });
}
