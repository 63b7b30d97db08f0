// What the text of a kernel sees of the machine that runs it: a fiber a thread (engine/engine.cpp).
//
// A kernel is compiled with a hook at every load and store (`-fsanitize=thread`, without its runtime), so the machine
// sees each access. The functions here are the rest: who I am, who waits, and what is ordered for whom.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x = 1, y = 1, z = 1; };

#define HOSTGPU_UNSEEN __attribute__((no_sanitize("thread")))

namespace hostgpu {

constexpr unsigned WARP = 32;

// Constant while a thread runs.
uint3 thread_index() __attribute__((const));
uint3 block_index() __attribute__((const));
uint3 block_size() __attribute__((const));
uint3 grid_size() __attribute__((const));
unsigned linear_index() __attribute__((const));

// Which memory a barrier orders for those who wait at it.
enum Space : unsigned { NOWHERE = 0, SHARED = 1, GLOBAL = 2, EVERYWHERE = 3 };

void barrier(unsigned ordered = EVERYWHERE);

// What the lanes of one warp do together: all lanes of a mask have to do the same.
enum class Together : unsigned { shuffle, shuffle_xor, shuffle_down, shuffle_up, vote, wait };

// What every lane of `mask` brings, once all of them have come: the value that `source` brought.
uint64_t exchange(Together what, unsigned mask, uint64_t value, unsigned source, uint64_t (*brought)[WARP] = nullptr,
                  unsigned ordered = NOWHERE);

// Makes this thread's stores visible to other blocks, and what it has read from a flag an order for its loads.
void fence();

// An atomic access begins: it may wait for its turn, and then nobody comes between this and `end_atomic`.
void begin_atomic(void* address, size_t bytes);
void end_atomic(bool changed);

// Blocks of a cluster. A signal counts the bytes that are pushed into its block; each of its phases begins with `expect_at`.
int cluster_rank();
void cluster_barrier();
void make_signal(const void* at);
void expect_at(const void* at, int bytes);
void wait_at(const void* at, int parity);
void push(const void* to, const void* value, size_t bytes, int rank, const void* signal);

// A load that goes through the read-only path.
void read_only(const void* address, size_t bytes);

// A declaration of shared memory; each block has an array of its own for it.
struct Site { const char* name; };
void* shared_array(Site& site, size_t bytes);
void* dynamic_shared();

template <class T> uint64_t bits(T value) {
    static_assert(sizeof(T) <= 8, "a warp moves at most 8 bytes a lane");
    uint64_t b = 0;
    memcpy(&b, &value, sizeof value);
    return b;
}
template <class T> T value(uint64_t b) {
    T v;
    memcpy(&v, &b, sizeof v);
    return v;
}

// Replaces what an address holds by what `make` makes of it, in one step; gives what it held.
template <class T, class F> HOSTGPU_UNSEEN T atomically(T* address, F make) {
    begin_atomic(address, sizeof(T));
    const T before = *address, after = make(before);
    *address = after;
    end_atomic(bits(before) != bits(after));
    return before;
}

}  // namespace hostgpu
