// The memory of the machine: one window of addresses, in which every argument and every shared array lies apart.
//
// Arrays that overlap share their bytes, as on a device, but each argument sees them at an address of its own: an
// access tells through which argument it goes. An array keeps its address modulo 256. What is left of its pages on
// both sides is NaN, and behind them nothing is mapped.
#pragma once
#include <algorithm>
#include <sys/mman.h>
#include <unistd.h>

#include "state.h"

namespace hostgpu {

struct Mapping {
    uintptr_t begin, end;
    Cell* cells;  // of the word that holds `begin`
    const char* name;
    unsigned flags;
    bool shared, overlaps;
    uintptr_t start() const { return begin & ~uintptr_t(3); }
};

constexpr size_t PAGE = 4096, LINE = 256;
constexpr size_t GAP = 4096;  // pages between two arguments: what is outside of one is not inside another
constexpr size_t ARENA = 4 << 20, ARENAS = 512, SHARED_GAP = 64, WINDOW = size_t(32) << 30;
constexpr int NAN_BYTE = 0xff;

inline uintptr_t window = 0;
inline uint16_t* owners = nullptr;        // of each page: which mapping
inline std::vector<Mapping> mappings(1);  // the first is none
inline size_t used_pages = 0;             // behind the arenas
inline int file = -1;
inline size_t file_pages = 0;
inline pid_t file_of = 0;  // the process that made the file
inline std::vector<Cell> cells;

inline void* reserve(size_t bytes, int protection) {
    void* at = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) {
        now = nullptr;
        fail("expected %zu bytes of address space, found none", bytes);
    }
    return at;
}

inline void open_window() {
    if (file_of != getpid()) {  // a child that was forked shares its parent's file, but not its launches
        file = memfd_create("hostgpu", MFD_CLOEXEC);
        file_pages = 0;
        file_of = getpid();
    }
    if (window) return;
    owners = static_cast<uint16_t*>(reserve(WINDOW / PAGE * sizeof *owners, PROT_READ | PROT_WRITE));
    window = uintptr_t(reserve(WINDOW, PROT_NONE));
    mprotect(reinterpret_cast<void*>(window), ARENA * ARENAS, PROT_READ | PROT_WRITE);
}

inline Mapping* mapping_of(uintptr_t address) {
    const uint16_t owner = owners[(address - window) / PAGE];
    return owner ? &mappings[owner] : nullptr;
}

// The array that lies closest to an address.
inline const Mapping* nearest(uintptr_t address) {
    const Mapping* closest = nullptr;
    uintptr_t least = ~uintptr_t(0);
    for (const Mapping& m : mappings) {
        const uintptr_t distance = address < m.begin ? m.begin - address : address >= m.end ? address - m.end : 0;
        if (m.begin && owners[(m.begin - window) / PAGE] == &m - mappings.data() && distance < least)
            least = distance, closest = &m;
    }
    return closest;
}

inline bool in_window(uintptr_t address) { return address - window < WINDOW; }

inline uint16_t own(uintptr_t first, size_t pages, const Mapping& m) {
    if (mappings.size() > 65000) fail("expected at most 65000 arrays at once");
    mappings.push_back(m);
    std::fill_n(owners + (first - window) / PAGE, pages, uint16_t(mappings.size() - 1));
    return uint16_t(mappings.size() - 1);
}

// Arguments that overlap, in one region of memory.
struct Region {
    uintptr_t low, high;  // on the host
    size_t pages, offset, file_page;
    std::vector<unsigned> arguments;
    char* bytes;  // as the first argument sees them
};
inline std::vector<Region> regions;

inline uint64_t mixed(uint64_t a, uint64_t b) {
    uint64_t h = (a + 1) * 0x9E3779B97F4A7C15ull ^ (b + 1) * 0xC2B2AE3D27D4EB4Full;
    h ^= h >> 29, h *= 0xBF58476D1CE4E5B9ull, h ^= h >> 32;
    return h;
}

inline void find_regions(Request& r) {
    std::vector<unsigned> arrays;
    for (unsigned i = 0; i < r.count; ++i)
        if (r.arguments[i].flags & ARRAY) arrays.push_back(i);
    auto low = [&](unsigned i) { return uintptr_t(r.arguments[i].host); };
    std::stable_sort(arrays.begin(), arrays.end(), [&](unsigned a, unsigned b) { return low(a) < low(b); });
    regions.clear();
    for (unsigned i : arrays) {
        const uintptr_t high = low(i) + r.arguments[i].bytes;
        if (regions.empty() || low(i) >= regions.back().high || !r.arguments[i].bytes)
            regions.push_back({low(i), high, 0, 0, 0, {}, nullptr});
        regions.back().high = std::max(regions.back().high, high);
        regions.back().arguments.push_back(i);
    }
    for (size_t k = 0; k < regions.size(); ++k) {
        Region& g = regions[k];
        const size_t size = g.high - g.low, past = g.low % LINE;
        g.pages = std::max<size_t>((past + size + PAGE - 1) / PAGE, 1);
        const bool against_the_end = mixed(r.seed, k) & 1;
        g.offset = past + (against_the_end ? (g.pages * PAGE - size - past) / LINE * LINE : 0);
    }
}

