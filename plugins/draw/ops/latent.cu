// A sample of N(mu, sigma^2) for each row of a batch, and its divergence from N(0, 1); and their gradient.
//
// A row belongs to a warp, and a block has ROWS rows. `statistics` (B, 2 latent) has mu, then log sigma; `noise` (B, latent).
#include "common.cuh"
#include "portable.h"

constexpr int ROWS = 4;

ENTRY(latent_forward, __launch_bounds__(ROWS * WARP, 1)) {
    const int row = int(blockIdx.x * ROWS + threadIdx.y);
    if (row >= rows) return;  // a whole warp
    const float *mean = statistics + size_t(row) * 2 * width, *log_sigma = mean + width;
    const size_t first = size_t(row) * width;
    float sum[1] = {0};
    for (int k = int(threadIdx.x); k < width; k += WARP) {
        const float sigma = exponential(log_sigma[k]);
        sample[first + k] = mean[k] + sigma * noise[first + k];
        sum[0] += 0.5f * (mean[k] * mean[k] + sigma * sigma - 1) - log_sigma[k];
    }
    row_sum<WARP>(sum);
    if (threadIdx.x == 0) divergence[row] = sum[0];
}

// Null may be: d_sample or d_divergence, of a result that nothing used; d_noise, that nobody needs. The gradient
// at the divergence of row r is d_divergence[r * d_divergence_step]; a step of 0 means one number for all rows, as after a mean.
ENTRY(latent_backward, __launch_bounds__(ROWS * WARP, 1)) {
    const int row = int(blockIdx.x * ROWS + threadIdx.y);
    if (row >= rows) return;
    const size_t first = size_t(row) * width;
    const float along = d_divergence ? d_divergence[size_t(row) * d_divergence_step] : 0;
    for (int k = int(threadIdx.x); k < width; k += WARP) {
        const float mean = statistics[2 * first + k], sigma = exponential(statistics[2 * first + width + k]);
        const float g = d_sample ? d_sample[first + k] : 0;
        if (d_noise) d_noise[first + k] = g * sigma;
        d_statistics[2 * first + k] = g + along * mean;
        d_statistics[2 * first + width + k] = g * sigma * noise[first + k] + along * (sigma * sigma - 1);
    }
}
