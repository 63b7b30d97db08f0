// Layer norm of rows (Ba, Kiros, Hinton 2016, eq. 3), forward and backward, with the activation that follows it.
#include "../native.h"
#include "activation.h"
#include "gradient.h"

enum Activation : int32_t { NONE = 0, RELU = 1, TANH = 2 };

// A block of rows whose shares of the gain's and bias's gradients are added up together.
static const index_t BLOCK = 64;

// A row is centred in two steps, by its first value and by the mean of what is left, so that a large mean costs no bits.
template <int32_t ACTIVATION, class T>
static void normalise(const T* x, const T* gain, const T* bias, T* y, T* mean, T* rstd, index_t first, index_t last,
                      index_t width, T eps) {
    for (index_t row = first; row < last; ++row) {
        const T* in = x + row * width;
        T* out = y + row * width;
        const T start = in[0];
        T sum = 0;
#pragma omp simd reduction(+ : sum)
        for (index_t k = 0; k < width; ++k) sum += in[k] - start;
        T offset = sum / T(width);
        T rest = 0, squares = 0;
#pragma omp simd reduction(+ : rest, squares)
        for (index_t k = 0; k < width; ++k) {
            const T d = in[k] - start - offset;
            rest += d;
            squares += d * d;
        }
        rest /= T(width);
        offset += rest;
        const T variance = squares / T(width) - rest * rest;
        const T scale = T(1) / std::sqrt((variance > 0 || variance != variance ? variance : T(0)) + eps);
        mean[row] = offset;
        rstd[row] = scale;
#pragma omp simd
        for (index_t k = 0; k < width; ++k) {
            const T xhat = (in[k] - start - offset) * scale;
            out[k] = activated((gain ? xhat * gain[k] : xhat) + (bias ? bias[k] : T(0)), ACTIVATION);
        }
    }
}

template <int32_t ACTIVATION, class T>
static void differentiate(const T* x, const T* gain, const T* bias, const T* mean, const T* rstd, const T* dy, T* dx,
                          T* gain_parts, T* bias_parts, index_t first, index_t last, index_t rows, index_t width) {
    std::vector<T> kept(2 * width);
    T *xhat = kept.data(), *d = kept.data() + width;
    for (index_t block = first; block < last; ++block) {
        T* d_gain = gain_parts ? gain_parts + block * width : nullptr;
        T* d_bias = bias_parts ? bias_parts + block * width : nullptr;
        for (index_t k = 0; k < width; ++k) {
            if (d_gain) d_gain[k] = 0;
            if (d_bias) d_bias[k] = 0;
        }
        const index_t end = (block + 1) * BLOCK < rows ? (block + 1) * BLOCK : rows;
        for (index_t row = block * BLOCK; row < end; ++row) {
            const T *in = x + row * width, *g = dy + row * width;
            const T start = in[0], offset = mean[row], scale = rstd[row];
#pragma omp simd
            for (index_t k = 0; k < width; ++k) {
                xhat[k] = (in[k] - start - offset) * scale;
                const T y = (gain ? xhat[k] * gain[k] : xhat[k]) + (bias ? bias[k] : T(0));
                d[k] = ACTIVATION == NONE ? g[k] : g[k] * slope(y, ACTIVATION);
            }
            if (d_gain) {
#pragma omp simd
                for (index_t k = 0; k < width; ++k) d_gain[k] += d[k] * xhat[k];
            }
            if (d_bias) {
#pragma omp simd
                for (index_t k = 0; k < width; ++k) d_bias[k] += d[k];
            }
            if (dx) {
                T sum = 0, along = 0;
#pragma omp simd reduction(+ : sum, along)
                for (index_t k = 0; k < width; ++k) {
                    const T dh = gain ? d[k] * gain[k] : d[k];
                    d[k] = dh;
                    sum += dh;
                    along += dh * xhat[k];
                }
                sum /= T(width);
                along /= T(width);
                T* out = dx + row * width;
#pragma omp simd
                for (index_t k = 0; k < width; ++k) out[k] = through_norm(d[k], xhat[k], scale, sum, along);
            }
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
