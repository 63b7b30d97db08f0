// Group norm of examples of rows of channels (Wu and He 2018), forward and backward. A thread works on an example while
// that is in cache; of few examples the threads share the blocks of rows. Sums over a block are folded to channels, and
// those to groups.
#include "channels.h"
#include "rows.h"
#include "squares.h"

// One example. Each step but `centre`, `scale`, `read` and `differentiate` is for a block of its rows.
class Example {
public:
    Example(const Lines& lines, index_t groups)
        : lines_(lines), share_(lines.channels / groups), size_(double(lines.rows * share_)),
          sums_(lines.blocks() * lines.channels), second_sums_(sums_.size()), groups_(groups), means_(lines.width()),
          scales_(lines.width()), shifts_(lines.width()), dy_scales_(lines.width()), directions_(lines.width()) {}

    void add_up(const T* x, index_t block) {
        const Aligned<T> sums(lines_.width());
        std::fill_n(sums.data(), lines_.width(), T(0));
        lines_.each(block, block + 1, [&](index_t start, index_t count) {
            const T* in = x + start;
            T* sum = sums.data();
#pragma omp simd
            for (index_t k = 0; k < count; ++k) sum[k] += in[k];
        });
        fold(sums, sums_, block);
    }

    // The means are rounded; the next sums give their rests, without which a large mean would lose digits.
    void centre() {
        join(sums_);
        for (Group& group : groups_) group.sum = 0;
        each_channel([&](Group& group, index_t channel) { group.sum += sums_[channel]; });
        for (Group& group : groups_) group.mean = T(group.sum / size_);
        along(means_, [](const Group& group, index_t) { return group.mean; });
    }

    void square(const T* x, index_t block) {
        const Aligned<T> sums(lines_.width()), squares(lines_.width());
        std::fill_n(sums.data(), lines_.width(), T(0));
        std::fill_n(squares.data(), lines_.width(), T(0));
        lines_.each(block, block + 1, [&](index_t start, index_t count) {
            const T *in = x + start, *mean = means_.data();
            T *sum = sums.data(), *square = squares.data();
#pragma omp simd
            for (index_t k = 0; k < count; ++k) {
                const T distance = in[k] - mean[k];
                sum[k] += distance;
                square[k] += distance * distance;
            }
        });
        fold(sums, sums_, block);
        fold(squares, second_sums_, block);
    }

    void scale(const T* x, const T* gain, const T* bias, T eps, T* stats) {
        join(sums_);
        join(second_sums_);
        add_up_groups([](index_t) { return 1.0; });
        for (Group& group : groups_) {
            const double rest = group.sum / size_;
            const T variance = T(group.second_sum / size_ - rest * rest);
            group.rest = T(rest);
            if (holds_squares(variance, least_sum(T(1), eps)))
                group.rstd = 1 / std::sqrt((variance > 0 ? variance : T(0)) + eps);
            else group.rstd = T(1 / std::sqrt(squares_of(x + (&group - groups_.data()) * share_, group) / size_ + eps));
            *stats++ = group.mean, *stats++ = group.rest, *stats++ = group.rstd;
        }
        along(scales_, [=](const Group& group, index_t channel) { return gain ? group.rstd * gain[channel] : group.rstd; });
        along(shifts_, [&](const Group& group, index_t channel) {
            return (bias ? bias[channel] : T(0)) - group.rest * scales_.data()[channel];
        });
    }

    void normalise(const T* x, T* y, index_t block, bool past_caches) const {
        write(y, block, past_caches, [&](index_t start, index_t count, T* out) {
            const T *in = x + start, *mean = means_.data(), *scale = scales_.data(), *shift = shifts_.data();
#pragma omp simd
            for (index_t k = 0; k < count; ++k) out[k] = (in[k] - mean[k]) * scale[k] + shift[k];
        });
    }

    void read(const T* stats) {
        for (Group& group : groups_) group.mean = *stats++, group.rest = *stats++, group.rstd = *stats++;
        along(means_, [](const Group& group, index_t) { return group.mean; });
    }

