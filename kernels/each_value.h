// Arrays whose values each come from the values at the same place of others. A large result goes past the caches.
#pragma once
#include "rows.h"

// `value(k, lanes)` gives the vector of the values k and after; `lanes` loads it (rows.h). `out` begins on a cache line.
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
