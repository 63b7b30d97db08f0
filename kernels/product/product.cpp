// Products of two matrices, each of which may lie transposed in memory, or the second one in pieces.
//
// The second one is packed some panels at a time (packed_product.h), the first one is turned if it lies transposed. The
// threads share panels, or rows where there are many. Each value of the result belongs to one thread, and is one sum over
// the depth in order: it has the same bits for any number of threads. No thread waits for another within a part, so another
// process that takes a core costs its share of time and no more; BLAS's threads wait for each other at each block.
#include "../packing.h"

static const index_t PANELS_AT_ONCE = 4;     // read side by side: a CPU fetches neighbouring lines together
static const index_t DEPTH_AT_ONCE = 1024;   // what is packed at a time stays in the caches
static const index_t VALUES_AT_ONCE = 1 << 18; // of the first matrix: what is turned at a time stays there, too
static const index_t MOST_PACKED = 1 << 20;  // values of the second matrix: what all threads use stays in the last cache
static const index_t MOST_ROWS_CACHED = 256; // with more rows, the threads share rows
static const index_t ROWS_AT_ONCE = 48, LEAST_ROWS_AT_ONCE = 12, BLOCKS = 16;

// Rows of the second matrix that lie in one piece of memory: `end` is the row after them, a distance is that of two rows.
template <class T>
struct Piece {
    const T* rows;
    index_t distance, end;
};

// The arguments of a product: a (rows, depth) and b (depth, columns), of pieces one below the other, or (columns, depth), of
// one piece, if `b_turned`.
template <class T>
struct Operands {
    const T *a, *bias;
    std::vector<Piece<T>> b;
    T* out;
    index_t rows, depth, columns, a_distance, out_distance;
    bool b_turned;
    int threads;

    index_t panels() const { return Panel<T>::count(columns); }

    // The panels [first, last) of b's rows [k, k + depth_now).
    void pack(index_t k, index_t depth_now, index_t first, index_t last, T* packed) const {
        if (b_turned) return pack_transposed(b[0].rows + k, b[0].distance, depth_now, columns, first, last, packed);
        constexpr index_t W = Panel<T>::width;
        index_t begin = 0;
        for (const Piece<T>& piece : b) {
            const index_t from = std::max(begin, k), until = std::min(piece.end, k + depth_now);
            if (from < until)
                pack_panels(piece.rows + (from - begin) * piece.distance, piece.distance, until - from, columns, first, last,
                            packed + (from - k) * W, depth_now * W);
            begin = piece.end;
        }
    }

    void add_bias(index_t first_row, index_t last_row, index_t first, index_t last) const {
        for (index_t r = first_row; bias && r < last_row; ++r)
            for (index_t c = first; c < last; ++c) out[r * out_distance + c] += bias[c];
    }
};

// A part [begin, end) of the depth, and where the first matrix's values for it are: (rows, end - begin).
template <class T>
struct Depth {
    index_t begin, end;
    const T* a;
    index_t distance;
};

// The share of a part of the depth in the product, with the threads sharing panels.
template <class T>
static void share_panels(const Operands<T>& of, const Depth<T>& depth) {
    constexpr index_t W = Panel<T>::width;
    const std::vector<T*> to = addresses(of.out, of.rows, of.out_distance);
    const index_t panels = of.panels(), groups = (panels + PANELS_AT_ONCE - 1) / PANELS_AT_ONCE;
    in_parts(groups, of.threads, [&](index_t first_group, index_t last_group) {
        const Aligned<T> packed(PANELS_AT_ONCE * std::min(depth.end - depth.begin, DEPTH_AT_ONCE) * W);
        for (index_t group = first_group; group < last_group; ++group) {
            const index_t first = group * PANELS_AT_ONCE, last = std::min(first + PANELS_AT_ONCE, panels);
            for (index_t k = depth.begin; k < depth.end; k += DEPTH_AT_ONCE) {
                const index_t now = std::min(DEPTH_AT_ONCE, depth.end - k);
                of.pack(k, now, first, last, packed.data());
                const std::vector<const T*> from = addresses(depth.a + k - depth.begin, of.rows, depth.distance);
                product_into(from.data(), of.rows, packed.data(), now, first, last, of.columns, to.data(), k > 0);
            }
            if (depth.end == of.depth) of.add_bias(0, of.rows, first * W, std::min(last * W, of.columns));
        }
    });
}

