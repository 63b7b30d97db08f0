// An LSTM over a whole sequence (Ba, Kiros, Hinton 2016, eq. 20-22 and 29-31), forward and backward.
//
// The input's product x_proj for all positions comes in; large products are not made here. Few inputs of `layer` are multiplied in
// the walk, and then x_proj is only that of a few rows; inputs beside an x_proj are those of one time step (one_step.h). The walk backward leaves the gradients of both products in their places: other
// arrays would be claimed from memory, and written to it. With norms over the gates both weights are used without the means of their
// rows, so that no norm need subtract one: the input's was before its product, the recurrent one is when it is packed.
#include "../inputs.h"
#include "../one_step.h"
#include "lstm.h"
#include "variant.h"

static const index_t GATES = 4;
static const index_t MOST_TOGETHER = 16;  // rows that go through the backward phases together: their values stay in L2

template <class T>
struct Lstm {
    Sizes sizes;
    T eps;
    Inputs<T> inputs;  // few only with norms
    T* x_proj;  // (positions, 4 * stride), without norms the sum of both products; for few inputs that of rows that go together
    T* h_proj;  // (positions, 4 * stride), or null without norms
    const T *gain_x, *gain_h, *bias;  // (4 * stride)
    const T *gain_c, *bias_c;  // (stride)
    T *hidden, *cells;  // (steps + 1, batch, stride)
    T* norms;  // (positions, 4): rstd of x_proj and h_proj, mean and rstd of the cell

    T* state_products() const { return h_proj ? h_proj : x_proj; }
    // The sums of the row with this index among those that go together.
    T* x_of(index_t place, index_t slot) const { return x_proj + (inputs.are_few() ? place : slot) * GATES * sizes.stride; }
};

template <class T>
struct LstmGradients {
    const T* d_hidden;  // (steps, batch, hidden), or null
    T *dh, *dc;  // (batch, stride)
    T *d_x, *d_w_x;  // of few inputs: (positions, inputs), or null, and (blocks of rows, inputs, 4 * stride)
    T *d_bias, *d_gain_x, *d_gain_h;  // (blocks of rows, 4 * stride)
    T *d_gain_c, *d_bias_c;  // (blocks of rows, stride)
    T limit;  // of the gradients that a time step hands to the one before; 0 for none
};

// The products of one row, with the parameters that make gates of them.
template <class T, bool NORMED>
struct Products {
    using vector = typename Vector<T>::type;
    const index_t S;
    const T *const gain_x, *const gain_h, *const bias;  // here, because a store could change those of an Lstm
    const T *x, *h;
    T rstd_x, rstd_h;

    Products(const Lstm<T>& l, index_t place, index_t slot)
        : S(l.sizes.stride), gain_x(l.gain_x), gain_h(l.gain_h), bias(l.bias), rstd_x(0), rstd_h(0) {
        x = l.x_of(place, slot);
        h = NORMED ? l.h_proj + slot * GATES * S : nullptr;
    }
    // With the norms that the walk forward has kept.
    static Products kept(const Lstm<T>& l, index_t place, index_t slot) {
        Products products(l, place, slot);
        if (NORMED) {
            products.rstd_x = l.norms[slot * 4];
            products.rstd_h = l.norms[slot * 4 + 1];
        }
        return products;
    }
    vector xhat_x(index_t k) const { return load(x + k) * rstd_x; }
    vector xhat_h(index_t k) const { return load(h + k) * rstd_h; }
    // A gate before its non-linearity, at column k of all gates.
    vector sum(index_t k) const {
        if constexpr (NORMED) return xhat_x(k) * load(gain_x + k) + xhat_h(k) * load(gain_h + k) + load(bias + k);
        else return load(x + k) + load(bias + k);
    }
    LstmGates<vector> gates(index_t unit) const {
        return lstm_gates(sum(unit), sum(S + unit), sum(2 * S + unit), sum(3 * S + unit));
    }
};

