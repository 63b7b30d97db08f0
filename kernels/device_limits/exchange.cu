// The time of an exchange between blocks: a kernel that stays on the device for many time steps needs one each.
//
// All blocks of a launch must be on the device at once; each kernel does `rounds` exchanges.
#include "common.cuh"
#include "../recurrent/cluster.cuh"

// A flag for each block, which is the value itself: thread i waits for block i. `flags` begin at 0; as many threads as
// blocks, or more.
ENTRY(exchange_by_flags) {
    for (int round = 1; round <= rounds; ++round) {
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            reinterpret_cast<volatile unsigned*>(flags)[blockIdx.x] = unsigned(round);
        }
        if (threadIdx.x < gridDim.x)
            while (reinterpret_cast<volatile unsigned*>(flags)[threadIdx.x] < unsigned(round)) {}
        __threadfence();
        __syncthreads();
    }
}

// The exchange of a walk (recurrent/cluster_walk.cuh): each of eight blocks pushes four bytes to all eight, and waits for theirs. From
// sm_90 on; elsewhere it does nothing, and `heard` keeps its zeros.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define OF_EIGHT __cluster_dims__(8, 1, 1)
#else
#define OF_EIGHT
#endif
ENTRY(tell_in_cluster, OF_EIGHT) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    __shared__ float told[2][8];
    __shared__ Signal signals[2];
    const int rank = cluster_rank();
    if (threadIdx.x == 0) make_signal(signals[0]), make_signal(signals[1]);
    cluster_barrier();
    float value = 1;
    for (int round = 0; round < rounds; ++round) {
        const int slot = round & 1;
        if (threadIdx.x == 0) expect_at(signals[slot], int(sizeof(told[0])));
        fence_pushes();
        if (threadIdx.x < 8) push(&told[slot][rank], value, int(threadIdx.x), signals[slot]);
        wait_at(signals[slot], round >> 1 & 1);
        value = told[slot][threadIdx.x % 8];
        __syncthreads();
    }
    if (threadIdx.x == 0) heard[blockIdx.x] = value == 1 ? unsigned(rounds) : 0;
#endif
}
