// One time step of an LSTM after its products (Ba, Kiros, Hinton 2016, eq. 20-22 and 29-31), forward and backward: for models
// whose next input depends on the last output.
#include "../walk.h"
#include "lstm.h"

static const index_t GATES = 4;
enum Variant : int32_t { NONE = 0, CELL_ONLY = 1, GATES_AND_CELL = 2 };  // what is normalised

// Calls FUNCTION<NORMED, CELL>(...) for `variant`.
#define CALL(FUNCTION, ...)                                                       \
    switch (variant) {                                                            \
        case GATES_AND_CELL: FUNCTION<true, true>(__VA_ARGS__); break;            \
        case CELL_ONLY: FUNCTION<false, true>(__VA_ARGS__); break;                \
        default: FUNCTION<false, false>(__VA_ARGS__);                             \
    }

// The numbers that a norm subtracts and multiplies by. `rest` is the rounding error of the mean, which is large for values far
// from zero.
struct Norm {
    T mean, rest, rstd;
};

struct Cell {
    index_t batch, hidden, stride;
    T eps;
    const T *x_proj, *h_proj, *c;  // (batch, 4 * hidden) twice, (batch, hidden)
    const T *gain_x, *gain_h, *bias, *gain_c, *bias_c, *inner_bias;  // gates of `stride` columns
    T* c_new;  // (batch, hidden)
    Norm* norms;  // (batch, 3): of x_proj with its inner bias, of h_proj and of the cell

    index_t wide() const { return GATES * stride; }
};

// Values of gates or of a cell, padded with zeros to the stride.
static void fill_up(const T* values, index_t parts, index_t hidden, index_t stride, T* filled) {
    for (index_t part = 0; part < parts; ++part) {
        for (index_t j = 0; j < hidden; ++j) filled[part * stride + j] = values[part * hidden + j];
        for (index_t j = hidden; j < stride; ++j) filled[part * stride + j] = 0;
    }
}

static void cut(const T* filled, index_t parts, index_t hidden, index_t stride, T* values) {
    for (index_t part = 0; part < parts; ++part)
        std::copy(filled + part * stride, filled + part * stride + hidden, values + part * hidden);
}

// The normalised padded values, before gain and bias; the padding stays zero.
static void standardise(T* values, index_t parts, index_t hidden, index_t stride, const Norm& norm) {
    for (index_t part = 0; part < parts; ++part)
        for (index_t j = part * stride; j < part * stride + hidden; ++j)
            values[j] = ((values[j] - norm.mean) - norm.rest) * norm.rstd;
}

// The norm of padded values.
static Norm norm_of(const T* values, index_t parts, index_t hidden, index_t stride, T eps) {
    const T count = T(parts * hidden);
    vector sum{}, rest{}, squares{};
    for (index_t k = 0; k < parts * stride; k += LANES) sum += load(values + k);
    const T mean = total<T>(sum) / count;
    for (index_t part = 0; part < parts; ++part)
        for (index_t j = 0; j < stride; j += LANES) {
            vector away = load(values + part * stride + j) - mean;
            for (index_t lane = std::max<index_t>(hidden - j, 0); lane < LANES; ++lane) away[lane] = 0;
            rest += away;
            squares += away * away;
        }
    const T left = total<T>(rest) / count, variance = total<T>(squares) / count - left * left;
    return {mean, left, T(1) / std::sqrt((variance < 0 ? T(0) : variance) + eps)};
}

// The memory of a thread: one row, padded to the stride.
struct Row {
    Aligned<T> x, h, c, out, d;
    Row(index_t stride) : x(GATES * stride), h(GATES * stride), c(stride), out(GATES * stride), d(GATES * stride) {}
};

// The gates before their non-linearities, at column k of all gates; x and h are standardised if there are norms over them.
template <bool NORMED>
static inline vector gate_sum(const Cell& cell, const Row& row, index_t k) {
    if constexpr (NORMED)
        return load(row.x.data() + k) * load(cell.gain_x + k) + load(row.h.data() + k) * load(cell.gain_h + k) +
               load(cell.bias + k);
    else return load(row.x.data() + k) + load(row.h.data() + k) + load(cell.bias + k);
}

template <bool NORMED>
static inline LstmGates<vector> gates_at(const Cell& cell, const Row& row, index_t unit) {
    const index_t S = cell.stride;
    return lstm_gates(gate_sum<NORMED>(cell, row, unit), gate_sum<NORMED>(cell, row, S + unit),
                      gate_sum<NORMED>(cell, row, 2 * S + unit), gate_sum<NORMED>(cell, row, 3 * S + unit));
}

