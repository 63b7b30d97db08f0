// A GPU on the CPU: one fiber a thread, so that the text of a kernel runs where there is no GPU.
//
// The order in which threads run is hostile on purpose. Fair turns do not find a missing barrier; here the
// scheduler draws an order of the warps from a seed, lets the first run as far as it can, and starves the rest until
// it has to wait; and it draws again at every barrier. Shared memory begins as NaN. What is wrong with a launch
// (a barrier that not all reach, a shuffle that names a lane which has left, an access outside a buffer) ends it
// with a message.
#pragma once
#include <csetjmp>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <ucontext.h>
#include <vector>

struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x = 1, y = 1, z = 1; };

extern "C" {  // the linker knows where a section begins and ends
extern char __start_hostgpu_shared[] __attribute__((weak));
extern char __stop_hostgpu_shared[] __attribute__((weak));
}

namespace hostgpu {

constexpr unsigned WARP = 32;
constexpr size_t STACK_BYTES = 128 << 10;

enum class State { ready, at_barrier, at_grid_barrier, at_exchange, done };

// Lanes of one warp that exchange values under one mask. Two sets of slots are enough: nobody begins the exchange
// after the next before everybody has read this one.
struct Exchange {
    unsigned mask = 0, arrived = 0, round = 0;
    uint64_t slots[2][WARP];
};

struct Warp {
    std::vector<Exchange> exchanges;
};

struct Block {
    uint3 index;
    unsigned waiting = 0, done = 0;
    std::vector<Warp> warps;
    std::vector<char> dynamic_shared, static_shared;
};

struct Fiber {
    ucontext_t first;
    jmp_buf where;
    char* stack = nullptr;
    bool started = false;
    State state = State::done;
    Block* block = nullptr;
    unsigned linear = 0;
    uint3 thread;
    Exchange* exchange = nullptr;
    unsigned round = 0;
};

struct Launch {
    dim3 grid, block;
    size_t shared_bytes = 0;
    uint64_t random = 1;
    bool cooperative = false;
    void (*kernel)(void**) = nullptr;
    void** arguments = nullptr;
    std::vector<Fiber> fibers;
    std::vector<Block> blocks;
    unsigned at_grid_barrier = 0;
    jmp_buf scheduler;
    sigjmp_buf failed;
    char* message = nullptr;
    size_t message_size = 0;
};

inline Launch* launch = nullptr;
inline Fiber* now = nullptr;

inline uint64_t draw() {  // xorshift64*
    uint64_t& r = launch->random;
    r ^= r >> 12; r ^= r << 25; r ^= r >> 27;
    return r * 2685821657736338717ull;
}

[[noreturn]] inline void fail(const char* format, ...) {
    va_list rest;
    va_start(rest, format);
    int n = 0;
    if (now)
        n = snprintf(launch->message, launch->message_size, "block (%u, %u, %u), thread (%u, %u, %u): ",
                     now->block->index.x, now->block->index.y, now->block->index.z, now->thread.x, now->thread.y,
                     now->thread.z);
    vsnprintf(launch->message + n, launch->message_size - n, format, rest);
    va_end(rest);
    siglongjmp(launch->failed, 1);
}

// Gives the CPU back to the scheduler; returns when it is this thread's turn again.
inline void yield() {
    if (!_setjmp(now->where)) _longjmp(launch->scheduler, 1);
}

inline unsigned threads_of_block() { return launch->block.x * launch->block.y * launch->block.z; }

inline void barrier() {
    Block& b = *now->block;
    if (b.done) fail("reached a barrier that %u threads of the block never will: they have returned", b.done);
    now->state = State::at_barrier;
    ++b.waiting;
    yield();
}

inline void grid_barrier() {
    if (!launch->cooperative) fail("a barrier of the whole grid in a launch that is not cooperative");
    now->state = State::at_grid_barrier;
    ++launch->at_grid_barrier;
    yield();
}

// What every lane of `mask` brings, once all of them have come: the value that `source` brought.
inline uint64_t exchange(unsigned mask, uint64_t value, unsigned source, uint64_t (*brought)[WARP] = nullptr) {
    unsigned lane = now->linear % WARP;
    if (!(mask >> lane & 1)) fail("lane %u exchanges under mask %08x, which does not name it", lane, mask);
    if (!(mask >> source & 1)) fail("lane %u reads from lane %u, which mask %08x does not name", lane, source, mask);
    unsigned first = now->linear - lane;
    for (unsigned peer = 0; peer < WARP; ++peer)
        if (mask >> peer & 1) {
            if (first + peer >= threads_of_block()) fail("mask %08x names lane %u, which does not exist", mask, peer);
            if (launch->fibers[now - launch->fibers.data() - lane + peer].state == State::done)
                fail("mask %08x names lane %u, which has returned", mask, peer);
        }
    auto& all = now->block->warps[now->linear / WARP].exchanges;
    Exchange* e = nullptr;
    for (auto& exchange : all)
        if (exchange.mask == mask) e = &exchange;
    if (!e) {
        if (all.size() == all.capacity()) fail("more than %zu masks in one warp", all.capacity());
        all.emplace_back();
        e = &all.back();
        e->mask = mask;
    }
    unsigned round = e->round;
    e->slots[round & 1][lane] = value;
    if (++e->arrived == unsigned(__builtin_popcount(mask))) {
        e->arrived = 0;
        ++e->round;
    } else {
        now->state = State::at_exchange;
        now->exchange = e;
        now->round = round;
        yield();
    }
    if (brought) memcpy(*brought, e->slots[round & 1], sizeof *brought);
    return e->slots[round & 1][source];
}

inline char* dynamic_shared() { return now->block->dynamic_shared.data(); }

// The scheduler ---------------------------------------------------------------------------------------------

inline size_t static_bytes() { return size_t(__stop_hostgpu_shared - __start_hostgpu_shared); }

inline void begin(Block& b, uint3 index, Fiber* fibers) {
    unsigned threads = threads_of_block();
    b.index = index;
    b.waiting = b.done = 0;
    b.warps.assign((threads + WARP - 1) / WARP, Warp());
    for (auto& w : b.warps) w.exchanges.reserve(64);
    b.dynamic_shared.assign(launch->shared_bytes + 16, char(0xff));  // NaN: nobody may read what nobody wrote
    b.static_shared.assign(static_bytes(), char(0xff));
    for (unsigned i = 0; i < threads; ++i) {
        Fiber& f = fibers[i];
        f.block = &b;
        f.linear = i;
        f.thread = {i % launch->block.x, i / launch->block.x % launch->block.y,
                    i / (launch->block.x * launch->block.y)};
        f.state = State::ready;
    }
}

inline void live() {  // a fiber's whole life: one thread of one block after the peer
    for (;;) {
        launch->kernel(launch->arguments);
        now->state = State::done;
        ++now->block->done;
        if (now->block->waiting)
            fail("returned while %u threads of its block wait at a barrier", now->block->waiting);
        yield();
    }
}

inline void run(Fiber& f) {
    now = &f;
    if (_setjmp(launch->scheduler) == 0) {
        if (f.started) _longjmp(f.where, 1);
        f.started = true;
        setcontext(&f.first);
    }
    now = nullptr;
}

inline bool can_run(Fiber& f) {
    if (f.state == State::at_exchange && f.exchange->round != f.round) f.state = State::ready;
    return f.state == State::ready;
}

// Whose static shared memory is in place. (A `static` array is one for all blocks, so it is carried in and out.)
inline Block* resident = nullptr;

inline void place(Block& b) {
    if (resident == &b) return;
    if (resident) memcpy(resident->static_shared.data(), __start_hostgpu_shared, static_bytes());
    memcpy(__start_hostgpu_shared, b.static_shared.data(), static_bytes());
    resident = &b;
}

inline void shuffle(std::vector<unsigned>& order) {
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[draw() % i]);
}

