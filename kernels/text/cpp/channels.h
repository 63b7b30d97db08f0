// Rows of channels, such as the pixels of images. Few channels would give short loops, so the rows are walked in lines of
// several rows, with the channels' own values repeated along a line. Sums are taken in blocks of rows that depend on the
// sizes alone; `channel_norm/__init__.py` computes the same blocks.
#pragma once
#include <algorithm>
#include <vector>

#include "common.h"

struct Lines {
    static constexpr index_t LINE_VALUES = 256, BLOCK_VALUES = 16384, LEAST_LINES = 16;
    index_t rows, channels;

    index_t repeats() const { return std::max<index_t>(LINE_VALUES / channels, 1); }
    index_t width() const { return repeats() * channels; }
    index_t block_rows() const { return repeats() * std::max<index_t>(BLOCK_VALUES / width(), LEAST_LINES); }
    index_t blocks() const { return (rows + block_rows() - 1) / block_rows(); }

    // A value for each channel, repeated along a line; without values, zeros.
    std::vector<T> along(const T* values) const {
        std::vector<T> line(width());
        if (values)
            for (index_t k = 0; k < width(); ++k) line[k] = values[k % channels];
        return line;
    }

    // Calls work(start, count) for the lines of some blocks; the last line of all may be short.
    template <class Work>
    void each(index_t first_block, index_t last_block, const Work& work) const {
        const index_t size = block_rows() * channels, end = std::min(last_block * size, rows * channels);
        for (index_t start = first_block * size; start < end; start += width()) work(start, std::min(width(), end - start));
    }

    // The sum of each channel over a line of sums.
    void fold(const std::vector<T>& line, T* sums) const {
        std::copy_n(line.data(), channels, sums);
        for (index_t k = channels; k < width(); ++k) sums[k % channels] += line[k];
    }
};