template <bool NORMED>
static void read_products(const Cell& cell, Row& row, index_t r) {
    fill_up(cell.x_proj + r * GATES * cell.hidden, GATES, cell.hidden, cell.stride, row.x.data());
    fill_up(cell.h_proj + r * GATES * cell.hidden, GATES, cell.hidden, cell.stride, row.h.data());
    if constexpr (NORMED)
        for (index_t k = 0; cell.inner_bias && k < cell.wide(); ++k) row.x.data()[k] += cell.inner_bias[k];
}

// Prefetches the next row's products, a vector of each gate at a time.
static inline void fetch_next(const Cell& cell, index_t r, index_t unit) {
    for (index_t k = (r + 1) * GATES * cell.hidden + unit, gate = 0; gate < GATES; ++gate, k += cell.hidden) {
        fetch_ahead(cell.x_proj, k);
        fetch_ahead(cell.h_proj, k);
    }
}

template <bool NORMED, bool CELL>
static void step(const Cell& cell, T* h_new, index_t first, index_t last) {
    const index_t H = cell.hidden, S = cell.stride;
    Row row(S);
    for (index_t r = first; r < last; ++r) {
        read_products<NORMED>(cell, row, r);
        const auto normalise = [=](T* values, index_t parts, Norm* norm) {
            *norm = norm_of(values, parts, H, S, cell.eps);
            standardise(values, parts, H, S, *norm);
        };
        Norm* norms = cell.norms + r * 3;
        if constexpr (NORMED) {
            normalise(row.x.data(), GATES, norms);
            normalise(row.h.data(), GATES, norms + 1);
        }
        fill_up(cell.c + r * H, 1, H, S, row.c.data());
        T *c = row.c.data(), *h = row.out.data();
        for (index_t j = 0; j < S; j += LANES) {
            fetch_next(cell, r, j);
            const auto gates = gates_at<NORMED>(cell, row, j);
            const auto c_new = lstm_cell(gates, load(c + j));
            store(c + j, c_new);
            store(h + j, CELL ? gates.o : gates.o * hyperbolic_tangent(c_new));
        }
        cut(c, 1, H, S, cell.c_new + r * H);
        if constexpr (CELL) {
            normalise(c, 1, norms + 2);
            for (index_t j = 0; j < S; j += LANES)
                store(h + j, load(h + j) * hyperbolic_tangent(load(c + j) * load(cell.gain_c + j) + load(cell.bias_c + j)));
        }
        cut(h, 1, H, S, h_new + r * H);
    }
}

struct CellGradients {
    const T *d_h, *d_c;  // (batch, hidden), or null
    T *d_x_proj, *d_h_proj, *d_c_before;  // as x_proj, h_proj and c; one array for both products without norms
    T *d_bias, *d_gain_x, *d_gain_h;  // (blocks of rows, 4 * stride)
    T *d_gain_c, *d_bias_c;  // (blocks of rows, stride)
};

// Prefetches the memory of their gradients for writing.
static inline void claim_next(const Cell& cell, const CellGradients& d, index_t r, index_t unit) {
    for (index_t k = (r + 1) * GATES * cell.hidden + unit, gate = 0; gate < GATES; ++gate, k += cell.hidden) {
        claim_ahead(d.d_x_proj, k);
        claim_ahead(d.d_h_proj, k);
    }
}

// From the gradient after a norm to the one before it; the gain's gradient is added to d_gain. `values` are standardised.
static void through_norm(T* d, const T* values, const T* gain, T* d_gain, index_t parts, index_t hidden, index_t stride,
                         T rstd) {
    vector sum{}, along{};
    for (index_t k = 0; k < parts * stride; k += LANES) {
        const vector value = load(d + k), xhat = load(values + k), d_xhat = value * load(gain + k);
        add_to(d_gain + k, value * xhat);
        store(d + k, d_xhat);
        sum += d_xhat;
        along += d_xhat * xhat;
    }
    const T mean = total<T>(sum) / T(parts * hidden), mean_along = total<T>(along) / T(parts * hidden);
    for (index_t k = 0; k < parts * stride; k += LANES)
        store(d + k, (load(d + k) - mean - load(values + k) * mean_along) * rstd);
}

