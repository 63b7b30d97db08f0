// Softmax cross-entropy of rows of logits, forward and backward. What is kept of a row is the logarithm of its sum.
#include "../native.h"

template <class T>
static void losses(const T* logits, const int32_t* labels, T* loss, T* log_sum, index_t first, index_t last,
                   index_t classes) {
    for (index_t row = first; row < last; ++row) {
        const T* in = logits + row * classes;
        T largest = in[0];
#pragma omp simd reduction(max : largest)
        for (index_t k = 0; k < classes; ++k) largest = in[k] > largest ? in[k] : largest;
        T sum = 0;
#pragma omp simd reduction(+ : sum)
        for (index_t k = 0; k < classes; ++k) sum += exponential(in[k] - largest);
        const T log_of_sum = std::log(sum);
        log_sum[row] = largest + log_of_sum;
        loss[row] = log_of_sum - (in[labels[row]] - largest);
    }
}

template <class T>
static void differentiate(const T* logits, const int32_t* labels, const T* log_sum, const T* d_loss, T* d_logits,
                          index_t first, index_t last, index_t classes) {
    for (index_t row = first; row < last; ++row) {
        const T *in = logits + row * classes, scale = d_loss[row], log_of_sum = log_sum[row];
        T* out = d_logits + row * classes;
#pragma omp simd
        for (index_t k = 0; k < classes; ++k) out[k] = scale * exponential(in[k] - log_of_sum);
        out[labels[row]] -= scale;
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
