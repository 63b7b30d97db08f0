// The violation of the order by all pairs of captions and images, and its gradient.
//
// No array holds the differences of all pairs. A value of a result belongs to one thread and is added up in one order.
#include "common.h"

static const int GROUP = 4;  // points that share a load of the one that they are compared with

// max(0, x); NaN stays.
template <class R>
static inline R positive(R x) {
    return x < 0 ? R{} : x;
}

// errors[n] = the sum of max(0, caption - images[n])^2 for N images.
template <int N, class T>
static void compare(const T* caption, const T* images, T* errors, index_t width) {
    using vector = typename Vector<T>::type;
    constexpr index_t LANES = Vector<T>::lanes;
    const index_t whole = width / LANES * LANES;
    vector sums[N] = {};
    for (index_t k = 0; k < whole; k += LANES) {
        const vector c = load(caption + k);
        for (int n = 0; n < N; ++n) {
            const vector difference = c - load(images + n * width + k);
            const vector above = difference < 0 ? vector{} : difference;
            sums[n] += above * above;
        }
    }
    for (int n = 0; n < N; ++n) {
        T sum = total<T>(sums[n]);
        for (index_t k = whole; k < width; ++k) {
            const T above = positive(caption[k] - images[n * width + k]);
            sum += above * above;
        }
        errors[n] = sum;
    }
}

template <class T>
static void violations(const T* captions, const T* images, T* errors, index_t rows, index_t columns, index_t width,
                       index_t first, index_t last) {
    for (index_t j = first; j < last;) {
        const bool full = last - j >= GROUP;
        for (index_t i = 0; i < rows; ++i) {
            const T *caption = captions + i * width, *image = images + j * width;
            T* error = errors + i * columns + j;
            if (full) compare<GROUP>(caption, image, error, width);
            else compare<1>(caption, image, error, width);
        }
        j += full ? GROUP : 1;
    }
}

// sum += the differences of N pairs that are above 0, each by its weight: caption - image, `own` being one of the two.
template <int N, bool OF_CAPTION, class T>
static void add_differences(T* sum, const T* own, const T* const* others, const T* weights, index_t width) {
    using vector = typename Vector<T>::type;
    constexpr index_t LANES = Vector<T>::lanes;
    const index_t whole = width / LANES * LANES;
    for (index_t k = 0; k < whole; k += LANES) {
        const vector mine = load(own + k);
        vector all = load(sum + k);
        for (int n = 0; n < N; ++n) {
            const vector theirs = load(others[n] + k), difference = OF_CAPTION ? mine - theirs : theirs - mine;
            all += weights[n] * (difference < 0 ? vector{} : difference);
        }
        store(sum + k, all);
    }
    for (index_t k = whole; k < width; ++k)
        for (int n = 0; n < N; ++n)
            sum[k] += weights[n] * positive(OF_CAPTION ? own[k] - others[n][k] : others[n][k] - own[k]);
}

// The gradient of one point: weights of pairs without a gradient are 0, and with a margin loss most are.
template <bool OF_CAPTION, class T>
static void differentiate(const T* own, const T* others, const T* g, index_t count, index_t step, T* gradient,
                          index_t width) {
    std::fill(gradient, gradient + width, T(0));
    const T* waiting[GROUP];
    T weights[GROUP];
    int n = 0;
    for (index_t k = 0; k < count; ++k) {
        if (g[k * step] == 0) continue;
        waiting[n] = others + k * width;
        weights[n++] = OF_CAPTION ? 2 * g[k * step] : -2 * g[k * step];
        if (n < GROUP) continue;
        add_differences<GROUP, OF_CAPTION>(gradient, own, waiting, weights, width);
        n = 0;
    }
    for (int k = 0; k < n; ++k) add_differences<1, OF_CAPTION>(gradient, own, waiting + k, weights + k, width);
}

ENTRY(violation_forward) {
    // In groups, so that the threads decide nothing about the order of a sum.
    in_parts((columns + GROUP - 1) / GROUP, threads, [=](index_t first, index_t last) {
        violations(captions, images, errors, rows, columns, width, first * GROUP,
                   std::min<index_t>(last * GROUP, columns));
    });
}

ENTRY(violation_backward) {
    if (d_captions)
        in_parts(rows, threads, [=](index_t first, index_t last) {
            for (index_t i = first; i < last; ++i)
                differentiate<true>(captions + i * width, images, g + i * columns, columns, 1,
                                    d_captions + i * width, width);
        });
    if (d_images)
        in_parts(columns, threads, [=](index_t first, index_t last) {
            for (index_t j = first; j < last; ++j)
                differentiate<false>(images + j * width, captions, g + j, rows, columns, d_images + j * width,
                                     width);
        });
}