inline void finish(size_t blocks) {
    unsigned threads = threads_of_block();
    unsigned warps = (threads + WARP - 1) / WARP;
    std::vector<unsigned> order(blocks * warps), lanes(WARP);
    for (unsigned i = 0; i < order.size(); ++i) order[i] = i;
    for (unsigned i = 0; i < WARP; ++i) lanes[i] = i;
    shuffle(order);
    for (;;) {
        // The first warp that can run does, until it has to wait; only then the next gets its turn.
        bool any = false;
        for (unsigned w : order) {
            Fiber* block_fibers = &launch->fibers[w / warps * threads];
            unsigned first = w % warps * WARP;
            shuffle(lanes);
            for (unsigned lane : lanes) {
                if (first + lane >= threads || !can_run(block_fibers[first + lane])) continue;
                place(*block_fibers->block);
                run(block_fibers[first + lane]);
                any = true;
            }
            if (any) break;
        }
        if (any) continue;
        bool released = false;
        size_t done = 0;
        for (size_t k = 0; k < blocks; ++k) {
            Block& b = launch->blocks[k];
            done += b.done;
            if (b.waiting && b.waiting == threads) {
                b.waiting = 0;
                for (unsigned i = 0; i < threads; ++i) launch->fibers[k * threads + i].state = State::ready;
                released = true;
            }
        }
        if (launch->at_grid_barrier && launch->at_grid_barrier == blocks * threads) {
            launch->at_grid_barrier = 0;
            for (auto& f : launch->fibers) f.state = State::ready;
            released = true;
        }
        if (released) {
            shuffle(order);
            continue;
        }
        if (done == blocks * threads) return;
        for (auto& f : launch->fibers)
            if (f.state != State::done) {
                now = &f;
                fail("waits for ever at %s", f.state == State::at_exchange ? "an exchange that lanes of its mask "
                                                                             "never reach" : "a barrier");
            }
    }
}

