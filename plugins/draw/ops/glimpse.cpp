// A glimpse of DRAW for each row of a batch: the decoder writes on the canvas and reads for the next glimpse.
//
// A row belongs to one thread. A line of pixels is copied to whole vectors, and so are all lines that are kept: `line`
// values each, of which those beyond the pixels are 0. Filters fall to nothing within some pixels of their points, so most of
// their products would be denormal.
#include "common.h"
#include "grid.h"

struct Sizes {
    index_t pixels, line, read, write;
    double half, limit, epsilon;  // half: what a centre in -1 .. 1 is multiplied by

    index_t points() const { return read + write; }
    index_t looked() const { return 2 * WHERE + write * write; }
};

template <class T>
static inline T dot(const T* a, const T* b, index_t line) {
    typename Vector<T>::type sum = {};
    for (index_t k = 0; k < line; k += Vector<T>::lanes) sum += load(a + k) * load(b + k);
    return total<T>(sum);
}

template <class T>
static inline void add_scaled(T* out, T scale, const T* a, index_t line) {
    for (index_t k = 0; k < line; k += Vector<T>::lanes) store(out + k, load(out + k) + scale * load(a + k));
}

// By vectors, of which the last may overlap the one before: a line is too short for a call of memcpy.
template <class T>
static inline void copy_line(T* out, const T* line, index_t pixels) {
    constexpr index_t L = Vector<T>::lanes;
    if (pixels < L) return void(std::copy(line, line + pixels, out));
    for (index_t k = 0; k + L < pixels; k += L) store(out + k, load(line + k));
    store(out + pixels - L, load(line + pixels - L));
}

static const index_t COUNTED = 64;

// 0, 1, 2, ...
template <class T>
struct Counted {
    T values[COUNTED];
    Counted() {
        for (int k = 0; k < COUNTED; ++k) values[k] = T(k);
    }
};

template <class T>
static const Counted<T>& counted() {
    static const Counted<T> numbers;
    return numbers;
}

// A grid of a row.
template <class T>
static inline Grid<T> grid_of(const T* where, const Sizes& s, index_t points, bool inverse) {
    return placed<T>(where, T(s.half), T(double(s.pixels - 1) / double(points - 1)), T(s.limit), inverse);
}

// filters[axis][point][pixel] of a grid, the first of whose points is at `first` of all.
template <class T>
static void fill(const Grid<T>& grid, const Sizes& s, index_t first, index_t points, T* filters) {
    for (int axis : {X, Y})
        for (index_t point = 0; point < points; ++point) {
            T* filter = filters + (axis * s.points() + first + point) * s.line;
            const T mean = grid_mean(grid, axis, T(point), T(points)), sharpness = T(-0.5) * grid.precision;
            for (index_t a = 0; a < s.line; a += Vector<T>::lanes) {
                const auto away = load(counted<T>().values + a % COUNTED) + (T(int(a / COUNTED * COUNTED)) - mean);
                store(filter + a, exponential(away * away * sharpness));
            }
            std::fill(filter + s.pixels, filter + s.line, T(0));
            typename Vector<T>::type sum = {};
            for (index_t a = 0; a < s.line; a += Vector<T>::lanes) sum += load(filter + a);
            const T scale = 1 / (total<T>(sum) + T(s.epsilon));
            for (index_t a = 0; a < s.line; a += Vector<T>::lanes) store(filter + a, load(filter + a) * scale);
        }
}

