// What the C++ kernels share: vectors and their functions, an entry for each dtype, threads over rows.
#pragma once
#include <limits>
#include <thread>
#include <vector>

#define CPU_KERNEL  // see portable.h
#include "vector.h"

// ENTRIES(M) defines what M makes of both types and their names, such as `extern "C" void f_float32(...)`.
#define ENTRIES(M) M(float, float32) M(double, float64)

// Calls work(first, last) for parts of `count` on several threads. The parts decide nothing but who does what: a result
// that adds up over rows is added up in blocks that do not depend on them.
template <class Work>
static void in_parts(index_t count, int threads, const Work& work) {
    if (threads <= 1 || count <= 1) {
        if (count > 0) work(index_t(0), count);
        return;
    }
    if (threads > count) threads = int(count);
    std::vector<std::thread> team;
    team.reserve(threads - 1);
    for (int k = 1; k < threads; ++k)
        team.emplace_back(work, count * k / threads, count * (k + 1) / threads);
    work(index_t(0), count / threads);
    for (auto& one : team) one.join();
}
