// An LSTM over a whole sequence (Ba, Kiros, Hinton 2016, eq. 20-22 and 29-31), forward and backward. The file of a variant says its
// norms, OVER and CELL, and includes this one.
//
// The input's product x_proj for all positions comes in; large products are not made here. Few inputs of `layer` are multiplied in
// the walk, and then x_proj is only that of a few rows; inputs beside an x_proj are those of one time step (one_step.h). The walk
// backward leaves the gradients of both products in their places: other arrays would be claimed from memory, and written to it. With
// norms over a row's gates both weights are used without the means of their rows, so that no norm need subtract one: the input's was
// before its product, the recurrent one is when it is packed.
#pragma once
#include "../inputs.h"
#include "../norms.h"
#include "../one_step.h"
#include "lstm.h"

static const index_t GATES = 4;
static const index_t MOST_TOGETHER = 16;  // rows that go through the backward phases together: their values stay in L2
static constexpr bool NORMED = OVER != Over::NOTHING, OF_BATCH = OVER == Over::BATCH;
static constexpr bool APART = OVER == Over::ROW || OF_BATCH;  // each product has its norm; else there is only the sum of both
static constexpr bool CARRIED = OVER == Over::GATE;  // the next time step reads the cell after its norm
static constexpr index_t PARTS = parts_of(OVER, GATES, 1);
// The sums of a row and panel: of x and h, or of each part of both products' sum; then two of the cell.
static constexpr index_t OF_CELL = CARRIED ? PARTS : 2, ROW_SUMS = OF_CELL + 2;

// Norms over the batch: of x, of h and of the cell, two numbers of each column.
enum class Of { X, H, CELL };
static constexpr index_t OF_STEP = 2 * (2 * GATES + 1);

template <class T>
struct Lstm {
    Sizes sizes;
    T eps;
    Inputs<T> inputs;  // few only with norms
    T* x_proj;  // (positions, 4 * stride); the sum of both products if they are not apart; for few inputs that of rows that go together
    T* h_proj;  // (positions, 4 * stride), or null if they are not
    const T *gain_x, *gain_h, *bias;  // (4 * stride)
    const T *gain_c, *bias_c;  // (stride)
    T *hidden, *cells;  // (steps + 1, batch, stride)
    T* raw_cells;  // (positions, stride): the cells before their norm, if `cells` are not: they are after it, or a mask has kept some
    T* norms;  // (positions, ROW_SUMS): rstd of the products, mean and rstd of the cell; over the batch (steps, OF_STEP * stride)
    const index_t* masked;  // (steps, batch), -1 where a mask takes out a row of a norm over the batch; or null

    T* state_products() const { return h_proj ? h_proj : x_proj; }
    // The sums of the row with this index among those that go together.
    T* x_of(index_t place, index_t slot) const { return x_proj + (inputs.are_few() ? place : slot) * GATES * sizes.stride; }
    OfColumns<T> batch_norm(index_t t, Of which) const { return columns(norms + t * OF_STEP * sizes.stride, which); }
    // The two numbers of each column of a product or of the cell, among those (OF_STEP * stride) of all.
    OfColumns<T> columns(T* numbers, Of which) const {
        T* const first = numbers + 2 * GATES * index_t(which) * sizes.stride;
        return {first, first + (which == Of::CELL ? 1 : GATES) * sizes.stride};
    }
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

// The products of one row, with the parameters that make gates of them. If there is only their sum, it is h.
template <class T>
struct Products {
    using vector = typename Vector<T>::type;
    const index_t S;
    const T *const gain_x, *const gain_h, *const bias;  // here, because a store could change those of an Lstm
    Product<T, OVER, GATES, PARTS> x, h;

