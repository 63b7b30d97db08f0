// Scaled dot-product attention (Vaswani et al. 2017, eq. 1), forward and backward.
//
// The forward computes the scores of some queries of one head at a time. The backward computes them again, for some queries and
// some keys, from two numbers of each query that the forward keeps: its largest score, and the sum of the powers. A block of scores
// stays in cache. One thread does all of a head's backward, in order, so the gradients have the same bits for any number of
// threads.
#include "packing.h"
#include "rows.h"

static const index_t MOST_QUERIES = 64, LEAST_QUERIES = 12;  // whose scores are computed at once
static const index_t SCORES = 1 << 15;                       // the forward's, where that many queries suffice
static const index_t KEYS_AT_ONCE = 128;                     // the backward's
static const index_t GROUP = 16;                             // queries or keys that skip masked scores together
static const float NEVER = -1e30f;                           // the score of a key that a query does not see

// The time steps of one head: `values` is that of its first one, rows are `distance` values apart.
template <class Value>
struct Head {
    Value* values;
    index_t distance, steps, width;
    Value* at(index_t step) const { return values + step * distance; }
};

// An array (batch, heads, steps, width), with its strides in values along the first three axes.
template <class Value>
struct Heads {
    Value* values;
    const int64_t* to_next;
    index_t steps, width;
    Head<Value> head(index_t b, index_t h) const {
        return {values + b * to_next[0] + h * to_next[1], to_next[2], steps, width};
    }
};

// The keys that each query sees: a mask (batch or 1, heads or 1, queries or 1, keys), or none.
struct Mask {
    const uint8_t* values;
    const int64_t* to_next;  // 0 where the axis has size 1
    const uint8_t* row(index_t b, index_t h, index_t query) const {
        return values ? values + b * to_next[0] + h * to_next[1] + query * to_next[2] : nullptr;
    }
};

struct Attention {
    Heads<const T> query, key, value;
    Mask mask;
    index_t batch, heads;
    bool causal;
    T scale;

    // The queries whose scores the forward computes at once.
    index_t size() const {
        return std::min(std::max(SCORES / key.steps, LEAST_QUERIES), MOST_QUERIES);
    }
    // True if there can be keys that a query does not see.
    bool hides() const { return causal || mask.values; }
    // The largest number of the keys [first, first + count) that a query sees; they are the first ones.
    index_t seen(index_t step, index_t first, index_t count) const {
        return causal ? std::min(std::max(step + 1 - first, index_t(0)), count) : count;
    }
};

// Calls work(first, last, seen) for groups of the queries [first, last); `seen` is the largest number of keys that a group sees.
template <class Work>
static void each_group(const Attention& of, index_t first, index_t last, index_t first_key, index_t keys,
                       const Work& work) {
    const index_t each = of.seen(first, first_key, keys) < keys ? GROUP : last - first;
    for (index_t begin = first; begin < last; begin += each) {
        const index_t end = std::min(begin + each, last), seen = of.seen(end - 1, first_key, keys);
        if (seen > 0) work(begin, end, seen);
    }
}

// Sets values that are not finite to 0; returns true if there are any. They would give NaN with the weight 0 of a key that a query
// does not see.
static bool make_finite(T* values, index_t count) {
    vector zeros[SUMS] = {};
    each_vector<T>(count, [&](index_t k, auto lanes, auto n) { zeros[n] += lanes.load(values + k) * T(0); });
    const T zero = total<T>((zeros[0] + zeros[1]) + (zeros[2] + zeros[3]));
    if (zero == 0) return false;
    std::replace_if(values, values + count, [](T x) { return !std::isfinite(x); }, T(0));
    return true;
}

// Some rows of a head as the right side of products over these rows.
class OverRows {
  public:
    OverRows(index_t most, index_t width) : panels_(panels_of(width)), packed_(most * panels_ * W) {}
    void pack(const Head<const T>& of, index_t first, index_t count) {
        count_ = count, width_ = of.width;
        pack_panels(of.at(first), of.distance, count, of.width, 0, panels_, packed_.data(), count * W);
    }
    bool make_finite() { return ::make_finite(packed_.data(), count_ * panels_ * W); }
    // out[r] = or += the sum over the rows [first, last) of weights[r][row - first] * row.
    template <class Weights>
    void product(const Weights& weights, index_t rows, index_t first, index_t last, T* out, index_t distance, bool add) const {
        product_into(weights, rows, packed_.data() + first * W, count_ * W, last - first, panels_, width_, out, distance, add);
    }

  private:
    index_t panels_, count_ = 0, width_ = 0;
    Aligned<T> packed_;
};

