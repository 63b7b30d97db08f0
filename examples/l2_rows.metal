// Rows divided by their Euclidean norm, and the gradient of that: a threadgroup of THREADS for each row.
// MLX writes the signature. Each entry is what stands where its name in capitals is defined; leading axes are one.
#include "common.metal.h"

const int row = threadgroup_position_in_grid.x, width = x_shape[1], t = thread_position_in_threadgroup.x;
const size_t start = size_t(row) * width;
threadgroup float shared[THREADS / SIMD];
float sum[1] = {0};
#ifdef L2_ROWS_FORWARD
for (int k = t; k < width; k += THREADS) sum[0] += float(x[start + k]) * float(x[start + k]);
row_sum(sum, shared, t);
const float by = rsqrt(sum[0] + eps);
for (int k = t; k < width; k += THREADS) y[start + k] = storage_t(float(x[start + k]) * by);
if (t == 0) scale[row] = by;
#endif
#ifdef L2_ROWS_BACKWARD
for (int k = t; k < width; k += THREADS) sum[0] += float(dy[start + k]) * float(x[start + k]);
row_sum(sum, shared, t);
const float by = scale[row], along = sum[0] * by * by;
for (int k = t; k < width; k += THREADS)
    dx[start + k] = storage_t((float(dy[start + k]) - float(x[start + k]) * along) * by);
#endif
