// Walks along a row of any width in vectors: whole ones, and a part of one where the width ends between two.
#pragma once
#include <type_traits>

#include "common.h"

// Four vectors are under way at once, so that a sum does not wait for the one before. Work gets the number of its
// vector among them, a constant, for its own part of a sum.
static constexpr int SUMS = 4;
template <int number>
using Number = std::integral_constant<int, number>;

// All values of a vector.
template <class T>
struct WholeVector {
    using vector = typename Vector<T>::type;
    vector load(const T* values, T = T(0)) const { return ::load(values); }
    void store(T* values, vector from) const { ::store(values, from); }
    vector or_zero(vector from) const { return from; }
};

// The first `count` values of a vector. The others are read as zero, or as `otherwise`, and not written.
template <class T>
struct PartOfVector {
    using vector = typename Vector<T>::type;
    index_t count;
    vector load(const T* values, T otherwise = T(0)) const {
        vector part = vector{} + otherwise;
        std::memcpy(&part, values, count * sizeof(T));
        return part;
    }
    void store(T* values, vector from) const { std::memcpy(values, &from, count * sizeof(T)); }
    vector or_zero(vector from) const { return load(reinterpret_cast<const T*>(&from)); }
};

// Calls work(k, lanes, number) for the vector of the values k and after: `lanes` loads and stores it.
template <class T, class Work>
static inline void each_vector(index_t width, const Work& work) {
    const index_t step = Vector<T>::lanes;
    const WholeVector<T> whole;
    index_t k = 0;
    for (; k + SUMS * step <= width; k += SUMS * step) {
        work(k, whole, Number<0>());
        work(k + step, whole, Number<1>());
        work(k + 2 * step, whole, Number<2>());
        work(k + 3 * step, whole, Number<3>());
    }
    for (; k + step <= width; k += step) work(k, whole, Number<0>());
    if (k < width) work(k, PartOfVector<T>{width - k}, Number<1>());
}

// A sum over a row, in an order that depends on the width alone. Of a long row some vectors at a time are added up together: one
// chain from beginning to end would lose digits.
template <class T>
struct RowSum {
    using vector = typename Vector<T>::type;
    static constexpr int AT_ONCE = 4 * VECTOR_BYTES;  // vectors of each part; the chains of narrow ones are longer
    vector parts[SUMS] = {}, before{};
    int count = 0;
    template <int number>
    void add(vector values, Number<number>) {
        parts[number] += values;
        if (number == SUMS - 1 && ++count == AT_ONCE) put_away();
    }
    T sum() const { return total<T>(before + of_parts()); }

  private:
    vector of_parts() const { return (parts[0] + parts[1]) + (parts[2] + parts[3]); }
    void put_away() {
        before += of_parts();
        std::fill_n(parts, SUMS, vector{});
        count = 0;
    }
};

// The largest value of a row. A NaN is none, unless it is the first value; the row's sum of powers is NaN with it.
template <class T>
static inline T row_largest(const T* row, index_t width) {
    using vector = typename Vector<T>::type;
    vector parts[SUMS];
    std::fill_n(parts, SUMS, vector{} + row[0]);
    each_vector<T>(width, [&](index_t k, auto lanes, auto number) {
        const vector values = lanes.load(row + k, row[0]);
        parts[number] = values > parts[number] ? values : parts[number];
    });
    T largest = row[0];
    for (const vector& part : parts) largest = std::max(largest, greatest<T>(part));
    return largest;
}

template <class T>
static inline T row_mean(const T* row, index_t width) {
    RowSum<T> sum;
    each_vector<T>(width, [&](index_t k, auto lanes, auto number) { sum.add(lanes.load(row + k), number); });
    return sum.sum() / T(width);
}

// True if this many results are written with streaming stores: they are too large to be read again from cache, and ordinary
// stores would first read the memory.
template <class T>
static inline bool go_past_caches(index_t count) { return count * index_t(sizeof(T)) >= index_t(8) << 20; }

#if defined(__x86_64__)
template <class T>
static inline void store_past_caches(T* to, typename Vector<T>::type from) {
    auto* place = reinterpret_cast<typename Vector<T>::anywhere*>(to);
#if VECTOR_BYTES == 16
    asm("movntps %1, %0" : "=m"(*place) : "x"(from));
#else
    asm("vmovntps %1, %0" : "=m"(*place) : "v"(from));
#endif
}
// A fence: other threads see streaming stores only after it.
static inline void end_past_caches() { asm volatile("sfence" ::: "memory"); }
#else
template <class T>
static inline void store_past_caches(T* to, typename Vector<T>::type from) { store(to, from); }
static inline void end_past_caches() {}
#endif

// Copies a row with streaming stores, and with ordinary ones the values that share a vector with another row.
template <class T>
static inline void copy_past_caches(const T* row, T* to, index_t width) {
    constexpr index_t LANES = Vector<T>::lanes;
    const index_t before = index_t(-reinterpret_cast<uintptr_t>(to) % VECTOR_BYTES / sizeof(T));
    index_t k = std::min(before, width);
    std::memcpy(to, row, k * sizeof(T));
    for (; k + LANES <= width; k += LANES) store_past_caches(to + k, load(row + k));
    std::memcpy(to + k, row + k, (width - k) * sizeof(T));
}
