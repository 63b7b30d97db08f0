// One step of Adam (Kingma and Ba 2015, algorithm 1) over all tensors of a model in one launch.
//
// The roles of `tensors` are parameters, gradients, first and second moments, and where the new parameters and moments go
// (the same places if the caller gave the old ones away). As in ops.adam_update, the factors 1 - beta and the bias correction
// are in `rate` and `eps`. Gradients are multiplied by `scale`, and parameters by `keep`, if these are given. `squares`
// (blocks) gets the sum of each block's squared gradients, before they are scaled.
#include "tensors.cuh"

ENTRY(adam_update, __launch_bounds__(CHUNK_THREADS)) {
    const Chunk chunk(tensors);
    const float *p = chunk.of(tensors, 0), *g = chunk.of(tensors, 1), *m = chunk.of(tensors, 2), *v = chunk.of(tensors, 3);
    float *new_p = chunk.of(tensors, 4), *new_m = chunk.of(tensors, 5), *new_v = chunk.of(tensors, 6);
    const float by = scale ? *scale : 1.0f, kept = keep ? *keep : 1.0f, r = *rate, e = *eps;
    double sum = 0;
    for (int base = int(threadIdx.x); base < chunk.count; base += AT_ONCE * CHUNK_THREADS) {
        // All values are read before one is written: the new arrays may be the old ones, so the compiler keeps the order.
        float parameter[AT_ONCE], gradient[AT_ONCE], moment[AT_ONCE], square[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
            const int i = base + k * CHUNK_THREADS;
            const bool inside = i < chunk.count;
            parameter[k] = inside ? p[i] : 0, gradient[k] = inside ? g[i] : 0;
            moment[k] = inside ? m[i] : 0, square[k] = inside ? v[i] : 0;
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
            const int i = base + k * CHUNK_THREADS;
            if (i >= chunk.count) break;
            const float scaled = gradient[k] * by;
            sum += double(gradient[k]) * double(gradient[k]);
            moment[k] = beta1 * moment[k] + scaled;
            square[k] = beta2 * square[k] + scaled * scaled;
            new_m[i] = moment[k];
            new_v[i] = square[k];
            new_p[i] = kept * parameter[k] - r * moment[k] / (sqrtf(square[k]) + e);
        }
    }
    sum = sum_of_block(sum);
    if (threadIdx.x == 0) squares[blockIdx.x] = sum;
}

// `rate` and `eps` of the update above, and the number of the update, from the number of updates before it (see
// ops.adam_rates). log_beta is minus infinity for a beta of zero. `of_eps` is 1 if eps is corrected as the rate is.
ENTRY(adam_rates) {
    const int t_whole = min(*updates, 2147483646) + 1;  // the greatest int stays
    const float t = float(t_whole), root = sqrtf(-expm1f(t * log_beta2));
    *scaled = *rate * root / -expm1f(t * log_beta1) * rate_by;
    *corrected = (of_eps ? root : 1.0f) * eps_by;
    *update = t_whole;
}
