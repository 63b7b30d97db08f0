// An LSTM's walk forward: the arrays, and the phases of a time step (sequence.h).
#pragma once
#include "../inputs.h"
#include "../norms.h"
#include "lstm.h"

static const index_t GATES = 4;
static constexpr bool APART = OVER == Over::ROW || OVER == Over::BATCH;  // each product has its norm; else there is only the sum of both
static constexpr bool CARRIED = OVER == Over::GATE;  // the next time step reads the cell after its norm
// The sums of a row and panel: of x and h, or of each gate of both products' sum; then two of the cell.
static constexpr index_t OF_CELL = CARRIED ? GATES : 2, ROW_SUMS = OF_CELL + 2;
static constexpr index_t OF_STEP = 2 * (2 * GATES + 1);  // numbers of norms over the batch, of a unit
#include "../products.h"

// Norms of rows keep rstd of the products, mean and rstd of the cell. For few inputs x_proj is that of the rows that go together.
struct Lstm : Arrays<GATES, OF_STEP> {
    Inputs inputs;  // few only with norms
    const T *gain_c, *bias_c;  // (stride)
    T* cells;  // (steps + 1, batch, stride)
    T* raw_cells;  // (positions, stride): the cells before their norm, if `cells` are not: they are after it, or a mask has kept some

    // The index of the sums of a row, which has the index `place` among those that go together.
    index_t x_place(index_t place, index_t slot) const { return inputs.are_few() ? place : slot; }
    T* x_of(index_t place, index_t slot) const { return x_proj + x_place(place, slot) * GATES * sizes.stride; }
};

// The norm of one row's cell.
template <class Numbers>
struct CellNorm : Centred<Numbers> {
    const T *gain, *bias;
    vector after(index_t unit) const { return this->xhat(unit) * load(gain + unit) + load(bias + unit); }
};

// The common part of the phases of a time step. Some rows go through them together; `place` is the index of a row among these.
// `panel_sums` has ROW_SUMS sums of each row and panel. While a phase computes a row, it prefetches the values of the next one.
struct Step {
    const Lstm l;
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
    auto kept_cell_norm(index_t row, index_t slot) const {
        if constexpr (OF_BATCH) return cell_norm(row, slot, l.batch_norm(slot / l.sizes.batch, Of::CELL));
        else if constexpr (!CELL) return cell_norm(row, slot, OfRow{});
        else return cell_norm(row, slot, OfRow{l.norms[slot * ROW_SUMS + OF_CELL], l.norms[slot * ROW_SUMS + OF_CELL + 1]});
    }
    template <class Numbers>
    CellNorm<Numbers> cell_norm(index_t row, index_t slot, Numbers numbers) const {
        return {{new_cell(row, slot), numbers}, l.gain_c, l.bias_c};
    }

    // The sums of squares of the products' parts.
    void add_squares(index_t place, index_t row, index_t slot) const {
        const index_t S = l.sizes.stride;
        const T *x = l.x_of(place, slot), *h = l.state_products() + slot * wide();
        const bool from_memory = !l.inputs.are_few();
        for (index_t p = s.first_panel; p < s.last_panel; ++p) {
            vector of[OF_CELL] = {};
            for (index_t gate = 0; gate < GATES; ++gate)
                for (index_t k = gate * S + p * W; k < gate * S + (p + 1) * W; k += LANES) {
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
        Products products(l, l.x_place(place, slot), slot);
        if constexpr (PARTS > 0)
            products.set_rstd([&](index_t k) {
                const T rstd = T(1) / std::sqrt(mean_of_part(row, k) + l.eps);
                if (s.first_panel == 0) l.norms[slot * ROW_SUMS + k] = rstd;
                return rstd;
            });
        const T* c = state(l.cells, before, row);
        T *c_new = new_cell(row, slot), *h_new = state(l.hidden, after, row);
        for (index_t j = s.first_panel * W; j < s.last_panel * W; j += LANES) {
            fetch_ahead(c + j, S);
            claim_ahead(c_new + j, S);
            claim_ahead(h_new + j, S);
            const LstmGates<vector> gates = lstm_gates(products.sum(0, j), products.sum(1, j), products.sum(2, j), products.sum(3, j));
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
        const Spread spread = merged(sums_of(row) + OF_CELL, ROW_SUMS, l.sizes.hidden, l.eps);
        if (s.first_panel == 0) {
            l.norms[slot * ROW_SUMS + OF_CELL] = spread.mean;
            l.norms[slot * ROW_SUMS + OF_CELL + 1] = spread.rstd;
        }
        normalise_cell(cell_norm(row, slot, OfRow{spread.mean, spread.rstd}), row);
    }

    // The hidden state, from the norm of the cell.
    template <class Norm>
    void normalise_cell(const Norm norm, index_t row) const {
        T *h = state(l.hidden, after, row), *c = state(l.cells, after, row);
        for (index_t j = s.first_panel * W; j < s.last_panel * W; j += LANES) {
            fetch_ahead(norm.values + j, l.sizes.stride);
            claim_ahead(h + j, l.sizes.stride);
            const vector after_norm = norm.after(j);
            if (has_raw_cells()) store(c + j, CARRIED ? after_norm : load(norm.values + j));
            store(h + j, load(h + j) * hyperbolic_tangent(after_norm));
        }
    }

    // All phases of some panels, if the norms are over the batch.
    void walk_columns(index_t t) const {
        const BatchColumns columns{l.sizes, s.first_panel, s.last_panel};
        const index_t B = l.sizes.batch;
        columns.normalise(l.x_proj + t * B * wide(), GATES, l.eps, l.batch_norm(t, Of::X));
        columns.normalise(l.h_proj + t * B * wide(), GATES, l.eps, l.batch_norm(t, Of::H));
        for (index_t r = 0; r < B; ++r) open_gates(r, r, t * B + r);
        columns.normalise(new_cell(0, t * B), 1, l.eps, l.batch_norm(t, Of::CELL));
        for (index_t r = 0; r < B; ++r) normalise_cell(kept_cell_norm(r, t * B + r), r);
    }
};

template <class StepOf>
static void walk_rows(Lstm l, const T* packed, const Share& s, const Barrier& barrier, const StepOf& step_of) {
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
        const Step step = step_of(l, t, s);
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

static void walk(const Lstm& l, const T* packed, T* panel_sums, const Share& s, const Barrier& barrier) {
    const Sizes& sizes = l.sizes;
    const index_t ahead = positions_ahead(sizes, barrier, false) * GATES * sizes.stride;
    const auto step_of = [&](const Lstm& of, index_t t, const Share& share) {
        return Step{of, panel_sums, share, sizes.before(t), sizes.after(t), ahead};
    };
    if constexpr (OF_BATCH)
        walk_columns(sizes, s, barrier, l.masked, {l.hidden, l.cells},
                     [&](const Rows& rows, index_t t) { multiply(l, packed, rows, s, t); },
                     [&](index_t t, const Share& share) { step_of(l, t, share).walk_columns(t); });
    else walk_rows(l, packed, s, barrier, step_of);
}
