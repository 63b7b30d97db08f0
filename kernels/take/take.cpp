// The gradient of rows that were taken from a table: each row of the table adds up the gradients of its copies, in order.
#include "../native.h"

// `order` sorts the places in the result by word; word w has the places bounds[w] .. bounds[w + 1). With `add` there are sums.
template <class T>
static void add_rows(const T* dy, const int64_t* order, const int64_t* bounds, T* d_table, index_t first, index_t last,
                     index_t width, bool add) {
    for (index_t word = first; word < last; ++word) {
        T* sum = d_table + word * width;
        if (!add) std::fill_n(sum, width, T(0));
        for (index_t place = bounds[word]; place < bounds[word + 1]; ++place) {
            const T* row = dy + order[place] * width;
#pragma omp simd
            for (index_t k = 0; k < width; ++k) sum[k] += row[k];
        }
    }
}

#define TAKE(T, NAME)                                                                                                \
    extern "C" void take_backward_##NAME(const T* dy, const int64_t* order, const int64_t* bounds, T* d_table,        \
                                         int64_t words, int64_t width, int32_t add, int32_t threads) {                \
        in_parts(words, threads, [=](index_t first, index_t last) {                                                   \
            add_rows(dy, order, bounds, d_table, first, last, width, add != 0);                                       \
        });                                                                                                           \
    }
ENTRIES(TAKE)