// The norm of one row's cell.
template <class T>
struct CellNorm {
    using vector = typename Vector<T>::type;
    const T *gain, *bias, *c;
    T mean, rstd;

    vector xhat(index_t unit) const { return (load(c + unit) - mean) * rstd; }
    vector after(index_t unit) const { return xhat(unit) * load(gain + unit) + load(bias + unit); }
};

// The common part of the phases of a time step. Some rows go through them together; `place` is the index of a row among these.
// `panel_sums` has four sums of each row and panel. While a phase computes a row, it prefetches the values of the next one.
template <class T, bool NORMED, bool CELL>
struct Step {
    using vector = typename Vector<T>::type;
    static constexpr index_t L = Vector<T>::lanes, W = Panel<T>::width;

    const Lstm<T> l;
    T* panel_sums;
    const Share s;
    index_t before, after, ahead;  // blocks of states, and the distance of prefetches of products in values

    index_t wide() const { return GATES * l.sizes.stride; }
    T* sums_of(index_t row) const { return panel_sums + row * l.sizes.panels * 4; }
    T* state(T* states, index_t block, index_t row) const { return l.sizes.state(states, block, row); }
    CellNorm<T> cell_norm(index_t row, T mean, T rstd) const { return {l.gain_c, l.bias_c, state(l.cells, after, row), mean, rstd}; }
    T mean_of_units(index_t row, index_t which) const { return row_sum(sums_of(row) + which, l.sizes.panels, 4) / T(l.sizes.hidden); }
    T mean_of_gates(index_t row, index_t which) const { return mean_of_units(row, which) / T(GATES); }

    // The sums of squares of both products.
    void add_squares(index_t place, index_t row, index_t slot) const {
        const index_t S = l.sizes.stride;
        const T *x = l.x_of(place, slot), *h = l.h_proj + slot * wide();
        const bool from_memory = !l.inputs.are_few();
        for (index_t p = s.first_panel; p < s.last_panel; ++p) {
            vector of_x{}, of_h{};
            for (index_t gate = 0; gate < GATES; ++gate)
                for (index_t k = gate * S + p * W; k < gate * S + (p + 1) * W; k += L) {
                    if (from_memory) fetch_ahead(x + k, ahead);
                    fetch_ahead(h + k, ahead);
                    of_x += load(x + k) * load(x + k);
                    of_h += load(h + k) * load(h + k);
                }
            sums_of(row)[p * 4] = total<T>(of_x);
            sums_of(row)[p * 4 + 1] = total<T>(of_h);
        }
    }

    // The new cell, and the hidden state; with a norm of the cell the output gate is where the hidden state will be.
    void open_gates(index_t place, index_t row, index_t slot) const {
        const index_t H = l.sizes.hidden, S = l.sizes.stride;
        Products<T, NORMED> products(l, place, slot);
        if constexpr (NORMED) {
            products.rstd_x = T(1) / std::sqrt(mean_of_gates(row, 0) + l.eps);
            products.rstd_h = T(1) / std::sqrt(mean_of_gates(row, 1) + l.eps);
            if (s.first_panel == 0) {
                l.norms[slot * 4] = products.rstd_x;
                l.norms[slot * 4 + 1] = products.rstd_h;
            }
        }
        const T* c = state(l.cells, before, row);
        T *c_new = state(l.cells, after, row), *h_new = state(l.hidden, after, row);
        for (index_t j = s.first_panel * W; j < s.last_panel * W; j += L) {
            fetch_ahead(c + j, S);
            claim_ahead(c_new + j, S);
            claim_ahead(h_new + j, S);
            const LstmGates<vector> gates = products.gates(j);
            const vector cell = lstm_cell(gates, load(c + j));
            store(c_new + j, cell);
            store(h_new + j, CELL ? gates.o : gates.o * hyperbolic_tangent(cell));
        }
        if constexpr (CELL)
            for (index_t p = s.first_panel; p < s.last_panel; ++p)
                panel_spread(c_new + p * W, H - p * W < W ? H - p * W : W, sums_of(row) + p * 4 + 2);
    }

