// Scaled dot-product attention (Vaswani et al. 2017, eq. 1), forward and backward.
//
// The scores of some queries of one head are computed at a time and stay in the caches. The backward computes them again
// from what the forward kept of each query: its largest score, and the sum of the powers. One thread does all of a head's
// backward, in order, so the gradients have the same bits for any number of threads.
#include <array>

#include "../packing.h"
#include "../rows.h"

static const index_t MOST_QUERIES = 48, LEAST_QUERIES = 12;  // whose scores are computed at once
static const index_t SCORES = 1 << 15;                       // computed at once, where that many queries suffice
static const index_t KEYS_AT_ONCE = 64;                      // packed as one depth
static const double NEVER = -1e30;                           // the score of a key that a query does not see

// The time steps of one head: `values` is that of its first one, rows are `distance` values apart.
template <class T>
struct Head {
    T* values;
    index_t distance, steps, width;
    T* at(index_t step) const { return values + step * distance; }
};

// An array (batch, heads, steps, width), with how many values it is from one to the next along the first three axes.
template <class T>
struct Heads {
    T* values;
    const int64_t* to_next;
    index_t steps, width;
    Head<T> head(index_t b, index_t h) const {
        return {values + b * to_next[0] + h * to_next[1], to_next[2], steps, width};
    }
};

// What each query sees: a mask (batch or 1, heads or 1, queries or 1, keys), or none.
struct Mask {
    const uint8_t* values;
    const int64_t* to_next;  // 0 where the axis has size 1
    const uint8_t* row(index_t b, index_t h, index_t query) const {
        return values ? values + b * to_next[0] + h * to_next[1] + query * to_next[2] : nullptr;
    }
};

template <class T>
struct Attention {
    Heads<const T> query, key, value;
    Mask mask;
    index_t batch, heads;
    bool causal;
    T scale;

    // The queries whose scores are computed at once.
    index_t size() const {
        return std::min(std::max(SCORES / key.steps, LEAST_QUERIES), MOST_QUERIES);
    }
    // How many of the first keys a query sees at most.
    index_t seen(index_t step) const { return causal ? std::min(step + 1, key.steps) : key.steps; }
};

// A matrix (keys, width) as the right side of products over the keys, some keys at a time.
template <class T>
class OverKeys {
  public:
    OverKeys(const Head<const T>& of) : of_(of), panels_(Panel<T>::count(of.width)), packed_(of.steps * panels_ * W) {
        for (index_t k = 0; k < of.steps; k += KEYS_AT_ONCE)
            pack_panels(of.at(k), of.distance, depth(k), of.width, 0, panels_, packed_.data() + k * panels_ * W,
                        depth(k) * W);
    }
    // The first key, or the end, after `count` keys at which products may end.
    static index_t whole(index_t count, index_t keys) {
        return std::min((count + KEYS_AT_ONCE - 1) / KEYS_AT_ONCE * KEYS_AT_ONCE, keys);
    }
    // out[r] = weights[r][0 .. end) * matrix; `end` is one of `whole`.
    void product(const T* const* weights, index_t rows, index_t end, T* const* out) const {
        std::array<const T*, MOST_QUERIES> from;
        for (index_t k = 0; k < end; k += KEYS_AT_ONCE) {
            for (index_t r = 0; r < rows; ++r) from[r] = weights[r] + k;
            product_into(from.data(), rows, packed_.data() + k * panels_ * W, depth(k), 0, panels_, of_.width, out, k > 0);
        }
    }

  private:
    static constexpr index_t W = Panel<T>::width;
    index_t depth(index_t k) const { return std::min(KEYS_AT_ONCE, of_.steps - k); }
    Head<const T> of_;
    index_t panels_;
    Aligned<T> packed_;
};

