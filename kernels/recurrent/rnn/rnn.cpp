// A tanh RNN over a whole sequence (Ba, Kiros, Hinton 2016, eq. 4), forward and backward.
//
// The input's product for all positions is the argument `sums`, to which that of the state is added; the gradient is a result;
// large products are not made here. With a norm both weights are used without the means of their rows, so that it need not
// subtract one: the input's was before its product, the recurrent one is when it is packed.
#include "../one_step.h"

template <class T>
struct Rnn {
    Sizes sizes;
    T eps;
    T* sums;  // (positions, stride)
    const T *gain, *bias;  // (stride); without a norm there is no gain
    T* hidden;  // (steps + 1, batch, stride)
    T* rstd;  // (positions)
};

template <class T>
struct RnnGradients {
    const T* d_hidden;  // (steps, batch, hidden), or null
    T* dh;  // (batch, stride)
    T* d_sums;  // (positions, stride)
    T *d_gain, *d_bias;  // (blocks of rows, stride)
    T limit;  // of the gradient that a time step hands to the one before; 0 for none
};

template <class T, bool NORMED>
static void walk(const Rnn<T>& n, const T* packed, T* panel_sums, const Share& s, const Barrier& barrier) {
    using vector = typename Vector<T>::type;
    const Sizes& sizes = n.sizes;
    const index_t H = sizes.hidden, P = sizes.panels, W = Panel<T>::width, S = sizes.stride;
    const index_t L = Vector<T>::lanes, first = s.first_panel * W, last = s.last_panel * W;
    Rows rows;
    for (index_t position = 0; position < sizes.steps; ++position) {
        const index_t t = sizes.time(position);
        begin_step(rows, sizes, s, t, {n.hidden});
        if (packed)
            multiply_states(rows, n.hidden + sizes.before(t) * sizes.batch * S, S, packed, s.first_panel, s.last_panel, H, n.sums, S,
                            true);
        if constexpr (NORMED) {
            for (index_t r = 0; r < rows.count(); ++r) {
                const T* sums = n.sums + rows.slot[r] * S;
                for (index_t p = s.first_panel; p < s.last_panel; ++p) {
                    vector squares{};
                    for (index_t k = p * W; k < (p + 1) * W; k += L) squares += load(sums + k) * load(sums + k);
                    panel_sums[rows.row[r] * P + p] = total<T>(squares);
                }
            }
            barrier.wait();
        }
        for (index_t r = 0; r < rows.count(); ++r) {
            const T* sums = n.sums + rows.slot[r] * S;
            T* h_new = sizes.state(n.hidden, sizes.after(t), rows.row[r]);
            T rstd = 1;
            if constexpr (NORMED) {
                rstd = T(1) / std::sqrt(row_sum(panel_sums + rows.row[r] * P, P, 1) / T(H) + n.eps);
                if (s.first_panel == 0) n.rstd[rows.slot[r]] = rstd;
            }
            for (index_t j = first; j < last; j += L) {
                const vector sum = load(sums + j), scaled = NORMED ? sum * rstd * load(n.gain + j) : sum;
                store(h_new + j, hyperbolic_tangent(scaled + load(n.bias + j)));
            }
        }
        barrier.wait();
    }
}

