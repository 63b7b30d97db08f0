// Stores that visible blocks see late.
//
// A volatile store without a fence behind it stays with its block for a while: whenever a thread of another block runs,
// memory holds what was there before. The seed decides when it comes out; a fence of the thread, or one that a barrier
// puts behind it, and the end of the launch bring it out at once. (Stores that are not volatile need no such delay: to
// read them without order is an error already.)
#pragma once
#include "order.h"

namespace hostgpu {

struct LateStore {
    uintptr_t address;
    size_t bytes;
    char hidden[16];  // what memory does not hold now: the old value while its block runs, else the new one
    uint32_t block, thread, epoch;
    bool inside;  // whether its block sees it now
};
inline std::vector<LateStore> late;
inline uint32_t seen_by = 0;  // the block whose view memory shows

inline void swap(LateStore& s) {
    char visible[16];
    memcpy(visible, reinterpret_cast<void*>(s.address), s.bytes);
    memcpy(reinterpret_cast<void*>(s.address), s.hidden, s.bytes);
    memcpy(s.hidden, visible, s.bytes);
    s.inside = !s.inside;
}

inline void bring_out_at_place(size_t i) {
    if (!late[i].inside) swap(late[i]);
    late.erase(late.begin() + ptrdiff_t(i));
    ++launch->progress;
}

// Brings out the stores for which `wanted` is true.
template <class F> inline void bring_out(F wanted) {
    for (size_t i = 0; i < late.size();)
        if (wanted(late[i])) bring_out_at_place(i);
        else ++i;
}

// Memory as the threads of a block see it.
inline void show_to(const Block& b) {
    if (late.empty() || seen_by == b.number) return;
    bring_out([](const LateStore&) { return draw() % 64 == 0; });
    for (LateStore& s : late)
        if (s.inside != (s.block == b.number)) swap(s);
    seen_by = b.number;
}

inline void hold_back(uintptr_t address, size_t bytes) {
    for (LateStore& s : late)
        if (s.address == address && s.bytes == bytes && s.block == now->block->number) return;
    LateStore s = {address, bytes, {}, now->block->number, now->number, now->block->epoch[1], true};
    memcpy(s.hidden, reinterpret_cast<void*>(address), bytes);
    late.push_back(s);
    seen_by = now->block->number;
}

// The physical address of a byte: arguments that overlap see it at several.
inline const Cell* word_of(uintptr_t address) { return cell_of(address); }

// Somebody stores there: what was stored before comes first.
inline void bring_out_at(uintptr_t address) {
    if (late.empty()) return;
    bring_out([=](const LateStore& s) {
        return s.block != now->block->number && word_of(s.address) == word_of(address);
    });
}

inline void bring_out_by_fence() {
    bring_out([](const LateStore& s) {
        return s.thread == now->number || (s.block == now->block->number && s.epoch < now->block->epoch[1]);
    });
}

inline void bring_out_one() {
    if (!late.empty()) bring_out_at_place(draw() % late.size());
}

inline void bring_out_all() {
    bring_out([](const LateStore&) { return true; });
}

}  // namespace hostgpu
