// Convolution of images with channels last, and both gradients, without a matrix of patches: for an output position and
// a row of the kernel, the pixels that count are contiguous.
//
// All three are sums of outer products: a few broadcast values times a panel of two vectors of channels. An image is
// worked on in bands of rows that stay in cache, and a band is copied with its border of zeros.
#include <algorithm>

#include "../native.h"

constexpr int ROWS = VECTOR_BYTES == 64 ? 12 : 6;  // their sums fit in the registers
constexpr index_t BAND_POSITIONS = 128;  // output positions of a band: the operands of a tile of their gradients stay in L1
constexpr index_t WEIGHT_BYTES = 20 << 10;  // weights that stay in L1 while a band passes

// Columns whose sums are made side by side.
template <class T>
constexpr int PANEL_OF = 2 * int(Vector<T>::lanes);

// A convolution of (batch, height, width, depth) with a kernel to (batch, rows, columns, channels). The pixels of the
// image lie `dilation` apart, with zeros between them, and begin after a border of zeros, which may be negative.
struct Shape {
    index_t batch, height, width, depth, kernel_rows, kernel_columns, channels, rows, columns;
    index_t stride, row_border, column_border, dilation;

    index_t run() const { return kernel_columns * depth; }  // contiguous values
    index_t patch() const { return kernel_rows * run(); }
    index_t band_rows() const { return std::min(rows, std::max<index_t>(BAND_POSITIONS / columns, 1)); }
    index_t bands_per_image() const { return (rows + band_rows() - 1) / band_rows(); }
    index_t bands() const { return batch * bands_per_image(); }
    index_t bordered_columns() const { return (columns - 1) * stride + kernel_columns; }
    bool bordered() const { return row_border || column_border || dilation != 1; }
    index_t bordered_size() const {
        return bordered() ? ((band_rows() - 1) * stride + kernel_rows) * bordered_columns() * depth : 0;
    }
};

// Rows of an output image, and the pixels that they read.
template <class T>
struct Band {
    index_t image, first, rows;
    const T* pixels;
    index_t row_step;  // from one row of pixels to the next
};

template <class T>
static void border_row(const T* source, T* out, const Shape& s) {
    const index_t columns = s.bordered_columns();
    if (s.dilation == 1) {
        const index_t before = std::clamp<index_t>(s.column_border, 0, columns);
        const index_t skipped = std::max<index_t>(-s.column_border, 0);
        const index_t copied = std::clamp<index_t>(s.width - skipped, 0, columns - before);
        std::fill_n(out, before * s.depth, T(0));
        std::copy_n(source + skipped * s.depth, copied * s.depth, out + before * s.depth);
        std::fill_n(out + (before + copied) * s.depth, (columns - before - copied) * s.depth, T(0));
        return;
    }
    std::fill_n(out, columns * s.depth, T(0));
    for (index_t k = 0; k < s.width; ++k) {
        const index_t place = k * s.dilation + s.column_border;
        if (place >= 0 && place < columns) std::copy_n(source + k * s.depth, s.depth, out + place * s.depth);
    }
}

template <class T>
static Band<T> band_of(const T* x, index_t number, const Shape& s, T* buffer) {
    const index_t image = number / s.bands_per_image(), first = number % s.bands_per_image() * s.band_rows();
    const index_t rows = std::min(s.band_rows(), s.rows - first), row_values = s.width * s.depth;
    const T* source = x + image * s.height * row_values;
    if (!s.bordered()) return {image, first, rows, source + first * s.stride * row_values, row_values};
    const index_t row_step = s.bordered_columns() * s.depth;
    for (index_t k = 0; k < (rows - 1) * s.stride + s.kernel_rows; ++k) {
        const index_t place = first * s.stride + k - s.row_border, row = place / s.dilation;
        if (place < 0 || place % s.dilation || row >= s.height) std::fill_n(buffer + k * row_step, row_step, T(0));
        else border_row(source + row * row_values, buffer + k * row_step, s);
    }
    return {image, first, rows, buffer, row_step};
}

// The offsets of the broadcast values of a sum of outer products from each start: pieces of several values.
struct Walk {
    index_t pieces, piece_step, values, value_step;
};