    Products(const Lstm<T>& l, index_t place, index_t slot)
        : S(l.sizes.stride), gain_x(l.gain_x), gain_h(l.gain_h), bias(l.bias), x{}, h{} {
        x.values = l.x_of(place, slot);
        h.values = l.state_products() + slot * GATES * S;
        if constexpr (OF_BATCH) {
            x.norm = l.batch_norm(slot / l.sizes.batch, Of::X);
            h.norm = l.batch_norm(slot / l.sizes.batch, Of::H);
        }
    }
    // With the norms that the walk forward has kept.
    static Products kept(const Lstm<T>& l, index_t place, index_t slot) {
        Products products(l, place, slot);
        if constexpr (PARTS > 0) products.set_rstd([&](index_t k) { return l.norms[slot * ROW_SUMS + k]; });
        return products;
    }
    template <class Of>
    void set_rstd(const Of& of) {
        if constexpr (APART) x.rstd[0] = of(0);
        for (index_t k = 0; k < PARTS; ++k) h.rstd[k] = of(APART + k);
    }
    // A gate before its non-linearity.
    vector sum(index_t gate, index_t unit) const {
        const index_t k = gate * S + unit;
        if constexpr (APART) return x.xhat(gate, k) * load(gain_x + k) + h.xhat(gate, k) * load(gain_h + k) + load(bias + k);
        else if constexpr (NORMED) return h.xhat(gate, k) * load(gain_h + k) + load(bias + k);
        else return load(h.values + k) + load(bias + k);
    }
    LstmGates<vector> gates(index_t unit) const { return lstm_gates(sum(0, unit), sum(1, unit), sum(2, unit), sum(3, unit)); }
};

template <class T>
using CellNumbers = std::conditional_t<OF_BATCH, OfColumns<T>, OfRow<T>>;

// The norm of one row's cell.
template <class T>
struct CellNorm : Centred<T, CellNumbers<T>> {
    const T *gain, *bias;
    typename Vector<T>::type after(index_t unit) const { return this->xhat(unit) * load(gain + unit) + load(bias + unit); }
};

// The common part of the phases of a time step. Some rows go through them together; `place` is the index of a row among these.
// `panel_sums` has ROW_SUMS sums of each row and panel. While a phase computes a row, it prefetches the values of the next one.
template <class T>
struct Step {
    using vector = typename Vector<T>::type;
    static constexpr index_t L = Vector<T>::lanes, W = Panel<T>::width;

    const Lstm<T> l;
    T* panel_sums;
    const Share s;
    index_t before, after, ahead;  // blocks of states, and the distance of prefetches of products in values

    index_t wide() const { return GATES * l.sizes.stride; }
    T* sums_of(index_t row) const { return panel_sums + row * l.sizes.panels * ROW_SUMS; }
    T* state(T* states, index_t block, index_t row) const { return l.sizes.state(states, block, row); }
    bool has_raw_cells() const { return CARRIED || (OF_BATCH && l.raw_cells); }
    T* new_cell(index_t row, index_t slot) const {
        return has_raw_cells() ? l.raw_cells + slot * l.sizes.stride : state(l.cells, after, row);
    }
    T mean_of_units(index_t row, index_t which) const { return row_sum(sums_of(row) + which, l.sizes.panels, ROW_SUMS) / T(l.sizes.hidden); }
    T mean_of_part(index_t row, index_t which) const { return mean_of_units(row, which) / T(APART ? GATES : 1); }

    // The cell's norm that the walk forward has kept.
    CellNorm<T> kept_cell_norm(index_t row, index_t slot) const {
        CellNorm<T> norm{{new_cell(row, slot), {}}, l.gain_c, l.bias_c};
        if constexpr (OF_BATCH) norm.norm = l.batch_norm(slot / l.sizes.batch, Of::CELL);
        else if (CELL) norm.norm = {l.norms[slot * ROW_SUMS + OF_CELL], l.norms[slot * ROW_SUMS + OF_CELL + 1]};
        return norm;
    }

    // The sums of squares of the products' parts.
    void add_squares(index_t place, index_t row, index_t slot) const {
        const index_t S = l.sizes.stride;
        const T *x = l.x_of(place, slot), *h = l.state_products() + slot * wide();
        const bool from_memory = !l.inputs.are_few();
        for (index_t p = s.first_panel; p < s.last_panel; ++p) {
            vector of[OF_CELL] = {};
            for (index_t gate = 0; gate < GATES; ++gate)
                for (index_t k = gate * S + p * W; k < gate * S + (p + 1) * W; k += L) {
                    if (APART && from_memory) fetch_ahead(x + k, ahead);
                    fetch_ahead(h + k, ahead);
                    if (APART) of[0] += load(x + k) * load(x + k);
                    of[APART ? 1 : gate] += load(h + k) * load(h + k);
                }
            for (index_t k = 0; k < OF_CELL; ++k) sums_of(row)[p * ROW_SUMS + k] = total<T>(of[k]);
        }
    }

