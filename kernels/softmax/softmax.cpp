// Softmax of rows and its logarithm, forward and backward. A row's largest value is subtracted first, so that no power overflows.
#include "rows.h"

// e^(x - largest) / sum, or its logarithm.
static void of_rows(const T* x, T* y, index_t first, index_t last, index_t width, bool logarithm) {
    for (index_t row = first; row < last; ++row) {
        const T* in = x + row * width;
        T* out = y + row * width;
        const vector shift = vector{} + row_largest(in, width);
        RowSum<T> sums;
        each_vector<T>(width, [&](index_t k, auto lanes, auto n) {
            const vector shifted = lanes.load(in + k) - shift, power = lanes.or_zero(exponential(shifted));
            sums.add(power, n);
            lanes.store(out + k, logarithm ? shifted : power);
        });
        const T total = sums.sum();
        const vector divisor = vector{} + total, offset = vector{} + std::log(total);
        each_vector<T>(width, [&](index_t k, auto lanes, auto) {
            const vector value = lanes.load(out + k);
            lanes.store(out + k, logarithm ? value - offset : value / divisor);
        });
    }
}

// y (dy - sum(dy y)), or dy - e^y sum(dy).
static void gradients(const T* y, const T* dy, T* dx, index_t first, index_t last, index_t width, bool logarithm) {
    for (index_t row = first; row < last; ++row) {
        const T *value = y + row * width, *g = dy + row * width;
        T* out = dx + row * width;
        RowSum<T> sums;
        each_vector<T>(width, [&](index_t k, auto lanes, auto n) {
            const vector through = lanes.load(g + k);
            sums.add(logarithm ? through : through * lanes.load(value + k), n);
        });
        const vector along = vector{} + sums.sum();
        each_vector<T>(width, [&](index_t k, auto lanes, auto) {
            const vector kept = lanes.load(value + k), through = lanes.load(g + k);
            lanes.store(out + k, logarithm ? through - exponential(kept) * along : kept * (through - along));
        });
    }
}

ENTRY(softmax_forward) {
    in_parts(rows, threads, [=](index_t first, index_t last) {
        of_rows(x, y, first, last, width, logarithm != 0);
    });
}

ENTRY(softmax_backward) {
    in_parts(rows, threads, [=](index_t first, index_t last) {
        gradients(y, dy, dx, first, last, width, logarithm != 0);
    });
}
