// Matrices without the means of their rows, or without those of two parts of each row.
#include "rows.h"

static const index_t ROWS_OF_PART = 16;

static void centre(const T* x, index_t width, T* out) {
    const T mean = row_mean(x, width);
    each_vector<T>(width, [&](index_t k, auto lanes, auto) { lanes.store(out + k, lanes.load(x + k) - mean); });
}

ENTRY(centred) {
    in_parts((rows + ROWS_OF_PART - 1) / ROWS_OF_PART, threads, [=](index_t first, index_t last) {
        for (index_t r = first * ROWS_OF_PART; r < std::min(last * ROWS_OF_PART, rows); ++r) {
            centre(x + r * width, cut, out + r * width);
            if (cut < width) centre(x + r * width + cut, width - cut, out + r * width + cut);
        }
    });
}

// The same of a weight that lies transposed, (gates, stride, columns): `hidden` rows of each gate become (gates, out_stride, columns), whose other
// rows are zero. A column loses its mean in each of `parts` parts of the gates; with 0 parts it is copied. `out` may be x.
ENTRY(centred_columns) {
    constexpr index_t AT_ONCE = 256, OF_SUM = 64;  // columns of a task, and rows whose sum is added up apart: one of all would lose digits
    in_parts((columns + AT_ONCE - 1) / AT_ONCE, threads, [=](index_t begin, index_t end) {
        for (index_t task = begin; task < end; ++task) {
            const index_t first = task * AT_ONCE, count = std::min(AT_ONCE, columns - first);
            const auto part_of = [=](index_t gate) { return gate * parts / gates; };
            T means[AT_ONCE] = {}, some[AT_ONCE];
            for (index_t gate = 0; gate < gates; ++gate) {
                if (parts && (gate == 0 || part_of(gate) != part_of(gate - 1))) {
                    index_t rows = 0;
                    std::fill_n(means, count, T(0));
                    for (index_t each = gate; each < gates && part_of(each) == part_of(gate); ++each, rows += hidden)
                        for (index_t j = 0; j < hidden; j += OF_SUM) {
                            std::fill_n(some, count, T(0));
                            for (index_t k = j; k < std::min(j + OF_SUM, hidden); ++k)
                                for (index_t c = 0; c < count; ++c) some[c] += x[(each * stride + k) * columns + first + c];
                            for (index_t c = 0; c < count; ++c) means[c] += some[c];
                        }
                    for (index_t c = 0; c < count; ++c) means[c] /= T(rows);
                }
                for (index_t k = 0; k < out_stride; ++k) {
                    const T* of = x + (gate * stride + k) * columns + first;
                    T* row = out + (gate * out_stride + k) * columns + first;
                    for (index_t c = 0; c < count; ++c) row[c] = k < hidden ? of[c] - means[c] : T(0);
                }
            }
        }
    });
}
