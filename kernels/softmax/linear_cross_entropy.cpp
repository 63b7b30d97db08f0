// Softmax cross-entropy over blocks of classes: what a row's logits of one block add to its loss, and their gradient.
#include "gradient.h"

// Adds the exponentials of the logits to each row's sum, which is relative to the row's largest so far.
static void gather(const T* logits, const int32_t* labels, T* largest, T* total, T* picked, index_t first, index_t last,
                   index_t width, index_t start) {
    for (index_t row = first; row < last; ++row) {
        const T *values = logits + row * width, top = std::max(largest[row], row_largest(values, width));
        // While all are minus infinity, minus infinity is not taken from itself.
        const T base = top == -std::numeric_limits<T>::infinity() ? T(0) : top;
        const vector shift = vector{} + base;
        RowSum<T> sums;
        each_vector<T>(width, [&](index_t k, auto lanes, auto number) {
            sums.add(lanes.or_zero(exponential(lanes.load(values + k) - shift)), number);
        });
        total[row] = total[row] * exponential(largest[row] - base) + sums.sum();
        largest[row] = top;
        const index_t label = labels[row] - start;
        if (label >= 0 && label < width) picked[row] = values[label];
    }
}

ENTRY(linear_cross_entropy_gather) {
    in_parts(rows, threads, [=](index_t first, index_t last) {
        gather(logits, labels, largest, total, picked, first, last, width, start);
    });
}

ENTRY(linear_cross_entropy_backward) {
    in_parts(rows, threads, [=](index_t first, index_t last) {
        differentiate(logits, labels, largest, total, d_loss, d_logits, first, last, width, start);
    });
}
