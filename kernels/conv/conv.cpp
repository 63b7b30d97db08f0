// Convolution of images with channels last, and both gradients, without a matrix of patches: for an output position and
// a row of the kernel, the pixels that count are contiguous.
//
// All three are sums of products of a few values and a panel of two vectors of channels. An image is worked on in bands of
// rows that stay in cache, and a band is copied with its border of zeros. In groups with few outputs the lanes of a vector
// belong to several groups: the band then holds the inputs of each output, so that each lane has its own values.
#include <algorithm>

#include "common.h"

constexpr int ROWS = VECTOR_BYTES == 64 ? 12 : 6;  // their sums fit in the registers
constexpr index_t BAND_POSITIONS = 128;  // output positions of a band: the operands of a tile of their gradients stay in L1
constexpr index_t LANEWISE_VALUES = 1 << 15;  // values of a lanewise band, which stays in L2: its rows are read more often
constexpr index_t WEIGHT_BYTES = 20 << 10;  // weights that stay in L1 while a band passes

// Columns whose sums are made side by side.
template <class T>
constexpr int PANEL_OF = 2 * int(Vector<T>::lanes);

static constexpr index_t rounded_up(index_t value, index_t step) { return (value + step - 1) / step * step; }

// Numbers for the height and for the width.
struct Pair {
    index_t rows, columns;
    bool is(index_t number) const { return rows == number && columns == number; }
};

// A convolution of (batch, height, width, depth) with a kernel to (batch, rows, columns, channels). The pixels of the
// image lie `spacing` apart, with zeros between them, and begin after a border of zeros, which may be negative.
template <class T>
struct Shape {
    index_t batch, height, width, depth, kernel_rows, kernel_columns, channels, rows, columns, groups;
    Pair stride, dilation, border, spacing;

    const index_t inputs = depth / groups, outputs = channels / groups;
    const bool lanewise = groups > 1 && outputs <= Vector<T>::lanes / 2;
    // A lanewise pixel has the first input of each output, then the second ..., padded to whole vectors.
    const index_t input_step = lanewise ? rounded_up(channels, Vector<T>::lanes) : 1;
    const index_t pixel = lanewise ? inputs * input_step : depth;
    const bool rearranged = lanewise && (inputs > 1 || outputs > 1 || pixel != depth);
    // Channels that are worked on together: those of a group, or all lanes.
    const index_t blocks = lanewise ? 1 : groups, block_channels = channels / blocks;
    const index_t panels = (block_channels + PANEL_OF<T> - 1) / PANEL_OF<T>;
    // Weights of an output; a run of them has its inputs in equal steps.
    const index_t patch = kernel_rows * kernel_columns * inputs;
    const index_t run_pixels = blocks == 1 && dilation.columns == 1 ? kernel_columns : 1, run = run_pixels * inputs;
    const index_t positions = lanewise ? std::max(LANEWISE_VALUES / pixel, BAND_POSITIONS) : BAND_POSITIONS;
    const index_t band_rows = std::min(rows, std::max<index_t>(positions / columns, 1));
    const index_t bands_per_image = (rows + band_rows - 1) / band_rows, bands = batch * bands_per_image;
    const bool copied = rearranged || !border.is(0) || !spacing.is(1);
    const index_t copied_columns = (columns - 1) * stride.columns + (kernel_columns - 1) * dilation.columns + 1;
    const index_t row_step = copied ? copied_columns * pixel : width * depth;
    const index_t copied_size = copied ? rows_read(band_rows) * row_step : 0;

    index_t rows_read(index_t count) const { return (count - 1) * stride.rows + (kernel_rows - 1) * dilation.rows + 1; }
    index_t run_start(index_t number) const {
        const index_t pixels = number * run_pixels;
        return pixels / kernel_columns * dilation.rows * row_step + pixels % kernel_columns * dilation.columns * pixel;
    }
    // The place of the input that a weight multiplies, from the first input of a channel on.
    index_t input_of(index_t weight) const { return run_start(weight / run) + weight % run * input_step; }
    index_t first_input(index_t block, index_t channel) const { return lanewise ? channel : block * inputs; }
};

// The places of a vector's values in another one: whole numbers of the size of a value.
template <class T>
using Places = decltype(typename Vector<T>::type{} < typename Vector<T>::type{});