// The same with the threads sharing rows, for some panels at a time.
template <class T>
static void share_rows(const Operands<T>& of, const Depth<T>& depth) {
    constexpr index_t W = Panel<T>::width;
    const index_t panels = of.panels(), now = depth.end - depth.begin;
    const index_t most = std::min(panels, std::max(MOST_PACKED / (now * W) / PANELS_AT_ONCE, index_t(1)) * PANELS_AT_ONCE);
    const index_t each = std::min(std::max((of.rows + BLOCKS - 1) / BLOCKS, LEAST_ROWS_AT_ONCE), ROWS_AT_ONCE);
    const std::vector<T*> to = addresses(of.out, of.rows, of.out_distance);
    const std::vector<const T*> from = addresses(depth.a, of.rows, depth.distance);
    const Aligned<T> packed(most * now * W);
    for (index_t begin = 0; begin < panels; begin += most) {
        const index_t end = std::min(begin + most, panels);
        in_parts(end - begin, of.threads, [&](index_t first, index_t last) {
            for (index_t p = first; p < last; p += PANELS_AT_ONCE)
                of.pack(depth.begin, now, begin + p, begin + std::min(p + PANELS_AT_ONCE, last), packed.data() + p * now * W);
        });
        in_parts((of.rows + each - 1) / each, of.threads, [&](index_t first, index_t last) {
            for (index_t row = first * each; row < std::min(last * each, of.rows); row += each) {
                const index_t count = std::min(each, of.rows - row);
                product_into(from.data() + row, count, packed.data(), now, begin, end, of.columns, to.data() + row,
                             depth.begin > 0);
                if (depth.end == of.depth) of.add_bias(row, row + count, begin * W, std::min(end * W, of.columns));
            }
        });
    }
}

// A matrix (depth, rows) as (rows, depth); the distances are those of two rows.
template <class T>
static void turn_whole(const T* a, index_t distance, index_t rows, index_t depth, T* turned,
                       index_t turned_distance, int threads) {
    const index_t blocks = (rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;
    in_parts(blocks, threads, [=](index_t first, index_t last) {
        const index_t row = first * ROWS_AT_ONCE, end = std::min(last * ROWS_AT_ONCE, rows);
        for (index_t k = 0; k < depth; k += ROWS_AT_ONCE)
            turn(a + k * distance + row, std::min(ROWS_AT_ONCE, depth - k), end - row, distance,
                 turned + row * turned_distance + k, turned_distance);
    });
}

template <class T>
static void multiply(const Operands<T>& of, bool a_turned) {
    const bool few = of.rows <= MOST_ROWS_CACHED;
    const index_t most = few ? std::max(VALUES_AT_ONCE / std::max<index_t>(of.rows, 1), DEPTH_AT_ONCE) : DEPTH_AT_ONCE;
    // Rows that are a power of two apart would share a few lines of the first cache.
    const index_t distance = std::min(of.depth, most) + CACHE_LINE / index_t(sizeof(T));
    const Aligned<T> turned(a_turned ? of.rows * distance : 0);
    for (index_t k = 0; k < of.depth; k += most) {
        Depth<T> depth{k, std::min(k + most, of.depth), of.a + k, of.a_distance};
        if (a_turned) {
            turn_whole(of.a + k * of.a_distance, of.a_distance, of.rows, depth.end - k, turned.data(), distance, of.threads);
            depth.a = turned.data();
            depth.distance = distance;
        }
        if (few) share_panels(of, depth);
        else share_rows(of, depth);
    }
}

#define PRODUCT(T, NAME)                                                                                                \
    extern "C" void product_##NAME(const T* a, const T* b, const T* bias, T* out, int64_t rows, int64_t depth,            \
                                   int64_t columns, int64_t a_distance, int64_t b_distance, int64_t out_distance,       \
                                   int32_t a_turned, int32_t b_turned, int32_t threads) {                               \
        multiply<T>({a, bias, {{b, b_distance, depth}}, out, rows, depth, columns, a_distance, out_distance,             \
                     b_turned != 0, threads}, a_turned != 0);                                                             \
    }                                                                                                                   \
    extern "C" void product_of_pieces_##NAME(const T* a, const int64_t* addresses, const int64_t* distances,            \
                                             const int64_t* ends, T* out, int64_t pieces, int64_t rows, int64_t depth,  \
                                             int64_t columns, int64_t a_distance, int32_t a_turned, int32_t threads) {  \
        std::vector<Piece<T>> b;                                                                                        \
        for (index_t p = 0; p < pieces; ++p)                                                                            \
            b.push_back({reinterpret_cast<const T*>(addresses[p]), distances[p], ends[p]});                             \
        multiply<T>({a, nullptr, std::move(b), out, rows, depth, columns, a_distance, columns, false, threads},         \
                    a_turned != 0);                                                                                     \
    }
ENTRIES(PRODUCT)