// A matrix (keys, width) turned, as the right side of products whose results have a column for each key.
template <class T>
class ForKeys {
  public:
    ForKeys(const Head<const T>& of) : width_(of.width), packed_(Panel<T>::count(of.steps) * Panel<T>::width * of.width) {
        pack_transposed(of.at(0), of.distance, of.width, of.steps, 0, Panel<T>::count(of.steps), packed_.data());
    }
    // out[r][0 .. end and what is left of its panel) = rows[r] * matrix.
    void product(const T* const* rows, index_t count, index_t end, T* const* out) const {
        ::product(rows, count, packed_.data(), 0, Panel<T>::count(end), width_, out, false);
    }

  private:
    index_t width_;
    Aligned<T> packed_;
};

// Some rows of scores, with room for whole panels.
template <class T>
struct Scores {
    index_t distance;
    Aligned<T> values;
    std::array<T*, MOST_QUERIES> rows;
    Scores(index_t queries, index_t keys)
        : distance(Panel<T>::count(keys) * Panel<T>::width), values(queries * distance) {
        for (index_t r = 0; r < queries; ++r) rows[r] = values.data() + r * distance;
    }
};

// The end of the last vector that has one of the first `seen` scores. A row has room for it.
template <class T>
static index_t end_of_vectors(index_t seen) {
    return (seen + Vector<T>::lanes - 1) / Vector<T>::lanes * Vector<T>::lanes;
}

// Scores times the scale, NEVER for the keys that a query does not see, and -infinity for what is left of the last vector:
// what follows works on whole vectors.
template <class T>
static void scale_row(T* scores, index_t seen, const uint8_t* mask, T scale) {
    const index_t end = end_of_vectors<T>(seen);
    if (mask)
        for (index_t k = 0; k < seen; ++k) scores[k] = mask[k] ? scores[k] * scale : T(NEVER);
    else
        for (index_t k = 0; k < end; ++k) scores[k] *= scale;
    std::fill(scores + seen, scores + end, -std::numeric_limits<T>::infinity());
}

template <class T>
static T largest(const T* scores, index_t seen) {
    using vector = typename Vector<T>::type;
    vector most = vector{} - std::numeric_limits<T>::infinity();
    each_vector<T>(end_of_vectors<T>(seen), [&](index_t k, auto lanes, auto) {
        const vector x = lanes.load(scores + k);
        most = x > most ? x : most;
    });
    return greatest<T>(most);
}

// scores = exp(scores - top), and their sum.
template <class T>
static T raise(T* scores, index_t seen, T top) {
    using vector = typename Vector<T>::type;
    const vector tops = vector{} + top;
    RowSum<T> sums;
    each_vector<T>(end_of_vectors<T>(seen), [&](index_t k, auto lanes, auto n) {
        const vector power = exponential(lanes.load(scores + k) - tops);
        lanes.store(scores + k, power);
        sums.add(power, n);
    });
    return sums.sum();
}

// The powers of a row's scores, and 0 for other keys before `end`. A query that sees no key gets powers of 0, whose sum counts
// as 1.
template <class T>
static T powers_of(T* scores, index_t seen, index_t end, const uint8_t* mask, T scale, T* top) {
    scale_row(scores, seen, mask, scale);
    *top = largest(scores, seen);
    const bool blind = mask && *top == T(NEVER);
    const T sum = blind ? T(1) : raise(scores, seen, *top);
    std::fill(scores + (blind ? 0 : seen), scores + end, T(0));
    return sum;
}

template <class T>
static void attend_block(const Attention<T>& of, index_t b, index_t h, index_t first, index_t last, const ForKeys<T>& keys,
                         const OverKeys<T>& values, Scores<T>& scores, const Head<T>& out, T* tops, T* totals) {
    const Head<const T> query = of.query.head(b, h);
    const index_t count = last - first, end = OverKeys<T>::whole(of.seen(last - 1), of.key.steps);
    std::array<const T*, MOST_QUERIES> queries;
    std::array<T*, MOST_QUERIES> to;
    for (index_t r = 0; r < count; ++r) queries[r] = query.at(first + r), to[r] = out.at(first + r);
    keys.product(queries.data(), count, end, scores.rows.data());
    for (index_t r = 0; r < count; ++r)
        totals[first + r] = powers_of(scores.rows[r], of.seen(first + r), end, of.mask.row(b, h, first + r), of.scale,
                                      tops + first + r);
    values.product(scores.rows.data(), count, end, to.data());
    for (index_t r = 0; r < count; ++r) {
        const T share = T(1) / totals[first + r];
        for (index_t k = 0; k < out.width; ++k) to[r][k] *= share;
    }
}

