// A GPU on the CPU: one fiber a thread, so that the text of a kernel runs where there is no GPU.
//
// state.h has the parts, memory.h where arrays lie, order.h which access needs an order, schedule.h who runs. Here are
// the functions that kernels call, the hooks at their accesses, and a launch.
#include <csignal>

#include "schedule.h"

using namespace hostgpu;

namespace hostgpu {

uint3 thread_index() { return now->thread; }
uint3 block_index() { return now->block->index; }
uint3 block_size() { return launch->block; }
uint3 grid_size() { return launch->grid; }
unsigned linear_index() { return now->linear; }

void barrier(unsigned ordered) {
    Block& b = *now->block;
    if (b.done) fail("reached a barrier that %u threads of the block never will: they have returned", b.done);
    b.ordered &= ordered;
    now->state = State::at_barrier;
    warp_of(*now).ready &= ~(1u << lane_of(*now));
    ++launch->progress;
    if (++b.waiting == launch->threads) release(b);
    yield();
}

int cluster_rank() { return int(now->block->number % cluster_size()); }

void cluster_barrier() {
    Block& b = *now->block;
    Block* first = first_of_cluster(b);
    now->state = State::at_cluster_barrier;
    warp_of(*now).ready &= ~(1u << lane_of(*now));
    ++launch->progress;
    ++b.waiting_for_cluster;
    unsigned waiting = 0;
    for (unsigned k = 0; k < cluster_size(); ++k) waiting += first[k].waiting_for_cluster;
    if (waiting == cluster_size() * launch->threads) release_cluster(first);
    yield();
}

void make_signal(const void* at) {
    const Block& b = *now->block;
    for (const SignalState& s : signals)
        if (s.address == uintptr_t(at) && s.block == b.number) fail("a signal that is made twice");
    signals.push_back({uintptr_t(at), b.number, b.epoch[0], now->number});
}

void expect_at(const void* at, int bytes) {
    maybe_switch();
    SignalState& s = signal_at(uintptr_t(at), *now->block);
    if (s.thread != now->number && s.epoch >= now->block->epoch[0]) fail("a signal that another thread has made, and no barrier since");
    if (s.armed) fail("bytes are expected twice in one phase of a signal");
    s.armed = true;
    s.missing += bytes;
    end_phase_if_complete(s);
}

void wait_at(const void* at, int parity) {
    if (draw() & 1) poll();
    for (;;) {
        SignalState& s = signal_at(uintptr_t(at), *now->block);
        if (s.thread != now->number && s.epoch >= now->block->epoch[0]) fail("a signal that another thread has made, and no barrier since");
        if (int(s.phase & 1) != parity) {
            now->view.learn(s.known);
            now->view.learn_phases(uint32_t(&s - signals.data()), s.phase);
            launch->views = any_view = true;
            return;
        }
        poll();
    }
}

void push(const void* to, const void* value, size_t bytes, int rank, const void* signal) {
    maybe_switch();
    if (rank < 0 || unsigned(rank) >= cluster_size()) fail("a push to block %d of a cluster of %u", rank, cluster_size());
    Block& b = first_of_cluster(*now->block)[rank];
    if (!b.active) fail("a push into a block that has ended");
    SignalState& s = signal_at(address_in(signal, b), b);
    if (s.thread != now->number && !now->view.knows(b.number, s.thread, s.epoch, 0xffff))
        fail("a push to a signal that is made, but nothing says so: no barrier of the cluster");
    const uint32_t number = uint32_t(&s - signals.data());
    const uintptr_t address = address_in(to, b);
    check_push(address, bytes, number, s.phase);
    for (uint32_t k = 0; k < now->view.blocks.size(); ++k) s.told.learn_block(k, now->view.blocks[k]);
    s.told.learn_block(now->block->number, now->block->epoch[0]);
    Pushed p = {address, bytes, {}, b.number, number};
    memcpy(p.value, value, bytes);
    on_the_way.push_back(p);
    ++launch->progress;
}

static const char* const NAMES[] = {"__shfl_sync", "__shfl_xor_sync", "__shfl_down_sync", "__shfl_up_sync", "a vote",
                                    "a barrier of the warp"};

uint64_t exchange(Together what, unsigned mask, uint64_t value, unsigned source, uint64_t (*brought)[WARP],
                  unsigned ordered) {
    const unsigned lane = lane_of(*now);
    if (!(mask >> lane & 1)) fail("lane %u exchanges under mask %08x, which does not name it", lane, mask);
    if (!(mask >> source & 1)) fail("lane %u reads from lane %u, which mask %08x does not name", lane, source, mask);
    Fiber* first_lane = now - lane;
    const Warp& warp = warp_of(*now);
    if (mask & ~warp.present) fail("mask %08x names lane %d, which does not exist", mask, __builtin_ctz(mask & ~warp.present));
    if (mask & warp.returned) fail("mask %08x names lane %d, which has returned", mask, __builtin_ctz(mask & warp.returned));
    auto& all = warp_of(*now).exchanges;
    Exchange* e = nullptr;
    for (auto& exchange : all)
        if (exchange.mask == mask) e = &exchange;
    if (!e) {
        if (all.size() == all.capacity()) fail("more than %zu masks in one warp", all.capacity());
        all.emplace_back();
        e = &all.back();
        e->mask = mask;
    }
    if (e->arrived && e->what != what)
        fail("lane %u is at %s, while other lanes of mask %08x are at %s", lane, NAMES[unsigned(what)], mask,
             NAMES[unsigned(e->what)]);
    e->what = what;
    const unsigned round = e->round;
    e->slots[round & 1][lane] = value;
    ++launch->progress;
    if (++e->arrived == unsigned(__builtin_popcount(mask))) {
        e->arrived = 0;
        ++e->round;
        if (ordered) order_by_warp(*first_lane, mask);
        for (unsigned peer = 0; peer < WARP; ++peer)
            if (mask >> peer & 1 && peer != lane) wake(first_lane[peer]);
    } else {
        sleep(State::at_exchange);
    }
    if (brought) memcpy(*brought, e->slots[round & 1], sizeof *brought);
    return e->slots[round & 1][source];
}

void fence() {
    order_by_fence();
    ++launch->progress;
}

void begin_atomic(void* pointer, size_t bytes) {
    const uintptr_t address = uintptr_t(pointer);
    if (!in_window(address)) fail("an atomic access outside global and shared memory");
    if (draw() & 1) poll();
    const Mapping* m = check({address, bytes, true, true, false});
    if (address % bytes) fail("argument '%s': an atomic access that is not aligned", m->name);
    read_flag(address);
    write_flag(address, true);
}

void end_atomic(bool changed) { launch->progress += changed; }

void read_only(const void* pointer, size_t bytes) {
    if (in_window(uintptr_t(pointer))) check({uintptr_t(pointer), bytes, false, false, true});
}

void* shared_array(Site& site, size_t bytes) {
    Block& b = *now->block;
    for (const Placed& p : b.placed)
        if (p.site == &site) return p.memory;
    b.static_bytes += bytes;
    const size_t most = launch->request->most_static;
    if (b.static_bytes > most)
        fail("shared memory '%s': expected at most %zu bytes declared in a block, found %zu", site.name, most, b.static_bytes);
    const size_t total = launch->request->most_total;
    if (b.static_bytes + launch->request->shared > total)
        fail("shared memory '%s': expected at most %zu bytes in a block without asking for more, found %zu", site.name,
             total, b.static_bytes + launch->request->shared);
    return place_shared(b, site, bytes);
}

void* dynamic_shared() {
    static const Site site = {"extern __shared__"};
    Block& b = *now->block;
    for (const Placed& p : b.placed)
        if (p.site == &site) return p.memory;
    return place_shared(b, site, launch->request->shared);
}

static void plain(void* pointer, size_t bytes, bool write) {
    const uintptr_t address = uintptr_t(pointer);
    if (!in_window(address) || !now) return;
    maybe_switch();
    check({address, bytes, write, false, false});
    launch->progress += write;
}

static void strong(void* pointer, size_t bytes, bool write) {
    const uintptr_t address = uintptr_t(pointer);
    if (!in_window(address) || !now) return;
    if (!write && draw() & 1) poll();
    else maybe_switch();
    check({address, bytes, write, true, false});
    if (!write) return read_flag(address);
    ++launch->progress;
    write_flag(address, false);
}

}  // namespace hostgpu

