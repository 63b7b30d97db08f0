// The rate of a walk's pushes in a time step: a block sends 1 KB to each block of its cluster, itself too, `rounds` times.
// Macros: CLUSTER blocks of THREADS threads, as many as values; WIDTH bytes of a push: 4, 8, 16, or 1024, which is a copy.
#include "../recurrent/cluster.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
ENTRY(push_in_cluster) {}
#else
#define CLUSTERED __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
#if WIDTH == 4
using Values = float;
#elif WIDTH == 8
using Values = float2;
#else
using Values = float4;
#endif

ENTRY(push_in_cluster, CLUSTERED) {
    __shared__ __align__(16) float own[THREADS];
    __shared__ __align__(16) float told[2][CLUSTER][THREADS];
    __shared__ Signal signals[2];
    const int rank = cluster_rank(), i = int(threadIdx.x), first = i * WIDTH / 4;
    if (i == 0) make_signal(signals[0]), make_signal(signals[1]);
    own[i] = 1;
    fence_pushes();
    cluster_barrier();
    float sum = 0;
    for (int round = 0; round < rounds; ++round) {
        const int slot = round & 1;
        float* to = told[slot][rank];
        if (i == 0) expect_at(signals[slot], int(sizeof(told[0])));
        fence_pushes();
        if (WIDTH > 16 && i < CLUSTER) push_copy(to, own, int(sizeof(own)), i, signals[slot]);
        for (int k = 0; k < CLUSTER && WIDTH <= 16 && first < THREADS; ++k)
            push(reinterpret_cast<Values*>(to + first), *reinterpret_cast<Values*>(own + first), k, signals[slot]);
        wait_at(signals[slot], round >> 1 & 1);
        for (int k = 0; k < CLUSTER; ++k) sum += told[slot][k][i];
        __syncthreads();
    }
    cluster_barrier();  // nobody leaves while its values are still copied
    if (i == 0) heard[blockIdx.x] = sum == float(CLUSTER) * float(rounds) ? unsigned(rounds) : 0;
}
#endif