    // The sums of dy and of dy * (x - mean), with the rounded mean.
    void add_up_gradients(const T* x, const T* dy, index_t block) {
        const Aligned<T> sums(lines_.width()), alongs(lines_.width());
        std::fill_n(sums.data(), lines_.width(), T(0));
        std::fill_n(alongs.data(), lines_.width(), T(0));
        lines_.each(block, block + 1, [&](index_t start, index_t count) {
            const T *in = x + start, *g = dy + start, *mean = means_.data();
            T *sum = sums.data(), *along = alongs.data();
#pragma omp simd
            for (index_t k = 0; k < count; ++k) {
                sum[k] += g[k];
                along[k] += g[k] * (in[k] - mean[k]);
            }
        });
        fold(sums, sums_, block);
        fold(alongs, second_sums_, block);
    }

    // Adds the shares of the example to the gradients of gain and bias.
    void differentiate(const T* gain, T* d_gain, T* d_bias) {
        join(sums_);
        join(second_sums_);
        each_channel([&](Group& group, index_t channel) {
            second_sums_[channel] -= sums_[channel] * group.rest;
            d_bias[channel] += T(sums_[channel]);
            d_gain[channel] += T(second_sums_[channel] * group.rstd);
        });
        add_up_groups([=](index_t channel) { return gain ? double(gain[channel]) : 1.0; });
        // dx = rstd * (dy * gain - mean(dy * gain) - xhat * mean(dy * gain * xhat)), which is 0 of one value alone.
        const T varies = size_ > 1 ? T(1) : T(0);
        for (Group& group : groups_) {
            const double rstd = double(group.rstd) * varies;
            group.second_sum *= -rstd * group.rstd / size_;
            group.sum = -rstd / size_ * group.sum - group.second_sum * (double(group.rest) * group.rstd);
        }
        along(dy_scales_, [=](const Group& group, index_t channel) {
            return (gain ? group.rstd * gain[channel] : group.rstd) * varies;
        });
        along(scales_, [](const Group& group, index_t) { return group.rstd; });
        along(directions_, [](const Group& group, index_t) { return T(group.second_sum); });
        along(shifts_, [](const Group& group, index_t) { return T(group.sum); });
    }

    void input_gradient(const T* x, const T* dy, T* dx, index_t block, bool past_caches) const {
        write(dx, block, past_caches, [&](index_t start, index_t count, T* out) {
            const T *in = x + start, *g = dy + start, *mean = means_.data(), *dy_scale = dy_scales_.data();
            const T *scale = scales_.data(), *direction = directions_.data(), *shift = shifts_.data();
#pragma omp simd
            for (index_t k = 0; k < count; ++k)
                out[k] = g[k] * dy_scale[k] + ((in[k] - mean[k]) * scale[k] * direction[k] + shift[k]);
        });
    }

private:
    struct Group {
        T mean, rest, rstd;
        double sum, second_sum;
    };

    // Calls work(group, channel) for the channels of all groups.
    template <class Work>
    void each_channel(const Work& work) {
        index_t channel = 0;
        for (Group& group : groups_)
            for (const index_t end = channel + share_; channel < end; ++channel) work(group, channel);
    }

    // A value for each channel, repeated along a line.
    template <class Value>
    void along(const Aligned<T>& line, const Value& value) {
        each_channel([&](const Group& group, index_t channel) { line.data()[channel] = value(group, channel); });
        for (index_t k = lines_.channels; k < lines_.width(); k += lines_.channels)
            std::copy_n(line.data(), lines_.channels, line.data() + k);
    }

    // Calls work(start, count, out) for the lines of a block of results.
    template <class Work>
    void write(T* to, index_t block, bool past_caches, const Work& work) const {
        const Aligned<T> kept(past_caches ? lines_.width() : 0);
        lines_.each(block, block + 1, [&](index_t start, index_t count) {
            work(start, count, past_caches ? kept.data() : to + start);
            if (past_caches) copy_past_caches(kept.data(), to + start, count);
        });
        if (past_caches) end_past_caches();
    }

    // The sums of the channels over a block.
    void fold(const Aligned<T>& line, std::vector<double>& sums, index_t block) const {
        double* own = sums.data() + block * lines_.channels;
        std::copy_n(line.data(), lines_.channels, own);
        for (index_t k = lines_.channels; k < lines_.width(); k += lines_.channels)
            for (index_t channel = 0; channel < lines_.channels; ++channel) own[channel] += line.data()[k + channel];
    }