// The compiler's hooks ------------------------------------------------------------------------------------------

#define HOOKS(N)                                                                       \
    void __tsan_read##N(void* p) { plain(p, N, false); }                               \
    void __tsan_write##N(void* p) { plain(p, N, true); }                               \
    void __tsan_unaligned_read##N(void* p) { plain(p, N, false); }                     \
    void __tsan_unaligned_write##N(void* p) { plain(p, N, true); }                     \
    void __tsan_volatile_read##N(void* p) { strong(p, N, false); }                     \
    void __tsan_volatile_write##N(void* p) { strong(p, N, true); }                     \
    void __tsan_unaligned_volatile_read##N(void* p) { strong(p, N, false); }           \
    void __tsan_unaligned_volatile_write##N(void* p) { strong(p, N, true); }

struct TypeMismatch {  // of GCC's -fsanitize=alignment
    const char* source;
    uint32_t line, column;
    const void* type;
    unsigned char log_alignment, kind;
};

extern "C" {
HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16)
void __tsan_read_range(void* p, size_t n) { plain(p, n, false); }
void __tsan_write_range(void* p, size_t n) { plain(p, n, true); }
void __tsan_init() {}

void __ubsan_handle_type_mismatch_v1_abort(TypeMismatch* data, uintptr_t address) {
    const unsigned alignment = 1u << data->log_alignment;
    if (!launch || !now) abort();
    const Mapping* m = in_window(address) ? nearest(address) : nullptr;
    if (!address) fail("an access through a null pointer");
    fail("%s '%s' at byte %td: expected an address that %u divides, found one that is not aligned",
         m && m->shared ? "shared memory" : "argument", m ? m->name : "?", m ? ptrdiff_t(address - m->begin) : 0, alignment);
}
}

