// The gradient of rows that were taken from a table: each row of the table adds up the gradients of its copies.
#include <vector>

#include "common.h"

static const index_t RUN = 64;  // copies whose gradients are added one after another: a long chain of additions loses digits

// sum += the rows of dy at `count` places.
static void add_rows_at(const int64_t* places, index_t count, const T* dy, index_t width, T* sum) {
    for (index_t place = 0; place < count; ++place) {
        const T* row = dy + places[place] * width;
#pragma omp simd
        for (index_t k = 0; k < width; ++k) sum[k] += row[k];
    }
}

// The number of halvings of `count` copies until no part is longer than a run.
static inline index_t halvings(index_t count) {
    index_t n = 0;
    for (; count > RUN; count -= count / 2) ++n;
    return n;
}

// The same half by half. `room` has a row for each time that the copies are divided.
static void add_halves_at(const int64_t* places, index_t count, const T* dy, index_t width, T* sum, T* room) {
    if (count <= RUN) return add_rows_at(places, count, dy, width, sum);
    std::fill_n(room, width, T(0));
    add_halves_at(places, count / 2, dy, width, room, room + width);
    add_halves_at(places + count / 2, count - count / 2, dy, width, room, room + width);
#pragma omp simd
    for (index_t k = 0; k < width; ++k) sum[k] += room[k];
}

// `order` sorts the places in the result by word; word w has the places bounds[w] .. bounds[w + 1). With `add` there are sums.
static void add_rows(const T* dy, const int64_t* order, const int64_t* bounds, T* d_table, index_t first, index_t last,
                     index_t width, bool add) {
    std::vector<T> room;
    for (index_t word = first; word < last; ++word) {
        T* sum = d_table + word * width;
        if (!add) std::fill_n(sum, width, T(0));
        const index_t count = bounds[word + 1] - bounds[word], needed = halvings(count) * width;
        if (needed > index_t(room.size())) room.resize(needed);
        add_halves_at(order + bounds[word], count, dy, width, sum, room.data());
    }
}

ENTRY(take_gradient) {
    guarded([&] {
        in_parts(words, threads, [=](index_t first, index_t last) {
            add_rows(dy, order, bounds, d_table, first, last, width, add != 0);
        });
    });
}
