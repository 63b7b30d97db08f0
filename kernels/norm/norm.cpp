// Norms of rows, forward and backward: layer norm (Ba, Kiros, Hinton 2016, eq. 3) with the activation that follows it, and
// RMS norm (Zhang, Sennrich 2019, eq. 4), which leaves the mean in. Both also take the sum of two rows.
#include "rows.h"
#include "squares.h"
#include "activation.h"
#include "gradient.h"

// A block of rows whose shares of the gain's and bias's gradients are added up together.
static const index_t BLOCK = 64;

// The mean of a row in two numbers: the rounded mean, and the mean of the row after subtracting it. One number would lose the last
// digits of a large mean.
struct Mean {
    T rounded, rest;
};

// How many numbers are kept of a row: its mean, where it has one, and last rstd.
template <bool CENTRED>
static constexpr index_t KEPT = CENTRED ? 3 : 1;

// The map from the values of a row to the normalised ones. CENTRED tells the norms apart, here and below: a layer norm subtracts
// the mean, an RMS norm does not.
template <bool CENTRED>
struct RowNorm {
    vector mean, rest, rstd;
    RowNorm(Mean mean, T rstd) : mean(vector{} + mean.rounded), rest(vector{} + mean.rest), rstd(vector{} + rstd) {}
    vector xhat(vector value) const { return (CENTRED ? value - mean - rest : value) * rstd; }
};

// One over the deviation of a row. It stands apart because the compiler makes slower loops of a longer function.
template <bool CENTRED>
__attribute__((noinline)) static T rstd_of(T variance, T eps, const T* values, index_t width, Mean mean) {
    if (holds_squares(variance, least_sum(T(1), eps))) return T(1) / std::sqrt((variance > 0 ? variance : T(0)) + eps);
    const auto value = [=](index_t k) { return CENTRED ? values[k] - mean.rounded - mean.rest : values[k]; };
    return T(1 / std::sqrt(sum_of_squares(width, value) / width + eps));
}

// With a residual a row is the sum of x and residual: the walk that reads them writes it to `total`, where the next walks
// find it in cache. The first walk prefetches the results for writing, unless they are written with streaming stores, and the last
// one prefetches the next row: otherwise memory would be idle while a row is in cache.
template <bool CENTRED, int32_t ACTIVATION>
static void normalise(const T* x, const T* residual, const T* gain, const T* bias, T* total, T* y, T* stats, index_t first,
                      index_t last, index_t width, T eps, bool past_caches) {
    const Aligned<T> kept(past_caches ? width : 0);
    for (index_t row = first; row < last; ++row) {
        const T *in = x + row * width, *added = residual ? residual + row * width : nullptr;
        T *sum = residual ? total + row * width : nullptr, *out = past_caches ? kept.data() : y + row * width;
        const T* values = residual ? sum : in;
        const auto fetch_next = [&](index_t k) {
            fetch_ahead(in, width + k);
            if (added) fetch_ahead(added, width + k);
        };
        RowSum<T> sums, rests, squares;
        each_vector<T>(width, [&](index_t k, auto lanes, auto n) {
            vector value = lanes.load(in + k);
            if (added) {
                value += lanes.load(added + k);
                lanes.store(sum + k, value);
            }
            if (!past_caches) claim_ahead(out + k);
            if (CENTRED) sums.add(value, n);
            else squares.add(value * value, n);
        });
        Mean mean{};
        T* stat = stats + row * KEPT<CENTRED>;
        if (CENTRED) {
            mean.rounded = sums.sum() / T(width);
            const vector rounded = vector{} + mean.rounded;
            each_vector<T>(width, [&](index_t k, auto lanes, auto n) {
                const vector d = lanes.or_zero(lanes.load(values + k) - rounded);
                rests.add(d, n);
                squares.add(d * d, n);
            });
            mean.rest = rests.sum() / T(width);
            stat[0] = mean.rounded, stat[1] = mean.rest;
        }
        const T variance = squares.sum() / T(width) - mean.rest * mean.rest;
        const T scale = rstd_of<CENTRED>(variance, eps, values, width, mean);
        stat[KEPT<CENTRED> - 1] = scale;
        const RowNorm<CENTRED> norm(mean, scale);
        each_vector<T>(width, [&](index_t k, auto lanes, auto) {
            vector value = norm.xhat(lanes.load(values + k));
            if (gain) value *= lanes.load(gain + k);
            if (bias) value += lanes.load(bias + k);
            lanes.store(out + k, activated(value, ACTIVATION));
            fetch_next(k);
        });
        if (past_caches) copy_past_caches(out, y + row * width, width);
    }
    if (past_caches) end_past_caches();
}

