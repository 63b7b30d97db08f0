// Blocks of a cluster: pushes into each other's shared memory, signals that count them, a barrier for all.
//
// A push is checked when it is made, as a store by the thread that makes it, and lands later, in an order that the seed
// decides; its signal's phase ends only when all bytes have landed. Reading what was pushed needs a wait at the signal. Who
// waits learns what the pushing blocks did before their last barriers.
#pragma once
#include "order.h"

namespace hostgpu {

struct SignalState {
    uintptr_t address;
    uint32_t block, epoch, thread;  // who made it, and when
    uint32_t phase = 0;             // phases that have ended
    bool armed = false;             // whether this phase's bytes are known
    int64_t missing = 0;            // bytes; below zero where they come before they are expected
    View told, known;               // of the pushes of this phase, and of the last one
};
inline std::vector<SignalState> signals;

struct Pushed {
    uintptr_t address;
    size_t bytes;
    char value[16];
    uint32_t block, signal;
};
inline std::vector<Pushed> on_the_way;

inline unsigned cluster_size() { return launch->request->cluster; }
inline Block* first_of_cluster(const Block& b) { return blocks.data() + b.slot / cluster_size() * cluster_size(); }

inline SignalState& signal_at(uintptr_t address, const Block& b) {
    for (SignalState& s : signals)
        if (s.address == address && s.block == b.number) return s;
    fail("a signal that its block has not made");
}

// The same place in another block of the cluster.
inline uintptr_t address_in(const void* own, Block& b) {
    Block& mine = *now->block;
    for (size_t k = 0; k < mine.placed.size(); ++k) {
        const uintptr_t first = uintptr_t(mine.placed[k].memory), bytes = (mine.cells[k].size() - 1) * 4;
        if (uintptr_t(own) - first >= std::max<size_t>(bytes, 1)) continue;
        for (const Placed& p : b.placed)
            if (p.site == mine.placed[k].site) return uintptr_t(p.memory) + (uintptr_t(own) - first);
        fail("a push to '%s' of a block that has not reached its declaration", mine.placed[k].site->name);
    }
    fail("a push to an address that is not in shared memory");
}

// What the thread that pushes overwrites must have been read, by threads that are known to have gone on.
inline void check_push(uintptr_t address, size_t bytes, uint32_t signal, uint32_t phase) {
    const Mapping* m = mapping_of(address);
    if (!m || address < m->begin || address + bytes > m->end) fail_outside({address, bytes, true, false, false}, m);
    if (address % bytes) fail("shared memory '%s': a push that is not aligned", m->name);
    const uint64_t mine = record(*now, true, false, 15);
    Cell* c = m->cells + (address - m->start()) / 4;
    size_t unread = 0;
    for (uintptr_t word = address; word < address + bytes; word += 4, ++c) {
        if (c->writer != PUSHED) {
            if (in_conflict(c->write, mine, *m)) fail_race("a push over what was stored by", c->write, mine, *m, word);
        } else {
            unread += !c->reads[0];
        }
        for (uint64_t read : c->reads)
            if (in_conflict(read, mine, *m)) fail_race("a push over what is read by", read, mine, *m, word);
        c->write = push_record(signal, phase);
        c->writer = PUSHED;
        c->reads[0] = c->reads[1] = 0;
    }
    if (unread == bytes / 4)
        fail("shared memory '%s' at byte %td: a push over one of which nobody has read anything", m->name, ptrdiff_t(address - m->begin));
}

inline void end_phase_if_complete(SignalState& s) {
    if (!s.armed || s.missing != 0) return;
    for (const Pushed& p : on_the_way)
        if (p.signal == uint32_t(&s - signals.data()))
            fail("a phase of a signal ends while a push to '%s' is on its way: too few bytes are expected", mapping_of(p.address)->name);
    ++s.phase;
    ++launch->progress;
    s.armed = false;
    s.known = s.told;
    s.told.clear();
}

inline void land(size_t i) {
    const Pushed p = on_the_way[i];
    on_the_way.erase(on_the_way.begin() + ptrdiff_t(i));
    memcpy(reinterpret_cast<void*>(p.address), p.value, p.bytes);
    ++launch->progress;
    SignalState& s = signals[p.signal];
    s.missing -= int64_t(p.bytes);
    end_phase_if_complete(s);
}

inline void land_one() {
    if (!on_the_way.empty()) land(draw() % on_the_way.size());
}

// Now and then, while others run.
inline void land_some() {
    while (!on_the_way.empty() && draw() % 4 == 0) land_one();
}

inline void check_end(const Block& b) {
    for (const Pushed& p : on_the_way)
        if (p.block == b.number) fail("its block has ended while a push to '%s' was on its way", mapping_of(p.address)->name);
}

inline void release_cluster(Block* first) {
    View all;
    for (unsigned k = 0; k < cluster_size(); ++k) {
        first[k].waiting_for_cluster = 0;
        order_by_barrier(first[k]);
        all.learn_block(first[k].number, first[k].epoch[0]);
    }
    launch->views = any_view = true;
    for (unsigned k = 0; k < cluster_size(); ++k)
        for (unsigned i = 0; i < launch->threads; ++i) {
            first[k].fibers[i].view.learn(all);
            wake(first[k].fibers[i]);
        }
    shuffle_order();
}

}  // namespace hostgpu