    // The hidden state, from the norm of the cell.
    void normalise_cell(index_t row, index_t slot) const {
        const Spread<T> spread = merged(sums_of(row) + 2, 4, l.sizes.hidden, l.eps);
        if (s.first_panel == 0) {
            l.norms[slot * 4 + 2] = spread.mean;
            l.norms[slot * 4 + 3] = spread.rstd;
        }
        const CellNorm<T> norm = cell_norm(row, spread.mean, spread.rstd);
        T* h = state(l.hidden, after, row);
        for (index_t j = s.first_panel * W; j < s.last_panel * W; j += L) {
            fetch_ahead(norm.c + j, l.sizes.stride);
            claim_ahead(h + j, l.sizes.stride);
            store(h + j, load(h + j) * hyperbolic_tangent(norm.after(j)));
        }
    }
};

template <class T, bool NORMED, bool CELL>
static void walk(Lstm<T> l, const T* packed, T* panel_sums, const Share& s, const Barrier& barrier) {
    const Sizes& sizes = l.sizes;
    const index_t P = sizes.panels, wide = GATES * sizes.stride, ahead = positions_ahead(sizes, barrier, false) * wide;
    const index_t together = barrier.together(sizes.batch, l.inputs.rows_together());
    const Aligned<T> few_x_proj(l.inputs.are_few() ? together * wide : 0);
    if (l.inputs.are_few()) l.x_proj = few_x_proj.data();
    Rows rows;
    for (index_t position = 0; position < sizes.steps; ++position) {
        const index_t t = sizes.time(position);
        begin_step(rows, sizes, s, t, {l.hidden, l.cells});
        for (index_t gate = 0; packed && gate < GATES; ++gate)
            multiply_states(rows, l.hidden + sizes.before(t) * sizes.batch * sizes.stride, sizes.stride, packed,
                            gate * P + s.first_panel, gate * P + s.last_panel, sizes.hidden, l.state_products(), wide, !NORMED);
        const Step<T, NORMED, CELL> step{l, panel_sums, s, sizes.before(t), sizes.after(t), ahead};
        for (index_t first = 0; first < rows.count(); first += together) {
            const index_t last = std::min(first + together, rows.count());
            if constexpr (NORMED) {
                if (l.inputs.are_few()) l.inputs.multiply(rows, first, last, s, sizes, GATES, l.x_proj);
                for (index_t r = first; r < last; ++r) step.add_squares(r - first, rows.row[r], rows.slot[r]);
                barrier.wait();
            }
            for (index_t r = first; r < last; ++r) step.open_gates(r - first, rows.row[r], rows.slot[r]);
            if constexpr (CELL) {
                barrier.wait();
                for (index_t r = first; r < last; ++r) step.normalise_cell(rows.row[r], rows.slot[r]);
            }
        }
        barrier.wait();
    }
}

// The means that a row's gradient through a norm of the cell subtracts: of the gradient of xhat, and of its products with xhat.
template <class T>
struct CellMeans {
    T d_xhat, along;
};

// The same for the norms of both products: the means of each one's products with its gradient. The mean of the gradient is not
// subtracted, because these norms subtract none.
template <class T>
struct ProductMeans {
    T along_x, along_h;
};

// The same phases backward. `of_cell` keeps three vectors of each row for the second phase: the gradient of the normalised cell, its
// tanh, and the output gate. `of_sums` keeps the gradients of the gates' sums for the third. The second and the third phase take a
// few panels of all rows that go together, and then the next panels: so the sums of the parameters' gradients stay in L1.
template <class T, bool NORMED, bool CELL>
struct StepBack : Step<T, NORMED, CELL> {
    using Forward = Step<T, NORMED, CELL>;
    using typename Forward::vector;
    using Forward::L, Forward::W, Forward::l, Forward::s, Forward::sums_of, Forward::wide, Forward::ahead;

    static constexpr index_t CELL_VALUES = 3;