    // The sums over all blocks, where those of the first one were.
    void join(std::vector<double>& sums) const {
        for (std::size_t k = lines_.channels; k < sums.size(); k += lines_.channels)
            for (index_t channel = 0; channel < lines_.channels; ++channel) sums[channel] += sums[k + channel];
    }

    // The sums of groups from those of their channels times gain_of(channel).
    template <class Gain>
    void add_up_groups(const Gain& gain_of) {
        for (Group& group : groups_) group.sum = group.second_sum = 0;
        each_channel([&](Group& group, index_t channel) {
            group.sum += sums_[channel] * gain_of(channel);
            group.second_sum += second_sums_[channel] * gain_of(channel);
        });
    }

    long double squares_of(const T* first, const Group& group) const {
        return sum_of_squares(lines_.rows * share_, [&](index_t k) {
            return first[k / share_ * lines_.channels + k % share_] - group.mean - group.rest;
        });
    }

    Lines lines_;
    index_t share_;
    double size_;
    std::vector<double> sums_, second_sums_;  // of each block and channel
    std::vector<Group> groups_;
    Aligned<T> means_, scales_, shifts_, dy_scales_, directions_;  // along a line
};

// Parts of the gain's and bias's gradients, which `__init__.py` counts too.
static const index_t PARTS = 64;

// Calls work(each, example, k, part) for the k-th of all examples; each(step) is step(block) for each block. The threads share
// the parts, of examples that follow each other. Where there are too few, they share the blocks of each example.
template <class Work>
static void by_example(const Lines& lines, index_t groups, index_t count, index_t parts, int threads, const Work& work) {
    const bool few = count == parts && count < 2 * threads;
    const auto each = [&](const auto& step) {
        in_parts(lines.blocks(), few ? threads : 1, [&](index_t first, index_t last) {
            for (index_t block = first; block < last; ++block) step(block);
        });
    };
    in_parts(parts, few ? 1 : threads, [&](index_t first, index_t last) {
        Example example(lines, groups);
        for (index_t part = first; part < last; ++part)
            for (index_t k = count * part / parts; k < count * (part + 1) / parts; ++k) work(each, example, k, part);
    });
}

static void forward(const T* x, const T* gain, const T* bias, T* y, T* stats, index_t count, const Lines& lines, index_t groups,
                    T eps, int threads) {
    const index_t size = lines.rows * lines.channels;
    const bool past_caches = go_past_caches<T>(count * size);
    by_example(lines, groups, count, std::min(count, PARTS), threads,
               [=](const auto& each, Example& example, index_t k, index_t) {
                      const T* in = x + k * size;
                      each([&](index_t block) { example.add_up(in, block); });
                      example.centre();
                      each([&](index_t block) { example.square(in, block); });
                      example.scale(in, gain, bias, eps, stats + k * groups * 3);
                      each([&](index_t block) { example.normalise(in, y + k * size, block, past_caches); });
                  });
}

static void backward(const T* x, const T* dy, const T* stats, const T* gain, T* dx, T* d_gain, T* d_bias, index_t count,
                     const Lines& lines, index_t groups, int threads) {
    const index_t size = lines.rows * lines.channels, channels = lines.channels, parts = std::min(count, PARTS);
    const bool past_caches = go_past_caches<T>(count * size);
    std::fill_n(d_gain, parts * channels, T(0));
    std::fill_n(d_bias, parts * channels, T(0));
    by_example(lines, groups, count, parts, threads,
               [=](const auto& each, Example& example, index_t k, index_t part) {
                      const T *in = x + k * size, *g = dy + k * size;
                      example.read(stats + k * groups * 3);
                      each([&](index_t block) { example.add_up_gradients(in, g, block); });
                      example.differentiate(gain, d_gain + part * channels, d_bias + part * channels);
                      if (dx) each([&](index_t block) { example.input_gradient(in, g, dx + k * size, block, past_caches); });
                  });
}

ENTRY(group_norm_forward) {
    guarded([&] {
        forward(x, gain, bias, y, stats, n, {positions, channels}, groups, T(eps), threads);
    });
}

ENTRY(group_norm_backward) {
    guarded([&] {
        backward(x, dy, stats, gain, dx, d_gain, d_bias, n, {positions, channels}, groups, threads);
    });
}