// values[places[k]] in each lane k. As an instruction where there is one.
template <class T>
static inline typename Vector<T>::type permuted(typename Vector<T>::type values, Places<T> places) {
#if VECTOR_BYTES == 64 || defined(__AVX2__)
    if constexpr (sizeof(T) == 4) {
        asm("vpermps %1, %2, %0" : "=v"(values) : "v"(values), "v"(places));
        return values;
    }
#endif
#if VECTOR_BYTES == 64
    if constexpr (sizeof(T) == 8) {
        asm("vpermpd %1, %2, %0" : "=v"(values) : "v"(values), "v"(places));
        return values;
    }
#endif
    typename Vector<T>::type moved;
    for (index_t k = 0; k < Vector<T>::lanes; ++k) moved[k] = values[places[k]];
    return moved;
}

// A lanewise pixel from one of the image. The values of each vector are one vector of the image, permuted, unless groups are so
// wide, or pixels so narrow, that they do not lie in one.
template <class T>
class Arrangement {
public:
    explicit Arrangement(const Shape<T>& s) : sources_(s.rearranged ? s.pixel : 0) {
        for (index_t k = 0; k < index_t(sources_.size()); ++k)
            if (const index_t channel = k % s.input_step; channel < s.channels)
                sources_[k] = channel / s.outputs * s.inputs + k / s.input_step;
            else sources_[k] = sources_[k - 1];
        in_vectors_ = s.depth >= LANES;
        for (index_t k = 0; k < index_t(sources_.size()); k += LANES) {
            const index_t start = std::min(sources_[k], s.depth - LANES);
            Places<T> places{};
            for (index_t lane = 0; lane < LANES; ++lane) places[lane] = sources_[k + lane] - start;
            if (places[LANES - 1] >= LANES) in_vectors_ = false;
            starts_.push_back(start);
            places_.push_back(places);
        }
    }
    void copy(const T* pixel, T* out) const {
        if (!in_vectors_) {
            for (const index_t source : sources_) *out++ = pixel[source];
            return;
        }
        for (std::size_t k = 0; k < starts_.size(); ++k)
            store(out + k * LANES, permuted<T>(load(pixel + starts_[k]), places_[k]));
    }

private:
    static constexpr index_t LANES = Vector<T>::lanes;
    std::vector<index_t> sources_, starts_;
    std::vector<Places<T>> places_;
    bool in_vectors_;
};

// Rows of an output image, and the pixels that they read.
template <class T>
struct Band {
    index_t image, first, rows;
    const T* pixels;
};

template <class T>
static void copy_pixels(const T* source, index_t count, T* out, const Shape<T>& s, const Arrangement<T>& arrangement) {
    if (!s.rearranged) std::copy_n(source, count * s.depth, out);
    else
        for (index_t k = 0; k < count; ++k) arrangement.copy(source + k * s.depth, out + k * s.pixel);
}

template <class T>
static void copy_row(const T* source, T* out, const Shape<T>& s, const Arrangement<T>& arrangement) {
    const index_t columns = s.copied_columns;
    if (s.spacing.columns == 1) {
        const index_t before = std::clamp<index_t>(s.border.columns, 0, columns);
        const index_t skipped = std::max<index_t>(-s.border.columns, 0);
        const index_t count = std::clamp<index_t>(s.width - skipped, 0, columns - before);
        std::fill_n(out, before * s.pixel, T(0));
        copy_pixels(source + skipped * s.depth, count, out + before * s.pixel, s, arrangement);
        std::fill_n(out + (before + count) * s.pixel, (columns - before - count) * s.pixel, T(0));
        return;
    }
    std::fill_n(out, columns * s.pixel, T(0));
    for (index_t k = 0; k < s.width; ++k) {
        const index_t place = k * s.spacing.columns + s.border.columns;
        if (place >= 0 && place < columns) copy_pixels(source + k * s.depth, 1, out + place * s.pixel, s,
                                                       arrangement);
    }
}

template <class T>
static Band<T> band_of(const T* x, index_t number, const Shape<T>& s, const Arrangement<T>& arrangement, T* buffer) {
    const index_t image = number / s.bands_per_image, first = number % s.bands_per_image * s.band_rows;
    const index_t rows = std::min(s.band_rows, s.rows - first), row_values = s.width * s.depth;
    const T* source = x + image * s.height * row_values;
    if (!s.copied) return {image, first, rows, source + first * s.stride.rows * row_values};
    for (index_t k = 0; k < s.rows_read(rows); ++k) {
        const index_t place = first * s.stride.rows + k - s.border.rows, row = place / s.spacing.rows;
        T* out = buffer + k * s.row_step;
        if (place < 0 || place % s.spacing.rows || row >= s.height) std::fill_n(out, s.row_step, T(0));
        else copy_row(source + row * row_values, out, s, arrangement);
    }
    return {image, first, rows, buffer};
}

