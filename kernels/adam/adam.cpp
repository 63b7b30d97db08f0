// Adam (Kingma and Ba 2015, algorithm 1), with decoupled weight decay, over all tensors of a model in one call, with the norm of all gradients.
#include <numeric>

#include "functions.h"
#include "blocks.h"
#include "rows.h"

// A tensor's arrays: parameters, gradients, both moments, and where the new ones go, which may be the same places.
enum Role { P, G, M, V, NEW_P, NEW_M, NEW_V, ROLES };

// Gives the sum of the gradient's squares.
static Wide update(T* const at[ROLES], index_t count, bool past_caches, T rate, T eps, T scale, T keep, T beta1, T beta2) {
    RowSum<T> squares;
    each_vector<T>(count, [&](index_t k, auto lanes, auto number) {
        const auto write = [&](Role role, auto values) {
            if constexpr (std::is_same_v<decltype(lanes), WholeVector<T>>) {
                if (past_caches) return store_past_caches(at[role] + k, values);
            }
            lanes.store(at[role] + k, values);
        };
        // Of a sum of two products the compiler may round either one alone, and does so in whole vectors otherwise than in parts.
        const auto gradient = lanes.load(at[G] + k), scaled = opaque(gradient * scale), squared = opaque(scaled * scaled);
        squares.add(gradient * gradient, number);
        const auto moment = beta1 * lanes.load(at[M] + k) + scaled;
        const auto square = beta2 * lanes.load(at[V] + k) + squared;
        const auto parameter = keep * lanes.load(at[P] + k) - rate * moment / (square_root(square) + eps);
        write(NEW_M, moment);
        write(NEW_V, square);
        write(NEW_P, parameter);
    });
    if (past_caches) end_past_caches();
    return sum_of_squares(at[G], count, squares.sum());
}

// The gradient of a matrix is an array, or a product of two arrays of few rows: left (rows, n) and right (rows, width). An array has
// a width of 0 here.
struct Right {
    int64_t address, rows, width;
};

static const int GROUP = 4;  // rows whose products are added up in one pass

// sums[j] += the products of R values of left, `n` apart, and R rows of right: the bits that `linear` gives.
template <int R>
static void add_products(const T* left, index_t n, const T* right, index_t width, index_t count, T* sums) {
    vector factors[R];
    for (int row = 0; row < R; ++row) factors[row] = left[row * n] - vector{};
    each_vector<T>(count, [&](index_t j, auto lanes, auto) {
        vector sum = lanes.load(sums + j);
        for (int row = 0; row < R; ++row) sum += lanes.load(right + row * width + j) * factors[row];
        lanes.store(sums + j, sum);
    });
}

// Values [first, first + count) of the gradient of a matrix of `size` values: row by row of the matrix, as far as it goes.
static void multiply_out(const T* left, const Right& by, index_t size, index_t first, index_t count, T* gradient) {
    const index_t width = by.width, n = size / width;
    std::fill(gradient, gradient + count, T(0));
    for (index_t done = 0, part; done < count; done += part) {
        const index_t k = (first + done) / width, c = (first + done) % width;
        part = std::min(width - c, count - done);
        for (index_t row = 0; row < by.rows; row += GROUP) {
            const T *of_left = left + row * n + k, *right = reinterpret_cast<const T*>(by.address) + row * width + c;
            switch (std::min<index_t>(GROUP, by.rows - row)) {
                case 1: add_products<1>(of_left, n, right, width, part, gradient + done); break;
                case 2: add_products<2>(of_left, n, right, width, part, gradient + done); break;
                case 3: add_products<3>(of_left, n, right, width, part, gradient + done); break;
                default: add_products<4>(of_left, n, right, width, part, gradient + done);
            }
        }
    }
}

// True if a block is written with streaming stores, where many values go into other arrays than those that are read.
static bool goes_past_caches(T* const at[ROLES], index_t values) {
    const auto place = [&](Role role) { return reinterpret_cast<uintptr_t>(at[role]); };
    return at[NEW_P] != at[P] && go_past_caches<T>((ROLES - NEW_P) * values) &&
           (place(NEW_P) | place(NEW_M) | place(NEW_V)) % VECTOR_BYTES == 0;
}

ENTRY(adam) {
    const auto arrays = reinterpret_cast<T* const* const*>(places);
    const auto factors = reinterpret_cast<const Right*>(rights);
    const index_t values = std::accumulate(sizes, sizes + tensors, index_t(0));
    guarded([&] {
        *norm = T(root_of_sums(sizes, tensors, threads, [=](index_t tensor, index_t first, index_t last) {
            T *at[ROLES], gradient[BLOCK];
            const bool factored = factors && factors[tensor].width;
            for (int role = 0; role < ROLES; ++role)
                at[role] = *arrays[role * tensors + tensor] + (factored && role == G ? 0 : first);
            if (factored) {
                multiply_out(at[G], factors[tensor], sizes[tensor], first, last - first, gradient);
                at[G] = gradient;
            }
            return update(at, last - first, goes_past_caches(at, values), *rate, *eps, scale ? *scale : T(1),
                          keep ? *keep : T(1), T(beta1), T(beta2));
        }));
    });
}

// `rate` and `eps` of the update above, and the number of the update, from the number of updates before it (see
// ops.adam_rates). log_beta is minus infinity for a beta of zero. `of_eps` is 1 if eps is corrected as the rate is.
ENTRY(adam_rates) {
    const int32_t count = std::min(*updates, 2147483646) + 1;  // the greatest int32 stays
    const T t = T(count), root = std::sqrt(-std::expm1(t * T(log_beta2)));
    *scaled = *rate * root / -std::expm1(t * T(log_beta1)) * T(rate_by);
    *corrected = (of_eps ? root : *rate * T(0) + T(1)) * T(eps_by);
    *update = count;
}