template <bool NORMED, bool CELL>
static void step_back(const Cell& cell, const CellGradients& d, index_t first_block, index_t last_block) {
    const index_t H = cell.hidden, S = cell.stride, wide = cell.wide();
    Row row(S);
    const Aligned<T> room(4 * S);
    T *c = row.c.data(), *out = row.out.data(), *d_gates = row.d.data();
    T *dh = room.data(), *dc = dh + S, *c_before = dc + S, *d_tanh = c_before + S;
    const std::vector<T> none(H, T(0));
    for (index_t block = first_block; block < last_block; ++block) {
        const index_t end = std::min((block + 1) * ROW_BLOCK, cell.batch);
        for (index_t r = block * ROW_BLOCK; r < end; ++r) {
            const Norm* norms = cell.norms + r * 3;
            read_products<NORMED>(cell, row, r);
            if constexpr (NORMED) {
                standardise(row.x.data(), GATES, H, S, norms[0]);
                standardise(row.h.data(), GATES, H, S, norms[1]);
            }
            fill_up(cell.c + r * H, 1, H, S, c_before);
            fill_up(cell.c_new + r * H, 1, H, S, c);
            fill_up(d.d_h ? d.d_h + r * H : none.data(), 1, H, S, dh);
            fill_up(d.d_c ? d.d_c + r * H : none.data(), 1, H, S, dc);
            if constexpr (CELL) standardise(c, 1, H, S, norms[2]);
            for (index_t j = 0; j < S; j += LANES) {
                vector normed = load(c + j);
                if constexpr (CELL) normed = normed * load(cell.gain_c + j) + load(cell.bias_c + j);
                const vector tanh_c = hyperbolic_tangent(normed);
                store(out + j, tanh_c);
                store(d_tanh + j, load(dh + j) * sigmoid(gate_sum<NORMED>(cell, row, 3 * S + j)) * (1 - tanh_c * tanh_c));
            }
            if constexpr (CELL) {
                for (index_t j = 0; j < S; j += LANES) add_to(d.d_bias_c + block * S + j, load(d_tanh + j));
                through_norm(d_tanh, c, cell.gain_c, d.d_gain_c + block * S, 1, H, S, norms[2].rstd);
            }
            for (index_t j = 0; j < S; j += LANES) {
                fetch_next(cell, r, j);
                claim_next(cell, d, r, j);
                const LstmGates<vector> gates = gates_at<NORMED>(cell, row, j);
                const vector d_c = load(dc + j) + load(d_tanh + j);
                const LstmGates<vector> of = lstm_gradient(gates, load(c_before + j), d_c, load(dh + j) * load(out + j));
                store(dc + j, d_c * gates.f);
                store(d_gates + j, of.i);
                store(d_gates + S + j, of.f);
                store(d_gates + 2 * S + j, of.g);
                store(d_gates + 3 * S + j, of.o);
            }
            cut(dc, 1, H, S, d.d_c_before + r * H);
            for (index_t k = 0; k < wide; k += LANES) add_to(d.d_bias + block * wide + k, load(d_gates + k));
            if constexpr (NORMED) {
                T* d_h = row.out.data();
                std::copy(d_gates, d_gates + wide, d_h);
                through_norm(d_h, row.h.data(), cell.gain_h, d.d_gain_h + block * wide, GATES, H, S, norms[1].rstd);
                cut(d_h, GATES, H, S, d.d_h_proj + r * GATES * H);
                through_norm(d_gates, row.x.data(), cell.gain_x, d.d_gain_x + block * wide, GATES, H, S, norms[0].rstd);
            }
            cut(d_gates, GATES, H, S, d.d_x_proj + r * GATES * H);
        }
    }
}

// The objects made of the arguments that forward and backward share.
#define SHARED_VALUES                                                                                                 \
    const Cell cell{batch, hidden, panels_of(hidden) * W, T(eps), x_proj, h_proj, c, gain_x,                          \
                       gain_h, bias_x, gain_c, bias_c, inner_bias, c_new, reinterpret_cast<Norm*>(norms)};

ENTRY(lstm_cell_forward) {
    guarded([&] {
        SHARED_VALUES
        in_parts(batch, threads, [=](index_t first, index_t last) { CALL(step, cell, h_new, first, last) });
    });
}

ENTRY(lstm_cell_backward) {
    guarded([&] {
        SHARED_VALUES
        const CellGradients d{d_h, d_c, d_x_proj, d_h_proj, d_c_before, d_bias_x, d_gain_x, d_gain_h, d_gain_c,
                              d_bias_c};
        in_parts((batch + ROW_BLOCK - 1) / ROW_BLOCK, threads,
                 [=](index_t first, index_t last) { CALL(step_back, cell, d, first, last) });
    });
}