// Copies the first values of a vector, fewer than twice MOST. The sizes are constants, so that each copy is a few instructions.
// Values are copied one by one: of a memcpy of 16 bytes from rows 24 bytes apart GCC 12 makes aligned loads, for Zen 3 at least.
template <int MOST, class T>
static inline void copy_first(const T* from, T* to, int count) {
    if constexpr (MOST > 0) {
        const int copied = count & MOST;
        for (int k = 0; copied && k < MOST; ++k) to[k] = from[k];
        copy_first<MOST / 2>(from + copied, to + copied, count);
    }
}

// The places of the values of a sum from each start: pieces of several values in equal steps.
struct Walk {
    const index_t* pieces;
    index_t count, values, step;
};

// out[r][c] (+)= sum over k of starts[r][k] * panel[k][c], for the rows and columns of out that there are; LANEWISE, that of
// starts[r][k + c] * panel[k][c]. The columns are those of the first VECTORS vectors of the panel.
template <int VECTORS, bool LANEWISE, class T>
static void multiply_vectors(const T* const (&starts)[ROWS], const Walk& walk, const T* panel, T* out, index_t out_step,
                             int rows, int columns, bool adds) {
    using vector = typename Vector<T>::anywhere;
    constexpr int LANES = int(Vector<T>::lanes);
    vector sums[ROWS][VECTORS] = {};
    for (index_t i = 0; i < walk.count; ++i) {
        index_t place = walk.pieces[i];
        for (index_t k = 0; k < walk.values; ++k) {
            vector values[VECTORS];
            for (int v = 0; v < VECTORS; ++v) values[v] = *reinterpret_cast<const vector*>(panel + v * LANES);
#pragma GCC unroll 12
            for (int r = 0; r < ROWS; ++r)
                for (int v = 0; v < VECTORS; ++v)
                    if constexpr (LANEWISE)
                        sums[r][v] += *reinterpret_cast<const vector*>(starts[r] + place + v * LANES) * values[v];
                    else sums[r][v] += starts[r][place] * values[v];
            panel += PANEL_OF<T>;
            place += walk.step;
        }
    }
    if (columns == VECTORS * LANES) {
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; ++r) {
            if (r == rows) return;
            vector* to = reinterpret_cast<vector*>(out + r * out_step);
            for (int v = 0; v < VECTORS; ++v) to[v] = adds ? to[v] + sums[r][v] : sums[r][v];
        }
        return;
    }
    T values[ROWS][VECTORS * LANES];
    std::memcpy(values, sums, sizeof(values));
    for (int r = 0; r < rows; ++r, out += out_step) {
        if (adds)
            for (int c = 0; c < columns; ++c) out[c] += values[r][c];
        else copy_first<VECTORS * LANES / 2>(values[r], out, columns);
    }
}

// The same. The second vector of a panel with few columns has only zeros, so it is left out.
template <class T>
static void multiply(const T* const (&starts)[ROWS], const Walk& walk, const T* panel, T* out, index_t out_step, int rows,
                     int columns, bool adds, bool lanewise) {
    if (lanewise && columns > Vector<T>::lanes)
        multiply_vectors<2, true>(starts, walk, panel, out, out_step, rows, columns, adds);
    else if (lanewise) multiply_vectors<1, true>(starts, walk, panel, out, out_step, rows, columns, adds);
    else if (columns > Vector<T>::lanes)
        multiply_vectors<2, false>(starts, walk, panel, out, out_step, rows, columns, adds);
    else multiply_vectors<1, false>(starts, walk, panel, out, out_step, rows, columns, adds);
}

// Rows of channels, `row_step` apart, as panels, one after another; the last is padded with zeros.
template <class T>
static void pack(const T* values, index_t rows, index_t channels, index_t row_step, T* panels) {
    constexpr index_t PANEL = PANEL_OF<T>;
    for (index_t start = 0; start < channels; start += PANEL) {
        const index_t count = std::min(PANEL, channels - start);
        for (index_t k = 0; k < rows; ++k, panels += PANEL) {
            std::fill_n(panels, PANEL, T(0));
            copy_first<PANEL>(values + k * row_step + start, panels, int(count));
        }
    }
}

