// A list of tensors, cut into blocks of BLOCK values that several threads share. A block gives one sum, and the sums are
// added in order, so that the threads change no bit.
#pragma once
#include "../native.h"

static const index_t BLOCK = 8192;

// The root of the sum of work(tensor, first, last) over all blocks; `first` and `last` are values of one tensor.
template <class Work>
static double root_of_sums(const index_t* sizes, index_t tensors, int threads, const Work& work) {
    std::vector<index_t> ends(tensors + 1, 0);
    for (index_t k = 0; k < tensors; ++k) ends[k + 1] = ends[k] + (sizes[k] + BLOCK - 1) / BLOCK;
    std::vector<double> sums(ends[tensors]);
    in_parts(ends[tensors], threads, [&](index_t begin, index_t end) {
        index_t tensor = 0;
        for (index_t block = begin; block < end; ++block) {
            while (block >= ends[tensor + 1]) ++tensor;
            const index_t first = (block - ends[tensor]) * BLOCK;
            sums[block] = work(tensor, first, std::min(first + BLOCK, sizes[tensor]));
        }
    });
    double total = 0;
    for (const double sum : sums) total += sum;
    return std::sqrt(total);
}