    // The new cell, and the hidden state; with a norm of the cell the output gate is where the hidden state will be.
    void open_gates(index_t place, index_t row, index_t slot) const {
        const index_t H = l.sizes.hidden, S = l.sizes.stride;
        Products<T> products(l, place, slot);
        if constexpr (PARTS > 0)
            products.set_rstd([&](index_t k) {
                const T rstd = T(1) / std::sqrt(mean_of_part(row, k) + l.eps);
                if (s.first_panel == 0) l.norms[slot * ROW_SUMS + k] = rstd;
                return rstd;
            });
        const T* c = state(l.cells, before, row);
        T *c_new = new_cell(row, slot), *h_new = state(l.hidden, after, row);
        for (index_t j = s.first_panel * W; j < s.last_panel * W; j += L) {
            fetch_ahead(c + j, S);
            claim_ahead(c_new + j, S);
            claim_ahead(h_new + j, S);
            const LstmGates<vector> gates = products.gates(j);
            const vector cell = lstm_cell(gates, load(c + j));
            store(c_new + j, cell);
            store(h_new + j, CELL ? gates.o : gates.o * hyperbolic_tangent(cell));
        }
        if constexpr (CELL && !OF_BATCH)
            for (index_t p = s.first_panel; p < s.last_panel; ++p)
                panel_spread(c_new + p * W, H - p * W < W ? H - p * W : W, sums_of(row) + p * ROW_SUMS + OF_CELL);
    }

    // The norm of a row's cell.
    void spread_of_cell(index_t row, index_t slot) const {
        const Spread<T> spread = merged(sums_of(row) + OF_CELL, ROW_SUMS, l.sizes.hidden, l.eps);
        if (s.first_panel == 0) {
            l.norms[slot * ROW_SUMS + OF_CELL] = spread.mean;
            l.norms[slot * ROW_SUMS + OF_CELL + 1] = spread.rstd;
        }
        normalise_cell({{new_cell(row, slot), {spread.mean, spread.rstd}}, l.gain_c, l.bias_c}, row);
    }

    // The hidden state, from the norm of the cell.
    void normalise_cell(const CellNorm<T> norm, index_t row) const {
        T *h = state(l.hidden, after, row), *c = state(l.cells, after, row);
        for (index_t j = s.first_panel * W; j < s.last_panel * W; j += L) {
            fetch_ahead(norm.values + j, l.sizes.stride);
            claim_ahead(h + j, l.sizes.stride);
            const vector after_norm = norm.after(j);
            if (has_raw_cells()) store(c + j, CARRIED ? after_norm : load(norm.values + j));
            store(h + j, load(h + j) * hyperbolic_tangent(after_norm));
        }
    }

