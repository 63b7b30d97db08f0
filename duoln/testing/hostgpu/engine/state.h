// The state of a launch: threads as fibers, warps, blocks; and how a launch ends with a message.
#pragma once
#include <csetjmp>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <ucontext.h>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../device.h"

namespace hostgpu {

// What Python hands over (machine.py has the same fields).
struct Argument {
    const char* name;
    char* host;      // the array's own memory, or the number's
    size_t bytes;
    unsigned flags;  // of `Flag`
};
enum Flag : unsigned { ARRAY = 1, CONSTANT = 2, RESTRICT = 4, TABLE = 8, REACHABLE = 16 };

struct Request {
    void (*kernel)(void**);
    unsigned grid[3], block[3];
    unsigned most_threads;
    size_t shared, most_shared, most_static, most_total;
    uint64_t seed;
    int cooperative;
    unsigned cluster, most_cluster;  // blocks; without clusters 1
    unsigned count;
    Argument* arguments;
    char* message;
    size_t message_size;
};

// What a thread knows of the accesses of others: of a block those before one of its barriers, of a thread those
// before one of its fences, of a signal the phases that have ended.
struct View {
    std::vector<uint32_t> blocks, phases;
    std::vector<std::pair<uint32_t, uint32_t>> threads;

    bool empty() const { return blocks.empty() && phases.empty() && threads.empty(); }
    void clear() { blocks.clear(), phases.clear(), threads.clear(); }
    void learn_block(uint32_t block, uint32_t epoch) {
        if (blocks.size() <= block) blocks.resize(block + 1, 0);
        if (blocks[block] < epoch) blocks[block] = epoch;
    }
    void learn_phases(uint32_t signal, uint32_t ended) {
        if (phases.size() <= signal) phases.resize(signal + 1, 0);
        if (phases[signal] < ended) phases[signal] = ended;
    }
    void learn_thread(uint32_t thread, uint32_t clock) {
        for (auto& known : threads)
            if (known.first == thread) {
                if (known.second < clock) known.second = clock;
                return;
            }
        threads.emplace_back(thread, clock);
    }
    void learn(const View& more) {
        for (uint32_t b = 0; b < more.blocks.size(); ++b)
            if (more.blocks[b]) learn_block(b, more.blocks[b]);
        for (uint32_t s = 0; s < more.phases.size(); ++s)
            if (more.phases[s]) learn_phases(s, more.phases[s]);
        for (auto& known : more.threads) learn_thread(known.first, known.second);
    }
    bool knows(uint32_t block, uint32_t thread, uint32_t epoch, uint32_t clock) const {
        if (block < blocks.size() && epoch < blocks[block]) return true;
        for (auto& known : threads)
            if (known.first == thread && clock < known.second) return true;
        return false;
    }
};

enum class State { ready, at_barrier, at_cluster_barrier, at_exchange, polling, done };

// Lanes of one warp that exchange values under one mask. Two sets of slots are enough: nobody begins the exchange
// after the next before everybody has read this one.
struct Exchange {
    unsigned mask = 0, arrived = 0, round = 0;
    Together what = Together::wait;
    uint64_t slots[2][WARP];
};

struct Fiber;

struct Warp {
    unsigned ready = 0, polling = 0, present = 0, returned = 0;  // lanes
    std::vector<Exchange> exchanges;
};

struct Placed {
    const Site* site;
    char* memory;
};

// Who accessed four bytes: see order.h.
struct Cell {
    uint64_t write, reads[2];
    uint16_t writer, reader;  // the argument it went through
};

struct Block {
    uint3 index;
    uint32_t number = 0, slot = 0;
    unsigned waiting = 0, waiting_for_cluster = 0, done = 0, ordered = EVERYWHERE;
    uint32_t epoch[2] = {0, 0};  // barriers that ordered shared memory, and global memory
    bool active = false;
    size_t static_bytes = 0, arena_used = 0;
    std::vector<Warp> warps;
    std::vector<Placed> placed;
    std::vector<std::vector<Cell>> cells;  // of each array of shared memory
    Fiber* fibers = nullptr;
};

struct Fiber {
    State state = State::done;
    bool started = false;
    Block* block = nullptr;
    unsigned linear = 0;
    uint3 thread;
    uint32_t number = 0;             // among all threads of the launch
    uint32_t clock = 1, synced = 0;  // grows at fences and warp barriers; its value at the last warp barrier
    jmp_buf where;
    View view, fenced, pending;      // what it knows; what its next flag tells; what a flag told it before a fence
    char* stack = nullptr;
    ucontext_t first;
};

struct Launch {
    Request* request = nullptr;
    uint3 grid, block;
    unsigned threads = 0, warps = 0;
    uint64_t random = 1;
    std::vector<unsigned> order;     // of warps: the first that can run does
    size_t next = 0;                 // of `sequence`: the block that begins next
    std::vector<uint32_t> sequence;  // blocks in the order in which they begin
    uint64_t progress = 0;           // grows with everything that another thread could be waiting for
    int until_switch = 1;
    bool views = false;              // whether any thread has learned anything from a flag
    std::vector<void*> values;
    jmp_buf scheduler;
    sigjmp_buf failed;
};

inline Launch* launch = nullptr;
inline bool any_view = false;  // whether any launch has had a fence: before that there is no view to clear
inline Fiber* now = nullptr;
inline std::vector<Block> blocks;   // those that are resident

inline uint64_t draw() {  // xorshift64*
    uint64_t& r = launch->random;
    r ^= r >> 12; r ^= r << 25; r ^= r >> 27;
    return (r * 2685821657736338717ull) >> 11;
}

[[noreturn]] inline void fail(const char* format, ...) {
    va_list rest;
    va_start(rest, format);
    Request& r = *launch->request;
    int n = 0;
    if (now)
        n = snprintf(r.message, r.message_size, "block (%u, %u, %u), thread (%u, %u, %u): ", now->block->index.x,
                     now->block->index.y, now->block->index.z, now->thread.x, now->thread.y, now->thread.z);
    vsnprintf(r.message + n, r.message_size - n, format, rest);
    va_end(rest);
    siglongjmp(launch->failed, 1);
}

// Gives the CPU back to the scheduler; returns when it is this thread's turn again.
inline void yield() {
    if (!_setjmp(now->where)) _longjmp(launch->scheduler, 1);
}

inline Warp& warp_of(Fiber& f) { return f.block->warps[f.linear / WARP]; }
inline unsigned lane_of(const Fiber& f) { return f.linear % WARP; }

inline void sleep(State state) {
    now->state = state;
    warp_of(*now).ready &= ~(1u << lane_of(*now));
    yield();
}

inline void wake(Fiber& f) {
    f.state = State::ready;
    warp_of(f).ready |= 1u << lane_of(f);
}

inline void shuffle_order() {
    auto& order = launch->order;
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[draw() % i]);
}

// Another thread's turn, if the seed says so: between any two accesses.
inline void maybe_switch() {
    if (--launch->until_switch > 0) return;
    launch->until_switch = 1 + int(draw() % 1500);
    shuffle_order();
    yield();
}

// This thread looks for something that another has to write: everybody else first.
inline void poll() {
    warp_of(*now).polling |= 1u << lane_of(*now);
    sleep(State::polling);
}

}  // namespace hostgpu