    const LstmGradients<T> d;
    T *of_cell, *of_sums;

    T* kept_of(index_t place) const { return of_cell + place * CELL_VALUES * l.sizes.stride; }
    // Without norms the gradient of a sum replaces it.
    T* d_sums_of(index_t place, index_t slot) const { return NORMED ? of_sums + place * wide() : l.x_proj + slot * wide(); }

    // Through the hidden state and the norm's gain and bias.
    void through_cell_norm(index_t place, index_t row, index_t slot) const {
        const index_t S = l.sizes.stride, block = row / ROW_BLOCK * S, ahead = this->ahead;
        const bool from_memory = !l.inputs.are_few();
        const auto products = Products<T, NORMED>::kept(l, place, slot);
        const CellNorm<T> norm = this->cell_norm(row, l.norms[slot * 4 + 2], l.norms[slot * 4 + 3]);
        const T* dh = d.dh + row * S;
        T *kept = kept_of(place), *sums = sums_of(row), *d_gain = d.d_gain_c + block, *d_bias = d.d_bias_c + block;
        each_panels(s, [=](index_t first, index_t last) {
            for (index_t j = first * W; j < last * W; j += L) {
                fetch_ahead(norm.c + j, S);
                fetch_ahead(dh + j, S);
                for (index_t each = 0; each < CELL_VALUES; ++each) claim_ahead(kept + each * S + j, CELL_VALUES * S);
                if (from_memory) claim_ahead(products.x + 3 * S + j, ahead);
                if constexpr (NORMED) claim_ahead(products.h + 3 * S + j, ahead);
                store(kept + S + j, hyperbolic_tangent(norm.after(j)));
                store(kept + 2 * S + j, sigmoid(products.sum(3 * S + j)));
            }
            for (index_t p = first; p < last; ++p) {
                vector sum{}, along{};
                for (index_t j = p * W; j < (p + 1) * W; j += L) {
                    const vector xhat = norm.xhat(j), tanh_c = load(kept + S + j), o = load(kept + 2 * S + j);
                    const vector d_after = load(dh + j) * o * (1 - tanh_c * tanh_c), d_xhat = d_after * load(norm.gain + j);
                    add_to(d_gain + j, d_after * xhat);
                    add_to(d_bias + j, d_after);
                    store(kept + j, d_xhat);
                    sum += d_xhat;
                    along += d_xhat * xhat;
                }
                sums[p * 4 + 2] = total<T>(sum);
                sums[p * 4 + 3] = total<T>(along);
            }
        });
    }

    // The gates but the output gate if there is a norm of the cell, which has computed it.
    static void store_gates(const Products<T, NORMED>& products, index_t first, index_t last, T* gates) {
        for (index_t j = first * W; j < last * W; j += L) {
            store(gates + j, sigmoid(products.sum(j)));
            store(gates + products.S + j, sigmoid(products.sum(products.S + j)));
            store(gates + 2 * products.S + j, hyperbolic_tangent(products.sum(2 * products.S + j)));
            if constexpr (!CELL) store(gates + 3 * products.S + j, sigmoid(products.sum(3 * products.S + j)));
        }
    }

    // Through the cell and the gates of some rows.
    void through_gates(const Rows& rows, index_t first_row, index_t last_row) const {
        CellMeans<T> means[MOST_TOGETHER] = {};
        for (index_t r = first_row; CELL && r < last_row; ++r)
            means[r - first_row] = {this->mean_of_units(rows.row[r], 2), this->mean_of_units(rows.row[r], 3)};
        each_panels(s, [&](index_t first, index_t last) {
            for (index_t r = first_row; r < last_row; ++r)
                through_gates_of(r - first_row, rows.row[r], rows.slot[r], means[r - first_row], first, last);
        });
    }