    // All phases of some panels, if the norms are over the batch.
    void walk_columns(index_t t) const {
        const BatchColumns<T> columns{l.sizes, s.first_panel, s.last_panel};
        const index_t B = l.sizes.batch;
        columns.normalise(l.x_proj + t * B * wide(), GATES, l.eps, l.batch_norm(t, Of::X));
        columns.normalise(l.h_proj + t * B * wide(), GATES, l.eps, l.batch_norm(t, Of::H));
        for (index_t r = 0; r < B; ++r) open_gates(r, r, t * B + r);
        columns.normalise(new_cell(0, t * B), 1, l.eps, l.batch_norm(t, Of::CELL));
        for (index_t r = 0; r < B; ++r) normalise_cell(kept_cell_norm(r, t * B + r), r);
    }
};

// The products of the states before a time step.
template <class T>
static void multiply(const Lstm<T>& l, const T* packed, const Rows& rows, const Share& s, index_t t) {
    const Sizes& sizes = l.sizes;
    for (index_t gate = 0; packed && gate < GATES; ++gate)
        multiply_states(rows, l.hidden + sizes.before(t) * sizes.batch * sizes.stride, sizes.stride, packed,
                        gate * sizes.panels + s.first_panel, gate * sizes.panels + s.last_panel, sizes.hidden, l.state_products(),
                        GATES * sizes.stride, !APART);
}

template <class T, class StepOf>
static void walk_rows(Lstm<T> l, const T* packed, const Share& s, const Barrier& barrier, const StepOf& step_of) {
    const Sizes& sizes = l.sizes;
    const index_t wide = GATES * sizes.stride;
    const index_t together = barrier.together(sizes.batch, l.inputs.rows_together());
    const Aligned<T> few_x_proj(l.inputs.are_few() ? together * wide : 0);
    if (l.inputs.are_few()) l.x_proj = few_x_proj.data();
    Rows rows;
    for (index_t position = 0; position < sizes.steps; ++position) {
        const index_t t = sizes.time(position);
        begin_step(rows, sizes, s, t, {l.hidden, l.cells});
        multiply(l, packed, rows, s, t);
        const Step<T> step = step_of(l, t, s);
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
                for (index_t r = first; r < last; ++r) step.spread_of_cell(rows.row[r], rows.slot[r]);
            }
        }
        barrier.wait();
    }
}

template <class T>
static void walk(const Lstm<T>& l, const T* packed, T* panel_sums, const Share& s, const Barrier& barrier) {
    const Sizes& sizes = l.sizes;
    const index_t ahead = positions_ahead(sizes, barrier, false) * GATES * sizes.stride;
    const auto step_of = [&](const Lstm<T>& of, index_t t, const Share& share) {
        return Step<T>{of, panel_sums, share, sizes.before(t), sizes.after(t), ahead};
    };
    if constexpr (OF_BATCH)
        walk_columns<T>(sizes, s, barrier, l.masked, {l.hidden, l.cells},
                        [&](const Rows& rows, index_t t) { multiply(l, packed, rows, s, t); },
                        [&](index_t t, const Share& share) { step_of(l, t, share).walk_columns(t); });
    else walk_rows(l, packed, s, barrier, step_of);
}

// The means that the gradient through the norms of both products subtracts.
template <class T>
struct ProductMeans {
    typename Product<T, OVER, GATES, PARTS>::Means x, h;
};

// The same phases backward. `of_cell` keeps three vectors of each row for the second phase: the gradient of the normalised cell, its
// tanh, and the output gate. `of_sums` keeps the gradients of the gates' sums for the third. The second and the third phase take a
// few panels of all rows that go together, and then the next panels: so the sums of the parameters' gradients stay in L1.
template <class T>
struct StepBack : Step<T> {
    using Forward = Step<T>;
    using typename Forward::vector;
    using Forward::L, Forward::W, Forward::l, Forward::s, Forward::sums_of, Forward::wide, Forward::ahead;

    static constexpr index_t CELL_VALUES = 3;

    const LstmGradients<T> d;
    T *of_cell, *of_sums;

    T* kept_of(index_t place) const { return of_cell + place * CELL_VALUES * l.sizes.stride; }
    // Without norms the gradient of a sum replaces it.
    T* d_sums_of(index_t place, index_t slot) const { return NORMED ? of_sums + place * wide() : l.x_proj + slot * wide(); }
    // The row of a parameter's gradient that a row of the batch adds to.
    index_t block_of(index_t row) const { return OF_BATCH ? 0 : row / ROW_BLOCK; }

