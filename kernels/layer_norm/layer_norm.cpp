// Layer norm of rows (Ba, Kiros, Hinton 2016, eq. 3), forward and backward, with the activation that follows it.
#include "../rows.h"
#include "activation.h"
#include "gradient.h"

enum Activation : int32_t { NONE = 0, RELU = 1, TANH = 2 };

// A block of rows whose shares of the gain's and bias's gradients are added up together.
static const index_t BLOCK = 64;

// A row is centred in two steps, by its first value and by the mean of what is left, so a large mean costs no bits.
// While a row is in cache, the next one is fetched: otherwise memory would rest for two of the three walks.
template <int32_t ACTIVATION, class T>
static void normalise(const T* x, const T* gain, const T* bias, T* y, T* mean, T* rstd, index_t first, index_t last,
                      index_t width, T eps) {
    using vector = typename Vector<T>::type;
    for (index_t row = first; row < last; ++row) {
        const T* in = x + row * width;
        T* out = y + row * width;
        const vector start = vector{} + in[0];
        RowSum<T> sums, rests, squares;
        each_vector<T>(width, [&](index_t k, auto lanes, auto n) {
            sums.add(lanes.or_zero(lanes.load(in + k) - start), n);
        });
        T offset = sums.sum() / T(width);
        const vector first_offset = vector{} + offset;
        each_vector<T>(width, [&](index_t k, auto lanes, auto n) {
            const vector d = lanes.or_zero(lanes.load(in + k) - start - first_offset);
            rests.add(d, n);
            squares.add(d * d, n);
            fetch_ahead(in + width + k);
        });
        const T rest = rests.sum() / T(width), variance = squares.sum() / T(width) - rest * rest;
        offset += rest;
        const T scale = T(1) / std::sqrt((variance > 0 || variance != variance ? variance : T(0)) + eps);
        mean[row] = offset;
        rstd[row] = scale;
        const vector row_mean = vector{} + offset, row_rstd = vector{} + scale;
        each_vector<T>(width, [&](index_t k, auto lanes, auto) {
            vector value = (lanes.load(in + k) - start - row_mean) * row_rstd;
            if (gain) value *= lanes.load(gain + k);
            if (bias) value += lanes.load(bias + k);
            lanes.store(out + k, activated(value, ACTIVATION));
        });
    }
}

template <int32_t ACTIVATION, class T>
static void differentiate(const T* x, const T* gain, const T* bias, const T* mean, const T* rstd, const T* dy, T* dx,
                          T* gain_parts, T* bias_parts, index_t first, index_t last, index_t rows, index_t width) {
    using vector = typename Vector<T>::type;
    const Aligned<T> kept(width);
    T* dxhat = kept.data();
    for (index_t block = first; block < last; ++block) {
        T* d_gain = gain_parts ? gain_parts + block * width : nullptr;
        T* d_bias = bias_parts ? bias_parts + block * width : nullptr;
        if (d_gain) std::fill_n(d_gain, width, T(0));
        if (d_bias) std::fill_n(d_bias, width, T(0));
        const index_t end = std::min((block + 1) * BLOCK, rows);
        for (index_t row = block * BLOCK; row < end; ++row) {
            const T *in = x + row * width, *g = dy + row * width;
            const vector start = vector{} + in[0], row_mean = vector{} + mean[row], row_rstd = vector{} + rstd[row];
            RowSum<T> sums, alongs;
            each_vector<T>(width, [&](index_t k, auto lanes, auto n) {
                const vector xhat = lanes.or_zero((lanes.load(in + k) - start - row_mean) * row_rstd);
                vector d = lanes.load(g + k);
                if (ACTIVATION != NONE) {
                    vector value = xhat;
                    if (gain) value *= lanes.load(gain + k);
                    if (bias) value += lanes.load(bias + k);
                    d *= slope(value, ACTIVATION);
                }
                if (d_gain) lanes.store(d_gain + k, lanes.load(d_gain + k) + d * xhat);
                if (d_bias) lanes.store(d_bias + k, lanes.load(d_bias + k) + d);
                if (gain) d *= lanes.load(gain + k);
                lanes.store(dxhat + k, d);
                sums.add(d, n);
                alongs.add(d * xhat, n);
            });
            if (!dx) continue;
            const vector mean_d = vector{} + sums.sum() / T(width), mean_d_xhat = vector{} + alongs.sum() / T(width);
            T* out = dx + row * width;
            each_vector<T>(width, [&](index_t k, auto lanes, auto) {
                const vector xhat = (lanes.load(in + k) - start - row_mean) * row_rstd;
                lanes.store(out + k, through_norm(lanes.load(dxhat + k), xhat, row_rstd, mean_d, mean_d_xhat));
                fetch_ahead(in + width + k);
                fetch_ahead(g + width + k);
            });
        }
    }
}

// Calls CALL(ACTIVATION) for the activation that a number names.
#define BY_ACTIVATION(CALL) \
    switch (activation) { case RELU: CALL(RELU); break; case TANH: CALL(TANH); break; default: CALL(NONE); }

#define NORMALISE(A) normalise<A>(x, gain, bias, y, mean, rstd, first, last, width, real(eps))
#define DIFFERENTIATE(A) \
    differentiate<A>(x, gain, bias, mean, rstd, dy, dx, gain_parts, bias_parts, first, last, rows, width)

#define LAYER_NORM(T, NAME)                                                                                          \
    extern "C" void layer_norm_forward_##NAME(const T* x, const T* gain, const T* bias, T* y, T* mean, T* rstd,       \
                                              int64_t rows, int64_t width, double eps, int32_t activation,            \
                                              int32_t threads) {                                                      \
        using real = T;                                                                                               \
        in_parts(rows, threads, [=](index_t first, index_t last) { BY_ACTIVATION(NORMALISE) });                       \
    }                                                                                                                 \
    extern "C" void layer_norm_backward_##NAME(const T* x, const T* gain, const T* bias, const T* mean,               \
                                               const T* rstd, const T* dy, T* dx, T* gain_parts, T* bias_parts,       \
                                               int64_t rows, int64_t width, int32_t activation, int32_t threads) {    \
        in_parts((rows + BLOCK - 1) / BLOCK, threads,                                                                 \
                 [=](index_t first, index_t last) { BY_ACTIVATION(DIFFERENTIATE) });                                  \
    }
ENTRIES(LAYER_NORM)
