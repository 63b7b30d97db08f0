// A list of tensors, cut into blocks of BLOCK values that several threads share. A block gives one sum, and the sums are
// added in order, so that the threads change no bit. The tensors are given by places: the addresses of the words that hold their addresses.
#pragma once
#include "common.h"

static const index_t BLOCK = 8192;

// The type that holds the squares of all values of T.
using Wide = std::conditional_t<std::is_same_v<T, double>, long double, double>;

// The sum of the squares of `count` values, which their own type added up to `sum`: again in the wider one where that may have
// lost some.
static Wide sum_of_squares(const T* x, index_t count, T sum) {
    using limits = std::numeric_limits<T>;
    if (sum > limits::min() / limits::epsilon() * T(1e6) && sum < limits::max() / T(30)) return sum;
    Wide wide = 0;
#pragma omp simd reduction(+ : wide)
    for (index_t k = 0; k < count; ++k) wide += Wide(x[k]) * Wide(x[k]);
    return wide;
}

// The root of the sum of work(tensor, first, last) over all blocks; `first` and `last` are values of one tensor.
template <class Work>
static Wide root_of_sums(const index_t* sizes, index_t tensors, int threads, const Work& work) {
    std::vector<index_t> ends(tensors + 1, 0);
    for (index_t k = 0; k < tensors; ++k) ends[k + 1] = ends[k] + (sizes[k] + BLOCK - 1) / BLOCK;
    std::vector<Wide> sums(ends[tensors]);
    in_parts(ends[tensors], threads, [&](index_t begin, index_t end) {
        index_t tensor = 0;
        for (index_t block = begin; block < end; ++block) {
            while (block >= ends[tensor + 1]) ++tensor;
            const index_t first = (block - ends[tensor]) * BLOCK;
            sums[block] = work(tensor, first, std::min(first + BLOCK, sizes[tensor]));
        }
    });
    Wide total = 0;
    for (const Wide sum : sums) total += sum;
    return std::sqrt(total);
}