template <class T>
static void attend(const Attention<T>& of, const Heads<T>& out, T* tops, T* totals, int threads) {
    const index_t steps = of.query.steps, size = of.size(), blocks = (steps + size - 1) / size;
    in_parts(of.batch * of.heads * blocks, threads, [&](index_t begin, index_t end) {
        Scores<T> scores(size, of.key.steps);
        std::unique_ptr<ForKeys<T>> keys;
        std::unique_ptr<OverKeys<T>> values;
        for (index_t part = begin; part < end; ++part) {
            const index_t n = part / blocks, first = part % blocks * size, b = n / of.heads, h = n % of.heads;
            if (part == begin || first == 0) {
                keys = std::make_unique<ForKeys<T>>(of.key.head(b, h));
                values = std::make_unique<OverKeys<T>>(of.value.head(b, h));
            }
            attend_block(of, b, h, first, std::min(first + size, steps), *keys, *values, scores, out.head(b, h),
                         tops + n * steps, totals + n * steps);
        }
    });
}

// What a head's backward works with.
template <class T>
struct Backward {
    ForKeys<T> keys, values;
    OverKeys<T> over_keys;
    Scores<T> weights, slopes;
    Aligned<T> scores_packed, packed;
    Backward(const Attention<T>& of, index_t b, index_t h)
        : keys(of.key.head(b, h)), values(of.value.head(b, h)), over_keys(of.key.head(b, h)), weights(of.size(), of.key.steps),
          slopes(of.size(), of.key.steps), scores_packed(Panel<T>::count(of.key.steps) * Panel<T>::width * of.size()),
          packed(Panel<T>::count(std::max(of.query.width, of.value.width)) * Panel<T>::width * of.size()) {}

    // to[k] += the sum over the queries of scores[query][k] * rows[query], for the keys [0, end).
    void add_over_queries(const Scores<T>& scores, index_t count, index_t end, const T* rows, index_t distance,
                          const Head<T>& to) {
        constexpr index_t W = Panel<T>::width;
        pack_panels<T>(scores.values.data(), scores.distance, count, end, 0, Panel<T>::count(end), scores_packed.data(),
                       count * W);
        const index_t panels = Panel<T>::count(to.width);
        pack_panels(rows, distance, count, to.width, 0, panels, packed.data(), count * W);
        const std::vector<const T*> from = rows_in_panels<T>(scores_packed.data(), end, count);
        const std::vector<T*> sums = addresses(to.values, end, to.distance);
        product_into<int(W)>(from.data(), end, packed.data(), count, 0, panels, to.width, sums.data(), true);
    }
};

template <class T>
static T dot(const T* a, const T* b, index_t width) {
    RowSum<T> sums;
    each_vector<T>(width, [&](index_t k, auto lanes, auto n) { sums.add(lanes.load(a + k) * lanes.load(b + k), n); });
    return sums.sum();
}

