// The sum of rows and a bias for each channel, and the bias's gradient.
#include "../channels.h"

template <class T>
static void add_bias(const T* x, const T* bias, T* y, const Lines& lines, index_t first, index_t last) {
    const std::vector<T> along = lines.along(bias);
    lines.each(first, last, [&](index_t start, index_t count) {
        const T *in = x + start, *b = along.data();
        T* out = y + start;
#pragma omp simd
        for (index_t k = 0; k < count; ++k) out[k] = in[k] + b[k];
    });
}

template <class T>
static void sum_channels(const T* dy, T* parts, const Lines& lines, index_t first, index_t last) {
    for (index_t block = first; block < last; ++block) {
        std::vector<T> sums(lines.width(), T(0));
        lines.each(block, block + 1, [&](index_t start, index_t count) {
            const T* in = dy + start;
            T* sum = sums.data();
#pragma omp simd
            for (index_t k = 0; k < count; ++k) sum[k] += in[k];
        });
        lines.fold(sums, parts + block * lines.channels);
    }
}

#define ADD(T, NAME)                                                                                                  \
    extern "C" void add_bias_##NAME(const T* x, const T* bias, T* y, int64_t rows, int64_t channels,                  \
                                    int32_t threads) {                                                                \
        guarded([&] {                                                                                                 \
            const Lines lines{rows, channels};                                                                        \
            in_parts(lines.blocks(), threads,                                                                         \
                     [=](index_t first, index_t last) { add_bias(x, bias, y, lines, first, last); });                 \
        });                                                                                                           \
    }                                                                                                                 \
    extern "C" void sum_channels_##NAME(const T* dy, T* parts, int64_t rows, int64_t channels, int32_t threads) {     \
        guarded([&] {                                                                                                 \
            const Lines lines{rows, channels};                                                                        \
            in_parts(lines.blocks(), threads,                                                                         \
                     [=](index_t first, index_t last) { sum_channels(dy, parts, lines, first, last); });              \
        });                                                                                                           \
    }
ENTRIES(ADD)
