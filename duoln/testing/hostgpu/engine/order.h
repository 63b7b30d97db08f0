// Which access is ordered after which: every access to memory that two threads share needs it.
//
// Of each four bytes a cell keeps the last write and the last reads of two threads, each as thread, epoch (barriers of
// its block before it), clock (fences of the thread before it) and which of the bytes. An access is ordered after
// another one if a barrier of their block lies between them, a barrier of their warp, or a chain of a fence, a flag
// (volatile or atomic), and a fence. Two accesses of different threads, one of them a store, without order are an error,
// unless both are volatile or atomic.
#pragma once
#include "memory.h"

namespace hostgpu {

struct Access {
    uintptr_t address;
    size_t bytes;
    bool write, strong, read_only;
};

// A record: 24 bits thread, 18 epoch, 16 clock, 4 bytes of the word, strong, valid.
constexpr uint64_t VALID = 1, STRONG = 2;
inline uint64_t record(const Fiber& f, bool shared, bool strong, unsigned bytes) {
    return uint64_t(f.number) << 40 | uint64_t(f.block->epoch[shared ? 0 : 1]) << 22 | uint64_t(f.clock) << 6 |
           uint64_t(bytes) << 2 | (strong ? STRONG : 0) | VALID;
}
inline uint32_t thread_of(uint64_t r) { return uint32_t(r >> 40); }
inline uint32_t epoch_of(uint64_t r) { return uint32_t(r >> 22) & 0x3ffff; }
inline uint32_t clock_of(uint64_t r) { return uint32_t(r >> 6) & 0xffff; }
inline unsigned bytes_of(uint64_t r) { return unsigned(r >> 2) & 15; }

// What was pushed into shared memory (cluster.h): the signal that counts it, and the phase that it belongs to.
constexpr uint16_t PUSHED = 0xfffe;
inline uint64_t push_record(uint32_t signal, uint32_t phase) { return uint64_t(signal) << 32 | phase; }

inline bool is_ordered(uint64_t r, const Mapping& m) {
    const uint32_t thread = thread_of(r), block = thread / launch->threads;
    if (block == now->block->number) {
        if (epoch_of(r) < now->block->epoch[m.shared ? 0 : 1]) return true;
        if (thread % launch->threads / WARP == now->linear / WARP && clock_of(r) < now->synced) return true;
    }
    return launch->views && now->view.knows(block, thread, epoch_of(r), clock_of(r));
}

inline bool in_conflict(uint64_t earlier, uint64_t mine, const Mapping& m) {
    return earlier & VALID && thread_of(earlier) != thread_of(mine) && bytes_of(earlier) & bytes_of(mine) &&
           !(earlier & mine & STRONG) && !is_ordered(earlier, m);
}

[[noreturn]] inline void fail_race(const char* what, uint64_t earlier, uint64_t mine, const Mapping& m, uintptr_t address) {
    const uint32_t thread = thread_of(earlier) % launch->threads, block = thread_of(earlier) / launch->threads;
    const bool same = block == now->block->number;
    const char* how = same ? "no barrier between them" : (earlier | mine) & STRONG
        ? "one of them is neither volatile nor atomic, and no fence and flag order them"
        : "no fence and flag order them";
    fail("%s '%s' at byte %td: %s thread %u of %s %u: a race, %s", m.shared ? "shared memory" : "argument", m.name,
         ptrdiff_t(address - m.begin), what, thread, same ? "its own block" : "block", block, how);
}

[[noreturn]] inline void fail_outside(const Access& a, const Mapping* m) {
    if (!m) m = nearest(a.address);
    if (!m) fail("%s of %zu bytes that belong to no array", a.write ? "a store" : "a load", a.bytes);
    fail("%s '%s': an access %td bytes from its start; it has %td", m->shared ? "shared memory" : "argument", m->name,
         ptrdiff_t(a.address - m->begin), ptrdiff_t(m->end - m->begin));
}

// Arguments that overlap: what is written through one may not be accessed through another that is __restrict__.
inline void check_restrict(Cell& c, const Access& a, const Mapping& m) {
    const uint16_t me = owners[(a.address - window) / PAGE];
    for (uint16_t through : {c.writer, a.write ? c.reader : uint16_t(0)}) {
        if (!through || through == me || !((m.flags | mappings[through].flags) & RESTRICT)) continue;
        const Mapping& written = a.write ? m : mappings[through];
        const Mapping& accessed = a.write ? mappings[through] : m;
        const bool cached = accessed.flags & CONSTANT && accessed.flags & RESTRICT;
        fail("argument '%s' is %s while argument '%s', which overlaps it, is written", accessed.name,
             cached ? "read through the read-only path (const __restrict__)" : "accessed (__restrict__)", written.name);
    }
    if (a.write) c.writer = me;
    else if (!c.reader || m.flags & RESTRICT) c.reader = me;
}

// What the read-only path has read nobody may store in the same launch.
inline void check_read_only(Cell& c, const Access& a, const Mapping& m) {
    constexpr uint16_t BY_LDG = 0xffff;
    if (a.read_only) c.reader = BY_LDG;
    if (a.write) c.writer = 1;
    if (c.writer && c.reader == BY_LDG)
        fail("argument '%s': __ldg reads through the read-only path what is stored in the same launch", m.name);
}

// Whether this thread, or one that it has met at a barrier, has waited for the phase of a push.
inline void check_waited(const Cell& c, const Mapping& m, uintptr_t word) {
    const uint32_t signal = uint32_t(c.write >> 32), phase = uint32_t(c.write);
    const std::vector<uint32_t>& ended = now->view.phases;
    if (signal >= ended.size() || ended[signal] <= phase)
        fail("shared memory '%s' at byte %td: an access to what was pushed, without a wait at its signal", m.name,
             ptrdiff_t(word - m.begin));
}

inline void check_word(Cell& c, const Access& a, const Mapping& m, uint64_t mine, uintptr_t word) {
    if (m.shared && c.writer == PUSHED) check_waited(c, m, word);
    else if (in_conflict(c.write, mine, m)) fail_race(a.write ? "a store after one by" : "a load of what was stored by", c.write,
                                                 mine, m, word);
    if (a.write) {
        for (uint64_t read : c.reads)
            if (in_conflict(read, mine, m)) fail_race("a store after a load by", read, mine, m, word);
        c.write = mine;
        if (m.shared) c.writer = 0;
        c.reads[0] = c.reads[1] = 0;
    } else {
        if (c.reads[0] && thread_of(c.reads[0]) != now->number) c.reads[1] = c.reads[0];
        c.reads[0] = mine;
    }
}

inline void check_order(const Access& a, const Mapping& m) {
    const uintptr_t last = a.address + a.bytes;
    const uint64_t of_no_byte = record(*now, m.shared, a.strong, 0);
    Cell* c = m.cells + ((a.address & ~uintptr_t(3)) - m.start()) / 4;
    for (uintptr_t word = a.address & ~uintptr_t(3); word < last; word += 4, ++c) {
        unsigned bytes = 15;
        if (word < a.address) bytes &= 15u << (a.address - word);
        if (word + 4 > last) bytes &= 15u >> (word + 4 - last);
        if (m.overlaps) check_restrict(*c, a, m);
        else if (!m.shared && (a.write || a.read_only)) check_read_only(*c, a, m);
        check_word(*c, a, m, of_no_byte | bytes << 2, word);
    }
}

// Every access of a kernel comes here before it happens.
inline const Mapping* check(const Access& a) {
    const Mapping* m = mapping_of(a.address);
    if (!m || a.address < m->begin || a.address + a.bytes > m->end) fail_outside(a, m);
    if (a.write && m->flags & CONSTANT) fail("argument '%s': a store through a pointer to const", m->name);
    check_order(a, *m);
    return m;
}

// Flags ------------------------------------------------------------------------------------------------------

inline std::unordered_map<const Cell*, View> flags;  // of each: what its writers had fenced

inline const Cell* cell_of(uintptr_t address) {
    const Mapping& m = *mapping_of(address);
    return m.cells + (address - m.start()) / 4;
}

inline void read_flag(uintptr_t address) {
    if (flags.empty()) return;
    const auto known = flags.find(cell_of(address));
    if (known != flags.end()) now->pending.learn(known->second);
}

// What was fenced before a flag is written comes with it; an atomic adds to what others gave it.
inline void write_flag(uintptr_t address, bool adds) {
    if (now->fenced.empty() && flags.empty()) return;
    View& told = flags[cell_of(address)];
    if (!adds) told.clear();
    told.learn(now->fenced);
}

inline void grow_clock(Fiber& f, uint32_t clock) {
    if (clock > 0xffff) fail("more than 65535 fences and warp barriers in a thread");
    f.clock = clock;
}

inline void order_by_fence() {
    launch->views = any_view = true;
    now->view.learn(now->pending);
    now->pending.clear();
    grow_clock(*now, now->clock + 1);
    now->fenced = now->view;
    now->fenced.learn_block(now->block->number, now->block->epoch[1]);
    now->fenced.learn_thread(now->number, now->clock);
}

// Everybody of a block knows what one of them knows.
inline void order_by_barrier(Block& b) {
    for (unsigned space = 0; space < 2; ++space)
        if (b.ordered >> space & 1 && ++b.epoch[space] > 0x3ffff) fail("more than 262143 barriers in a block");
    if (!launch->views) return;
    View all;
    for (unsigned i = 0; i < launch->threads; ++i) all.learn(b.fibers[i].view);
    if (all.empty()) return;
    for (unsigned i = 0; i < launch->threads; ++i) b.fibers[i].view = all;
}

// The lanes of a warp that wait for each other: `clock` is larger than that of each of them.
inline void order_by_warp(Fiber& first_lane, unsigned mask) {
    uint32_t clock = 0;
    View all;
    for (unsigned lane = 0; lane < WARP; ++lane)
        if (mask >> lane & 1) {
            clock = std::max(clock, (&first_lane)[lane].clock + 1);
            if (launch->views) all.learn((&first_lane)[lane].view);
        }
    for (unsigned lane = 0; lane < WARP; ++lane)
        if (mask >> lane & 1) {
            Fiber& f = (&first_lane)[lane];
            grow_clock(f, clock);
            f.synced = clock;
            if (!all.empty()) f.view = all;
        }
}

}  // namespace hostgpu