    // Through the hidden state and the norm's gain and bias.
    void through_cell_norm(index_t place, index_t row, index_t slot) const {
        const index_t S = l.sizes.stride, block = block_of(row) * S, ahead = this->ahead;
        const bool from_memory = !l.inputs.are_few();
        const auto products = Products<T>::kept(l, place, slot);
        const CellNorm<T> norm = this->kept_cell_norm(row, slot);
        const T *dh = d.dh + row * S, *dc = d.dc + row * S;
        T *kept = kept_of(place), *sums = sums_of(row), *d_gain = d.d_gain_c + block, *d_bias = d.d_bias_c + block;
        each_panels(s, [=](index_t first, index_t last) {
            for (index_t j = first * W; j < last * W; j += L) {
                fetch_ahead(norm.values + j, S);
                fetch_ahead(dh + j, S);
                for (index_t each = 0; each < CELL_VALUES; ++each) claim_ahead(kept + each * S + j, CELL_VALUES * S);
                if (from_memory) claim_ahead(products.x.values + 3 * S + j, ahead);
                if constexpr (APART) claim_ahead(products.h.values + 3 * S + j, ahead);
                store(kept + S + j, hyperbolic_tangent(norm.after(j)));
                store(kept + 2 * S + j, sigmoid(products.sum(3, j)));
            }
            for (index_t p = first; p < last; ++p) {
                vector sum{}, along{};
                for (index_t j = p * W; j < (p + 1) * W; j += L) {
                    const vector xhat = norm.xhat(j), tanh_c = load(kept + S + j), o = load(kept + 2 * S + j);
                    vector d_after = load(dh + j) * o * (1 - tanh_c * tanh_c);
                    if constexpr (CARRIED) d_after += load(dc + j);
                    const vector d_xhat = d_after * load(norm.gain + j);
                    add_to(d_gain + j, d_after * xhat);
                    add_to(d_bias + j, d_after);
                    store(kept + j, d_xhat);
                    sum += d_xhat;
                    along += d_xhat * xhat;
                }
                if constexpr (!OF_BATCH) {
                    sums[p * ROW_SUMS + OF_CELL] = total<T>(sum);
                    sums[p * ROW_SUMS + OF_CELL + 1] = total<T>(along);
                }
            }
        });
    }

    // The gates but the output gate if there is a norm of the cell, which has computed it.
    static void store_gates(const Products<T>& products, index_t first, index_t last, T* gates) {
        for (index_t j = first * W; j < last * W; j += L) {
            store(gates + j, sigmoid(products.sum(0, j)));
            store(gates + products.S + j, sigmoid(products.sum(1, j)));
            store(gates + 2 * products.S + j, hyperbolic_tangent(products.sum(2, j)));
            if constexpr (!CELL) store(gates + 3 * products.S + j, sigmoid(products.sum(3, j)));
        }
    }

    // Through the cell and the gates of some rows.
    void through_gates(const Rows& rows, index_t first_row, index_t last_row) const {
        OfRow<T> means[MOST_TOGETHER] = {};
        for (index_t r = first_row; CELL && r < last_row; ++r)
            means[r - first_row] = {this->mean_of_units(rows.row[r], OF_CELL), this->mean_of_units(rows.row[r], OF_CELL + 1)};
        each_panels(s, [&](index_t first, index_t last) {
            for (index_t r = first_row; r < last_row; ++r)
                through_gates_of(r - first_row, rows.row[r], rows.slot[r], means[r - first_row], first, last);
        });
    }

