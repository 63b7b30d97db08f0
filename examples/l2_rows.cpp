// Rows divided by their Euclidean norm, and the gradient of that. T is float or double; rows.h walks along a row in vectors.
#include "rows.h"

ENTRY(l2_rows_forward) {
    in_parts(rows, threads, [=](index_t first, index_t last) {  // a part of the rows for each thread
        for (index_t row = first; row < last; ++row) {
            const T* in = x + row * width;
            T* out = y + row * width;
            RowSum<T> squares;
            each_vector<T>(width, [&](index_t k, auto lanes, auto n) {
                const vector value = lanes.load(in + k);
                squares.add(value * value, n);
            });
            scale[row] = T(1) / std::sqrt(squares.sum() + T(eps));
            const vector by = vector{} + scale[row];
            each_vector<T>(width, [&](index_t k, auto lanes, auto) {
                lanes.store(out + k, lanes.load(in + k) * by);
            });
        }
    });
}

ENTRY(l2_rows_backward) {
    in_parts(rows, threads, [=](index_t first, index_t last) {
        for (index_t row = first; row < last; ++row) {
            const T *in = x + row * width, *g = dy + row * width;
            T* out = dx + row * width;
            RowSum<T> products;
            each_vector<T>(width, [&](index_t k, auto lanes, auto n) {
                products.add(lanes.load(g + k) * lanes.load(in + k), n);
            });
            const vector by = vector{} + scale[row], along = by * by * products.sum();
            each_vector<T>(width, [&](index_t k, auto lanes, auto) {
                lanes.store(out + k, (lanes.load(g + k) - lanes.load(in + k) * along) * by);
            });
        }
    });
}
