// Products of two matrices, each of which may lie transposed in memory, or the second one in pieces.
//
// The second one is packed some panels at a time (packed_product.h), and the first one, too, if it lies transposed. The
// threads share panels, or rows where there are many. Each value of the result belongs to one thread, and is one sum over
// the depth in order: it has the same bits for any number of threads. No thread waits for another within a part, so another
// process that takes a core costs its share of time and no more; BLAS's threads wait for each other at each block.
#include "../packing.h"

static const index_t PANELS_AT_ONCE = 4;     // read side by side: a CPU fetches neighbouring lines together
static const index_t DEPTH_AT_ONCE = 1024;   // what is packed for all threads stays in the last cache
static const index_t PACKED_DEPTH = 256;     // what is packed for one thread stays in its second cache
static const index_t VALUES_AT_ONCE = 1 << 18; // of the first matrix, which all threads read: packed, they stay there, too
static const index_t MOST_PACKED = 1 << 20;  // values of the second matrix: what all threads use stays in the last cache
static const index_t MOST_ROWS_CACHED = 256; // with more rows, the threads share rows, or panels where there are many
static const index_t MANY_PANELS = 32, MOST_ROWS_BESIDE_MANY = 1024;
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
    static constexpr index_t W = Panel<T>::width;
    const T *a, *bias;
    std::vector<Piece<T>> b;
    T* out;
    index_t rows, depth, columns, a_distance, out_distance;
    bool b_turned;
    int threads;
    T* sums = nullptr;  // of b's columns, with room for whole panels

    index_t panels() const { return Panel<T>::count(columns); }

    // The panels [first, last) of b's rows [k, k + depth_now). The rows are added to the sums.
    void pack(index_t k, index_t depth_now, index_t first, index_t last, T* packed) const {
        if (b_turned) pack_transposed(b[0].rows + k, b[0].distance, depth_now, columns, first, last, packed);
        else pack_pieces(k, depth_now, first, last, packed);
        for (index_t p = first; sums && p < last; ++p) add_sum(packed + (p - first) * depth_now * W, depth_now, sums + p * W);
    }

    void pack_pieces(index_t k, index_t depth_now, index_t first, index_t last, T* packed) const {
        index_t begin = 0;
        for (const Piece<T>& piece : b) {
            const index_t from = std::max(begin, k), until = std::min(piece.end, k + depth_now);
            if (from < until)
                pack_panels(piece.rows + (from - begin) * piece.distance, piece.distance, until - from, columns, first, last,
                            packed + (from - k) * W, depth_now * W);
            begin = piece.end;
        }
    }

    // Adds up the rows of a panel. There are four sums, because an addition waits for the one before it.
    static void add_sum(const T* panel, index_t depth_now, T* sum) {
        using vector = typename Vector<T>::type;
        for (index_t j = 0; j < W; j += Vector<T>::lanes) {
            vector parts[4] = {};
            for (index_t k = 0; k < depth_now; ++k) parts[k % 4] += load(panel + k * W + j);
            store(sum + j, load(sum + j) + ((parts[0] + parts[1]) + (parts[2] + parts[3])));
        }
    }

    void add_bias(index_t first_row, index_t last_row, index_t first, index_t last) const {
        for (index_t r = first_row; bias && r < last_row; ++r)
            for (index_t c = first; c < last; ++c) out[r * out_distance + c] += bias[c];
    }
};

// A part [begin, end) of the depth, and where the first matrix's rows begin in it.
template <class T>
struct Depth {
    index_t begin, end;
    std::vector<const T*> rows;
};

// The share of a part of the depth in the product, with the threads sharing panels.
template <int STEP, class T>
static void share_panels(const Operands<T>& of, const Depth<T>& depth) {
    constexpr index_t W = Panel<T>::width;
    const std::vector<T*> to = addresses(of.out, of.rows, of.out_distance);
    const index_t panels = of.panels(), groups = (panels + PANELS_AT_ONCE - 1) / PANELS_AT_ONCE;
    in_parts(groups, of.threads, [&](index_t first_group, index_t last_group) {
        const Aligned<T> packed(PANELS_AT_ONCE * std::min(depth.end - depth.begin, PACKED_DEPTH) * W);
        for (index_t group = first_group; group < last_group; ++group) {
            const index_t first = group * PANELS_AT_ONCE, last = std::min(first + PANELS_AT_ONCE, panels);
            for (index_t k = depth.begin; k < depth.end; k += PACKED_DEPTH) {
                const index_t now = std::min(PACKED_DEPTH, depth.end - k);
                of.pack(k, now, first, last, packed.data());
                std::vector<const T*> from = depth.rows;
                for (const T*& row : from) row += (k - depth.begin) * STEP;
                product_into<STEP>(from.data(), of.rows, packed.data(), now * W, now, first, last, of.columns, to.data(),
                                   k > 0);
            }
            if (depth.end == of.depth) of.add_bias(0, of.rows, first * W, std::min(last * W, of.columns));
        }
    });
}