template <class T>
static void look(const T* canvas, const T* image, const T* looked, T* drawn, T* seen, T* chances, T* filters,
                 T* seen_rows, const Sizes& s) {
    const index_t P = s.pixels, L = s.line, N = s.points(), read = s.read, write = s.write;
    const Grid<T> reader = grid_of(looked, s, read, false), writer = grid_of(looked + WHERE, s, write, true);
    fill(reader, s, 0, read, filters);
    fill(writer, s, read, write, filters);
    const T *columns = filters, *rows = filters + N * L, *patch = looked + 2 * WHERE;
    std::vector<T> memory((write + 2) * L, T(0));
    T *landed = memory.data(), *line = landed + write * L, *seen_line = line + L;
    for (index_t w = 0; w < write; ++w)
        for (index_t j = 0; j < write; ++j)
            add_scaled(landed + w * L, patch[w * write + j], columns + (read + j) * L, L);
    std::fill(seen_rows, seen_rows + 2 * read * L, T(0));
    for (index_t y = 0; y < P; ++y) {
        T* chance = chances + y * L;
        copy_line(line, canvas + y * P, P);
        copy_line(seen_line, image + y * P, P);
        for (index_t w = 0; w < write; ++w) add_scaled(line, rows[(read + w) * L + y] * writer.gamma, landed + w * L, L);
        copy_line(drawn + y * P, line, P);
        for (index_t x = 0; x < L; x += Vector<T>::lanes) {
            const typename Vector<T>::type least = typename Vector<T>::type{} - T(87), logit = load(line + x);
            // The exponential of a logit below the least overflows.
            store(chance + x, 1 / (1 + exponential(-(logit < least ? least : logit))));
        }
        for (index_t i = 0; i < read; ++i) {
            const T scale = rows[i * L + y] * reader.gamma;
            add_scaled(seen_rows + i * L, scale, seen_line, L);
            add_scaled(seen_rows + (read + i) * L, scale, chance, L);
        }
    }
    for (index_t i = 0; i < read; ++i)
        for (index_t j = 0; j < read; ++j) {
            const T of_image = dot(seen_rows + i * L, columns + j * L, L);
            seen[i * read + j] = of_image;
            seen[(read + i) * read + j] = of_image - dot(seen_rows + (read + i) * L, columns + j * L, L);
        }
}

// The gradient at the five numbers of a grid, from those at its filters: `d_rows` is at the rows times gamma.
template <class T>
static void place(const Grid<T>& grid, const Sizes& s, const T* where, index_t first, index_t points, bool inverse,
                  const T* filters, const T* d_columns, const T* d_rows, T* d_where) {
    T d[WHERE] = {};
    for (int axis : {X, Y})
        for (index_t point = 0; point < points; ++point) {
            const T* filter = filters + (axis * s.points() + first + point) * s.line;
            const T* g = (axis == X ? d_columns : d_rows) + (first + point) * s.line;
            const T scale = axis == X ? T(1) : grid.gamma, mean = grid_mean(grid, axis, T(point), T(points));
            const T along = dot(g, filter, s.line) * scale;
            typename Vector<T>::type d_means = {}, spreads = {};
            // The gradient of the exponents is that of a softmax; epsilon is already in the filters.
            for (index_t a = 0; a < s.line; a += Vector<T>::lanes) {
                const auto away = load(counted<T>().values + a % COUNTED) + (T(int(a / COUNTED * COUNTED)) - mean);
                const auto toward = (load(g + a) * scale - along) * load(filter + a) * grid.precision * away;
                d_means += toward;
                spreads += toward * away;
            }
            const T d_mean = total<T>(d_means), spread = total<T>(spreads);
            d[axis] += d_mean * T(s.half);
            d[VARIANCE] += spread * T(0.5);
            d[STRIDE] += d_mean * grid_step(T(point), T(points)) * grid.stride;
            if (axis == Y) d[GAMMA] += inverse ? -along : along;
        }
    for (index_t k = 0; k < WHERE; ++k) d_where[k] = std::abs(where[k]) < T(s.limit) ? d[k] : T(0);
}