template <class T>
static void differentiate(const Attention<T>& of, index_t b, index_t h, const Head<const T>& out, const T* tops,
                          const T* totals, const Head<const T>& g, const Head<T>& d_query, const Head<T>& d_key,
                          const Head<T>& d_value) {
    Backward<T> with(of, b, h);
    const Head<const T> query = of.query.head(b, h);
    for (const Head<T>& d : {d_key, d_value})
        for (index_t k = 0; k < d.steps; ++k) std::fill_n(d.at(k), d.width, T(0));
    for (index_t first = 0; first < query.steps; first += of.size()) {
        const index_t last = std::min(first + of.size(), query.steps), count = last - first;
        const index_t seen = of.seen(last - 1), end = OverKeys<T>::whole(seen, of.key.steps);
        std::array<const T*, MOST_QUERIES> queries, slopes;
        std::array<T*, MOST_QUERIES> to;
        for (index_t r = 0; r < count; ++r)
            queries[r] = query.at(first + r), slopes[r] = g.at(first + r), to[r] = d_query.at(first + r);
        with.keys.product(queries.data(), count, end, with.weights.rows.data());
        with.values.product(slopes.data(), count, end, with.slopes.rows.data());
        for (index_t r = 0; r < count; ++r) {
            T *weights = with.weights.rows[r], *d_scores = with.slopes.rows[r];
            const index_t step = first + r, sees = of.seen(step);
            const uint8_t* mask = of.mask.row(b, h, step);
            scale_row(weights, sees, mask, of.scale);
            if (mask && tops[step] == T(NEVER)) std::fill(weights, weights + sees, T(0));
            else raise(weights, sees, tops[step]);
            std::fill(weights + sees, weights + end, T(0));
            const T share = T(1) / totals[step], along = dot(slopes[r], out.at(step), out.width), scale = of.scale;
            for (index_t k = 0; k < end; ++k) {
                weights[k] *= share;
                d_scores[k] = weights[k] * (d_scores[k] - along) * scale;
            }
        }
        with.over_keys.product(with.slopes.rows.data(), count, end, to.data());
        with.add_over_queries(with.weights, count, seen, slopes[0], g.distance, d_value);
        with.add_over_queries(with.slopes, count, seen, queries[0], query.distance, d_key);
    }
}

// `to_next` has three numbers for each of: query, key, value, mask, out, and for the backward the gradients of out, query, key
// and value.
#define ATTENTION(T, NAME)                                                                                               \
    extern "C" void attention_forward_##NAME(const T* query, const T* key, const T* value, const uint8_t* mask, T* out,    \
                                             T* tops, T* totals, const int64_t* to_next, int64_t batch, int64_t heads,     \
                                             int64_t queries, int64_t keys, int64_t width, int64_t n_values,              \
                                             int32_t causal, double scale, int32_t threads) {                             \
        const Attention<T> of{{query, to_next, queries, width}, {key, to_next + 3, keys, width},                          \
                              {value, to_next + 6, keys, n_values}, {mask, to_next + 9},                                  \
                              batch, heads, causal != 0, T(scale)};                                                       \
        attend<T>(of, {out, to_next + 12, queries, n_values}, tops, totals, threads);                                     \
    }                                                                                                                     \
    extern "C" void attention_backward_##NAME(const T* query, const T* key, const T* value, const uint8_t* mask,           \
                                              const T* out, const T* tops, const T* totals, const T* g, T* d_query,       \
                                              T* d_key, T* d_value, const int64_t* to_next, int64_t batch,                \
                                              int64_t heads, int64_t queries, int64_t keys, int64_t width,                \
                                              int64_t n_values, int32_t causal, double scale, int32_t threads) {          \
        const Attention<T> of{{query, to_next, queries, width}, {key, to_next + 3, keys, width},                          \
                              {value, to_next + 6, keys, n_values}, {mask, to_next + 9},                                  \
                              batch, heads, causal != 0, T(scale)};                                                       \
        const Heads<const T> outs{out, to_next + 12, queries, n_values}, gs{g, to_next + 15, queries, n_values};          \
        const Heads<T> d_queries{d_query, to_next + 18, queries, width}, d_keys{d_key, to_next + 21, keys, width},        \
            d_values{d_value, to_next + 24, keys, n_values};                                                              \
        in_parts(batch * heads, threads, [&](index_t first, index_t last) {                                               \
            for (index_t n = first; n < last; ++n) {                                                                      \
                const index_t b = n / heads, h = n % heads;                                                               \
                differentiate<T>(of, b, h, outs.head(b, h), tops + n * queries, totals + n * queries, gs.head(b, h),       \
                                 d_queries.head(b, h), d_keys.head(b, h), d_values.head(b, h));                           \
            }                                                                                                             \
        });                                                                                                               \
    }
ENTRIES(ATTENTION)