// The same with the threads sharing rows, for some panels at a time.
template <int STEP, class T>
static void share_rows(const Operands<T>& of, const Depth<T>& depth) {
    constexpr index_t W = Panel<T>::width;
    const index_t panels = of.panels(), now = depth.end - depth.begin;
    const index_t most = std::min(panels, std::max(MOST_PACKED / (now * W) / PANELS_AT_ONCE, index_t(1)) * PANELS_AT_ONCE);
    const index_t each = std::min(std::max((of.rows + BLOCKS - 1) / BLOCKS, LEAST_ROWS_AT_ONCE), ROWS_AT_ONCE);
    const std::vector<T*> to = addresses(of.out, of.rows, of.out_distance);
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
                product_into<STEP>(depth.rows.data() + row, count, packed.data(), now * W, now, begin, end, of.columns,
                                   to.data() + row, depth.begin > 0);
                if (depth.end == of.depth) of.add_bias(row, row + count, begin * W, std::min(end * W, of.columns));
            }
        });
    }
}

// The panels of a matrix (depth, rows), whose rows are `distance` values apart.
template <class T>
static void pack_whole(const T* matrix, index_t distance, index_t depth, index_t rows, T* packed, int threads) {
    const index_t panels = Panel<T>::count(rows), groups = (panels + PANELS_AT_ONCE - 1) / PANELS_AT_ONCE;
    in_parts(groups, threads, [=](index_t first_group, index_t last_group) {
        for (index_t p = first_group * PANELS_AT_ONCE; p < std::min(last_group * PANELS_AT_ONCE, panels); p += PANELS_AT_ONCE)
            pack_panels(matrix, distance, depth, rows, p, std::min(p + PANELS_AT_ONCE, panels),
                        packed + p * depth * Panel<T>::width, depth * Panel<T>::width);
    });
}

// STEP is the distance of a row's values in the first matrix: 1, or a panel's width if that matrix lies transposed.
template <int STEP, class T>
static void multiply(const Operands<T>& of) {
    constexpr index_t W = Panel<T>::width;
    const bool few = of.rows <= (of.panels() >= MANY_PANELS ? MOST_ROWS_BESIDE_MANY : MOST_ROWS_CACHED);
    const index_t most = few ? std::max(VALUES_AT_ONCE / std::max<index_t>(of.rows, 1), DEPTH_AT_ONCE) : DEPTH_AT_ONCE;
    const Aligned<T> packed(STEP > 1 ? Panel<T>::count(of.rows) * W * std::min(of.depth, most) : 0);
    for (index_t k = 0; k < of.depth; k += most) {
        Depth<T> depth{k, std::min(k + most, of.depth), {}};
        if constexpr (STEP == 1) {
            depth.rows = addresses(of.a + k, of.rows, of.a_distance);
        } else {
            pack_whole(of.a + k * of.a_distance, of.a_distance, depth.end - k, of.rows, packed.data(), of.threads);
            depth.rows = rows_in_panels<T>(packed.data(), of.rows, depth.end - k);
        }
        if (few) share_panels<STEP>(of, depth);
        else share_rows<STEP>(of, depth);
    }
}

template <class T>
static void multiply(const Operands<T>& of, bool a_turned) {
    if (a_turned) multiply<int(Panel<T>::width)>(of);
    else multiply<1>(of);
}

// `sums` gets the sums of b's columns, unless it is null.
template <class T>
static void multiply_and_sum(Operands<T> of, bool a_turned, T* sums) {
    const Aligned<T> room(sums ? of.panels() * Panel<T>::width : 0);
    if (sums) {
        std::fill_n(room.data(), of.panels() * Panel<T>::width, T(0));
        of.sums = room.data();
    }
    multiply(of, a_turned);
    if (sums) std::copy_n(room.data(), of.columns, sums);
}

#define PRODUCT(T, NAME)                                                                                                \
    extern "C" void product_##NAME(const T* a, const T* b, const T* bias, T* out, T* sums, int64_t rows, int64_t depth, \
                                   int64_t columns, int64_t a_distance, int64_t b_distance, int64_t out_distance,       \
                                   int32_t a_turned, int32_t b_turned, int32_t threads) {                               \
        multiply_and_sum<T>({a, bias, {{b, b_distance, depth}}, out, rows, depth, columns, a_distance, out_distance,    \
                             b_turned != 0, threads}, a_turned != 0, sums);                                             \
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
