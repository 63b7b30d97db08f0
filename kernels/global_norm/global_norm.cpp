// The common norm of all tensors of a model in one call.
#include "blocks.h"
#include "../rows.h"

static Wide squares(const T* x, index_t count) {
    RowSum<T> sum;
    each_vector<T>(count, [&](index_t k, auto lanes, auto number) {
        const auto values = lanes.load(x + k);
        sum.add(values * values, number);
    });
    return sum_of_squares(x, count, sum.sum());
}

extern "C" void NAMED(global_norm)(const T* const* const* places, const int64_t* sizes, T* norm, int64_t tensors,
                                   int32_t threads) {
    guarded([&] {
        *norm = T(root_of_sums(sizes, tensors, threads, [=](index_t tensor, index_t first, index_t last) {
            return squares(*places[tensor] + first, last - first);
        }));
    });
}
BY_WORDS(global_norm)