// Some keys, or values, of a head, transposed, as the right side of products whose results have a column for each of them.
class ForKeys {
  public:
    ForKeys(index_t most, index_t width) : width_(width), packed_(panels_of(most) * W * width) {}
    void pack(const Head<const T>& of, index_t first, index_t count) {
        panels_ = panels_of(count);
        pack_transposed(of.at(first), of.distance, width_, count, 0, panels_, packed_.data());
    }
    bool make_finite() { return ::make_finite(packed_.data(), panels_ * W * width_); }
    // Makes all results of a row of the head NaN.
    void spoil(index_t row) {
        for (index_t k = 0; k < width_; ++k) packed_.data()[(row / W * width_ + k) * W + row % W] = std::numeric_limits<T>::quiet_NaN();
    }
    // out[r] = rows[r] * matrix, for the first `end` keys and the rest of their last panel.
    void product(const FromRows& rows, index_t count, index_t end, T* out, index_t distance) const {
        ::product(rows, count, packed_.data(), 0, panels_of(end), width_, out, distance, false);
    }

  private:
    index_t width_, panels_ = 0;
    Aligned<T> packed_;
};

// Makes packed values finite. The scores of a key whose value was not finite become NaN, for the queries that see it.
template <class Values>
static void make_values_finite(Values& values, const Head<const T>& from, index_t first, index_t count, ForKeys& keys) {
    if (!values.make_finite()) return;
    for (index_t row = 0; row < count; ++row)
        if (std::any_of(from.at(first + row), from.at(first + row) + from.width, [](T x) { return !std::isfinite(x); }))
            keys.spoil(row);
}

// The scores of some queries, with room for whole panels.
struct Scores {
    index_t distance;
    Aligned<T> values;
    Scores(index_t queries, index_t keys)
        : distance(panels_of(keys) * W), values(queries * distance) {}
    T* row(index_t query) const { return values.data() + query * distance; }
};

// Scores times the scale where a mask lets a query see a key, else NEVER.
static void hide(T* scores, index_t seen, const uint8_t* mask, T scale) {
    for (index_t k = 0; k < seen; ++k) scores[k] = mask[k] ? scores[k] * scale : T(NEVER);
}

// Calls work(k, in) for the vectors of a row's scores before `end`, where whole panels end: `in` chooses the first `seen` scores.
// So all rows of a group take the same branches, which the CPU predicts.
template <class Work>
static void each_score(index_t seen, index_t end, const Work& work) {
    vector places{};
    for (index_t k = 0; k < LANES; ++k) places[k] = T(k);
    for (index_t k = 0; k < end; k += LANES) work(k, places < vector{} + T(seen - k));
}

// e^x of the scores that count, where x is the score minus the largest one; 0 for the others, and for masked ones.
// A CPU takes fifteen times as long for e^x where that is almost 0.
template <class V, class Chosen>
static inline V power(V x, const Chosen& in) {
    const auto counts = in & ~(x < V{} + NEVER / 2);
    return counts ? exponential(counts ? x : V{}) : V{};
}

// The powers of a row's scores, and 0 for other keys before `end`. A query that sees no key gets powers of 0, whose sum counts
// as 1. The largest score leaves NaN out, the sum does not. It is taken off before the scale: a product that is rounded once as the
// largest and not where it is taken off would leave a rest, which is large where scores are.
static T powers_of(T* scores, index_t seen, index_t end, const uint8_t* mask, T scale, T* top) {
    const vector least = vector{} - std::numeric_limits<T>::infinity();
    if (mask) hide(scores, seen, mask, scale);
    const T multiplier = mask ? T(1) : scale;
    vector most = least;
    each_score(seen, end, [&](index_t k, auto in) {
        const vector x = in ? load(scores + k) : least;
        most = x > most ? x : most;
    });
    const T largest = *top = greatest<T>(most);
    vector sum{};
    each_score(seen, end, [&](index_t k, auto in) {
        const vector weight = power((load(scores + k) - largest) * multiplier, in);
        store(scores + k, weight);
        sum += weight;
    });
    const T all = total<T>(sum);
    if (!mask || *top != T(NEVER) || all != all) return all;
    std::fill_n(scores, end, T(0));
    return 1;
}

// The weights of a row's keys, from its scores, and the gradients of the scores, from those of the weights; 0 for other keys
// before `end`. `share` is 1 / the sum of the powers; `along` is subtracted, as the gradient of a softmax requires.
static void through_row(T* weights, T* gradients, index_t seen, index_t end, const uint8_t* mask, T scale, T top, T share,
                        T along) {
    if (share != share) {  // then all weights are NaN, but for the keys that a mask hides
        for (index_t k = 0; k < end; ++k) {
            weights[k] = k < seen && (!mask || mask[k]) ? share : T(0);
            gradients[k] = weights[k] == 0 ? T(0) : share;
        }
        return;
    }
    if (mask) hide(weights, seen, mask, scale);
    const T multiplier = mask ? T(1) : scale;
    each_score(seen, end, [&](index_t k, auto in) {
        const vector weight = power((load(weights + k) - top) * multiplier, in) * share;
        store(weights + k, weight);
        store(gradients + k, in ? weight * (load(gradients + k) - along) * scale : vector{});
    });
}

