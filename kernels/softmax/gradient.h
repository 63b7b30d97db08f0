// The gradient of a softmax cross-entropy, for rows of logits.
#pragma once
#include "rows.h"

// The logits are those of `width` classes from the class `start` on; `largest` and `total` are a row's largest logit of all classes and
// its sum of e^x, x being what a logit is above that. The gradient of row r's loss is d_loss[r * d_loss_step]. That of the
// logits may go where they are.
static void differentiate(const T* logits, const int32_t* labels, const T* largest, const T* total, const T* d_loss,
                          T* d_logits, index_t first, index_t last, index_t width, index_t start, index_t d_loss_step = 1) {
    for (index_t row = first; row < last; ++row) {
        const T* in = logits + row * width;
        const vector scale = vector{} + d_loss[row * d_loss_step] / total[row], shift = vector{} + largest[row];
        T* out = d_logits + row * width;
        each_vector<T>(width, [&](index_t k, auto lanes, auto) {
            lanes.store(out + k, scale * exponential(lanes.load(in + k) - shift));
        });
        const index_t label = labels[row] - start;
        if (label >= 0 && label < width) out[label] -= d_loss[row * d_loss_step];
    }
}