    // The same for some panels of one row, with the means that the gradient through the cell's norm subtracts. Until its gradient is
    // known, a gate is where that will be.
    void through_gates_of(index_t place, index_t row, index_t slot, const CellNumbers<T> means, index_t first, index_t last) const {
        const index_t S = l.sizes.stride, block = block_of(row) * wide(), ahead = this->ahead;
        const bool from_memory = !l.inputs.are_few();
        const auto products = Products<T>::kept(l, place, slot);
        const T *c_before = this->state(l.cells, this->before, row), *kept = kept_of(place), *dh = d.dh + row * S;
        T *dc = d.dc + row * S, *d_gates = d_sums_of(place, slot), *sums = sums_of(row);
        T* d_bias = d.d_bias + block;
        T *d_gain_x = APART ? d.d_gain_x + block : nullptr, *d_gain_h = NORMED ? d.d_gain_h + block : nullptr;
        const CellNorm<T> norm = this->kept_cell_norm(row, slot);
        store_gates(products, first, last, d_gates);
        for (index_t p = first; p < last; ++p) {
            vector of_parts[OF_CELL] = {};
            for (index_t j = p * W; j < (p + 1) * W; j += L) {
                const T* o = CELL ? kept + 2 * S : d_gates + 3 * S;
                const LstmGates<vector> gates{load(d_gates + j), load(d_gates + S + j), load(d_gates + 2 * S + j), load(o + j)};
                fetch_ahead(c_before + j, S);
                claim_ahead(dc + j, S);
                vector tanh_c, d_c{};
                if constexpr (!CARRIED) d_c = load(dc + j);
                if constexpr (CELL) {
                    tanh_c = load(kept + S + j);
                    d_c += norm.before(j, load(kept + j), means);
                } else {
                    tanh_c = hyperbolic_tangent(load(norm.values + j));
                    d_c += load(dh + j) * gates.o * (1 - tanh_c * tanh_c);
                }
                const LstmGates<vector> of = lstm_gradient(gates, load(c_before + j), d_c, load(dh + j) * tanh_c);
                store(dc + j, d_c * gates.f);
                const auto through_sum = [&](index_t gate, vector value) {
                    const index_t k = gate * S + j;
                    if (from_memory) claim_ahead(products.x.values + k, ahead);
                    store(d_gates + k, value);
                    add_to(d_bias + k, value);
                    if constexpr (APART) {
                        claim_ahead(products.h.values + k, ahead);
                        const vector of_gain_x = value * products.x.xhat(gate, k);
                        add_to(d_gain_x + k, of_gain_x);
                        of_parts[0] += of_gain_x * load(products.gain_x + k);
                    }
                    if constexpr (NORMED) {
                        const vector of_gain_h = value * products.h.xhat(gate, k);
                        add_to(d_gain_h + k, of_gain_h);
                        of_parts[APART ? 1 : gate] += of_gain_h * load(products.gain_h + k);
                    }
                };
                through_sum(0, of.i);
                through_sum(1, of.f);
                through_sum(2, of.g);
                through_sum(3, of.o);
            }
            if constexpr (PARTS > 0)
                for (index_t k = 0; k < OF_CELL; ++k) sums[p * ROW_SUMS + k] = total<T>(of_parts[k]);
        }
    }

    // Through the norms of both products of some rows. The products' gradients replace them.
    void through_norms(const Rows& rows, index_t first_row, index_t last_row) const {
        ProductMeans<T> means[MOST_TOGETHER];
        for (index_t r = first_row; r < last_row; ++r) {
            if (APART) means[r - first_row].x[0] = this->mean_of_part(rows.row[r], 0);
            for (index_t k = 0; k < PARTS; ++k) means[r - first_row].h[k] = this->mean_of_part(rows.row[r], APART + k);
        }
        each_panels(s, [&](index_t first, index_t last) {
            for (index_t r = first_row; r < last_row; ++r)
                through_norms_of(r - first_row, rows.slot[r], means[r - first_row], first, last);
        });
    }

    // The same for some panels of one row.
    void through_norms_of(index_t place, index_t slot, const ProductMeans<T> means, index_t first, index_t last) const {
        const index_t S = l.sizes.stride;
        const auto products = Products<T>::kept(l, place, slot);
        const T* d_sums = d_sums_of(place, slot);
        T *x = l.x_of(place, slot), *h = l.state_products() + slot * wide();
        for (index_t gate = 0; gate < GATES; ++gate)
            for (index_t k = gate * S + first * W; k < gate * S + last * W; k += L) {
                const vector value = load(d_sums + k);
                if constexpr (APART) store(x + k, products.x.before(gate, k, value * load(products.gain_x + k), means.x));
                store(h + k, products.h.before(gate, k, value * load(products.gain_h + k), means.h));
            }
    }

    // All phases of some panels, if the norms are over the batch; the gradients of the parameters are those of the time step. `means`
    // gets the numbers that the gradients through the norms subtract.
    void walk_columns(index_t t, T* means) const {
        const BatchColumns<T> columns{l.sizes, s.first_panel, s.last_panel};
        const index_t B = l.sizes.batch;
        const OfColumns<T> of_x = l.columns(means, Of::X), of_h = l.columns(means, Of::H), of_c = l.columns(means, Of::CELL);
        for (index_t r = 0; r < B; ++r) through_cell_norm(r, r, t * B + r);
        columns.gradient_means(d.d_bias_c, d.d_gain_c, l.gain_c, 1, of_c);
        for (index_t r = 0; r < B; ++r) through_gates_of(r, r, t * B + r, of_c, s.first_panel, s.last_panel);
        columns.gradient_means(d.d_bias, d.d_gain_x, l.gain_x, GATES, of_x);
        columns.gradient_means(d.d_bias, d.d_gain_h, l.gain_h, GATES, of_h);
        for (index_t r = 0; r < B; ++r) through_norms_of(r, t * B + r, {of_x, of_h}, s.first_panel, s.last_panel);
    }
};