static void attend_block(const Attention& of, index_t b, index_t h, index_t first, index_t last, const ForKeys& keys,
                         const OverRows& values, Scores& scores, const Head<T>& out, T* tops, T* totals) {
    const Head<const T> query = of.query.head(b, h);
    each_group(of, first, last, 0, of.key.steps, [&](index_t begin, index_t end, index_t seen) {
        const index_t count = end - begin, whole = panels_of(seen) * W;
        keys.product({query.at(begin), query.distance}, count, seen, scores.row(0), scores.distance);
        for (index_t step = begin; step < end; ++step)
            totals[step] = powers_of(scores.row(step - begin), of.seen(step, 0, seen), whole, of.mask.row(b, h, step),
                                     of.scale, tops + step);
        values.product(FromRows{scores.row(0), scores.distance}, count, 0, seen, out.at(begin), out.distance, false);
        for (index_t r = 0; r < count; ++r) {
            const T share = T(1) / totals[begin + r];
            T* to = out.at(begin + r);
            each_vector<T>(out.width, [&](index_t k, auto lanes, auto) { lanes.store(to + k, lanes.load(to + k) * share); });
        }
    });
}

static void attend(const Attention& of, const Heads<T>& out, T* tops, T* totals, int threads) {
    const index_t steps = of.query.steps, size = of.size(), blocks = (steps + size - 1) / size;
    in_parts(of.batch * of.heads * blocks, threads, [&](index_t begin, index_t end) {
        Scores scores(size, of.key.steps);
        ForKeys keys(of.key.steps, of.key.width);
        OverRows values(of.key.steps, of.value.width);
        for (index_t part = begin; part < end; ++part) {
            const index_t n = part / blocks, first = part % blocks * size, b = n / of.heads, h = n % of.heads;
            if (part == begin || first == 0) {
                keys.pack(of.key.head(b, h), 0, of.key.steps);
                values.pack(of.value.head(b, h), 0, of.key.steps);
                if (of.hides()) make_values_finite(values, of.value.head(b, h), 0, of.key.steps, keys);
            }
            attend_block(of, b, h, first, std::min(first + size, steps), keys, values, scores, out.head(b, h),
                         tops + n * steps, totals + n * steps);
        }
    });
}

static T dot(const T* a, const T* b, index_t width) {
    RowSum<T> sums;
    each_vector<T>(width, [&](index_t k, auto lanes, auto n) { sums.add(lanes.load(a + k) * lanes.load(b + k), n); });
    return sums.sum();
}

// The arrays of the backward for some queries and some keys.
struct Room {
    const index_t most_keys, most_queries;
    ForKeys keys, values;
    OverRows over_keys, queries, slopes;
    Scores weights, d_scores;
    Aligned<T> along;
    Room(const Attention& of)
        : most_keys(std::min(KEYS_AT_ONCE, of.key.steps)), most_queries(std::min(MOST_QUERIES, of.query.steps)),
          keys(most_keys, of.key.width), values(most_keys, of.value.width), over_keys(most_keys, of.key.width),
          queries(most_queries, of.query.width), slopes(most_queries, of.value.width), weights(most_queries, most_keys),
          d_scores(most_queries, most_keys), along(of.query.steps) {}
};

// The backward of one head; `g` is the gradient of `out`.
struct Backward {
    const Attention& of;
    Room& room;
    const index_t b, h;
    const T *tops, *totals;
    const Head<const T> query, key, value, out, g;
    const Head<T> d_query, d_key, d_value;
    index_t first_key = 0, keys = 0;  // those that are worked on

