// The arguments of a product of two matrices.
#pragma once
#include "common.h"

// Rows of the second matrix with one row stride, `distance`; `end` is the row after them.
struct Piece {
    const T* rows;
    index_t distance, end;
};

// The arguments of a product: a (rows, depth), or its transpose (depth, rows) if `a_turned`, and b (depth, columns), of pieces one
// below the other, or its transpose (columns, depth), of one piece, if `b_turned`. `added`, unless null, is added to the product: a
// matrix, which may be the result's own memory, or one row for all, if its row stride is 0.
struct Operands {
    const T *a, *added;
    std::vector<Piece> b;
    T* out;
    index_t rows, depth, columns, a_distance, added_distance, out_distance;
    bool a_turned, b_turned;
    T* sums = nullptr;  // the sums of b's columns, padded to whole panels
    int activation = 0;  // see activation.h

    const T* a_at(index_t row, index_t k) const { return a_turned ? a + k * a_distance + row : a + row * a_distance + k; }
    const T* b_at(index_t k, index_t column) const {
        return b_turned ? b[0].rows + column * b[0].distance + k : b[0].rows + k * b[0].distance + column;
    }
    const T* added_at(index_t row, index_t column) const { return added + row * added_distance + column; }
    bool b_in_one_piece() const { return b.size() == 1; }
};