// The walk backward whose norms are over the rows, if there are norms; `of_inputs` as in inputs.h.
template <class T>
static void walk_rows_back(Lstm<T> l, const LstmGradients<T>& d, const T* packed, T* panel_sums, T* of_inputs, const Share& s,
                           const Barrier& barrier) {
    const Sizes& sizes = l.sizes;
    const index_t S = sizes.stride, wide = GATES * S, ahead = positions_ahead(sizes, barrier, true) * wide;
    const index_t together = std::min(barrier.together(sizes.batch, l.inputs.rows_together()), MOST_TOGETHER);
    const bool few_inputs = NORMED && l.inputs.are_few();
    const Aligned<T> of_cell(CELL ? together * StepBack<T>::CELL_VALUES * S : 0), of_sums(NORMED ? together * wide : 0),
        few_x_proj(few_inputs ? together * wide : 0);
    if (few_inputs) l.x_proj = few_x_proj.data();
    Rows rows;
    for (index_t position = sizes.steps - 1; position >= 0; --position) {
        const index_t t = sizes.time(position);
        begin_step_back(rows, sizes, s, t, d.d_hidden, d.dh);
        const StepBack<T> step{{l, panel_sums, s, sizes.before(t), sizes.after(t), ahead}, d, of_cell.data(), of_sums.data()};
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

// The same whose norms are over the batch.
template <class T>
static void walk_batch_back(const Lstm<T>& l, LstmGradients<T> d, const T* packed, T* panel_sums, const Share& s, const Barrier& barrier) {
    const Sizes& sizes = l.sizes;
    const index_t S = sizes.stride, wide = GATES * S, ahead = positions_ahead(sizes, barrier, true) * wide;
    const Aligned<T> of_cell(sizes.batch * StepBack<T>::CELL_VALUES * S), of_sums(sizes.batch * wide), means(OF_STEP * S);
    const StepSums<T> of_step(S, {{&d.d_bias, GATES}, {&d.d_gain_x, GATES}, {&d.d_gain_h, GATES}, {&d.d_gain_c, 1},
                                  {&d.d_bias_c, 1}});
    const auto multiply_back = [&](const Rows& rows) {
        multiply_products(rows, l.state_products(), wide, packed, s, sizes, d.dh, false);
    };
    walk_columns_back<T>(sizes, s, barrier, l.masked, d.d_hidden, {d.dh, d.dc}, d.limit, multiply_back,
                         [&](index_t t, const Share& share) {
        const Step<T> step{l, panel_sums, share, sizes.before(t), sizes.after(t), ahead};
        StepBack<T>{step, d, of_cell.data(), of_sums.data()}.walk_columns(t, means.data());
        of_step.add({sizes, share.first_panel, share.last_panel});
    });
}

template <class T>
static void walk_back(const Lstm<T>& l, LstmGradients<T> d, const T* packed, T* panel_sums, T* of_inputs, const Share& s,
                      const Barrier& barrier) {
    const Sizes& sizes = l.sizes;
    const OwnSums<T> of_bias(sizes, s, barrier, GATES, d.d_bias), of_gain_x(sizes, s, barrier, GATES, d.d_gain_x),
        of_gain_h(sizes, s, barrier, GATES, d.d_gain_h), of_gain_c(sizes, s, barrier, 1, d.d_gain_c),
        of_bias_c(sizes, s, barrier, 1, d.d_bias_c), of_w_x(sizes, s, barrier, l.inputs.count * GATES, d.d_w_x);
    d.d_bias = of_bias.data();
    d.d_gain_x = of_gain_x.data();
    d.d_gain_h = of_gain_h.data();
    d.d_gain_c = of_gain_c.data();
    d.d_bias_c = of_bias_c.data();
    d.d_w_x = of_w_x.data();
    if constexpr (OF_BATCH) walk_batch_back(l, d, packed, panel_sums, s, barrier);
    else walk_rows_back(l, d, packed, panel_sums, of_inputs, s, barrier);
}

template <class T>
static void forward(const Lstm<T>& l, const OneStep<T>& one, const T* w_h, int threads, bool by_units) {
    const Weights<T> weights{w_h, l.sizes.hidden, GATES, PARTS, threads};
    const auto by = [&](const T* packed, T* panel_sums, const Share& share, const Barrier& barrier) {
        walk<T>(l, packed, panel_sums, share, barrier);
    };
    if (!one.x) return walk_forward(weights, l.sizes, ROW_SUMS, by_units, by);
    const index_t S = l.sizes.stride, wide = GATES * S;
    if (APART) std::fill_n(l.h_proj, l.sizes.batch * wide, T(0));
    walk_one_step(one, l.hidden, weights, l.sizes, ROW_SUMS, [=](index_t row, index_t gate) { return l.x_proj + row * wide + gate * S; },
                  [=](index_t row, index_t gate) { return l.state_products() + row * wide + gate * S; }, by);
}

template <class T>
static void backward(const Lstm<T>& l, const LstmGradients<T>& d, const T* w_h, int threads, bool by_units) {
    const Weights<T> weights{w_h, l.sizes.hidden, GATES, PARTS, threads};
    const Aligned<T> of_inputs(d.d_x ? l.sizes.batch * l.inputs.count * l.sizes.panels : 0);
    walk_backward(weights, l.sizes, ROW_SUMS, by_units, [&](const T* packed, T* panel_sums, const Share& share, const Barrier& barrier) {
        walk_back<T>(l, d, packed, panel_sums, d.d_x ? of_inputs.data() : nullptr, share, barrier);
    });
}

// The arguments that forward and backward share, and the objects made of them.
#define SHARED_PARAMETERS(T)                                                                                          \
    const T *w_h, const T *x, const T *w_x, T *x_proj, T *h_proj, const T *gain_x, const T *gain_h,                   \
        const T *bias, const T *gain_c, const T *bias_c, T *hidden, T *cells, T *raw_cells, T *norms,                 \
        const int64_t *slots, int64_t steps, int64_t batch, int64_t inputs, int64_t units, double eps,                \
        int32_t reverse, int32_t threads, int32_t by_units
#define SHARED_VALUES                                                                                                 \
    const Lstm<T> l{sizes_of<T>(steps, batch, units, reverse != 0, OF_BATCH ? nullptr : slots), T(eps),               \
                    {x_proj ? nullptr : x, w_x, inputs}, x_proj, h_proj, gain_x, gain_h, bias, gain_c, bias_c,        \
                    hidden, cells, raw_cells, norms, OF_BATCH ? slots : nullptr};

#define LSTM(TYPE, NAME)                                                                                              \
    extern "C" void lstm_forward_##NAME(SHARED_PARAMETERS(TYPE)) {                                                    \
        guarded([&] {                                                                                                 \
            using T = TYPE;                                                                                           \
            SHARED_VALUES                                                                                             \
            forward<T>(l, {x_proj ? x : nullptr, w_x, inputs}, w_h, threads, by_units != 0);                          \
        });                                                                                                           \
    }                                                                                                                 \
    extern "C" void lstm_backward_##NAME(SHARED_PARAMETERS(TYPE), const TYPE* d_hidden, TYPE* dh, TYPE* dc,           \
                                         TYPE* d_x, TYPE* d_w_x, TYPE* d_bias, TYPE* d_gain_x, TYPE* d_gain_h,        \
                                         TYPE* d_gain_c, TYPE* d_bias_c, double limit) {                              \
        guarded([&] {                                                                                                 \
            using T = TYPE;                                                                                           \
            SHARED_VALUES                                                                                             \
            const LstmGradients<T> d{d_hidden, dh, dc, d_x, d_w_x, d_bias, d_gain_x, d_gain_h, d_gain_c, d_bias_c,    \
                                     T(limit)};                                                                       \
            backward<T>(l, d, w_h, threads, by_units != 0);                                                           \
        });                                                                                                           \
    }
ENTRIES(LSTM)
