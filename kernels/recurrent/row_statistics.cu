// Mean, residual and rstd of the rows of x_proj (rows, GATES * H), to which `bias` is added first if there is one, and of those
// of w_h (H, GATES * H), for each norm of a cell: the arguments of a walk of a cluster.
//
// Macros: THREADS and UNITS (see cell.cuh); CELL_GATES 4 for an LSTM, 3 for a GRU, 1 for an RNN.
#include "cell.cuh"

#if CELL_GATES == 4
typedef Lstm Cell;
#elif CELL_GATES == 3
typedef Gru Cell;
#else
typedef State Cell;
#endif

// x_stats [part][rows][3], w_stats [part][H][3].
ENTRY(row_statistics, __launch_bounds__(BLOCK, 1)) {
    __shared__ float shared[SHARED];
    const int row = int(blockIdx.x * blockDim.y + threadIdx.y);
    const bool of_x = row < rows, inside = row < rows + hidden;
    Values<Cell> v[1];
    if (of_x)
        load<Cell>(v[0], x_proj, row, hidden);
    else
        load<Cell>(v[0], w_h, inside ? row - rows : 0, hidden);
    if (of_x && bias) {
        each<Cell>(hidden, [&](int gate, int u) { v[0][gate][u] += bias[gate * hidden + unit(u)]; });
        store<Cell>(v[0], x_proj, row, hidden);
    }
    standardise<Cell, 1>(v, hidden, eps, of_x ? x_stats : w_stats, of_x ? row : row - rows, of_x ? rows : hidden, inside,
                         shared);
}
