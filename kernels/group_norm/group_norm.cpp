// Group norm of examples of rows of channels (Wu and He 2018), forward and backward. A thread works on an example while that is
// in cache; of few examples the threads share the blocks of rows. Sums over a block are folded to channels, and those to groups.
#include "../channels.h"
#include "../squares.h"

// One example, with what is known of its groups along a line. Each step but `centre`, `scale` and `differentiate` is for a block.
template <class T>
class Example {
public:
    Example(const Lines& lines, index_t groups)
        : lines_(lines), groups_(groups), share_(lines.channels / groups), size_(T(lines.rows * share_)),
          first_parts_(lines.blocks() * lines.channels), second_parts_(first_parts_.size()), stats_(groups),
          means_(lines.width()), rests_(means_), scales_(means_), shifts_(means_), directions_(means_) {}

    void add_up(const T* x, index_t block) {
        std::vector<T> sums(lines_.width(), T(0));
        lines_.each(block, block + 1, [&](index_t start, index_t count) {
            const T* in = x + start;
            T* sum = sums.data();
#pragma omp simd
            for (index_t k = 0; k < count; ++k) sum[k] += in[k];
        });
        fold(sums, first_parts_, block);
    }

    // The mean is rounded; the next sums give its rest, without which a large mean would lose digits.
    void centre() {
        for (index_t group = 0; group < groups_; ++group) stats_[group] = {T(total(first_parts_, group) / size_), 0, 0};
        along(means_, [&](index_t channel) { return of(channel).mean; });
    }

    void square(const T* x, index_t block) {
        std::vector<T> sums(lines_.width(), T(0)), squares(sums);
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
        fold(sums, first_parts_, block);
        fold(squares, second_parts_, block);
    }

    void scale(const T* x, const T* gain, const T* bias, T eps, T* stats) {
        for (index_t group = 0; group < groups_; ++group) {
            Stats& own = stats_[group];
            const double rest = total(first_parts_, group) / size_;
            const T variance = T(total(second_parts_, group) / size_ - rest * rest);
            own.rest = T(rest);
            if (holds_squares(variance, least_sum(T(1), eps))) own.rstd = 1 / std::sqrt((variance > 0 ? variance : T(0)) + eps);
            else own.rstd = T(1 / std::sqrt(sum_of_squares(lines_.rows * share_, [&](index_t k) {
                                      return x[k / share_ * lines_.channels + group * share_ + k % share_] - own.mean - own.rest;
                                  }) / size_ + eps));
            std::memcpy(stats + group * 3, &own, sizeof(own));
        }
        along(rests_, [&](index_t channel) { return of(channel).rest; });
        along(scales_, [&](index_t channel) { return of(channel).rstd * (gain ? gain[channel] : T(1)); });
        along(shifts_, [&](index_t channel) { return bias ? bias[channel] : T(0); });
    }

    void normalise(const T* x, T* y, index_t block) const {
        lines_.each(block, block + 1, [&](index_t start, index_t count) {
            const T *in = x + start, *mean = means_.data(), *rest = rests_.data(), *scale = scales_.data();
            const T* shift = shifts_.data();
            T* out = y + start;
#pragma omp simd
            for (index_t k = 0; k < count; ++k) out[k] = (in[k] - mean[k] - rest[k]) * scale[k] + shift[k];
        });
    }

    void read(const T* stats) {
        std::memcpy(stats_.data(), stats, stats_.size() * sizeof(Stats));
        along(means_, [&](index_t channel) { return of(channel).mean; });
        along(rests_, [&](index_t channel) { return of(channel).rest; });
    }

    // The sums of dy and of dy * (x - mean) for each channel.
    void add_up_gradients(const T* x, const T* dy, index_t block) {
        std::vector<T> sums(lines_.width(), T(0)), alongs(sums);
        lines_.each(block, block + 1, [&](index_t start, index_t count) {
            const T *in = x + start, *g = dy + start, *mean = means_.data(), *rest = rests_.data();
            T *sum = sums.data(), *along = alongs.data();
#pragma omp simd
            for (index_t k = 0; k < count; ++k) {
                sum[k] += g[k];
                along[k] += g[k] * (in[k] - mean[k] - rest[k]);
            }
        });
        fold(sums, first_parts_, block);
        fold(alongs, second_parts_, block);
    }

    // Adds to the gradients of gain and bias; dx = rstd * (dxhat - mean(dxhat) - xhat * mean(dxhat * xhat)).
    void differentiate(const T* gain, T* d_gain, T* d_bias) {
        along(scales_, [&](index_t channel) { return of(channel).rstd * (gain ? gain[channel] : T(1)); });
        for (index_t group = 0; group < groups_; ++group) {
            const double rstd = stats_[group].rstd;
            double d_xhat = 0, d_along = 0;
            for (index_t channel = group * share_; channel < (group + 1) * share_; ++channel) {
                const double sum = of_channel(first_parts_, channel), xhats = of_channel(second_parts_, channel) * rstd;
                const double factor = gain ? gain[channel] : T(1);
                d_bias[channel] += T(sum);
                d_gain[channel] += T(xhats);
                d_xhat += sum * factor;
                d_along += xhats * factor;
            }
            for (index_t channel = group * share_; channel < (group + 1) * share_; ++channel) {
                shifts_[channel] = T(-rstd * d_xhat / size_);
                directions_[channel] = T(-rstd * rstd * d_along / size_);
            }
        }
        along(shifts_, [&](index_t channel) { return shifts_[channel]; });
        along(directions_, [&](index_t channel) { return directions_[channel]; });
    }