// The sums of one panel of channels over a band, for the weights that a walk passes.
template <class T>
static void convolve_band(const Band<T>& band, index_t offset, const Walk& walk, const T* panel, T* out, int columns,
                          bool adds, const Shape<T>& s) {
    const index_t positions = band.rows * s.columns, step = s.stride.columns * s.pixel;
    index_t row = 0, column = 0;
    for (index_t start = 0; start < positions; start += ROWS) {
        const int count = int(std::min<index_t>(ROWS, positions - start));
        const T* starts[ROWS];
        for (int r = 0; r < ROWS; ++r) {
            starts[r] = band.pixels + row * s.stride.rows * s.row_step + column * step + offset;
            if (r < count - 1 && ++column == s.columns) {
                column = 0;
                ++row;
            }
        }
        if (++column == s.columns) {
            column = 0;
            ++row;
        }
        multiply(starts, walk, panel, out + start * s.channels, s.channels, count, columns, adds, s.lanewise);
    }
}

// The panels of a block hold the weights that its channels share.
template <class T>
static void convolve(const T* x, const T* panels, T* y, const Shape<T>& s, int threads) {
    constexpr index_t PANEL = PANEL_OF<T>;
    const index_t deepest = WEIGHT_BYTES / index_t(PANEL * sizeof(T)), runs = s.patch / s.run;
    const index_t group = std::max<index_t>(deepest / s.run, 1), piece = std::min(s.run, deepest);
    const Arrangement<T> arrangement(s);
    std::vector<index_t> starts(runs);
    for (index_t k = 0; k < runs; ++k) starts[k] = s.run_start(k);
    in_parts(s.bands, threads, [&](index_t first, index_t last) {
        Aligned<T> buffer(s.copied_size);
        for (index_t number = first; number < last; ++number) {
            const Band<T> band = band_of(x, number, s, arrangement, buffer.data());
            T* out = y + (band.image * s.rows + band.first) * s.columns * s.channels;
            for (index_t block = 0; block < s.blocks; ++block)
                for (index_t channel = 0; channel < s.block_channels; channel += PANEL) {
                    const T* panel = panels + (block * s.panels * PANEL + channel) * s.patch;
                    const int columns = int(std::min(PANEL, s.block_channels - channel));
                    for (index_t i = 0; i < runs; i += group)
                        for (index_t k = 0; k < s.run; k += piece) {
                            const Walk walk{starts.data() + i, std::min(group, runs - i), std::min(piece, s.run - k),
                                            s.input_step};
                            convolve_band(band, s.first_input(block, channel) + k * s.input_step, walk,
                                          panel + (i * s.run + k) * PANEL, out + block * s.block_channels + channel,
                                          columns, i + k > 0, s);
                        }
                }
        }
    });
}

// The shares of some bands in some rows of the weights' gradient, which begin at `first` * ROWS.
template <class T>
static void add_bands(const T* x, const T* dy, T* d_weight, const Shape<T>& s, const Arrangement<T>& arrangement,
                      index_t first_band, index_t last_band, index_t first, index_t last) {
    constexpr index_t PANEL = PANEL_OF<T>;
    Aligned<T> buffer(s.copied_size), packed(s.band_rows * s.columns * s.panels * PANEL);
    std::vector<index_t> output_rows(s.band_rows);
    for (index_t k = 0; k < s.band_rows; ++k) output_rows[k] = k * s.stride.rows * s.row_step;
    for (index_t number = first_band; number < last_band; ++number) {
        const Band<T> band = band_of(x, number, s, arrangement, buffer.data());
        const index_t positions = band.rows * s.columns;
        const Walk walk{output_rows.data(), band.rows, s.columns, s.stride.columns * s.pixel};
        for (index_t block = 0; block < s.blocks; ++block) {
            const index_t first_channel = block * s.block_channels;
            const T* panels = dy + (band.image * s.rows + band.first) * s.columns * s.channels + first_channel;
            if (s.channels != PANEL || s.blocks > 1) {
                pack(panels, positions, s.block_channels, s.channels, packed.data());
                panels = packed.data();
            }
            for (index_t k = first * ROWS; k < std::min(last * ROWS, s.patch); k += ROWS) {
                const int count = int(std::min<index_t>(ROWS, s.patch - k));
                index_t places[ROWS];
                for (int r = 0; r < ROWS; ++r) places[r] = s.input_of(k + std::min(r, count - 1));
                for (index_t channel = 0; channel < s.block_channels; channel += PANEL) {
                    const int columns = int(std::min(PANEL, s.block_channels - channel));
                    const T* starts[ROWS];
                    for (int r = 0; r < ROWS; ++r) starts[r] = band.pixels + places[r] + s.first_input(block, channel);
                    multiply(starts, walk, panels + channel * positions, d_weight + k * s.channels + first_channel + channel,
                             s.channels, count, columns, number > first_band, s.lanewise);
                }
            }
        }
    }
}

