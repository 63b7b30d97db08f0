// Exchanges between the blocks of a thread-block cluster, in PTX (sm_90 on).
//
// A block pushes values into the shared memory of any block of its cluster, itself too. The receiver expects so many bytes at a
// Signal in its own shared memory (an mbarrier) and waits there until all of them have come; then it may read what was
// pushed. A signal has phases: the first has parity 0, the next one 1, then 0 again. Each begins with `expect_at` by one thread.
#pragma once

#ifdef __CUDA_ARCH__  // elsewhere the includer defines these functions
struct Signal {
    unsigned long long state;
};

__device__ __forceinline__ unsigned shared_address(const void* of) {
    return static_cast<unsigned>(__cvta_generic_to_shared(of));
}

// The address, in the cluster, of the same place in the shared memory of block `rank`.
__device__ __forceinline__ unsigned address_in(const void* of, int rank) {
    unsigned address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(of)), "r"(rank));
    return address;
}

__device__ __forceinline__ int cluster_rank() {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return int(rank);
}

// All threads of all blocks of the cluster wait for each other.
__device__ __forceinline__ void cluster_barrier() {
    asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory");
}

// Called by one thread, before any use; a cluster_barrier makes it visible.
__device__ __forceinline__ void make_signal(Signal& signal) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\nfence.mbarrier_init.release.cluster;"
                 ::"r"(shared_address(&signal)) : "memory");
}

__device__ __forceinline__ void expect_at(Signal& signal, int bytes) {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1;\n}"
                 ::"r"(shared_address(&signal)), "r"(bytes) : "memory");
}

// True if the phase of this parity has ended; the instruction itself waits for a while before it returns false.
__device__ __forceinline__ bool has_come(Signal& signal, int parity) {
    unsigned done;
    asm volatile("{\n.reg .pred done;\n"
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, done;\n}" : "=r"(done) : "r"(shared_address(&signal)), "r"(parity) : "memory");
    return done != 0;
}

// The device's clock. It wraps after 4.3 seconds, but differences below that are right; 64 bits made a walk spill.
__device__ __forceinline__ unsigned nanoseconds() {
    unsigned now;
    asm volatile("mov.u32 %0, %%globaltimer_lo;" : "=r"(now));
    return now;
}

// A wait that is longer than any exchange ends the launch with an error: a fault would keep the device for ever.
// Macro SAY_WAITS: it first prints the waiting thread and the signal.
__device__ __forceinline__ void wait_at(Signal& signal, int parity) {
    if (has_come(signal, parity)) return;
    const unsigned begun = nanoseconds();
    while (!has_come(signal, parity)) {
        if (nanoseconds() - begun < 2000000000u) continue;
#if SAY_WAITS
        printf("block %d, thread %d: signal at %u has not come, parity %d\n", int(blockIdx.x), int(threadIdx.x),
               shared_address(&signal), parity);
#endif
        __trap();
    }
}

// A fence between accesses to shared memory and a push that lets another block push there: pushes go through the async
// proxy, which a signal alone does not order.
__device__ __forceinline__ void fence_pushes() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// `to` and `signal` are the caller's own; the value goes to the same places in block `rank`.
__device__ __forceinline__ void push(float* to, float v, int rank, Signal& signal) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];"
                 ::"r"(address_in(to, rank)), "f"(v), "r"(address_in(&signal, rank)) : "memory");
}
__device__ __forceinline__ void push(float2* to, float2 v, int rank, Signal& signal) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];"
                 ::"r"(address_in(to, rank)), "f"(v.x), "f"(v.y), "r"(address_in(&signal, rank)) : "memory");
}
__device__ __forceinline__ void push(float4* to, float4 v, int rank, Signal& signal) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
                 ::"r"(address_in(to, rank)), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(address_in(&signal, rank))
                 : "memory");
}
// A copy of many bytes by one thread: 16 divides their number and both addresses. `from` is the caller's own, and may be
// written again, or end, after the signal's phase has ended.
__device__ __forceinline__ void push_copy(float* to, const float* from, int bytes, int rank, Signal& signal) {
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(address_in(to, rank)), "r"(shared_address(from)), "r"(bytes), "r"(address_in(&signal, rank))
                 : "memory");
}
#endif
