// The variants of an LSTM on the CPU: which of the gates and the cell are normalised.
#pragma once
#include <cstdint>

enum Variant : int32_t { NONE = 0, CELL_ONLY = 1, GATES_AND_CELL = 2 };

// Calls FUNCTION<NORMED, CELL>(...) for `variant`.
#define CALL(FUNCTION, ...)                                                       \
    switch (variant) {                                                            \
        case GATES_AND_CELL: FUNCTION<true, true>(__VA_ARGS__); break;         \
        case CELL_ONLY: FUNCTION<false, true>(__VA_ARGS__); break;             \
        default: FUNCTION<false, false>(__VA_ARGS__);                          \
    }
