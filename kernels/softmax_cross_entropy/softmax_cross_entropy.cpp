// Softmax cross-entropy of rows of logits, forward and backward. What is kept of a row is the logarithm of its sum.
#include "../rows.h"

template <class T>
static void losses(const T* logits, const int32_t* labels, T* loss, T* log_sum, index_t first, index_t last,
                   index_t classes) {
    using vector = typename Vector<T>::type;
    for (index_t row = first; row < last; ++row) {
        const T* in = logits + row * classes;
        vector largest_parts[SUMS];
        std::fill_n(largest_parts, SUMS, vector{} + in[0]);
        each_vector<T>(classes, [&](index_t k, auto lanes, auto n) {
            vector& part = largest_parts[n];
            const vector values = lanes.load(in + k, in[0]);
            part = values > part ? values : part;
        });
        T largest = in[0];
        for (const vector& part : largest_parts)
            largest = std::max(largest, greatest<T>(part));
        RowSum<T> sums;
        const vector shift = vector{} + largest;
        each_vector<T>(classes, [&](index_t k, auto lanes, auto n) {
            sums.add(lanes.or_zero(exponential(lanes.load(in + k) - shift)), n);
            fetch_ahead(in + classes + k);
        });
        const T log_of_sum = std::log(sums.sum());
        log_sum[row] = largest + log_of_sum;
        loss[row] = log_of_sum - (in[labels[row]] - largest);
    }
}

template <class T>
static void differentiate(const T* logits, const int32_t* labels, const T* log_sum, const T* d_loss, T* d_logits,
                          index_t first, index_t last, index_t classes) {
    using vector = typename Vector<T>::type;
    for (index_t row = first; row < last; ++row) {
        const T* in = logits + row * classes;
        const vector scale = vector{} + d_loss[row], log_of_sum = vector{} + log_sum[row];
        T* out = d_logits + row * classes;
        each_vector<T>(classes, [&](index_t k, auto lanes, auto) {
            lanes.store(out + k, scale * exponential(lanes.load(in + k) - log_of_sum));
        });
        out[labels[row]] -= d_loss[row];
    }
}

#define CROSS_ENTROPY(T, NAME)                                                                                        \
    extern "C" void cross_entropy_forward_##NAME(const T* logits, const int32_t* labels, T* loss, T* log_sum,          \
                                                 int64_t rows, int64_t classes, int32_t threads) {                     \
        in_parts(rows, threads,                                                                                        \
                 [=](index_t first, index_t last) { losses(logits, labels, loss, log_sum, first, last, classes); });   \
    }                                                                                                                  \
    extern "C" void cross_entropy_backward_##NAME(const T* logits, const int32_t* labels, const T* log_sum,            \
                                                  const T* d_loss, T* d_logits, int64_t rows, int64_t classes,         \
                                                  int32_t threads) {                                                   \
        in_parts(rows, threads, [=](index_t first, index_t last) {                                                     \
            differentiate(logits, labels, log_sum, d_loss, d_logits, first, last, classes);                            \
        });                                                                                                            \
    }
ENTRIES(CROSS_ENTROPY)
