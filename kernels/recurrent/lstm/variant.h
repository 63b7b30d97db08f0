// The variants of an LSTM on the CPU: which of the gates and the cell are normalised.
#pragma once
#include <cstdint>

enum Variant : int32_t { NONE = 0, CELL_ONLY = 1, GATES_AND_CELL = 2 };

// Calls FUNCTION<T, NORMED, CELL>(...) for `variant`.
#define CALL(FUNCTION, ...)                                                       \
    switch (variant) {                                                            \
        case GATES_AND_CELL: FUNCTION<T, true, true>(__VA_ARGS__); break;         \
        case CELL_ONLY: FUNCTION<T, false, true>(__VA_ARGS__); break;             \
        default: FUNCTION<T, false, false>(__VA_ARGS__);                          \
    }