    // The same for some panels of one row. Until its gradient is known, a gate is where that will be.
    void through_gates_of(index_t place, index_t row, index_t slot, const CellMeans<T> means, index_t first, index_t last) const {
        const index_t S = l.sizes.stride, block = row / ROW_BLOCK * wide(), ahead = this->ahead;
        const bool from_memory = !l.inputs.are_few();
        const auto products = Products<T, NORMED>::kept(l, place, slot);
        const T *c_before = this->state(l.cells, this->before, row), *kept = kept_of(place), *dh = d.dh + row * S;
        T *dc = d.dc + row * S, *d_gates = d_sums_of(place, slot), *sums = sums_of(row);
        T* d_bias = d.d_bias + block;
        T *d_gain_x = NORMED ? d.d_gain_x + block : nullptr, *d_gain_h = NORMED ? d.d_gain_h + block : nullptr;
        CellNorm<T> norm = this->cell_norm(row, 0, 0);
        if constexpr (CELL) {
            norm.mean = l.norms[slot * 4 + 2];
            norm.rstd = l.norms[slot * 4 + 3];
        }
        store_gates(products, first, last, d_gates);
        for (index_t p = first; p < last; ++p) {
            vector sum_x{}, sum_h{};
            for (index_t j = p * W; j < (p + 1) * W; j += L) {
                const T* o = CELL ? kept + 2 * S : d_gates + 3 * S;
                const LstmGates<vector> gates{load(d_gates + j), load(d_gates + S + j), load(d_gates + 2 * S + j), load(o + j)};
                fetch_ahead(c_before + j, S);
                claim_ahead(dc + j, S);
                vector tanh_c, d_c = load(dc + j);
                if constexpr (CELL) {
                    tanh_c = load(kept + S + j);
                    d_c += (load(kept + j) - means.d_xhat - norm.xhat(j) * means.along) * norm.rstd;
                } else {
                    tanh_c = hyperbolic_tangent(load(norm.c + j));
                    d_c += load(dh + j) * gates.o * (1 - tanh_c * tanh_c);
                }
                const LstmGates<vector> of = lstm_gradient(gates, load(c_before + j), d_c, load(dh + j) * tanh_c);
                store(dc + j, d_c * gates.f);
                const auto through_sum = [&](index_t k, vector value) {
                    if (from_memory) claim_ahead(products.x + k, ahead);
                    store(d_gates + k, value);
                    add_to(d_bias + k, value);
                    if constexpr (NORMED) {
                        claim_ahead(products.h + k, ahead);
                        const vector of_gain_x = value * products.xhat_x(k), of_gain_h = value * products.xhat_h(k);
                        add_to(d_gain_x + k, of_gain_x);
                        add_to(d_gain_h + k, of_gain_h);
                        sum_x += of_gain_x * load(products.gain_x + k);
                        sum_h += of_gain_h * load(products.gain_h + k);
                    }
                };
                through_sum(j, of.i);
                through_sum(S + j, of.f);
                through_sum(2 * S + j, of.g);
                through_sum(3 * S + j, of.o);
            }
            if constexpr (NORMED) {
                sums[p * 4] = total<T>(sum_x);
                sums[p * 4 + 1] = total<T>(sum_h);
            }
        }
    }

    // Through the norms of both products of some rows. The products' gradients replace them.
    void through_norms(const Rows& rows, index_t first_row, index_t last_row) const {
        ProductMeans<T> means[MOST_TOGETHER];
        for (index_t r = first_row; r < last_row; ++r)
            means[r - first_row] = {this->mean_of_gates(rows.row[r], 0), this->mean_of_gates(rows.row[r], 1)};
        each_panels(s, [&](index_t first, index_t last) {
            for (index_t r = first_row; r < last_row; ++r)
                through_norms_of(r - first_row, rows.slot[r], means[r - first_row], first, last);
        });
    }

