// Copies; elementwise sums and products of two arrays; a choice between two by a condition, where either may be one number; and the sum of
// all values of an array.
#include "../rows.h"

// `value(k, lanes)` gives the vector of the values k and after; `lanes` loads it (rows.h). `out` begins on a cache line. A large
// result is written with streaming stores.
template <class T, class Value>
static void each_value(index_t size, T* out, int threads, const Value& value) {
    static constexpr index_t AT_ONCE = 1024;  // threads get whole ones, so that no two write to one cache line
    const bool past_caches = go_past_caches<T>(size);
    in_parts((size + AT_ONCE - 1) / AT_ONCE, threads, [&](index_t first_part, index_t last_part) {
        const index_t first = first_part * AT_ONCE, last = std::min(last_part * AT_ONCE, size);
        each_vector<T>(last - first, [&](index_t k, auto lanes, auto) {
            T* to = out + first + k;
            const auto values = value(first + k, lanes);
            if constexpr (std::is_same_v<decltype(lanes), WholeVector<T>>) {
                if (past_caches) return store_past_caches(to, values);
            }
            lanes.store(to, values);
        });
        if (past_caches) end_past_caches();
    });
}

// Bytes of the condition for a vector of values.
template <class T>
struct Bytes {
    typedef uint8_t type __attribute__((vector_size(Vector<T>::lanes)));
};

template <class T, class Lanes>
static inline auto chosen(const uint8_t* condition, const Lanes& lanes) {
    typename Bytes<T>::type bytes{};
    if constexpr (std::is_same_v<Lanes, WholeVector<T>>) std::memcpy(&bytes, condition, sizeof(bytes));
    else std::memcpy(&bytes, condition, lanes.count);
    using whole = decltype(typename Vector<T>::type{} < typename Vector<T>::type{});
    return __builtin_convertvector(bytes, whole) != 0;
}

template <class T>
struct FromArray {
    const T* values;
    template <class Lanes>
    auto operator()(index_t at, const Lanes& lanes) const { return lanes.load(values + at); }
};
template <class T>
struct OneNumber {
    T number;
    template <class Lanes>
    auto operator()(index_t, const Lanes&) const { return number - typename Vector<T>::type{}; }  // keeps the sign of zero
};

// Calls work(reader) for an array, or for a number if the array is null.
template <class T, class Work>
static void with(const T* array, double number, const Work& work) {
    if (array) work(FromArray<T>{array});
    else work(OneNumber<T>{T(number)});
}

// The sum of each block of `length` values; the last block may be shorter.
template <class T>
static void sum_blocks(const T* x, double* sums, index_t size, index_t length, int threads) {
    in_parts((size + length - 1) / length, threads, [=](index_t first, index_t last) {
        for (index_t block = first; block < last; ++block) {
            const T* values = x + block * length;
            RowSum<T> sum;
            each_vector<T>(std::min(length, size - block * length),
                           [&](index_t k, const auto& lanes, auto number) { sum.add(lanes.load(values + k), number); });
            sums[block] = double(sum.sum());
        }
    });
}

#define ELEMENTWISE(T, NAME)                                                                                          \
    extern "C" void copy_##NAME(const T* x, T* out, int64_t size, int32_t threads) {                                  \
        each_value(size, out, threads, [=](index_t k, const auto& lanes) { return lanes.load(x + k); });              \
    }                                                                                                                 \
    extern "C" void add_##NAME(const T* x, const T* y, T* out, int64_t size, int32_t threads) {                       \
        each_value(size, out, threads,                                                                                \
                   [=](index_t k, const auto& lanes) { return lanes.load(x + k) + lanes.load(y + k); });              \
    }                                                                                                                 \
    extern "C" void multiply_##NAME(const T* x, const T* y, T* out, int64_t size, double y_number, int32_t threads) { \
        with(y, y_number, [&](const auto& from_y) {                                                                   \
            each_value(size, out, threads,                                                                            \
                       [&](index_t k, const auto& lanes) { return lanes.load(x + k) * from_y(k, lanes); });           \
        });                                                                                                           \
    }                                                                                                                 \
    extern "C" void where_##NAME(const uint8_t* condition, const T* x, const T* y, T* out, int64_t size,              \
                                 double x_number, double y_number, int32_t threads) {                                 \
        with(x, x_number, [&](const auto& from_x) {                                                                   \
            with(y, y_number, [&](const auto& from_y) {                                                               \
                each_value(size, out, threads, [&](index_t k, const auto& lanes) {                                    \
                    return chosen<T>(condition + k, lanes) ? from_x(k, lanes) : from_y(k, lanes);                     \
                });                                                                                                   \
            });                                                                                                       \
        });                                                                                                           \
    }                                                                                                                 \
    extern "C" void sum_##NAME(const T* x, double* sums, int64_t size, int64_t length, int32_t threads) {             \
        sum_blocks(x, sums, size, length, threads);                                                                   \
    }
ENTRIES(ELEMENTWISE)