// A launch -------------------------------------------------------------------------------------------------------

namespace hostgpu {

static uintptr_t fault_address = 0;

static void on_fault(int, siginfo_t* info, void*) {
    fault_address = uintptr_t(info->si_addr);
    siglongjmp(launch->failed, 2);
}

struct FaultHandler {
    struct sigaction segv, bus;
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
    }
    ~FaultHandler() {
        sigaction(SIGSEGV, &segv, nullptr);
        sigaction(SIGBUS, &bus, nullptr);
        sigaltstack(&before, nullptr);
    }
};

static void check_request(const Request& r) {
    if (launch->threads > r.most_threads)
        fail("too many resources requested for launch: expected at most %u threads (__launch_bounds__), found %u",
             r.most_threads, launch->threads);
    if (r.cluster > r.most_cluster)
        fail("expected at most %u blocks of a cluster without asking for more, found %u", r.most_cluster, r.cluster);
    if (r.cluster > 1 && (r.grid[0] % r.cluster || r.grid[1] * r.grid[2] != 1 || r.cooperative))
        fail("expected a grid of whole clusters of %u blocks, found (%u, %u, %u)", r.cluster, r.grid[0], r.grid[1], r.grid[2]);
    if (r.shared > r.most_shared)
        fail("expected at most %zu bytes of dynamic shared memory without asking for more, found %zu", r.most_shared, r.shared);
}

static void clean_up(bool failed) {
    for (Block& b : blocks) clear_shared(b);
    unmap();
    on_the_way.clear();
    signals.clear();
    flags.clear();
    for (size_t i = 0; failed && i < fibers_made; ++i)
        if (fibers[i].started) start_anew(fibers[i]);
    launch = nullptr;
    now = nullptr;
}

}  // namespace hostgpu

// 0, or 1 with a message.
extern "C" int hostgpu_launch(Request* request) {
    static Launch l;
    l.request = request;
    l.grid = {request->grid[0], request->grid[1], request->grid[2]};
    l.block = {request->block[0], request->block[1], request->block[2]};
    l.threads = l.block.x * l.block.y * l.block.z;
    l.warps = (l.threads + WARP - 1) / WARP;
    l.random = mixed(request->seed, 0x5eed) | 1;
    l.next = 0;
    l.progress = 0;
    l.until_switch = 1;
    l.views = false;
    launch = &l;
    now = nullptr;
    used_pages = 0;
    FaultHandler handler;
    static std::vector<void*> addresses;
    const int outcome = sigsetjmp(l.failed, 1);
    if (outcome == 0) {
        check_request(*request);
        open_window();
        prepare();
        place(*request, addresses, l.values);
        run_all();
        check_guards();
        take_back(*request, addresses);
    } else if (outcome == 2) {
        const Mapping* m = in_window(fault_address) ? nearest(fault_address) : nullptr;
        if (m)
            snprintf(request->message, request->message_size, "'%s': an access %td bytes from its start; it has %td", m->name,
                     ptrdiff_t(fault_address - m->begin), ptrdiff_t(m->end - m->begin));
        else
            snprintf(request->message, request->message_size, "an access at %#zx, which belongs to no array", fault_address);
    }
    clean_up(outcome != 0);
    return outcome != 0;
}
