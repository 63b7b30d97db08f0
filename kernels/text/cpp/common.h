// The common part of the C++ kernels: vectors and their functions (vector.h), threads over rows (team.h), an entry for each dtype.
#pragma once
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#define CPU_KERNEL  // see portable.h
#include "team.h"
#include "vector.h"

// T is the type of the library's values: a library for each type, because few programs need both and the compiler takes twice as
// long. NAMED(f) is the name of an entry, f_float32 or f_float64.
#if REAL_BITS == 32
using T = float;
#define NAMED(NAME) NAME##_float32
#elif REAL_BITS == 64
using T = double;
#define NAMED(NAME) NAME##_float64
#else
#error "expected -DREAL_BITS=32 or 64"
#endif
using vector = Vector<T>::type;
static constexpr index_t LANES = Vector<T>::lanes;  // the values of a vector

// Failed allocations. `duoln_failures` counts those of all threads; the launcher reads it after each call. If there are any, the
// launcher takes the count of its own thread, because other threads call kernels at the same time.
static thread_local int32_t own_failures = 0;
extern "C" {
std::atomic<int32_t> duoln_failures{0};
int32_t duoln_take_failures() {
    const int32_t count = own_failures;
    own_failures = 0;
    duoln_failures -= count;
    return count;
}
}

// Runs a kernel that allocates memory: no exception leaves it, because its caller is not C++.
template <class Work>
static void guarded(const Work& work) {
    try {
        work();
    } catch (const std::bad_alloc&) {
        ++own_failures;
        ++duoln_failures;
    }
}

// An entry once more, with its arguments in a row of words, as the lines of a compiled step have them: addresses, whole numbers, and
// the bits of a double.
template <class A>
static inline A of_word(int64_t word) {
    if constexpr (std::is_pointer_v<A>) return reinterpret_cast<A>(word);
    else if constexpr (std::is_floating_point_v<A>) {
        double number;
        std::memcpy(&number, &word, sizeof number);
        return A(number);
    } else return A(word);
}
template <class... A, size_t... K>
static inline void by_words_at(void (*entry)(A...), const int64_t* words, std::index_sequence<K...>) {
    entry(of_word<A>(words[K])...);
}
template <class... A>
static inline void by_words(void (*entry)(A...), const int64_t* words) {
    by_words_at(entry, words, std::index_sequence_for<A...>());
}
#define BY_WORDS(ENTRY) \
    extern "C" void NAMED(ENTRY##_words)(const int64_t* words) { by_words(NAMED(ENTRY), words); }

static const index_t CACHE_LINE = 64;  // bytes

// Prefetches memory `distance` values from an address. The sum is a number, because it may lie beyond the array: nothing is read,
// so that does no harm.
template <class T>
static inline void fetch_ahead(const T* values, index_t distance = 0) {
    __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(values) + distance * index_t(sizeof(T))));
}

// Prefetches memory for writing.
template <class T>
static inline void claim_ahead(T* values, index_t distance = 0) {
    __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(values) + distance * index_t(sizeof(T))), 1);
}

// While it lives, values nearer to 0 than the least normal number count as 0 on this thread: an operation with such a value,
// or such a result, takes an x86 CPU some hundred cycles.
class DenormalsAreZero {
  public:
#if defined(__SSE__)
    DenormalsAreZero() : before_(__builtin_ia32_stmxcsr()) { __builtin_ia32_ldmxcsr(before_ | RESULTS | OPERANDS); }
    ~DenormalsAreZero() { __builtin_ia32_ldmxcsr(before_); }

  private:
    static const unsigned RESULTS = 1 << 15, OPERANDS = 1 << 6;
    unsigned before_;
#endif
};

// Memory that begins on a cache line. Its values are not defined.
template <class T>
class Aligned {
  public:
    explicit Aligned(index_t size) : raw_(new T[size + CACHE_LINE / sizeof(T)]) {
        const auto address = reinterpret_cast<uintptr_t>(raw_);
        first_ = raw_ + (CACHE_LINE - address % CACHE_LINE) % CACHE_LINE / sizeof(T);
    }
    Aligned(const Aligned&) = delete;
    Aligned& operator=(const Aligned&) = delete;
    ~Aligned() { delete[] raw_; }
    T* data() const { return first_; }

  private:
    T *raw_, *first_;
};
