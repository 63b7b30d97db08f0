// Running sums along rows.
#include "rows.h"

static constexpr index_t BLOCK = 1024;

// The values `count` lanes further on, with zeros before them.
template <int count, class V, std::size_t... LANE>
static inline V shifted(V values, std::index_sequence<LANE...>) {
    return __builtin_shufflevector(V{}, values, (LANE < count ? LANE : sizeof...(LANE) + LANE - count)...);
}

// The running sum of a vector.
template <class T, int count = 1>
static inline typename Vector<T>::type running(typename Vector<T>::type values) {
    if constexpr (count >= Vector<T>::lanes) return values;
    else return running<T, 2 * count>(values + shifted<count>(values, std::make_index_sequence<Vector<T>::lanes>()));
}

// The sums before each block of a row are added up in double, so that a long row keeps its digits.
template <class T>
static void cumulative_sum(const T* x, T* y, index_t rows, index_t width, int threads) {
    const index_t blocks = (width + BLOCK - 1) / BLOCK;
    std::vector<double> before(rows * blocks);
    if (blocks > 1) {
        in_parts(rows * blocks, threads, [&](index_t first, index_t last) {
            for (index_t k = first; k < last; ++k) {
                const index_t begin = k % blocks * BLOCK;
                const T* values = x + k / blocks * width + begin;
                RowSum<T> sum;
                each_vector<T>(std::min(BLOCK, width - begin),
                               [&](index_t n, const auto& lanes, auto number) { sum.add(lanes.load(values + n), number); });
                before[k] = double(sum.sum());
            }
        });
        for (index_t row = 0; row < rows; ++row) {
            double total = 0;
            for (index_t k = row * blocks; k < (row + 1) * blocks; ++k) total += std::exchange(before[k], total);
        }
    }
    in_parts(rows * blocks, threads, [&](index_t first, index_t last) {
        for (index_t k = first; k < last; ++k) {
            const index_t begin = k % blocks * BLOCK, at = k / blocks * width + begin;
            T carried = 0;
            const auto offset = typename Vector<T>::type{} + T(before[k]);
            each_vector<T>(std::min(BLOCK, width - begin), [&](index_t n, const auto& lanes, auto) {
                const auto sums = running<T>(lanes.load(x + at + n)) + carried;
                carried = sums[Vector<T>::lanes - 1];
                lanes.store(y + at + n, sums + offset);
            });
        }
    });
}

ENTRY(cumulative_sum) {
    guarded([=] { cumulative_sum(x, y, rows, width, threads); });
}
