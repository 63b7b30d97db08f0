// Softmax cross-entropy of rows of logits, forward and backward. What is kept of a row is its largest logit and the sum of e^x, x being
// what a logit is above that: their sum in one number would lose the digits of logits far from zero.
#include "gradient.h"

static void losses(const T* logits, const int32_t* labels, T* loss, T* largest, T* total, index_t first, index_t last,
                   index_t classes) {
    for (index_t row = first; row < last; ++row) {
        const T *in = logits + row * classes, top = row_largest(in, classes);
        RowSum<T> sums;
        const vector shift = vector{} + top;
        each_vector<T>(classes, [&](index_t k, auto lanes, auto n) {
            sums.add(lanes.or_zero(exponential(lanes.load(in + k) - shift)), n);
            fetch_ahead(in, classes + k);
        });
        largest[row] = top;
        total[row] = sums.sum();
        loss[row] = std::log(total[row]) - (in[labels[row]] - top);
    }
}

ENTRY(cross_entropy_forward) {
    in_parts(rows, threads, [=](index_t first, index_t last) {
        losses(logits, labels, loss, largest, total, first, last, classes);
    });
}

ENTRY(cross_entropy_backward) {
    in_parts(rows, threads, [=](index_t first, index_t last) {
        differentiate(logits, labels, largest, total, d_loss, d_logits, first, last, classes, 0, d_loss_step);
    });
}
