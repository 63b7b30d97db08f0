// The common norm of all tensors of a model in one call.
#include "blocks.h"
#include "rows.h"

static Wide squares(const T* x, index_t count) {
    RowSum<T> sum;
    each_vector<T>(count, [&](index_t k, auto lanes, auto number) {
        const auto values = lanes.load(x + k);
        sum.add(values * values, number);
    });
    return sum_of_squares(x, count, sum.sum());
}

ENTRY(global_norm) {
    guarded([&] {
        const auto at = reinterpret_cast<const T* const* const*>(places);
        *norm = T(root_of_sums(sizes, tensors, threads, [=](index_t tensor, index_t first, index_t last) {
            return squares(*at[tensor] + first, last - first);
        }));
    });
}