// For the norm of a sum, `x` is the sum, and d_total its gradient from elsewhere, which is added to dx.
template <bool CENTRED, int32_t ACTIVATION>
static void differentiate(const T* x, const T* stats, const T* gain, const T* bias, const T* dy, const T* d_total, T* dx,
                          T* gain_parts, T* bias_parts, index_t first, index_t last, index_t rows, index_t width,
                          bool past_caches) {
    const Aligned<T> kept(width);
    T* dxhat = kept.data();  // and then dx, if that is written with streaming stores
    for (index_t block = first; block < last; ++block) {
        T* d_gain = gain_parts ? gain_parts + block * width : nullptr;
        T* d_bias = bias_parts ? bias_parts + block * width : nullptr;
        if (d_gain) std::fill_n(d_gain, width, T(0));
        if (d_bias) std::fill_n(d_bias, width, T(0));
        const index_t end = std::min((block + 1) * BLOCK, rows);
        for (index_t row = block * BLOCK; row < end; ++row) {
            const T *in = x + row * width, *g = dy + row * width;
            const T* stat = stats + row * KEPT<CENTRED>;
            const RowNorm<CENTRED> norm(CENTRED ? Mean{stat[0], stat[1]} : Mean{}, stat[KEPT<CENTRED> - 1]);
            RowSum<T> sums, alongs;
            each_vector<T>(width, [&](index_t k, auto lanes, auto n) {
                fetch_ahead(in, width + k);
                if (dx && !past_caches) claim_ahead(dx + row * width + k);
                const vector xhat = lanes.or_zero(norm.xhat(lanes.load(in + k)));
                vector d = lanes.load(g + k);
                if (ACTIVATION != NONE) {
                    vector value = xhat;
                    if (gain) value *= lanes.load(gain + k);
                    if (bias) value += lanes.load(bias + k);
                    d = through_activation(value, d, ACTIVATION);
                }
                if (d_gain) lanes.store(d_gain + k, lanes.load(d_gain + k) + d * xhat);
                if (d_bias) lanes.store(d_bias + k, lanes.load(d_bias + k) + d);
                if (gain) d *= lanes.load(gain + k);
                lanes.store(dxhat + k, d);
                if (CENTRED) sums.add(d, n);
                alongs.add(d * xhat, n);
            });
            if (!dx) continue;
            const vector mean_d = vector{} + (CENTRED ? sums.sum() / T(width) : T(0));
            const vector mean_d_xhat = vector{} + alongs.sum() / T(width);
            const T* besides = d_total ? d_total + row * width : nullptr;
            T* out = past_caches ? dxhat : dx + row * width;
            each_vector<T>(width, [&](index_t k, auto lanes, auto) {
                const vector xhat = norm.xhat(lanes.load(in + k));
                vector d = through_norm(lanes.load(dxhat + k), xhat, norm.rstd, mean_d, mean_d_xhat);
                if (besides) d += lanes.load(besides + k);
                lanes.store(out + k, d);
                fetch_ahead(g, width + k);
            });
            if (past_caches) copy_past_caches(out, dx + row * width, width);
        }
    }
    if (past_caches) end_past_caches();
}

// Calls work(Number<ACTIVATION>()) for the activation that a number names. None follows an RMS norm.
template <bool CENTRED, class Work>
static void by_activation(int32_t activation, const Work& work) {
    if constexpr (CENTRED) {
        if (activation == RELU) return work(Number<RELU>());
        if (activation == TANH) return work(Number<TANH>());
    }
    work(Number<NONE>());
}

// The passes of one norm. As on CUDA, the gradient takes a residual and columns of wider rows; the CPU's rules keep the sum
// instead, and normalise whole rows.
#define FORWARD(CENTRED)                                                                                              \
    guarded([&] {                                                                                                     \
        const bool past_caches = go_past_caches<T>(rows * width);                                                     \
        in_parts(rows, threads, [=](index_t first, index_t last) {                                                    \
            by_activation<CENTRED>(activation, [=](auto number) {                                                     \
                normalise<CENTRED, decltype(number)::value>(x, residual, gain, bias, total, y, stats, first, last,    \
                                                            width, T(eps), past_caches);                              \
            });                                                                                                       \
        });                                                                                                           \
    });
#define BACKWARD(CENTRED)                                                                                             \
    guarded([&] {                                                                                                     \
        const bool past_caches = dx && go_past_caches<T>(rows * width);                                               \
        in_parts((rows + BLOCK - 1) / BLOCK, threads, [=](index_t begin, index_t end) {                               \
            by_activation<CENTRED>(activation, [=](auto number) {                                                     \
                differentiate<CENTRED, decltype(number)::value>(x, stats, gain, bias, dy, d_total, dx, d_gain,        \
                                                                d_bias, begin, end, rows, width, past_caches);        \
            });                                                                                                       \
        });                                                                                                           \
    });

ENTRY(layer_norm_forward) { FORWARD(true) }
ENTRY(layer_norm_backward) { BACKWARD(true) }
ENTRY(rms_norm_forward) { FORWARD(false) }
ENTRY(rms_norm_backward) { BACKWARD(false) }
