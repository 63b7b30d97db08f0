// One step of Adam (Kingma and Ba 2015, algorithm 1) over all tensors of a model in one launch.
//
// Macro: CHUNK, values of a block. `pointers` (7, tensors) has the addresses of parameters, gradients, first and second
// moments, and of where the new parameters and moments go (the same places if the caller gave the old ones away).
// `chunks` (blocks, 2) says which tensor a block works on, and where in it. As in ops.adam_update, the factors
// 1 - beta and the bias correction are in `rate` and `eps`. Gradients are multiplied by `scale` if it is given.
extern "C" __global__ void adam_update(const unsigned long long* __restrict__ pointers, const int* __restrict__ sizes,
                                       const int* __restrict__ chunks, const float* __restrict__ rate,
                                       const float* __restrict__ eps, const float* __restrict__ scale,
                                       int tensors, float beta1, float beta2) {
    const int tensor = chunks[2 * blockIdx.x], first = chunks[2 * blockIdx.x + 1];
    const int last = min(first + CHUNK, sizes[tensor]);
    const float* p = reinterpret_cast<const float*>(pointers[tensor]);
    const float* g = reinterpret_cast<const float*>(pointers[tensors + tensor]);
    const float* m = reinterpret_cast<const float*>(pointers[2 * tensors + tensor]);
    const float* v = reinterpret_cast<const float*>(pointers[3 * tensors + tensor]);
    float* new_p = reinterpret_cast<float*>(pointers[4 * tensors + tensor]);
    float* new_m = reinterpret_cast<float*>(pointers[5 * tensors + tensor]);
    float* new_v = reinterpret_cast<float*>(pointers[6 * tensors + tensor]);
    const float by = scale ? *scale : 1.0f;
    for (int i = first + int(threadIdx.x); i < last; i += int(blockDim.x)) {
        const float scaled = g[i] * by, moment = beta1 * m[i] + scaled, square = beta2 * v[i] + scaled * scaled;
        new_m[i] = moment;
        new_v[i] = square;
        new_p[i] = p[i] - *rate * moment / (sqrtf(square) + *eps);
    }
}