    void input_gradient(const T* x, const T* dy, T* dx, index_t block) const {
        lines_.each(block, block + 1, [&](index_t start, index_t count) {
            const T *in = x + start, *g = dy + start, *mean = means_.data(), *rest = rests_.data();
            const T *scale = scales_.data(), *shift = shifts_.data(), *direction = directions_.data();
            T* out = dx + start;
#pragma omp simd
            for (index_t k = 0; k < count; ++k)
                out[k] = g[k] * scale[k] + ((in[k] - mean[k] - rest[k]) * direction[k] + shift[k]);
        });
    }

private:
    struct Stats {
        T mean, rest, rstd;
    };
    const Stats& of(index_t channel) const { return stats_[channel / share_]; }

    // A value for each channel, repeated along a line.
    template <class Value>
    void along(std::vector<T>& line, const Value& value) const {
        for (index_t channel = 0; channel < lines_.channels; ++channel) line[channel] = value(channel);
        for (index_t k = lines_.channels; k < lines_.width(); ++k) line[k] = line[k - lines_.channels];
    }
    void fold(const std::vector<T>& sums, std::vector<double>& parts, index_t block) const {
        double* own = parts.data() + block * lines_.channels;
        std::copy_n(sums.data(), lines_.channels, own);
        for (index_t k = lines_.channels; k < lines_.width(); k += lines_.channels)
            for (index_t channel = 0; channel < lines_.channels; ++channel) own[channel] += sums[k + channel];
    }
    double of_channel(const std::vector<double>& parts, index_t channel) const {
        double sum = 0;
        for (index_t k = channel; k < index_t(parts.size()); k += lines_.channels) sum += parts[k];
        return sum;
    }
    double total(const std::vector<double>& parts, index_t group) const {
        double sum = 0;
        for (index_t channel = group * share_; channel < (group + 1) * share_; ++channel) sum += of_channel(parts, channel);
        return sum;
    }

    Lines lines_;
    index_t groups_, share_;
    double size_;
    std::vector<double> first_parts_, second_parts_;
    std::vector<Stats> stats_;
    std::vector<T> means_, rests_, scales_, shifts_, directions_;
};

// Parts of the gain's and bias's gradients, which `__init__.py` counts too.
static const index_t PARTS = 64;

// Calls work(each, example, k, part) for the k-th of all examples; each(step) is step(block) for each block. The threads share
// the examples of `parts` parts. There are too few of them: then they share the blocks, one step after the other.
template <class T, class Work>
static void by_example(const Lines& lines, index_t groups, index_t count, index_t parts, int threads, const Work& work) {
    if (threads > 1 && count < 2 * threads && count == parts) {
        Example<T> example(lines, groups);
        const auto each = [&](const auto& step) {
            in_parts(lines.blocks(), threads, [&](index_t first, index_t last) {
                for (index_t block = first; block < last; ++block) step(block);
            });
        };
        for (index_t k = 0; k < count; ++k) work(each, example, k, k);
        return;
    }
    const auto each = [&](const auto& step) {
        for (index_t block = 0; block < lines.blocks(); ++block) step(block);
    };
    in_parts(parts, threads, [&](index_t first, index_t last) {
        Example<T> example(lines, groups);
        for (index_t part = first; part < last; ++part)
            for (index_t k = count * part / parts; k < count * (part + 1) / parts; ++k) work(each, example, k, part);
    });
}

#define GROUP_NORM(T, NAME)                                                                                            \
    extern "C" void group_norm_forward_##NAME(const T* x, const T* gain, const T* bias, T* y, T* stats, int64_t count, \
                                              int64_t positions, int64_t channels, int64_t groups, double eps,         \
                                              int32_t threads) {                                                       \
        guarded([&] {                                                                                                  \
            const Lines lines{positions, channels};                                                                    \
            const auto work = [=](const auto& each, Example<T>& example, index_t k, index_t) {                         \
                const T* in = x + k * positions * channels;                                                            \
                each([&](index_t block) { example.add_up(in, block); });                                               \
                example.centre();                                                                                      \
                each([&](index_t block) { example.square(in, block); });                                               \
                example.scale(in, gain, bias, T(eps), stats + k * groups * 3);                                         \
                each([&](index_t block) { example.normalise(in, y + (in - x), block); });                              \
            };                                                                                                         \
            by_example<T>(lines, groups, count, std::min<index_t>(count, PARTS), threads, work);                       \
        });                                                                                                            \
    }                                                                                                                  \
    extern "C" void group_norm_backward_##NAME(const T* x, const T* dy, const T* stats, const T* gain, T* dx,          \
                                               T* d_gain, T* d_bias, int64_t count, int64_t positions,                 \
                                               int64_t channels, int64_t groups, int32_t threads) {                    \
        guarded([&] {                                                                                                  \
            const Lines lines{positions, channels};                                                                    \
            const index_t parts = std::min<index_t>(count, PARTS);                                                     \
            std::fill_n(d_gain, parts* channels, T(0));                                                                \
            std::fill_n(d_bias, parts* channels, T(0));                                                                \
            const auto work = [=](const auto& each, Example<T>& example, index_t k, index_t part) {                    \
                const T *in = x + k * positions * channels, *g = dy + (in - x);                                        \
                example.read(stats + k * groups * 3);                                                                  \
                each([&](index_t block) { example.add_up_gradients(in, g, block); });                                  \
                example.differentiate(gain, d_gain + part * channels, d_bias + part * channels);                       \
                if (dx) each([&](index_t block) { example.input_gradient(in, g, dx + (in - x), block); });             \
            };                                                                                                         \
            by_example<T>(lines, groups, count, parts, threads, work);                                                 \
        });                                                                                                            \
    }
ENTRIES(GROUP_NORM)