// Many bands are added up in groups, each to a sum of its own, so that a thread copies its own bands only. Few bands make
// few groups, whose rows are shared out. Neither depends on the number of threads, so every sum has one order.
template <class T>
static void weight_gradient(const T* x, const T* dy, T* d_weight, const Shape<T>& s, int threads) {
    constexpr index_t SHARES = 16, LEAST_BANDS = 8;
    const index_t size = s.patch * s.channels, tiles = (s.patch + ROWS - 1) / ROWS;
    index_t groups = 1;  // a power of two, so that all shares are used
    while (groups < SHARES && 2 * groups * LEAST_BANDS <= s.bands) groups *= 2;
    const index_t slices = SHARES / groups;
    Aligned<T> others((groups - 1) * size);  // the first group's sum is where the total will be
    T* more = others.data();
    const Arrangement<T> arrangement(s);
    in_parts(groups * slices, threads, [&](index_t first, index_t last) {
        for (index_t group = first / slices; group * slices < last; ++group) {
            const index_t from = std::max(first - group * slices, index_t(0)), to = std::min(last - group * slices, slices);
            add_bands(x, dy, group ? more + (group - 1) * size : d_weight, s, arrangement, s.bands * group / groups,
                      s.bands * (group + 1) / groups, tiles * from / slices, tiles * to / slices);
        }
    });
    in_parts(groups > 1 ? size : 0, threads, [=](index_t first, index_t last) {
        for (index_t group = 0; group + 1 < groups; ++group)
#pragma omp simd
            for (index_t k = first; k < last; ++k) d_weight[k] += more[group * size + k];
    });
}

// The weights (kernel rows, kernel columns, in / groups, out) for the gradient of the images: flipped along both axes, and
// (out / groups, in).
template <class T>
static void turn(const T* weight, T* turned, index_t pixels, index_t n_in, index_t n_out, index_t groups) {
    const index_t inputs = n_in / groups, outputs = n_out / groups;
    for (index_t p = 0; p < pixels; ++p, turned += n_in * outputs) {
        const T* plane = weight + (pixels - 1 - p) * inputs * n_out;
        for (index_t i = 0; i < inputs; ++i)
            for (index_t o = 0; o < n_out; ++o) turned[o % outputs * n_in + o / outputs * inputs + i] = plane[i * n_out + o];
    }
}

template <class T>
static void packed_convolve(const T* x, const T* weight, T* y, const Shape<T>& s, int threads) {
    const index_t size = s.patch * s.panels * PANEL_OF<T>;
    Aligned<T> panels(s.blocks * size);
    for (index_t block = 0; block < s.blocks; ++block)
        pack(weight + block * s.block_channels, s.patch, s.block_channels, s.channels, panels.data() + block * size);
    convolve(x, panels.data(), y, s, threads);
}

#define FORWARD_SHAPE                                                                                                 \
    Shape<T> {                                                                                                        \
        batch, height, width, n_in, kernel_rows, kernel_columns, n_out, rows, columns, groups,                        \
            {row_stride, column_stride}, {row_dilation, column_dilation}, {row_padding, column_padding}, {1, 1}       \
    }

ENTRY(conv2d_forward) {
    guarded([&] {
        packed_convolve<T>(x, weight, y, FORWARD_SHAPE, threads);
    });
}

ENTRY(conv2d_weight_gradient) {
    guarded([&] {
        weight_gradient<T>(x, dy, d_weight, FORWARD_SHAPE, threads);
    });
}

ENTRY(conv2d_image_gradient) {
    guarded([&] {
        Aligned<T> turned(kernel_rows * kernel_columns * n_in * (n_out / groups));
        turn(weight, turned.data(), kernel_rows * kernel_columns, n_in, n_out, groups);
        const Pair border{row_dilation * (kernel_rows - 1) - row_padding,
                          column_dilation * (kernel_columns - 1) - column_padding};
        const Shape<T> shape{batch, rows, columns, n_out, kernel_rows, kernel_columns, n_in, height, width,
                             groups, {1, 1}, {row_dilation, column_dilation}, border,
                             {row_stride, column_stride}};
        packed_convolve<T>(dy, turned.data(), dx, shape, threads);
    });
}