inline void map_argument(Region& g, Argument& a, void** value, Cell* of_region) {
    const uintptr_t page = window + ARENA * ARENAS + (used_pages + GAP) * PAGE;
    used_pages += g.pages + GAP;
    if (page + (g.pages + GAP) * PAGE > window + WINDOW) fail("expected arguments of at most 32 GB in all");
    mmap(reinterpret_cast<void*>(page), g.pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file,
         off_t(g.file_page * PAGE));
    char* region = reinterpret_cast<char*>(page + g.offset);
    const uintptr_t begin = uintptr_t(region) + (uintptr_t(a.host) - g.low);
    Cell* first = of_region + (uintptr_t(a.host) / 4 - g.low / 4);
    own(page, g.pages, {begin, begin + a.bytes, first, a.name, a.flags, false, g.arguments.size() > 1});
    if (!g.bytes) {
        g.bytes = region;
        memset(reinterpret_cast<void*>(page), NAN_BYTE, g.offset);
        memset(region + (g.high - g.low), NAN_BYTE, g.pages * PAGE - g.offset - (g.high - g.low));
    }
    memcpy(reinterpret_cast<void*>(begin), a.host, a.bytes);
    *value = reinterpret_cast<void*>(begin);
}

// Gives `values`, one pointer for each argument: to its number, or to its array's new address.
inline void place(Request& r, std::vector<void*>& addresses, std::vector<void*>& values) {
    mappings.resize(1);
    used_pages = 0;
    find_regions(r);
    size_t pages = 0, words = 0;
    for (Region& g : regions) {
        g.file_page = pages;
        pages += g.pages;
        words += (g.high + 3) / 4 - g.low / 4;
    }
    if (pages > file_pages && ftruncate(file, off_t((file_pages = pages) * PAGE))) fail("no memory for the arguments");
    cells.assign(words, Cell());
    addresses.assign(r.count, nullptr);
    values.assign(r.count, nullptr);
    Cell* next = cells.data();
    for (Region& g : regions) {
        for (unsigned i : g.arguments) map_argument(g, r.arguments[i], &addresses[i], next);
        next += (g.high + 3) / 4 - g.low / 4;
    }
    for (unsigned i = 0; i < r.count; ++i)
        values[i] = r.arguments[i].flags & ARRAY ? static_cast<void*>(&addresses[i]) : r.arguments[i].host;
    // A table, or a structure that begins with one, holds addresses of arrays that are no arguments themselves.
    for (unsigned i = 0; i < r.count; ++i) {
        if (!(r.arguments[i].flags & TABLE)) continue;
        auto* table = static_cast<uint64_t*>(r.arguments[i].flags & ARRAY ? addresses[i] : r.arguments[i].host);
        for (size_t k = 0; k < r.arguments[i].bytes / 8; ++k) {
            if (!table[k]) continue;
            unsigned j = 0;
            while (j < r.count && !(r.arguments[j].flags & REACHABLE && uintptr_t(r.arguments[j].host) == table[k])) ++j;
            if (j == r.count)
                fail("argument '%s': expected addresses of arrays, found %#lx at %zu", r.arguments[i].name, table[k], k);
            table[k] = uint64_t(addresses[j]);
        }
    }
}

inline void check_guards() {
    for (Region& g : regions) {
        const char* page = g.bytes - g.offset;
        const size_t end = g.offset + (g.high - g.low);
        for (size_t i = 0; i < g.pages * PAGE; ++i) {
            if (i == g.offset) i = end;
            if (i < g.pages * PAGE && page[i] != char(NAN_BYTE))
                fail("argument '%s': something was written %s the array", launch->request->arguments[g.arguments[0]].name,
                     i < g.offset ? "before" : "behind");
        }
    }
}

inline void take_back(Request& r, const std::vector<void*>& addresses) {
    for (unsigned i = 0; i < r.count; ++i)
        if (r.arguments[i].flags & ARRAY && !(r.arguments[i].flags & (CONSTANT | TABLE)))
            memcpy(r.arguments[i].host, addresses[i], r.arguments[i].bytes);
}

inline void unmap() {
    mmap(reinterpret_cast<void*>(window + ARENA * ARENAS), used_pages * PAGE, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    for (const Mapping& m : mappings)
        if (m.begin && !m.shared)
            for (uintptr_t page = m.begin / PAGE; page <= m.end / PAGE; ++page) owners[page - window / PAGE] = 0;
    if (file_pages > (64 << 20) / PAGE && !ftruncate(file, 0)) file_pages = 0;
    if (cells.size() > 1 << 20) std::vector<Cell>().swap(cells);  // those of a large launch are a hundred megabytes
    mappings.resize(1);
}

// Shared memory ----------------------------------------------------------------------------------------------

inline void clear_shared(Block& b) {
    std::fill_n(owners + b.slot * ARENA / PAGE, b.arena_used / PAGE, uint16_t(0));
    b.placed.clear();
    b.static_bytes = b.arena_used = 0;
}

inline char* place_shared(Block& b, const Site& site, size_t bytes) {
    const size_t pages = std::max<size_t>((bytes + PAGE - 1) / PAGE, 1), at = b.arena_used + SHARED_GAP * PAGE;
    if (at + (pages + SHARED_GAP) * PAGE > ARENA) fail("shared memory '%s': no block has room for %zu bytes", site.name, bytes);
    const uintptr_t first = window + b.slot * ARENA + at;
    memset(reinterpret_cast<void*>(first), NAN_BYTE, pages * PAGE);
    if (b.cells.size() <= b.placed.size()) b.cells.emplace_back();
    std::vector<Cell>& its_cells = b.cells[b.placed.size()];
    its_cells.assign(bytes / 4 + 1, Cell());
    own(first, pages, {first, first + bytes, its_cells.data(), site.name, 0, true, false});
    b.arena_used = at + pages * PAGE;
    b.placed.push_back({&site, reinterpret_cast<char*>(first)});
    return b.placed.back().memory;
}

}  // namespace hostgpu
