// Who runs next.
//
// The order is hostile on purpose: the scheduler draws an order of the warps of all resident blocks from a seed, lets
// the first that can run go on until it has to wait, and starves the rest; it draws again at every barrier, and now and
// then between two accesses. Which blocks are resident, and how many, the seed decides too.
#pragma once
#include "cluster.h"

namespace hostgpu {

constexpr size_t STACK_BYTES = 128 << 10;
constexpr size_t MOST_RESIDENT = 8, MOST_FIBERS = 1024;
constexpr int PATIENCE = 200;  // rounds in which all wait for a flag and nothing changes

inline void release(Block& b) {
    b.waiting = 0;
    order_by_barrier(b);
    b.ordered = EVERYWHERE;
    for (unsigned i = 0; i < launch->threads; ++i) wake(b.fibers[i]);
    shuffle_order();
}

inline void end(Block& b) {
    check_end(b);
    clear_shared(b);
    b.active = false;
    ++launch->progress;
}

inline void begin(Block& b, uint32_t number) {
    b.number = number;
    const uint3 grid = launch->grid;
    b.index = {b.number % grid.x, b.number / grid.x % grid.y, b.number / grid.x / grid.y};
    b.waiting = b.waiting_for_cluster = b.done = 0;
    b.ordered = EVERYWHERE;
    b.epoch[0] = b.epoch[1] = 0;
    b.active = true;
    b.warps.resize(launch->warps);
    for (Warp& w : b.warps) {
        const unsigned before = unsigned(&w - b.warps.data()) * WARP, lanes = std::min(launch->threads - before, WARP);
        w.ready = w.polling = w.returned = 0;
        w.present = lanes == WARP ? ~0u : (1u << lanes) - 1;
        w.exchanges.clear();
        w.exchanges.reserve(64);
    }
    for (unsigned i = 0; i < launch->threads; ++i) {
        Fiber& f = b.fibers[i];
        f.block = &b;
        f.linear = i;
        f.number = b.number * launch->threads + i;
        f.thread = {i % launch->block.x, i / launch->block.x % launch->block.y,
                    i / (launch->block.x * launch->block.y)};
        f.clock = 1;
        f.synced = 0;
        if (any_view) f.view.clear(), f.fenced.clear(), f.pending.clear();
        wake(f);
    }
}

// The next blocks that have not begun, in the place of `first` and, in a cluster, those behind it.
inline void begin_next(Block* first) {
    const uint32_t number = launch->sequence[launch->next++];
    for (unsigned k = 0; k < cluster_size(); ++k) begin(first[k], number * cluster_size() + k);
}

inline void live() {  // a fiber's whole life: one thread of one block after the other
    for (;;) {
        launch->request->kernel(launch->values.data());
        Block& b = *now->block;
        ++b.done;
        ++launch->progress;
        warp_of(*now).returned |= 1u << lane_of(*now);
        if (b.waiting || b.waiting_for_cluster)
            fail("returned while %u threads of its block wait at a barrier", b.waiting + b.waiting_for_cluster);
        sleep(State::done);
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

inline void run_warp(Block& b, Warp& warp, Fiber* first_lane) {
    const unsigned chosen = warp.ready, start = unsigned(draw()), step = unsigned(draw()) | 1;
    for (unsigned i = 0; i < WARP; ++i) {
        const unsigned lane = (start + i * step) % WARP;
        if (chosen & warp.ready & 1u << lane) run(first_lane[lane]);
    }
}

// Lets everybody look again at the flags that they wait for; false if nobody waits for one.
inline bool look_again(int& rounds, uint64_t& progress) {
    bool any = false;
    for (Block& b : blocks)
        for (unsigned i = 0; b.active && i < launch->threads; ++i)
            if (b.fibers[i].state == State::polling) {
                b.warps[i / WARP].polling = 0;
                wake(b.fibers[i]);
                any = true;
            }
    rounds = progress == launch->progress ? rounds + 1 : 0;
    progress = launch->progress;
    land_one();
    shuffle_order();
    return any;
}

// A thread that waits for a flag or in an exchange is what keeps those at a barrier.
[[noreturn]] inline void fail_stuck() {
    for (const bool at_barrier : {false, true})
        for (Block& b : blocks)
            for (unsigned i = 0; b.active && i < launch->threads; ++i) {
                const State state = b.fibers[i].state;
                const bool waits = state == State::at_barrier || state == State::at_cluster_barrier;
                if (state == State::done || at_barrier != waits)
                    continue;
                now = &b.fibers[i];
                fail("waits for ever at %s", at_barrier ? "a barrier" : state == State::at_exchange
                     ? "an exchange that lanes of its mask never reach"
                     : "a flag that nobody writes (a block that has not begun cannot)");
            }
    fail("waits for ever");
}

inline void run_all() {
    size_t active = blocks.size();
    int rounds = 0;
    uint64_t progress = 0;
    for (size_t k = 0; k < blocks.size(); k += cluster_size()) begin_next(&blocks[k]);
    while (active) {
        land_some();
        Block* running = nullptr;
        for (unsigned w : launch->order) {
            Block& b = blocks[w / launch->warps];
            Warp& warp = b.warps[w % launch->warps];
            if (!b.active || !warp.ready) continue;
            run_warp(b, warp, b.fibers + w % launch->warps * WARP);
            running = &b;
            break;
        }
        if (!running) {
            if ((!look_again(rounds, progress) && on_the_way.empty()) || rounds > PATIENCE) fail_stuck();
            continue;
        }
        if (running->done < launch->threads) continue;
        end(*running);
        --active;
        Block* first = first_of_cluster(*running);
        const bool all_ended = std::none_of(first, first + cluster_size(), [](const Block& b) { return b.active; });
        if (!all_ended || launch->next == launch->sequence.size()) continue;
        begin_next(first);
        active += cluster_size();
    }
}

// Fibers and their stacks, allocated at once, are kept from launch to launch.
inline Fiber* fibers = nullptr;
inline size_t fibers_made = 0;
constexpr size_t FIBERS = 1 << 16;

inline void start_anew(Fiber& f) {
    getcontext(&f.first);
    f.first.uc_stack.ss_sp = f.stack;
    f.first.uc_stack.ss_size = STACK_BYTES;
    f.first.uc_link = nullptr;
    makecontext(&f.first, live, 0);
    f.started = false;
}

inline void make_fibers(size_t count) {
    if (count > FIBERS) fail("expected at most %zu threads at once, found %zu", FIBERS, count);
    if (!fibers) fibers = static_cast<Fiber*>(reserve(FIBERS * sizeof(Fiber), PROT_READ | PROT_WRITE));
    for (; fibers_made < count; ++fibers_made) {
        Fiber* f = new (fibers + fibers_made) Fiber();
        f->stack = static_cast<char*>(reserve(STACK_BYTES, PROT_READ | PROT_WRITE));
        start_anew(*f);
    }
}

inline void prepare() {
    Launch& l = *launch;
    const size_t count = size_t(l.grid.x) * l.grid.y * l.grid.z;
    if (count * l.threads >= 1 << 24) fail("expected at most 2^24 threads, found %zu", count * l.threads);
    const size_t size = l.request->cluster, clusters = count / size;  // a block alone is a cluster of one
    size_t together = clusters;
    if (!l.request->cooperative)
        together = std::min({clusters, size_t(1 + draw() % MOST_RESIDENT), std::max<size_t>(MOST_FIBERS / l.threads / size, 1)});
    const size_t resident = together * size;
    if (resident > ARENAS) fail("expected at most %zu blocks at once, found %zu", ARENAS, resident);
    make_fibers(resident * l.threads);
    l.sequence.resize(clusters);
    for (size_t i = 0; i < clusters; ++i) l.sequence[i] = uint32_t(i);
    for (size_t i = clusters; i > 1; --i) std::swap(l.sequence[i - 1], l.sequence[draw() % i]);
    l.order.resize(resident * l.warps);
    for (size_t i = 0; i < l.order.size(); ++i) l.order[i] = unsigned(i);
    shuffle_order();
    blocks.resize(resident);
    for (size_t k = 0; k < resident; ++k) {
        blocks[k].slot = uint32_t(k);
        blocks[k].fibers = fibers + k * l.threads;
    }
}

}  // namespace hostgpu
