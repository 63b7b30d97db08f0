// All time steps of an LSTM in one launch (Ba, Kiros, Hinton 2016, eq. 20-22 and 29-31): see
// cluster_walk.cuh. Arrays, norms and macros NORM_GATES and NORM_CELL are those of lstm.cu.
#include "gates.cuh"
#include "../walk.cuh"

// h_proj (T, B, 4H) is written for the gradient; with norms it is that of the centred w_h. Of stats, x_proj's are known.
ENTRY(lstm_walk_forward, CLUSTERED) {
    extern __shared__ __align__(16) float rest[];
    const Place p = place(batch);
#if NORM_GATES
    __shared__ Told<1> squares;
    make(squares);
#endif
#if NORM_CELL
    __shared__ Told<4> cells;
    make(cells);
#endif
    Values<State> c_now;
    load_units<State>(c_now, c, p.b, p);
    walk_forward<Lstm>(rest, x_proj, w_h, w_stats, stats, mask, h, time_steps, batch, p,
                       [&](int t, size_t row, size_t rows, bool masked, const Statistics<Lstm>& of_x, Values<Lstm> (&v)[2],
                           Values<State>& h_now) {
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
        store_units<State>(c_now, c, row + batch, p);
    });
}
