// A Gaussian latent variable of each row of a batch: the sample and its divergence, and their gradients (latent.py has the
// equations). A row of `statistics` is the mean and then the logarithm of sigma.
#include "rows.h"

template <class T>
static void draw(const T* statistics, const T* noise, T* sample, T* divergence, index_t width) {
    using vector = typename Vector<T>::type;
    RowSum<T> sum;
    each_vector<T>(width, [&](index_t k, auto lanes, auto number) {
        const vector mean = lanes.load(statistics + k), log_sigma = lanes.load(statistics + width + k);
        const vector sigma = exponential(log_sigma);
        lanes.store(sample + k, mean + sigma * lanes.load(noise + k));
        sum.add(lanes.or_zero((mean * mean + sigma * sigma - 1) / 2 - log_sigma), number);
    });
    *divergence = sum.sum();
}

// `d_sample` is null where nothing read the sample, and `d_noise` where nobody needs it.
template <class T>
static void differentiate(const T* statistics, const T* noise, const T* d_sample, T d_divergence, T* d_statistics, T* d_noise,
                          index_t width) {
    using vector = typename Vector<T>::type;
    each_vector<T>(width, [&](index_t k, auto lanes, auto) {
        const vector mean = lanes.load(statistics + k), sigma = exponential(lanes.load(statistics + width + k));
        const vector d = d_sample ? lanes.load(d_sample + k) : vector{};
        lanes.store(d_statistics + k, d + d_divergence * mean);
        lanes.store(d_statistics + width + k, d * sigma * lanes.load(noise + k) + d_divergence * (sigma * sigma - 1));
        if (d_noise) lanes.store(d_noise + k, d * sigma);
    });
}

ENTRY(latent_forward) {
    in_parts(rows, threads, [=](index_t first, index_t last) {
        for (index_t r = first; r < last; ++r)
            draw(statistics + 2 * r * width, noise + r * width, sample + r * width, divergence + r, width);
    });
}

ENTRY(latent_backward) {
    in_parts(rows, threads, [=](index_t first, index_t last) {
        for (index_t r = first; r < last; ++r)
            differentiate(statistics + 2 * r * width, noise + r * width,
                          d_sample ? d_sample + r * width : nullptr, d_divergence ? d_divergence[r * d_divergence_step] : T(0),
                          d_statistics + 2 * r * width, d_noise ? d_noise + r * width : nullptr, width);
    });
}
