// Batch norm over rows of channels (Ioffe and Szegedy 2015), forward and backward.
#include "channels.h"
#include "squares.h"

// The mean of each channel and the sum of its squared distances from it, for each block of rows. A block is centred in
// two steps while it is in cache, by its first line and by the mean of the residual, so that a large mean costs no bits.
static void moments(const T* x, double* means, double* squares, T eps, const Lines& lines, index_t first, index_t last) {
    std::vector<T> offsets(lines.width()), rests(lines.width()), sums(lines.width());
    T *offset = offsets.data(), *rest = rests.data(), *sum = sums.data();
    for (index_t block = first; block < last; ++block) {
        const T* start_line = x + block * lines.block_rows() * lines.channels;
        std::fill(offsets.begin(), offsets.end(), T(0));
        std::fill(rests.begin(), rests.end(), T(0));
        std::fill(sums.begin(), sums.end(), T(0));
        const index_t values = std::min(lines.block_rows(), lines.rows - block * lines.block_rows()) * lines.channels;
        const auto count_of = [&](index_t k) { return (values + lines.width() - 1 - k) / lines.width(); };
        lines.each(block, block + 1, [&](index_t start, index_t count) {
            const T* in = x + start;
#pragma omp simd
            for (index_t k = 0; k < count; ++k) offset[k] += in[k] - start_line[k];
        });
        for (index_t k = 0; k < lines.width() && k < values; ++k) offset[k] /= T(count_of(k));
        lines.each(block, block + 1, [&](index_t start, index_t count) {
            const T* in = x + start;
#pragma omp simd
            for (index_t k = 0; k < count; ++k) {
                const T distance = in[k] - start_line[k] - offset[k];
                rest[k] += distance;
                sum[k] += distance * distance;
            }
        });
        const T least = least_sum(T(count_of(0)), eps);
        double *mean = means + block * lines.channels, *square = squares + block * lines.channels;
        for (index_t channel = 0; channel < lines.channels; ++channel) {
            double rows = 0, centre = 0, around = 0;
            for (index_t k = channel; k < lines.width() && k < values; k += lines.channels) {
                const index_t count = count_of(k);
                const double more = double(count), left = double(rest[k]) / more;
                const auto distance = [=](index_t line) { return start_line[line * lines.width() + k] - start_line[k] - offset[k]; };
                const double own = holds_squares(sum[k], least) ? double(sum[k]) : double(sum_of_squares(count, distance));
                const double away = double(start_line[k]) + double(offset[k]) + left - centre;
                around += own - left * left * more + away * away * rows * more / (rows + more);
                rows += more;
                centre += away * more / rows;
            }
            mean[channel] = centre;
            square[channel] = around;
        }
    }
}

// y = (x - mean) * scale + bias. The mean is the sum of two numbers.
static void normalise(const T* x, const T* mean, const T* mean_rest, const T* scale, const T* bias, T* y,
                      const Lines& lines, index_t first, index_t last) {
    const std::vector<T> means = lines.along(mean), rests = lines.along(mean_rest), scales = lines.along(scale),
                         biases = lines.along(bias);
    lines.each(first, last, [&](index_t start, index_t count) {
        const T *in = x + start, *m = means.data(), *rest = rests.data(), *s = scales.data(), *b = biases.data();
        T* out = y + start;
#pragma omp simd
        for (index_t k = 0; k < count; ++k) out[k] = (in[k] - m[k] - rest[k]) * s[k] + b[k];
    });
}

// The sums of dy and of dy * (x - mean) for each channel and block of rows.
static void gradient_sums(const T* x, const T* dy, const T* mean, const T* mean_rest, T* dy_parts, T* along_parts,
                          const Lines& lines, index_t first, index_t last) {
    const std::vector<T> means = lines.along(mean), rests = lines.along(mean_rest);
    for (index_t block = first; block < last; ++block) {
        std::vector<T> sums(lines.width(), T(0)), alongs(lines.width(), T(0));
        lines.each(block, block + 1, [&](index_t start, index_t count) {
            const T *in = x + start, *g = dy + start, *m = means.data(), *rest = rests.data();
            T *sum = sums.data(), *along = alongs.data();
#pragma omp simd
            for (index_t k = 0; k < count; ++k) {
                sum[k] += g[k];
                along[k] += g[k] * (in[k] - m[k] - rest[k]);
            }
        });
        lines.fold(sums, dy_parts + block * lines.channels);
        lines.fold(alongs, along_parts + block * lines.channels);
    }
}

// dx = dy * scale + (x - mean) * rstd * direction + constant.
static void image_gradient(const T* x, const T* dy, const T* mean, const T* mean_rest, const T* rstd,
                           const T* scale, const T* direction, const T* constant, T* dx, const Lines& lines,
                           index_t first, index_t last) {
    const std::vector<T> means = lines.along(mean), rests = lines.along(mean_rest), rstds = lines.along(rstd),
                         scales = lines.along(scale), directions = lines.along(direction), constants = lines.along(constant);
    lines.each(first, last, [&](index_t start, index_t count) {
        const T *in = x + start, *g = dy + start, *m = means.data(), *rest = rests.data();
        const T *r = rstds.data(), *s = scales.data(), *d = directions.data(), *c = constants.data();
        T* out = dx + start;
#pragma omp simd
        for (index_t k = 0; k < count; ++k) out[k] = g[k] * s[k] + ((in[k] - m[k] - rest[k]) * r[k] * d[k] + c[k]);
    });
}

#define OVER_BLOCKS(CALL)                                                                                             \
    const Lines lines{rows, channels};                                                                                \
    in_parts(lines.blocks(), threads, [=](index_t first, index_t last) { CALL; })

ENTRY(batch_moments) {
    guarded([&] {
        OVER_BLOCKS(moments(x, means, squares, T(eps), lines, first, last));
    });
}

ENTRY(batch_normalise) {
    guarded([&] {
        OVER_BLOCKS(normalise(x, mean, mean_rest, scale, bias, y, lines, first, last));
    });
}

ENTRY(batch_gradient_sums) {
    guarded([&] {
        OVER_BLOCKS(gradient_sums(x, dy, mean, mean_rest, d_bias, along, lines, first, last));
    });
}

ENTRY(batch_image_gradient) {
    guarded([&] {
        OVER_BLOCKS(image_gradient(x, dy, mean, mean_rest, rstd, scale, direction, constant, dx, lines, first,
                                   last));
    });
}