template <class T>
static void look_back(const T* image, const T* looked, const T* chances, const T* filters, const T* seen_rows,
                      const T* d_drawn, const T* d_seen, T* d_canvas, T* d_image, T* d_looked, const Sizes& s) {
    const index_t P = s.pixels, L = s.line, N = s.points(), read = s.read, write = s.write;
    const Grid<T> reader = grid_of(looked, s, read, false), writer = grid_of(looked + WHERE, s, write, true);
    const T *columns = filters, *rows = filters + N * L, *patch = looked + 2 * WHERE;
    std::vector<T> memory((2 * N + 2 * read + 2 * write + 3) * L, T(0));
    T *d_columns = memory.data(), *d_rows = d_columns + N * L, *d_seen_rows = d_rows + N * L;
    T *landed = d_seen_rows + 2 * read * L, *between = landed + write * L;
    T *line = between + write * L, *seen_line = line + L, *d_line = seen_line + L;
    for (index_t w = 0; w < write; ++w)
        for (index_t j = 0; j < write; ++j)
            add_scaled(landed + w * L, patch[w * write + j], columns + (read + j) * L, L);
    for (index_t i = 0; d_seen && i < read; ++i)
        for (index_t j = 0; j < read; ++j) {
            const T of_error = d_seen[(read + i) * read + j], of_image = d_seen[i * read + j] + of_error;
            add_scaled(d_seen_rows + i * L, of_image, columns + j * L, L);
            add_scaled(d_seen_rows + (read + i) * L, -of_error, columns + j * L, L);
            add_scaled(d_columns + j * L, of_image, seen_rows + i * L, L);
            add_scaled(d_columns + j * L, -of_error, seen_rows + (read + i) * L, L);
        }
    for (index_t y = 0; y < P; ++y) {
        const T* chance = chances + y * L;
        std::fill(line, line + L, T(0));
        std::fill(d_line, d_line + L, T(0));
        if (d_seen) {
            copy_line(seen_line, image + y * P, P);
            for (index_t i = 0; i < read; ++i) {
                const T scale = rows[i * L + y] * reader.gamma, *of_image = d_seen_rows + i * L;
                const T* of_chances = d_seen_rows + (read + i) * L;
                add_scaled(line, scale, of_chances, L);
                if (d_image) add_scaled(d_line, scale, of_image, L);
                d_rows[i * L + y] = dot(of_image, seen_line, L) + dot(of_chances, chance, L);
            }
            for (index_t x = 0; x < L; x += Vector<T>::lanes) {
                const auto c = load(chance + x);
                store(line + x, load(line + x) * (c - c * c));
            }
        }
        if (d_image) copy_line(d_image + y * P, d_line, P);
        if (d_drawn) {
            copy_line(d_line, d_drawn + y * P, P);
            add_scaled(line, T(1), d_line, L);
        }
        copy_line(d_canvas + y * P, line, P);
        for (index_t w = 0; d_looked && w < write; ++w) {
            add_scaled(between + w * L, rows[(read + w) * L + y] * writer.gamma, line, L);
            d_rows[(read + w) * L + y] = dot(landed + w * L, line, L);
        }
    }
    if (!d_looked) return;
    for (index_t w = 0; w < write; ++w)
        for (index_t j = 0; j < write; ++j) {
            d_looked[2 * WHERE + w * write + j] = dot(between + w * L, columns + (read + j) * L, L);
            add_scaled(d_columns + (read + j) * L, patch[w * write + j], between + w * L, L);
        }
    place(reader, s, looked, 0, read, false, filters, d_columns, d_rows, d_looked);
    place(writer, s, looked + WHERE, read, write, true, filters, d_columns, d_rows, d_looked + WHERE);
}

// The address of row `b` of an array that may be missing.
template <class T>
static inline T* row(T* array, index_t b, index_t size) {
    return array ? array + b * size : nullptr;
}

ENTRY(glimpse_forward) {
    guarded([&] {
        const Sizes s{pixels, line, read, write, half, limit, epsilon};
        const index_t size = pixels * pixels;
        in_parts(batch, threads, [=](index_t first, index_t last) {
            DenormalsAreZero here;
            for (index_t b = first; b < last; ++b)
                look(canvas + b * size, image + b * size, looked + b * s.looked(), drawn + b * size,
                     seen + b * 2 * read * read, chances + b * pixels * line, filters + b * 2 * s.points() * line,
                     seen_rows + b * 2 * read * line, s);
        });
    });
}

ENTRY(glimpse_backward) {
    guarded([&] {
        const Sizes s{pixels, line, read, write, half, limit, epsilon};
        const index_t size = pixels * pixels;
        in_parts(batch, threads, [=](index_t first, index_t last) {
            DenormalsAreZero here;
            for (index_t b = first; b < last; ++b)
                look_back(image + b * size, looked + b * s.looked(), chances + b * pixels * line,
                          filters + b * 2 * s.points() * line, seen_rows + b * 2 * read * line,
                          row(d_drawn, b, size), row(d_seen, b, 2 * read * read), d_canvas + b * size,
                          row(d_image, b, size), row(d_looked, b, s.looked()), s);
        });
    });
}