    void run() {
        for (index_t step = 0; step < query.steps; ++step)
            room.along.data()[step] = dot(g.at(step), out.at(step), out.width);
        for (first_key = 0; first_key < key.steps; first_key += keys) {
            keys = std::min(room.most_keys, key.steps - first_key);
            room.keys.pack(key, first_key, keys);
            room.values.pack(value, first_key, keys);
            room.over_keys.pack(key, first_key, keys);
            if (of.hides()) {
                make_values_finite(room.values, value, first_key, keys, room.keys);
                room.over_keys.make_finite();
            }
            index_t summed = 0;  // so many keys have gradients, to which those of further queries are added
            for (index_t first = 0; first < query.steps; first += room.most_queries) {
                const index_t last = std::min(first + room.most_queries, query.steps), seen = see(last - 1);
                if (seen == 0) continue;
                each_group(of, first, last, first_key, keys, [&](index_t begin, index_t end, index_t group_sees) {
                    through_scores(begin, end, first, group_sees);
                });
                room.slopes.pack(g, first, last - first);
                room.queries.pack(query, first, last - first);
                over_queries(room.weights, room.slopes, first, last, seen, summed, d_value);
                over_queries(room.d_scores, room.queries, first, last, seen, summed, d_key);
                summed = seen;
            }
            for (index_t k = first_key + summed; k < first_key + keys; ++k) {
                std::fill_n(d_key.at(k), d_key.width, T(0));
                std::fill_n(d_value.at(k), d_value.width, T(0));
            }
        }
    }

    index_t see(index_t step) const { return of.seen(step, first_key, keys); }

    // The weights and the gradients of the scores of the queries [begin, end), with zeros in the rest of the last panel, and the
    // contributions of these keys to the gradients of the queries. The rows of scores begin with the query `first`.
    void through_scores(index_t begin, index_t end, index_t first, index_t seen) {
        const index_t count = end - begin, whole = panels_of(seen) * W;
        T *weights = room.weights.row(begin - first), *d_scores = room.d_scores.row(begin - first);
        const index_t distance = room.weights.distance;
        room.keys.product({query.at(begin), query.distance}, count, seen, weights, distance);
        room.values.product({g.at(begin), g.distance}, count, seen, d_scores, distance);
        for (index_t r = 0; r < count; ++r) {
            const index_t step = begin + r;
            const uint8_t* mask = of.mask.row(b, h, step);
            const bool blind = mask && tops[step] == T(NEVER) && totals[step] == totals[step];
            through_row(weights + r * distance, d_scores + r * distance, see(step), whole, mask ? mask + first_key : nullptr,
                        of.scale, tops[step], blind ? T(0) : T(1) / totals[step], room.along.data()[step]);
        }
        room.over_keys.product(FromRows{d_scores, distance}, count, 0, seen, d_query.at(begin), d_query.distance, first_key > 0);
    }

    // to[key] = the sum over the queries [first, last) of scores[query][key] * their rows, for the first `seen` of the keys;
    // it is added to the gradients of the first `summed`.
    void over_queries(const Scores& scores, const OverRows& rows, index_t first, index_t last, index_t seen,
                      index_t summed, const Head<T>& to) {
        // No query skips a key, and all sums begin here or all go on.
        const bool all_alike = see(first) == keys && (summed == 0 || summed == seen);
        const index_t each = all_alike ? seen : GROUP;
        for (index_t k = 0; k < seen; k += each) {
            const index_t n = std::min(each, seen - k);
            const index_t start = of.causal ? std::max(first_key + k - first, index_t(0)) : 0;  // the first query that sees k
            rows.product(FromColumns{scores.row(start) + k, scores.distance}, n, start, last - first, to.at(first_key + k),
                         to.distance, k < summed);
        }
    }
};

// `to_next` has three numbers for each of: query, key, value, mask, out, and for the backward the gradients of out, query, key
// and value.
ENTRY(attention_forward) {
    guarded([&] {
        const Attention of{{query, to_next, queries, width}, {key, to_next + 3, keys, width},
                           {value, to_next + 6, keys, n_values}, {mask, to_next + 9},
                           batch, heads, causal != 0, T(scale)};
        attend(of, {out, to_next + 12, queries, n_values}, tops, totals, threads);
    });
}

ENTRY(attention_backward) {
    guarded([&] {
        const Attention of{{query, to_next, queries, width}, {key, to_next + 3, keys, width},
                           {value, to_next + 6, keys, n_values}, {mask, to_next + 9},
                           batch, heads, causal != 0, T(scale)};
        const Heads<const T> outs{out, to_next + 12, queries, n_values}, gs{g, to_next + 15, queries, n_values};
        const Heads<T> d_queries{d_query, to_next + 18, queries, width}, d_keys{d_key, to_next + 21, keys, width},
            d_values{d_value, to_next + 24, keys, n_values};
        in_parts(batch * heads, threads, [&](index_t first, index_t last) {
            Room room(of);
            for (index_t n = first; n < last; ++n) {
                const index_t b = n / heads, h = n % heads;
                Backward{of, room, b, h, tops + n * queries, totals + n * queries, of.query.head(b, h),
                         of.key.head(b, h), of.value.head(b, h), outs.head(b, h), gs.head(b, h), d_queries.head(b, h),
                         d_keys.head(b, h), d_values.head(b, h)}.run();
            }
        });
    });
}