template <class T, bool NORMED>
static void walk_back(const Rnn<T>& n, RnnGradients<T> d, const T* packed, T* panel_sums, const Share& s, const Barrier& barrier) {
    using vector = typename Vector<T>::type;
    const Sizes& sizes = n.sizes;
    const OwnSums<T> of_gain(sizes, s, barrier, 1, d.d_gain), of_bias(sizes, s, barrier, 1, d.d_bias);
    d.d_gain = of_gain.data();
    d.d_bias = of_bias.data();
    const index_t H = sizes.hidden, P = sizes.panels, W = Panel<T>::width, S = sizes.stride;
    const index_t L = Vector<T>::lanes, first = s.first_panel * W, last = s.last_panel * W;
    Rows rows;
    for (index_t position = sizes.steps - 1; position >= 0; --position) {
        const index_t t = sizes.time(position);
        begin_step_back(rows, sizes, s, t, d.d_hidden, d.dh);
        for (index_t r = 0; r < rows.count(); ++r) {
            const index_t row = rows.row[r], slot = rows.slot[r], block = row / ROW_BLOCK * S;
            const T *h = sizes.state(n.hidden, sizes.after(t), row), *sums = n.sums + slot * S, *dh = d.dh + row * S;
            T* d_sums = d.d_sums + slot * S;
            for (index_t p = s.first_panel; p < s.last_panel; ++p) {
                vector along{};
                for (index_t j = p * W; j < (p + 1) * W; j += L) {
                    const vector tanh_j = load(h + j);
                    vector value = load(dh + j) * (1 - tanh_j * tanh_j);
                    add_to(d.d_bias + block + j, value);
                    if constexpr (NORMED) {
                        const vector xhat = load(sums + j) * n.rstd[slot];
                        add_to(d.d_gain + block + j, value * xhat);
                        value *= load(n.gain + j);
                        along += value * xhat;
                    }
                    store(d_sums + j, value);
                }
                if constexpr (NORMED) panel_sums[row * P + p] = total<T>(along);
            }
        }
        barrier.wait();
        if constexpr (NORMED) {
            for (index_t r = 0; r < rows.count(); ++r) {
                const index_t slot = rows.slot[r];
                const T rstd = n.rstd[slot], along = row_sum(panel_sums + rows.row[r] * P, P, 1) / T(H);
                const T* sums = n.sums + slot * S;
                T* d_sums = d.d_sums + slot * S;
                for (index_t j = first; j < last; j += L)
                    store(d_sums + j, (load(d_sums + j) - load(sums + j) * rstd * along) * rstd);
            }
            barrier.wait();
        }
        multiply_products(rows, d.d_sums, S, packed, s, sizes, d.dh, false);
        bound(d.dh, rows, sizes, s, d.limit);
    }
}

template <class T, bool NORMED>
static void forward(const Rnn<T>& n, const OneStep<T>& one, const T* w_h, int threads, bool by_units) {
    const Weights<T> weights{w_h, n.sizes.hidden, 1, NORMED, threads};
    const auto by = [&](const T* packed, T* panel_sums, const Share& share, const Barrier& barrier) {
        walk<T, NORMED>(n, packed, panel_sums, share, barrier);
    };
    if (!one.x) return walk_forward(weights, n.sizes, 1, by_units, by);
    const auto gate_of = [=](index_t row, index_t) { return n.sums + row * n.sizes.stride; };
    walk_one_step(one, n.hidden, weights, n.sizes, 1, gate_of, gate_of, by);
}

template <class T, bool NORMED>
static void backward(const Rnn<T>& n, const RnnGradients<T>& d, const T* w_h, int threads, bool by_units) {
    const Weights<T> weights{w_h, n.sizes.hidden, 1, NORMED, threads};
    walk_backward(weights, n.sizes, 1, by_units, [&](const T* packed, T* panel_sums, const Share& share, const Barrier& barrier) {
        walk_back<T, NORMED>(n, d, packed, panel_sums, share, barrier);
    });
}

// The arguments that forward and backward share, and the objects made of them.
#define SHARED_PARAMETERS(T)                                                                                          \
    const T *w_h, T *sums, const T *gain, const T *bias, T *hidden, T *rstd, const int64_t *slots, int64_t steps,     \
        int64_t batch, int64_t units, double eps, int32_t reverse, int32_t threads, int32_t by_units
#define SHARED_VALUES                                                                                                 \
    const Rnn<T> n{sizes_of<T>(steps, batch, units, reverse != 0, slots), T(eps), sums, gain, bias, hidden, rstd};

#define RNN(TYPE, NAME)                                                                                               \
    extern "C" void rnn_forward_##NAME(SHARED_PARAMETERS(TYPE), const TYPE* x, const TYPE* w_x, int64_t inputs) {     \
        guarded([&] {                                                                                                 \
            using T = TYPE;                                                                                           \
            SHARED_VALUES                                                                                             \
            const OneStep<T> one{x, w_x, inputs};                                                                     \
            if (gain) forward<T, true>(n, one, w_h, threads, by_units != 0);                                          \
            else forward<T, false>(n, one, w_h, threads, by_units != 0);                                              \
        });                                                                                                           \
    }                                                                                                                 \
    extern "C" void rnn_backward_##NAME(SHARED_PARAMETERS(TYPE), const TYPE* d_hidden, TYPE* dh, TYPE* d_sums,        \
                                        TYPE* d_gain, TYPE* d_bias, double limit) {                                   \
        guarded([&] {                                                                                                 \
            using T = TYPE;                                                                                           \
            SHARED_VALUES                                                                                             \
            const RnnGradients<T> d{d_hidden, dh, d_sums, d_gain, d_bias, T(limit)};                                  \
            if (gain) backward<T, true>(n, d, w_h, threads, by_units != 0);                                           \
            else backward<T, false>(n, d, w_h, threads, by_units != 0);                                               \
        });                                                                                                           \
    }
ENTRIES(RNN)
