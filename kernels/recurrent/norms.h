// The norms of a walk's products: over what the statistics are taken, the normalised values, and the gradients through them.
#pragma once
#include <array>
#include "walk.h"

// NOTHING: there is no norm. ROW: the gates of a row that share a norm, all of an LSTM's, or a GRU's z and r and its n alone. GATE: each
// gate of a row alone, of the sum of both products. BATCH: each column, over the rows of the batch at a time step.
enum class Over { NOTHING, ROW, GATE, BATCH };
static constexpr Over OVER = Over::NORMS;  // the file of a variant says its NORMS

// The parts of a product's row that a norm of their own has, of `of_row` if norms are over the gates of a row.
static constexpr index_t parts_of(index_t gates, index_t of_row) {
    return OVER == Over::ROW ? of_row : OVER == Over::GATE ? gates : 0;
}

// Two numbers: the mean and rstd of a norm, or the means that the gradient through it subtracts.
struct OfRow {
    T first, second;
    T first_at(index_t) const { return first; }
    T second_at(index_t) const { return second; }
};

// The same of each column.
struct OfColumns {
    T *first, *second;
    vector first_at(index_t k) const { return load(first + k); }
    vector second_at(index_t k) const { return load(second + k); }
};

// Values that have a mean, and their norm, before gain and bias. `before` is the gradient before the norm, from that after it.
template <class Numbers>
struct Centred {
    const T* values;
    Numbers norm;

    vector xhat(index_t k) const { return (load(values + k) - norm.first_at(k)) * norm.second_at(k); }
    template <class Means>
    vector before(index_t k, vector d_xhat, const Means& means) const {
        return (d_xhat - means.first_at(k) - xhat(k) * means.second_at(k)) * norm.second_at(k);
    }
};

// One row of a product and its norm, over the batch or over the row. There no mean is subtracted, because the weights have lost theirs
// (weights.h): there is one of the gradient's products with xhat for each part of the gates.
template <index_t GATES, index_t PARTS>
struct Product {
    using OfParts = std::array<T, PARTS ? PARTS : 1>;
    const T* values;
    OfParts rstd;  // over the row
    OfColumns norm;  // over the batch

    static constexpr index_t part(index_t gate) { return gate * PARTS / GATES; }
    vector xhat(index_t gate, index_t k) const {
        if constexpr (OVER == Over::BATCH) return Centred<OfColumns>{values, norm}.xhat(k);
        else return load(values + k) * rstd[part(gate)];
    }
    vector before(index_t gate, index_t k, vector d_xhat, const OfParts& means) const {
        return (d_xhat - xhat(gate, k) * means[part(gate)]) * rstd[part(gate)];
    }
    vector before(index_t, index_t k, vector d_xhat, const OfColumns& means) const {
        return Centred<OfColumns>{values, norm}.before(k, d_xhat, means);
    }
};

// Norms over the batch: of x, of h and of an LSTM's cell.
enum class Of { X, H, CELL };

// The arrays of every cell's walk. Norms over the batch keep NUMBERS of each time step and unit.
template <index_t GATES, index_t NUMBERS>
struct Arrays {
    Sizes sizes;
    T eps;
    T *x_proj, *h_proj;  // (positions, GATES * stride); if they are not apart, x_proj is the sum of both, and h_proj is null
    const T *gain_x, *gain_h, *bias;  // (GATES * stride), or null; a sum's gain is gain_h
    T* hidden;  // (steps + 1, batch, stride)
    T* norms;  // (positions, numbers of a row): those that the walk forward keeps; over the batch (steps, NUMBERS * stride)
    const index_t* masked;  // (steps, batch), -1 where a mask takes out a row of a norm over the batch; or null

    T* state_products() const { return h_proj ? h_proj : x_proj; }
    OfColumns batch_norm(index_t t, Of which) const { return columns(norms + t * NUMBERS * sizes.stride, which); }
    // The two numbers of each column of a product or of the cell, among those of all.
    OfColumns columns(T* numbers, Of which) const {
        T* const first = numbers + 2 * GATES * index_t(which) * sizes.stride;
        return {first, first + (which == Of::CELL ? 1 : GATES) * sizes.stride};
    }
};

// The columns of some panels of each gate, for norms over the batch: a thread has all rows of its columns, and waits for none.
struct BatchColumns {
    const Sizes& sizes;
    index_t first_panel, last_panel;

    // Calls work(k) for the first column of each vector.
    template <class Work>
    void each(index_t gates, const Work& work) const {
        for (index_t gate = 0; gate < gates; ++gate)
            for (index_t k = gate * sizes.stride + first_panel * W; k < gate * sizes.stride + last_panel * W; k += LANES) work(k);
    }

    // The mean and rstd of the columns of `rows` (batch, gates * stride). That of padding is 0.
    void normalise(const T* rows, index_t gates, T eps, OfColumns norm) const {
        const index_t wide = gates * sizes.stride;
        const T count = T(sizes.batch);
        each(gates, [=](index_t k) { store(norm.first + k, vector{}), store(norm.second + k, vector{}); });
        for (index_t r = 0; r < sizes.batch; ++r)
            each(gates, [=](index_t k) { add_to(norm.first + k, load(rows + r * wide + k)); });
        each(gates, [=](index_t k) { store(norm.first + k, load(norm.first + k) / count); });
        for (index_t r = 0; r < sizes.batch; ++r)
            each(gates, [=](index_t k) {
                const vector away = load(rows + r * wide + k) - load(norm.first + k);
                add_to(norm.second + k, away * away);
            });
        for (index_t gate = 0; gate < gates; ++gate)
            for (index_t j = first_panel * W; j < last_panel * W; ++j) {
                T& rstd = norm.second[gate * sizes.stride + j];
                rstd = j < sizes.hidden ? T(1) / std::sqrt(rstd / count + eps) : T(0);
            }
    }

