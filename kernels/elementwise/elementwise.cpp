// One of two values, as a condition says. Either may be one number for all places.
#include "../each_value.h"

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
    auto operator()(index_t, const Lanes&) const { return typename Vector<T>::type{} + number; }
};

// Calls work(reader) for an array, or for a number if the array is null.
template <class T, class Work>
static void with(const T* array, double number, const Work& work) {
    if (array) work(FromArray<T>{array});
    else work(OneNumber<T>{T(number)});
}

#define WHERE(T, NAME)                                                                                                \
    extern "C" void where_##NAME(const uint8_t* condition, const T* x, const T* y, T* out, int64_t size,              \
                                 double x_number, double y_number, int32_t threads) {                                 \
        with(x, x_number, [&](const auto& from_x) {                                                                   \
            with(y, y_number, [&](const auto& from_y) {                                                               \
                each_value(size, out, threads, [&](index_t k, const auto& lanes) {                                    \
                    return chosen<T>(condition + k, lanes) ? from_x(k, lanes) : from_y(k, lanes);                     \
                });                                                                                                   \
            });                                                                                                       \
        });                                                                                                           \
    }
ENTRIES(WHERE)