    // The same for some panels of one row.
    void through_norms_of(index_t place, index_t slot, const ProductMeans<T> means, index_t first, index_t last) const {
        const index_t S = l.sizes.stride;
        const auto products = Products<T, NORMED>::kept(l, place, slot);
        const T* d_sums = d_sums_of(place, slot);
        T *x = l.x_of(place, slot), *h = l.h_proj + slot * wide();
        for (index_t gate = 0; gate < GATES; ++gate)
            for (index_t k = gate * S + first * W; k < gate * S + last * W; k += L) {
                const vector value = load(d_sums + k);
                store(x + k, (value * load(products.gain_x + k) - products.xhat_x(k) * means.along_x) * products.rstd_x);
                store(h + k, (value * load(products.gain_h + k) - products.xhat_h(k) * means.along_h) * products.rstd_h);
            }
    }
};

template <class T, bool NORMED, bool CELL>
static void walk_back(Lstm<T> l, LstmGradients<T> d, const T* packed, T* panel_sums, T* of_inputs, const Share& s,
                      const Barrier& barrier) {
    const Sizes& sizes = l.sizes;
    const index_t wide = GATES * sizes.stride;
    const index_t together = std::min(barrier.together(sizes.batch, l.inputs.rows_together()), MOST_TOGETHER);
    const OwnSums<T> of_bias(sizes, s, barrier, GATES, d.d_bias), of_gain_x(sizes, s, barrier, GATES, d.d_gain_x),
        of_gain_h(sizes, s, barrier, GATES, d.d_gain_h), of_gain_c(sizes, s, barrier, 1, d.d_gain_c),
        of_bias_c(sizes, s, barrier, 1, d.d_bias_c), of_w_x(sizes, s, barrier, l.inputs.count * GATES, d.d_w_x);
    d.d_bias = of_bias.data();
    d.d_gain_x = of_gain_x.data();
    d.d_gain_h = of_gain_h.data();
    d.d_gain_c = of_gain_c.data();
    d.d_bias_c = of_bias_c.data();
    d.d_w_x = of_w_x.data();
    const bool few_inputs = NORMED && l.inputs.are_few();
    const index_t of_rows = StepBack<T, NORMED, CELL>::CELL_VALUES * sizes.stride;
    const Aligned<T> of_cell(CELL ? together * of_rows : 0), of_sums(NORMED ? together * wide : 0),
        few_x_proj(few_inputs ? together * wide : 0);
    if (few_inputs) l.x_proj = few_x_proj.data();
    const index_t ahead = positions_ahead(sizes, barrier, true) * wide;
    Rows rows;
    for (index_t position = sizes.steps - 1; position >= 0; --position) {
        const index_t t = sizes.time(position);
        begin_step_back(rows, sizes, s, t, d.d_hidden, d.dh);
        const StepBack<T, NORMED, CELL> step{{l, panel_sums, s, sizes.before(t), sizes.after(t), ahead}, d, of_cell.data(),
                                             of_sums.data()};
        for (index_t first = 0; first < rows.count(); first += together) {
            const index_t last = std::min(first + together, rows.count());
            if (few_inputs) l.inputs.multiply(rows, first, last, s, sizes, GATES, l.x_proj);
            if constexpr (CELL) {
                for (index_t r = first; r < last; ++r) step.through_cell_norm(r - first, rows.row[r], rows.slot[r]);
                barrier.wait();
            }
            step.through_gates(rows, first, last);
            if constexpr (NORMED) {
                barrier.wait();
                step.through_norms(rows, first, last);
            }
            if (few_inputs) l.inputs.differentiate(rows, first, last, s, sizes, GATES, l.x_proj, d.d_w_x, of_inputs);
        }
        barrier.wait();
        if (of_inputs) l.inputs.add_panels(rows, s, sizes, of_inputs, d.d_x);
        Prefetch wanted;
        if (barrier.members == 1 && position > 0)
            wanted = lines_of_products(sizes, s, sizes.time(position - 1), few_inputs ? l.h_proj : l.x_proj,
                                       few_inputs ? nullptr : l.h_proj, wide);
        multiply_products(rows, l.state_products(), wide, packed, s, sizes, d.dh, false, wanted);
        bound(d.dh, rows, sizes, s, d.limit);
        bound(d.dc, rows, sizes, s, d.limit);
    }
}