    // The means that the gradient through a norm subtracts, of d_xhat and of its product with xhat, from the sums over the rows of the
    // gradient after gain and bias, and of its product with xhat.
    void gradient_means(const T* d_bias, const T* d_gain, const T* gain, index_t gates, OfColumns means) const {
        const T count = T(sizes.batch);
        each(gates, [=](index_t k) {
            store(means.first + k, load(d_bias + k) * load(gain + k) / count);
            store(means.second + k, load(d_gain + k) * load(gain + k) / count);
        });
    }
};

// Norms over the batch need the sums of the parameters' gradients over the rows of a time step alone. They grow in the place of those
// over all time steps, `of` (gates * stride) each, to which `add` adds those of some columns; then they begin again at 0.
class StepSums : OwnRoom {
  public:
    StepSums(index_t stride, std::initializer_list<Gradient> gradients) : OwnRoom(gradients, stride) {}
    void add(const BatchColumns& columns) const {
        for (const Sum& each : sums_)
            columns.each(each.gates, [=](index_t k) {
                add_to(each.total + k, load(each.room + k));
                store(each.room + k, vector{});
            });
    }
};

// The rows that a mask takes out where a norm is over the batch: they count in its statistics, and keep their states.
class MaskedRows {
  public:
    MaskedRows(const index_t* slots, const Sizes& sizes, const Share& s, index_t states)
        : slots_(slots), sizes_(sizes), s_(s), aside_(slots ? states * sizes.batch * sizes.stride : 0) {}

    // Gives the states after a time step to those rows.
    void keep(index_t t, std::initializer_list<T*> states) const {
        each(t, [&](index_t row) {
            for (T* of : states) move(sizes_.state(of, sizes_.before(t), row), sizes_.state(of, sizes_.after(t), row));
        });
    }
    // The gradients of the states after a time step pass by it; none goes through it.
    void put_aside(index_t t, std::initializer_list<T*> gradients) const {
        each(t, [&](index_t row) {
            index_t k = row;
            for (T* of : gradients) {
                move(of + row * sizes_.stride, aside_.data() + k * sizes_.stride);
                std::fill_n(of + row * sizes_.stride + first(), last() - first(), T(0));
                k += sizes_.batch;
            }
        });
    }
    void add_back(index_t t, std::initializer_list<T*> gradients) const {
        each(t, [&](index_t row) {
            index_t k = row;
            for (T* of : gradients) {
                for (index_t j = first(); j < last(); ++j) of[row * sizes_.stride + j] += aside_.data()[k * sizes_.stride + j];
                k += sizes_.batch;
            }
        });
    }

  private:
    const index_t* const slots_;  // (steps, batch), -1 for those rows; null if there are none
    const Sizes& sizes_;
    const Share& s_;
    const Aligned<T> aside_;

    index_t first() const { return s_.first_panel * W; }
    index_t last() const { return s_.last_panel * W; }
    void move(const T* from, T* to) const { std::copy(from + first(), from + last(), to + first()); }
    template <class Work>
    void each(index_t t, const Work& work) const {
        for (index_t row = 0; slots_ && row < sizes_.batch; ++row)
            if (slots_[t * sizes_.batch + row] < 0) work(row);
    }
};

// A walk whose norms are over the batch. Threads share the units: at each time step multiply(rows, t) makes the products of the states,
// and then columns(t, share) goes through all phases of a few panels.
template <class Multiply, class Work>
static void walk_columns(const Sizes& sizes, const Share& s, const Barrier& barrier, const index_t* masked,
                         std::initializer_list<T*> states, const Multiply& multiply, const Work& columns) {
    const MaskedRows of_mask(masked, sizes, s, 0);
    Rows rows;
    for (index_t position = 0; position < sizes.steps; ++position) {
        const index_t t = sizes.time(position);
        begin_step(rows, sizes, s, t, states);
        multiply(rows, t);
        each_panels(s, [&](index_t first, index_t last) { columns(t, Share{s.first_row, s.last_row, first, last}); });
        of_mask.keep(t, states);
        barrier.wait();
    }
}

// The same backward, where multiply(rows) makes the first of the states' gradients (batch, stride).
template <class Multiply, class Work>
static void walk_columns_back(const Sizes& sizes, const Share& s, const Barrier& barrier, const index_t* masked, const T* d_hidden,
                              std::initializer_list<T*> d_states, T limit, const Multiply& multiply, const Work& columns) {
    const MaskedRows of_mask(masked, sizes, s, index_t(d_states.size()));
    Rows rows;
    for (index_t position = sizes.steps - 1; position >= 0; --position) {
        const index_t t = sizes.time(position);
        begin_step_back(rows, sizes, s, t, d_hidden, *d_states.begin());
        of_mask.put_aside(t, d_states);
        each_panels(s, [&](index_t first, index_t last) { columns(t, Share{s.first_row, s.last_row, first, last}); });
        barrier.wait();
        multiply(rows);
        for (T* d_state : d_states) bound(d_state, rows, sizes, s, limit);
        of_mask.add_back(t, d_states);
    }
}
