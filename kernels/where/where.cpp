// One of two values, as a condition says. Either may be one number for all places.
#include "../rows.h"

static const index_t AT_ONCE = 1024;  // values; threads get whole ones, so that no two write to one cache line

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

template <class T, class X, class Y>
static void choose(const uint8_t* condition, const X& x, const Y& y, T* out, index_t first, index_t last, bool past_caches) {
    each_vector<T>(last - first, [&](index_t k, auto lanes, auto) {
        const index_t at = first + k;
        const auto value = chosen<T>(condition + at, lanes) ? x(at, lanes) : y(at, lanes);
        if constexpr (std::is_same_v<decltype(lanes), WholeVector<T>>) {
            if (past_caches) return store_past_caches(out + at, value);
        }
        lanes.store(out + at, value);
    });
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
    auto operator()(index_t, const Lanes&) const { return typename Vector<T>::type{} + number; }
};

// Calls work(reader) for an array, or for a number if the array is null.
template <class T, class Work>
static void with(const T* array, double number, const Work& work) {
    if (array) work(FromArray<T>{array});
    else work(OneNumber<T>{T(number)});
}

// `out` begins on a cache line.
#define WHERE(T, NAME)                                                                                                \
    extern "C" void where_##NAME(const uint8_t* condition, const T* x, const T* y, T* out, int64_t size,              \
                                 double x_number, double y_number, int32_t threads) {                                 \
        const bool past_caches = go_past_caches<T>(size);                                                             \
        with(x, x_number, [&](const auto& from_x) {                                                                   \
            with(y, y_number, [&](const auto& from_y) {                                                               \
                in_parts((size + AT_ONCE - 1) / AT_ONCE, threads, [&](index_t first, index_t last) {                  \
                    choose(condition, from_x, from_y, out, first * AT_ONCE, std::min(last * AT_ONCE, size),           \
                           past_caches);                                                                              \
                    if (past_caches) end_past_caches();                                                               \
                });                                                                                                   \
            });                                                                                                       \
        });                                                                                                           \
    }
ENTRIES(WHERE)