// out[r][c] (+)= sum over k of starts[r][k] * panel[k][c], for the rows and columns of out that there are. The columns are
// those of the first VECTORS vectors of the panel.
template <int VECTORS, class T>
static void multiply_vectors(const T* const (&starts)[ROWS], const Walk& walk, const T* panel, T* out, index_t out_step,
                             int rows, int columns, bool adds) {
    using vector = typename Vector<T>::anywhere;
    constexpr int LANES = int(Vector<T>::lanes);
    vector sums[ROWS][VECTORS] = {};
    for (index_t i = 0; i < walk.pieces; ++i) {
        index_t place = i * walk.piece_step;
        for (index_t k = 0; k < walk.values; ++k) {
            vector values[VECTORS];
            for (int v = 0; v < VECTORS; ++v) values[v] = *reinterpret_cast<const vector*>(panel + v * LANES);
#pragma GCC unroll 12
            for (int r = 0; r < ROWS; ++r)
                for (int v = 0; v < VECTORS; ++v) sums[r][v] += starts[r][place] * values[v];
            panel += PANEL_OF<T>;
            place += walk.value_step;
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
    for (int r = 0; r < rows; ++r, out += out_step)
        for (int c = 0; c < columns; ++c) out[c] = adds ? out[c] + values[r][c] : values[r][c];
}

// The same. The second vector of a panel with few columns has only zeros, so it is left out.
template <class T>
static void multiply(const T* const (&starts)[ROWS], const Walk& walk, const T* panel, T* out, index_t out_step, int rows,
                     int columns, bool adds) {
    if (columns > Vector<T>::lanes) multiply_vectors<2>(starts, walk, panel, out, out_step, rows, columns, adds);
    else multiply_vectors<1>(starts, walk, panel, out, out_step, rows, columns, adds);
}

template <class T>
static index_t panels_of(index_t channels) {
    return (channels + PANEL_OF<T> - 1) / PANEL_OF<T>;
}

// Rows of channels as panels, one after another; the last is padded with zeros.
template <class T>
static void pack(const T* values, index_t rows, index_t channels, T* panels) {
    constexpr index_t PANEL = PANEL_OF<T>;
    for (index_t start = 0; start < channels; start += PANEL) {
        const index_t count = std::min(PANEL, channels - start);
        for (index_t k = 0; k < rows; ++k, panels += PANEL) {
            std::copy_n(values + k * channels + start, count, panels);
            std::fill_n(panels + count, PANEL - count, T(0));
        }
    }
}

// The sums of one panel of channels over a band, for the weights that a walk passes.
template <class T>
static void convolve_band(const Band<T>& band, index_t offset, const Walk& walk, const T* panel, T* out, int columns,
                          bool adds, const Shape& s) {
    const index_t positions = band.rows * s.columns, step = s.stride * s.depth;
    index_t row = 0, column = 0;
    for (index_t start = 0; start < positions; start += ROWS) {
        const int count = int(std::min<index_t>(ROWS, positions - start));
        const T* starts[ROWS];
        for (int r = 0; r < ROWS; ++r) {
            starts[r] = band.pixels + row * s.stride * band.row_step + column * step + offset;
            if (r < count - 1 && ++column == s.columns) {
                column = 0;
                ++row;
            }
        }
        if (++column == s.columns) {
            column = 0;
            ++row;
        }
        multiply(starts, walk, panel, out + start * s.channels, s.channels, count, columns, adds);
    }
}

template <class T>
static void convolve(const T* x, const T* panels, T* y, const Shape& s, int threads) {
    constexpr index_t PANEL = PANEL_OF<T>;
    const index_t deepest = WEIGHT_BYTES / index_t(PANEL * sizeof(T)), run = s.run();
    const index_t group = std::max<index_t>(deepest / run, 1), piece = std::min(run, deepest);
    in_parts(s.bands(), threads, [=](index_t first, index_t last) {
        Aligned<T> buffer(s.bordered_size());
        for (index_t number = first; number < last; ++number) {
            const Band<T> band = band_of(x, number, s, buffer.data());
            T* out = y + (band.image * s.rows + band.first) * s.columns * s.channels;
            for (index_t channel = 0; channel < s.channels; channel += PANEL) {
                const T* panel = panels + channel * s.patch();
                const int columns = int(std::min(PANEL, s.channels - channel));
                for (index_t i = 0; i < s.kernel_rows; i += group)
                    for (index_t k = 0; k < run; k += piece) {
                        const Walk walk{std::min(group, s.kernel_rows - i), band.row_step, std::min(piece, run - k), 1};
                        convolve_band(band, i * band.row_step + k, walk, panel + (i * run + k) * PANEL, out + channel,
                                      columns, i + k > 0, s);
                    }
            }
        }
    });
}

// The shares of some bands in some rows of the weights' gradient, which begin at `first` * ROWS.
template <class T>
static void add_bands(const T* x, const T* dy, T* d_weight, const Shape& s, index_t first_band, index_t last_band,
                      index_t first, index_t last) {
    constexpr index_t PANEL = PANEL_OF<T>;
    const index_t patch = s.patch(), run = s.run();
    Aligned<T> buffer(s.bordered_size()), packed(s.band_rows() * s.columns * panels_of<T>(s.channels) * PANEL);
    for (index_t number = first_band; number < last_band; ++number) {
        const Band<T> band = band_of(x, number, s, buffer.data());
        const index_t positions = band.rows * s.columns;
        const T* panels = dy + (band.image * s.rows + band.first) * s.columns * s.channels;
        if (s.channels != PANEL) {
            pack(panels, positions, s.channels, packed.data());
            panels = packed.data();
        }
        const Walk walk{band.rows, s.stride * band.row_step, s.columns, s.stride * s.depth};
        for (index_t k = first * ROWS; k < std::min(last * ROWS, patch); k += ROWS) {
            const int count = int(std::min<index_t>(ROWS, patch - k));
            const T* starts[ROWS];
            for (int r = 0; r < ROWS; ++r) {
                const index_t weight = k + std::min(r, count - 1);
                starts[r] = band.pixels + weight / run * band.row_step + weight % run;
            }
            for (index_t channel = 0; channel < s.channels; channel += PANEL) {
                const int columns = int(std::min(PANEL, s.channels - channel));
                multiply(starts, walk, panels + channel * positions, d_weight + k * s.channels + channel, s.channels,
                         count, columns, number > first_band);
            }
        }
    }
}

// Many bands are added up in groups, each to a sum of its own, so that a thread copies its own bands only. Few bands make
// few groups, whose rows are shared out. Neither depends on the number of threads, so every sum has one order.
template <class T>
static void weight_gradient(const T* x, const T* dy, T* d_weight, const Shape& s, int threads) {
    constexpr index_t SHARES = 16, LEAST_BANDS = 8;
    const index_t size = s.patch() * s.channels, tiles = (s.patch() + ROWS - 1) / ROWS;
    index_t groups = 1;  // a power of two, so that all shares are used
    while (groups < SHARES && 2 * groups * LEAST_BANDS <= s.bands()) groups *= 2;
    const index_t slices = SHARES / groups;
    Aligned<T> others((groups - 1) * size);  // the first group's sum is where the total will be
    T* more = others.data();
    in_parts(groups * slices, threads, [=](index_t first, index_t last) {
        for (index_t group = first / slices; group * slices < last; ++group) {
            const index_t from = std::max(first - group * slices, index_t(0)), to = std::min(last - group * slices, slices);
            add_bands(x, dy, group ? more + (group - 1) * size : d_weight, s, s.bands() * group / groups,
                      s.bands() * (group + 1) / groups, tiles * from / slices, tiles * to / slices);
        }
    });
    in_parts(groups > 1 ? size : 0, threads, [=](index_t first, index_t last) {
        for (index_t group = 0; group + 1 < groups; ++group)
#pragma omp simd
            for (index_t k = first; k < last; ++k) d_weight[k] += more[group * size + k];
    });
}

// The weights (kernel rows, kernel columns, in, out) for the gradient of the images: flipped along both axes, and (out, in).
template <class T>
static void turn(const T* weight, T* turned, index_t pixels, index_t n_in, index_t n_out) {
    for (index_t p = 0; p < pixels; ++p, turned += n_in * n_out) {
        const T* plane = weight + (pixels - 1 - p) * n_in * n_out;
        for (index_t i = 0; i < n_in; ++i)
            for (index_t o = 0; o < n_out; ++o) turned[o * n_in + i] = plane[i * n_out + o];
    }
}

template <class T>
static void packed_convolve(const T* x, const T* weight, T* y, const Shape& s, int threads) {
    Aligned<T> panels(s.patch() * panels_of<T>(s.channels) * PANEL_OF<T>);
    pack(weight, s.patch(), s.channels, panels.data());
    convolve(x, panels.data(), y, s, threads);
}

#define SIZES                                                                                                         \
    int64_t batch, int64_t height, int64_t width, int64_t n_in, int64_t kernel_rows, int64_t kernel_columns,          \
        int64_t n_out, int64_t rows, int64_t columns, int64_t stride, int64_t padding, int32_t threads
#define FORWARD_SHAPE                                                                                                 \
    { batch, height, width, n_in, kernel_rows, kernel_columns, n_out, rows, columns, stride, padding, padding, 1 }

#define CONV(T, NAME)                                                                                                  \
    extern "C" void conv2d_forward_##NAME(const T* x, const T* weight, T* y, SIZES) {                                  \
        guarded([&] {                                                                                                  \
            packed_convolve<T>(x, weight, y, FORWARD_SHAPE, threads);                                                  \
        });                                                                                                            \
    }                                                                                                                  \
    extern "C" void conv2d_weight_gradient_##NAME(const T* x, const T* dy, T* d_weight, SIZES) {                       \
        guarded([&] {                                                                                                  \
            weight_gradient<T>(x, dy, d_weight, FORWARD_SHAPE, threads);                                               \
        });                                                                                                            \
    }                                                                                                                  \
    extern "C" void conv2d_image_gradient_##NAME(const T* dy, const T* weight, T* dx, SIZES) {                         \
        guarded([&] {                                                                                                  \
            Aligned<T> turned(kernel_rows * kernel_columns * n_in * n_out);                                            \
            turn(weight, turned.data(), kernel_rows * kernel_columns, n_in, n_out);                                    \
            const Shape shape{batch, rows, columns, n_out, kernel_rows, kernel_columns, n_in, height, width, 1,        \
                              kernel_rows - 1 - padding, kernel_columns - 1 - padding, stride};                        \
            packed_convolve<T>(dy, turned.data(), dx, shape, threads);                                                 \
        });                                                                                                            \
    }
ENTRIES(CONV)
