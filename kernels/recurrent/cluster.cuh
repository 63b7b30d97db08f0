// What the blocks of a thread-block cluster do together, in PTX (sm_90 on).
//
// A block pushes values into the shared memory of any block of its cluster, itself too. The receiver expects so many bytes at a
// Signal in its own shared memory (an mbarrier) and waits there until all of them have come; then it may read what was
// pushed. A signal has phases: the first has parity 0, the next one 1, then 0 again. Each begins with `expect_at` by one thread.
#pragma once

#ifdef __CUDA_ARCH__  // elsewhere, whoever compiles the text brings these words
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

// By one thread, before any use; a cluster_barrier makes it known.
__device__ __forceinline__ void make_signal(Signal& signal) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\nfence.mbarrier_init.release.cluster;"
                 ::"r"(shared_address(&signal)) : "memory");
}

__device__ __forceinline__ void expect_at(Signal& signal, int bytes) {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1;\n}"
                 ::"r"(shared_address(&signal)), "r"(bytes) : "memory");
}

__device__ __forceinline__ void wait_at(Signal& signal, int parity) {
    asm volatile("{\n.reg .pred done;\n"
                 "again:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n}" ::"r"(shared_address(&signal)), "r"(parity) : "memory");
}

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
#endif
