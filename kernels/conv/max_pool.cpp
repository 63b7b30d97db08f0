// Max pooling of images with channels last, and its gradient, which equal greatest values share evenly.
#include <algorithm>
#include <cmath>

#include "common.h"

struct Windows {
    index_t height, width, channels, rows, columns, size, stride;

    index_t image() const { return height * width * channels; }
    index_t place(index_t row, index_t column) const { return (row * stride * width + column * stride) * channels; }
};

// SIZE is the window's size where it is known to the compiler, else 0.
template <int SIZE>
static void pool_row(const T* x, T* y, const Windows& w, index_t row) {
    const index_t size = SIZE ? SIZE : w.size;
    for (index_t column = 0; column < w.columns; ++column, y += w.channels) {
        const T* window = x + w.place(row, column);
#pragma omp simd
        for (index_t c = 0; c < w.channels; ++c) {
            T greatest = window[c];
            for (index_t i = 0; i < size; ++i)
                for (index_t j = 0; j < size; ++j) {
                    const T value = window[(i * w.width + j) * w.channels + c];
                    greatest = value > greatest || value != value ? value : greatest;
                }
            y[c] = greatest;
        }
    }
}

// Nothing is less or greater than NaN, so that all values of its window share the gradient.
static bool is_greatest(T value, T greatest) { return !std::islessgreater(value, greatest); }

template <int SIZE>
static void spread_row(const T* x, const T* y, const T* dy, T* dx, const Windows& w, index_t row) {
    const index_t size = SIZE ? SIZE : w.size;
    for (index_t column = 0; column < w.columns; ++column, y += w.channels, dy += w.channels) {
        const index_t start = w.place(row, column);
#pragma omp simd
        for (index_t c = 0; c < w.channels; ++c) {
            T equal = 0;
            for (index_t i = 0; i < size; ++i)
                for (index_t j = 0; j < size; ++j)
                    equal += is_greatest(x[start + (i * w.width + j) * w.channels + c], y[c]) ? T(1) : T(0);
            const T share = dy[c] / equal;
            for (index_t i = 0; i < size; ++i)
                for (index_t j = 0; j < size; ++j) {
                    const index_t pixel = start + (i * w.width + j) * w.channels + c;
                    dx[pixel] += is_greatest(x[pixel], y[c]) ? share : T(0);
                }
        }
    }
}

template <int SIZE>
static void spread(const T* x, const T* y, const T* dy, T* dx, const Windows& w, index_t first, index_t last) {
    const index_t pooled = w.rows * w.columns * w.channels, row_values = w.width * w.channels;
    for (index_t image = first; image < last; ++image) {
        T* out = dx + image * w.image();
        index_t cleared = 0;  // rows are set to 0 just before they are needed, so that they are in cache
        for (index_t row = 0; row < w.rows; ++row) {
            const index_t place = image * pooled + row * w.columns * w.channels, end = row * w.stride + w.size;
            if (end > cleared) std::fill_n(out + cleared * row_values, (end - cleared) * row_values, T(0));
            cleared = std::max(cleared, end);
            spread_row<SIZE>(x + image * w.image(), y + place, dy + place, out, w, row);
        }
        std::fill_n(out + cleared * row_values, (w.height - cleared) * row_values, T(0));
    }
}

#define BY_SIZE(CALL) \
    switch (size) { case 2: CALL(2); break; case 3: CALL(3); break; default: CALL(0); }

#define POOL(SIZE)                                                                                                    \
    for (index_t k = first; k < last; ++k)                                                                            \
        pool_row<SIZE>(x + k / rows * w.image(), y + k * columns * channels, w, k % rows)
#define SPREAD(SIZE) spread<SIZE>(x, y, dy, dx, w, first, last)

ENTRY(max_pool2d_forward) {
    const Windows w{height, width, channels, rows, columns, size, stride};
    in_parts(batch * rows, threads, [=](index_t first, index_t last) { BY_SIZE(POOL) });
}

ENTRY(max_pool2d_backward) {
    const Windows w{height, width, channels, rows, columns, size, stride};
    in_parts(batch, threads, [=](index_t first, index_t last) { BY_SIZE(SPREAD) });
}
