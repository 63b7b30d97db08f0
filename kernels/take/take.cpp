// The gradient of rows that were taken from a table: each row of the table adds up the gradients of its copies.
#include "../native.h"

static const index_t RUN = 64, COLUMNS = 256;

// sum += the rows of dy at `count` places, for some columns.
template <class T>
static void add_rows_at(const int64_t* places, index_t count, const T* dy, index_t width, T* sum, index_t columns) {
    for (index_t place = 0; place < count; ++place) {
        const T* row = dy + places[place] * width;
#pragma omp simd
        for (index_t k = 0; k < columns; ++k) sum[k] += row[k];
    }
}

// The same of more than RUN places, for up to COLUMNS columns: half by half, because a long chain of additions loses digits.
template <class T>
static void add_halves_at(const int64_t* places, index_t count, const T* dy, index_t width, T* sum, index_t columns) {
    T of_half[COLUMNS] = {};
    for (const index_t part : {count / 2, count - count / 2}) {
        if (part <= RUN) add_rows_at(places, part, dy, width, of_half, columns);
        else add_halves_at(places, part, dy, width, of_half, columns);
        places += part;
    }
#pragma omp simd
    for (index_t k = 0; k < columns; ++k) sum[k] += of_half[k];
}

// `order` sorts the places in the result by word; word w has the places bounds[w] .. bounds[w + 1). With `add` there are sums.
template <class T>
static void add_rows(const T* dy, const int64_t* order, const int64_t* bounds, T* d_table, index_t first, index_t last,
                     index_t width, bool add) {
    for (index_t word = first; word < last; ++word) {
        T* sum = d_table + word * width;
        if (!add) std::fill_n(sum, width, T(0));
        const int64_t* places = order + bounds[word];
        const index_t count = bounds[word + 1] - bounds[word];
        if (count <= RUN) add_rows_at(places, count, dy, width, sum, width);
        for (index_t column = 0; count > RUN && column < width; column += COLUMNS)
            add_halves_at(places, count, dy + column, width, sum + column, std::min(COLUMNS, width - column));
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
