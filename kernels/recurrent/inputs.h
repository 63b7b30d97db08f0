// Inputs of few values, whose products a walk computes itself, forward and backward.
#pragma once
#include "walk.h"

// A product for all positions would take longer to write and to read than those of some rows take to compute, which stay in cache.
struct Inputs {
    const T* x;  // (positions, count); null if the product of all positions is given
    const T* weights;  // (count, gates * stride)
    index_t count;

    static constexpr index_t TOGETHER = 4;  // rows that share loads of the weights

    bool are_few() const { return x != nullptr; }
    // The number of rows that a thread without barriers takes through the phases of a time step together.
    index_t rows_together() const { return are_few() ? TOGETHER : 1; }

    // The products (last - first, gates * stride) of some of a time step's rows, for the panels of a share. The padding of a gate
    // is NaN if an input is infinite; the norm then makes the whole row NaN.
    void multiply(const Rows& rows, index_t first, index_t last, const Share& s, const Sizes& sizes, index_t gates,
                  T* products) const {
        const index_t wide = gates * sizes.stride;
        index_t r = first;
        for (; r + TOGETHER <= last; r += TOGETHER) multiply_rows<TOGETHER>(rows, r, s, sizes, gates, products + (r - first) * wide);
        for (; r < last; ++r) multiply_rows<1>(rows, r, s, sizes, gates, products + (r - first) * wide);
    }

    // Back: adds to the gradients of the weights (blocks of rows, count, gates * stride), and gives those of the inputs for each
    // panel. `of_panels` (panels, batch, count) keeps these until all threads have computed theirs; null if they are not needed.
    void differentiate(const Rows& rows, index_t first, index_t last, const Share& s, const Sizes& sizes, index_t gates,
                       const T* d_products, T* d_weights, T* of_panels) const {
        const auto block = [&](index_t r) { return rows.row[r] / ROW_BLOCK; };
        const index_t wide = gates * sizes.stride;
        index_t r = first;
        while (r < last) {
            T* const to = d_weights + block(r) * count * wide;
            const T* const of = d_products + (r - first) * wide;
            if (r + TOGETHER <= last && block(r) == block(r + TOGETHER - 1)) {
                differentiate_rows<TOGETHER>(rows, r, s, sizes, gates, of, to, of_panels);
                r += TOGETHER;
            } else {
                differentiate_rows<1>(rows, r, s, sizes, gates, of, to, of_panels);
                ++r;
            }
        }
    }

    // The gradients of the inputs (positions, count), from those of the panels; each thread adds up those of some rows.
    void add_panels(const Rows& rows, const Share& s, const Sizes& sizes, const T* of_panels, T* d_x) const {
        const index_t P = sizes.panels, last = rows.count() * s.last_panel / P;
        for (index_t r = rows.count() * s.first_panel / P; r < last; ++r)
            for (index_t i = 0; i < count; ++i)
                d_x[rows.slot[r] * count + i] = row_sum(of_panels + rows.row[r] * count + i, P, sizes.batch * count);
    }

  private:
    template <int ROWS>
    void differentiate_rows(const Rows& rows, index_t first, const Share& s, const Sizes& sizes, index_t gates,
                            const T* d_products, T* d_weights, T* of_panels) const {
        const index_t S = sizes.stride, wide = gates * S;
        const T *in[ROWS], *of[ROWS];
        for (int r = 0; r < ROWS; ++r) {
            in[r] = x + rows.slot[first + r] * count;
            of[r] = d_products + r * wide;
        }
        for (index_t p = s.first_panel; p < s.last_panel; ++p)
            for (index_t i = 0; i < count; ++i) {
                vector along[ROWS] = {};
                for (index_t gate = 0; gate < gates; ++gate)
                    for (index_t k = gate * S + p * W; k < gate * S + (p + 1) * W; k += LANES) {
                        const vector weight = load(weights + i * wide + k);
                        vector d_weight = load(d_weights + i * wide + k);
                        for (int r = 0; r < ROWS; ++r) {
                            const vector value = load(of[r] + k);
                            d_weight += value * in[r][i];
                            along[r] += value * weight;
                        }
                        store(d_weights + i * wide + k, d_weight);
                    }
                for (int r = 0; of_panels && r < ROWS; ++r)
                    of_panels[(p * sizes.batch + rows.row[first + r]) * count + i] = total<T>(along[r]);
            }
    }

    template <int ROWS>
    void multiply_rows(const Rows& rows, index_t first, const Share& s, const Sizes& sizes, index_t gates, T* products) const {
        const index_t S = sizes.stride, wide = gates * S;
        const T* in[ROWS];
        T* out[ROWS];
        for (int r = 0; r < ROWS; ++r) {
            in[r] = x + rows.slot[first + r] * count;
            out[r] = products + r * wide;
        }
        for (index_t gate = 0; gate < gates; ++gate)
            for (index_t k = gate * S + s.first_panel * W; k < gate * S + s.last_panel * W; k += LANES) {
                vector sums[ROWS] = {};
                for (index_t i = 0; i < count; ++i) {
                    const vector weight = load(weights + i * wide + k);
                    for (int r = 0; r < ROWS; ++r) sums[r] += in[r][i] * weight;
                }
                for (int r = 0; r < ROWS; ++r) store(out[r] + k, sums[r]);
            }
    }
};