inline uintptr_t fault_address = 0;

inline void on_fault(int signal, siginfo_t* info, void*) {
    fault_address = uintptr_t(info->si_addr);
    siglongjmp(launch->failed, signal == SIGILL ? 3 : 2);  // SIGILL: the compiler's check of an address
}

struct FaultHandler {
    struct sigaction segv, bus, ill;
    stack_t before;
    std::vector<char> stack = std::vector<char>(64 << 10);
    FaultHandler() {
        stack_t own = {};
        own.ss_sp = stack.data();
        own.ss_size = stack.size();
        sigaltstack(&own, &before);
        struct sigaction action = {};
        action.sa_sigaction = on_fault;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigaction(SIGSEGV, &action, &segv);
        sigaction(SIGBUS, &action, &bus);
        sigaction(SIGILL, &action, &ill);
    }
    ~FaultHandler() {
        sigaction(SIGSEGV, &segv, nullptr);
        sigaction(SIGBUS, &bus, nullptr);
        sigaction(SIGILL, &ill, nullptr);
        sigaltstack(&before, nullptr);
    }
};

// 0, or 1 with a message, or 2 with the address of a bad access, or 3 for one that is not aligned.
inline int start(Launch& l, uintptr_t* address) {
    launch = &l;
    resident = nullptr;
    unsigned threads = threads_of_block();
    size_t blocks = size_t(l.grid.x) * l.grid.y * l.grid.z, together = l.cooperative ? blocks : 1;
    l.fibers.resize(together * threads);
    l.blocks.resize(together);
    static std::vector<char*> stacks;  // kept from launch to launch
    while (stacks.size() < l.fibers.size())
        stacks.push_back(static_cast<char*>(mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE,
                                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)));
    for (size_t i = 0; i < l.fibers.size(); ++i) {
        Fiber& f = l.fibers[i];
        getcontext(&f.first);
        f.first.uc_stack.ss_sp = stacks[i];
        f.first.uc_stack.ss_size = STACK_BYTES;
        f.first.uc_link = nullptr;
        makecontext(&f.first, live, 0);
    }
    FaultHandler handler;
    int outcome = sigsetjmp(l.failed, 1);
    if (outcome == 0) {
        for (size_t k = 0; k < blocks; k += together) {
            for (size_t b = 0; b < together; ++b) {
                size_t i = k + b;
                uint3 index = {unsigned(i % l.grid.x), unsigned(i / l.grid.x % l.grid.y),
                               unsigned(i / (size_t(l.grid.x) * l.grid.y))};
                begin(l.blocks[b], index, &l.fibers[b * threads]);
            }
            resident = nullptr;
            finish(together);
        }
    } else if (outcome == 2) {
        *address = fault_address;
    }
    launch = nullptr;
    now = nullptr;
    return outcome;
}

}  // namespace hostgpu