template <class T, bool NORMED, bool CELL>
static void forward(const Lstm<T>& l, const OneStep<T>& one, const T* w_h, int threads, bool by_units) {
    const Weights<T> weights{w_h, l.sizes.hidden, GATES, NORMED, threads};
    const auto by = [&](const T* packed, T* panel_sums, const Share& share, const Barrier& barrier) {
        walk<T, NORMED, CELL>(l, packed, panel_sums, share, barrier);
    };
    if (!one.x) return walk_forward(weights, l.sizes, 4, by_units, by);
    const index_t S = l.sizes.stride, wide = GATES * S;
    if (NORMED) std::fill_n(l.h_proj, l.sizes.batch * wide, T(0));
    walk_one_step(one, l.hidden, weights, l.sizes, 4, [=](index_t row, index_t gate) { return l.x_proj + row * wide + gate * S; },
                  [=](index_t row, index_t gate) { return l.state_products() + row * wide + gate * S; }, by);
}

template <class T, bool NORMED, bool CELL>
static void backward(const Lstm<T>& l, const LstmGradients<T>& d, const T* w_h, int threads, bool by_units) {
    const Weights<T> weights{w_h, l.sizes.hidden, GATES, NORMED, threads};
    const Aligned<T> of_inputs(d.d_x ? l.sizes.batch * l.inputs.count * l.sizes.panels : 0);
    walk_backward(weights, l.sizes, 4, by_units, [&](const T* packed, T* panel_sums, const Share& share, const Barrier& barrier) {
        walk_back<T, NORMED, CELL>(l, d, packed, panel_sums, d.d_x ? of_inputs.data() : nullptr, share, barrier);
    });
}

// The arguments that forward and backward share, and the objects made of them.
#define SHARED_PARAMETERS(T)                                                                                          \
    const T *w_h, const T *x, const T *w_x, T *x_proj, T *h_proj, const T *gain_x, const T *gain_h,                   \
        const T *bias, const T *gain_c, const T *bias_c, T *hidden, T *cells, T *norms, const int64_t *slots,         \
        int64_t steps, int64_t batch, int64_t inputs, int64_t units, double eps, int32_t variant, int32_t reverse,    \
        int32_t threads, int32_t by_units
#define SHARED_VALUES                                                                                                 \
    const Lstm<T> l{sizes_of<T>(steps, batch, units, reverse != 0, slots), T(eps), {x_proj ? nullptr : x, w_x, inputs}, x_proj, h_proj,  \
                    gain_x, gain_h, bias, gain_c, bias_c, hidden, cells, norms};

#define LSTM(TYPE, NAME)                                                                                                \
    extern "C" void lstm_forward_##NAME(SHARED_PARAMETERS(TYPE)) {                                                      \
        guarded([&] {                                                                                                   \
            using T = TYPE;                                                                                             \
            SHARED_VALUES                                                                                               \
            CALL(forward, l, OneStep<T>{x_proj ? x : nullptr, w_x, inputs}, w_h, threads, by_units != 0)                                                               \
        });                                                                                                             \
    }                                                                                                                   \
    extern "C" void lstm_backward_##NAME(SHARED_PARAMETERS(TYPE), const TYPE* d_hidden, TYPE* dh, TYPE* dc, TYPE* d_x,   \
                                         TYPE* d_w_x, TYPE* d_bias, TYPE* d_gain_x, TYPE* d_gain_h, TYPE* d_gain_c,      \
                                         TYPE* d_bias_c, double limit) {                                                \
        guarded([&] {                                                                                                   \
            using T = TYPE;                                                                                             \
            SHARED_VALUES                                                                                               \
            const LstmGradients<T> d{d_hidden, dh, dc, d_x, d_w_x, d_bias, d_gain_x, d_gain_h, d_gain_c, d_bias_c, T(limit)}; \
            CALL(backward, l, d, w_h, threads, by_units != 0)                                                           \
        });                                                                                                             \
    }
ENTRIES(LSTM)
