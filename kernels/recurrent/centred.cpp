// Matrices without the means of their rows, or without those of two parts of each row.
#include "../rows.h"

static const index_t ROWS_OF_PART = 16;

static void centre(const T* x, index_t width, T* out) {
    const T mean = row_mean(x, width);
    each_vector<T>(width, [&](index_t k, auto lanes, auto) { lanes.store(out + k, lanes.load(x + k) - mean); });
}

extern "C" void NAMED(centred)(const T* x, T* out, int64_t rows, int64_t width, int64_t cut, int32_t threads) {
    in_parts((rows + ROWS_OF_PART - 1) / ROWS_OF_PART, threads, [=](index_t first, index_t last) {
        for (index_t r = first * ROWS_OF_PART; r < std::min(last * ROWS_OF_PART, rows); ++r) {
            centre(x + r * width, cut, out + r * width);
            if (cut < width) centre(x + r * width + cut, width - cut, out + r * width + cut);
        }
    });
}
