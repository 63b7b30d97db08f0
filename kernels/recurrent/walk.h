// The common part of the compiled walks over the time steps of a sequence: the division of the work, and the layout of the arrays.
//
// Hidden units are stored in panels (`tile.h`), so a gate takes `stride` columns: H, padded with zeros. Only the positions (time
// step, row) that no mask takes out have a slot in the products: `slots` gives it, or -1.
#pragma once
#include "weights.h"

// Rows whose shares of a parameter's gradient are added up together. Threads get whole blocks.
static const index_t ROW_BLOCK = 8;

// The threads of a walk. A thread that wakes late, because another process has its core, is not waited for: those that have come
// within a short time share the work, and a later one finds nothing to do.
class Roster {
  public:
    // The index of the calling thread, or -1 if the others have begun.
    int join() {
        int joined = joined_;
        while (!(joined & BEGUN))
            if (joined_.compare_exchange_weak(joined, joined + 1)) return joined;
        return -1;
    }
    // The number of threads that have come; waits for `most`, but not for long.
    int begin(int most) {
        duoln::spin_until([&] { return (joined_ & BEGUN) || joined_ == most; }, ARRIVAL);
        return (joined_.fetch_or(BEGUN)) & ~BEGUN;
    }
    // The barrier: waits until all threads have come. It spins, because a step is short, and then sleeps: a thread may have lost
    // its core to another process, and the system gives it the core of one that sleeps.
    // If a thread has failed, the others fail, too.
    void meet(int members) {
        if (members == 1) return;
        const unsigned round = round_;
        if (arrived_.fetch_add(1) == members - 1) {
            arrived_ = 0;
            round_ = round + 1;
            asleep_.wake(members);
        } else {
            const auto over = [&] { return round_ != round || failed_; };
            int spins = 0;
            for (; spins < SPINS && !over(); ++spins) duoln::relax();
            if (spins == SPINS) asleep_.sleep_until(over);
        }
        if (failed_) throw std::bad_alloc();
    }
    // Called by a thread that has found too little memory: it comes to no more barriers.
    void fail() {
        failed_ = true;
        asleep_.wake(MOST);
    }

  private:
    static const int64_t ARRIVAL = 200 * duoln::MICROSECOND;
    static const int BEGUN = 1 << 30, SPINS = 2000, MOST = 1 << 30;
    duoln::Sleepers asleep_;
    alignas(64) std::atomic<int> joined_{0};
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<unsigned> round_{0};
    std::atomic<bool> failed_{false};
};

// The barrier of a thread: threads that have their own rows do not wait.
struct Barrier {
    Roster* roster;
    int members;
    void wait() const {
        if (roster) roster->meet(members);
    }
    // The number of a time step's rows that go through its phases together: all, if there are barriers between the phases; else a
    // few, whose values stay in L1.
    index_t together(index_t rows, index_t few = 1) const { return members > 1 ? rows : few; }
};

// The rows and the panels of units that one thread of the team computes.
struct Share {
    index_t first_row, last_row, first_panel, last_panel;
};

// Calls work(first, last) for a few of a share's panels at a time, whose values stay in L1. The functions of e^x have their own
// loop in a gradient: out of order, the CPU works on several vectors of such a short loop at once, but not of a long one.
template <class Work>
static void each_panels(const Share& s, const Work& work) {
    static constexpr index_t AT_ONCE = 8;
    for (index_t first = s.first_panel; first < s.last_panel; first += AT_ONCE)
        work(first, std::min(first + AT_ONCE, s.last_panel));
}

struct Sizes {
    index_t steps, batch, hidden, panels, stride;
    bool reverse;
    const index_t* slots;  // (steps, batch), or null: every position has its own slot

    index_t slot(index_t t, index_t row) const { return slots ? slots[t * batch + row] : t * batch + row; }
    // The states are (steps + 1, batch, stride): these are the blocks before and after a time step.
    index_t before(index_t t) const { return reverse ? t + 1 : t; }
    index_t after(index_t t) const { return reverse ? t : t + 1; }
    index_t time(index_t position) const { return reverse ? steps - 1 - position : position; }
    T* state(T* states, index_t block, index_t row) const { return states + (block * batch + row) * stride; }
};

static Sizes sizes_of(index_t steps, index_t batch, index_t hidden, bool reverse, const index_t* slots) {
    const index_t panels = panels_of(hidden);
    return {steps, batch, hidden, panels, panels * W, reverse, slots};
}

// The distance of a thread's prefetches in positions: to the next row, or, if a few rows go together, to the same row at the next
// time step: the next row would come too soon.
static inline index_t positions_ahead(const Sizes& sizes, const Barrier& barrier, bool backward) {
    if (barrier.members == 1 || sizes.batch > ROW_BLOCK) return 1;
    return sizes.reverse == backward ? sizes.batch : -sizes.batch;
}

// The first block of rows of each thread, so that all have about as many positions, and the end.
static inline std::vector<index_t> row_bounds(const Sizes& sizes, int members) {
    const index_t blocks = (sizes.batch + ROW_BLOCK - 1) / ROW_BLOCK;
    std::vector<index_t> until(blocks + 1, 0), bounds(members + 1, blocks);  // until: positions before each block
    for (index_t t = 0; t < sizes.steps; ++t)
        for (index_t row = 0; row < sizes.batch; ++row) until[row / ROW_BLOCK + 1] += sizes.slot(t, row) >= 0;
    for (index_t b = 0; b < blocks; ++b) until[b + 1] += until[b];
    index_t block = 0;
    for (int k = 0; k < members; ++k) {
        bounds[k] = block;
        while (block < blocks && (until[block] + until[block + 1]) * members < 2 * until[blocks] * (k + 1)) ++block;
    }
    return bounds;
}

// Calls work(share, barrier) on each thread of a team. Either every thread has its own rows and none waits for another, or all
// have all rows and their own units, and wait for each other.
template <class Work>
static void as_team(const Sizes& sizes, int threads, bool by_units, const Work& work) {
    const index_t blocks = (sizes.batch + ROW_BLOCK - 1) / ROW_BLOCK;
    const int most = int(std::min<index_t>(threads, by_units ? sizes.panels : blocks));
    const auto alone = [&] { work(Share{0, sizes.batch, 0, sizes.panels}, Barrier{nullptr, 1}); };
    if (most <= 1) return alone();
    if (by_units) {
        Roster roster;
        const auto member = [&](index_t, index_t) {
            const index_t k = roster.join();
            if (k < 0) return;
            const index_t members = roster.begin(most);
            try {
                work(Share{0, sizes.batch, sizes.panels * k / members, sizes.panels * (k + 1) / members},
                     Barrier{&roster, int(members)});
            } catch (const std::bad_alloc&) {
                roster.fail();
                throw;
            }
        };
        if (!on_team(most, member)) alone();
    } else {
        const std::vector<index_t> bounds = row_bounds(sizes, most);
        const auto member = [&](index_t k, index_t) {
            work(Share{bounds[k] * ROW_BLOCK, std::min(bounds[k + 1] * ROW_BLOCK, sizes.batch), 0, sizes.panels},
                 Barrier{nullptr, 1});
        };
        if (!on_team(most, member)) alone();
    }
}

// The sum of of(0) .. of(count - 1) in a fixed order: four sums side by side, because each addition waits for the one before.
template <class Of>
static T sum_of(index_t count, const Of& of) {
    T sums[4] = {};
    index_t k = 0;
    for (; k + 4 <= count; k += 4)
        for (index_t c = 0; c < 4; ++c) sums[c] += of(k + c);
    for (; k < count; ++k) sums[0] += of(k);
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// Sums over the values of a row: each panel's own sum, then those of the panels.
static T row_sum(const T* of_panels, index_t panels, index_t between) {
    return sum_of(panels, [=](index_t p) { return of_panels[p * between]; });
}

// The same for mean and squares of values with a mean: each panel's mean and squares around it, merged.
struct Spread {
    T mean, rstd;
};

static Spread merged(const T* of_panels, index_t between, index_t hidden, T eps) {
    const index_t full = panels_of(hidden) - 1;  // panels before the last one
    const T in_full = W, in_last = T(hidden - full * W);
    const T* const last = of_panels + full * between;
    const T mean = (row_sum(of_panels, full, between) * in_full + last[0] * in_last) / T(hidden);
    const auto squares_of = [=](const T* panel, T count) { return panel[1] + (panel[0] - mean) * (panel[0] - mean) * count; };
    const T squares = sum_of(full, [=](index_t p) { return squares_of(of_panels + p * between, in_full); });
    return {mean, T(1) / std::sqrt((squares + squares_of(last, in_last)) / T(hidden) + eps)};
}

// The mean of a panel's first `count` values, and the squares around it.
static void panel_spread(const T* values, index_t count, T* mean_and_squares) {
    T mean, squares;
    if (count == W) {
        vector sum{}, of_lanes{};
        for (index_t j = 0; j < W; j += LANES) sum += load(values + j);
        mean = total<T>(sum) * (T(1) / T(W));
        for (index_t j = 0; j < W; j += LANES) of_lanes += (load(values + j) - mean) * (load(values + j) - mean);
        squares = total<T>(of_lanes);
    } else {
        mean = row_mean(values, count);
        squares = sum_of(count, [=](index_t k) { return (values[k] - mean) * (values[k] - mean); });
    }
    mean_and_squares[0] = mean;
    mean_and_squares[1] = squares;
}

// The rows of a share that take part in a time step, and their slots.
struct Rows {
    std::vector<index_t> row, slot;

    void clear() { row.clear(); slot.clear(); }
    void add(index_t its_row, index_t its_slot) {
        row.push_back(its_row);
        slot.push_back(its_slot);
    }
    index_t count() const { return index_t(row.size()); }
    // True if they follow one another; their slots always do.
    bool side_by_side() const { return row.back() - row.front() + 1 == count(); }
};

// The panels [first, last) of the products of rows' states (batch, stride) with packed weights. `products` (positions, wide)
// get them, or they are added. The padding of a gate's last panel stays zero: the product of an infinite state would not be.
static void multiply_states(const Rows& rows, const T* states, index_t stride, const T* packed, index_t first, index_t last,
                            index_t depth, T* products, index_t wide, bool add) {
    if (rows.count() == 0) return;
    T* out = products + rows.slot[0] * wide;
    if (rows.side_by_side()) {
        product(FromRows{states + rows.row[0] * stride, stride}, rows.count(), packed, first, last, depth, out, wide, add);
    } else {
        const Aligned<T> room(rows.count() * depth);
        for (index_t r = 0; r < rows.count(); ++r) std::copy_n(states + rows.row[r] * stride, depth, room.data() + r * depth);
        product(FromRows{room.data(), depth}, rows.count(), packed, first, last, depth, out, wide, add);
    }
    const index_t filling = stride - depth, panels = panels_of(depth);
    for (index_t end = (first / panels + 1) * panels; filling > 0 && end <= last; end += panels)
        for (index_t r = 0; r < rows.count(); ++r) std::fill_n(out + r * wide + end * W - filling, filling, T(0));
}

// The same back: the rows of `states` (batch, stride) get the products of the rows of `products` (positions, wide), or they are added.
// The padding of the last panel stays zero. Meanwhile the lines `wanted` are prefetched.
static void multiply_products(const Rows& rows, const T* products, index_t wide, const T* packed, const Share& s, const Sizes& sizes,
                              T* states, bool add, const Prefetch& wanted = Prefetch()) {
    if (rows.count() == 0) return;
    const index_t stride = sizes.stride, first = s.first_panel, last = s.last_panel, begin = first * W, count = (last - first) * W;
    const FromRows a{products + rows.slot[0] * wide, wide};
    if (rows.side_by_side()) {
        product(a, rows.count(), packed, first, last, wide, states + rows.row[0] * stride, stride, add, wanted);
    } else {
        const Aligned<T> room(rows.count() * stride);
        for (index_t r = 0; add && r < rows.count(); ++r)
            std::copy_n(states + rows.row[r] * stride + begin, count, room.data() + r * stride + begin);
        product(a, rows.count(), packed, first, last, wide, room.data(), stride, add, wanted);
        for (index_t r = 0; r < rows.count(); ++r)
            std::copy_n(room.data() + r * stride + begin, count, states + rows.row[r] * stride + begin);
    }
    if (last * W > sizes.hidden)
        for (const index_t row : rows.row) std::fill(states + row * stride + sizes.hidden, states + row * stride + stride, T(0));
}

// Finds the rows that take part in a time step; the others of the share keep their states.
static void begin_step(Rows& rows, const Sizes& sizes, const Share& s, index_t t, std::initializer_list<T*> states) {
    const index_t first = s.first_panel * W, last = s.last_panel * W;
    rows.clear();
    for (index_t row = s.first_row; row < s.last_row; ++row) {
        const index_t slot = sizes.slot(t, row);
        if (slot >= 0) {
            rows.add(row, slot);
            continue;
        }
        for (T* each : states) {
            const T* from = sizes.state(each, sizes.before(t), row);
            std::copy(from + first, from + last, sizes.state(each, sizes.after(t), row) + first);
        }
    }
}

// The same for the gradient: adds that of the time step's output to dh.
static void begin_step_back(Rows& rows, const Sizes& sizes, const Share& s, index_t t, const T* d_hidden, T* dh) {
    const index_t first = s.first_panel * W;
    const index_t last = std::min(s.last_panel * W, sizes.hidden);
    rows.clear();
    for (index_t row = s.first_row; row < s.last_row; ++row) {
        if (d_hidden) {
            const T* given = d_hidden + (t * sizes.batch + row) * sizes.hidden;
            T* own = dh + row * sizes.stride;
            for (index_t j = first; j < last; ++j) own[j] += given[j];
        }
        const index_t slot = sizes.slot(t, row);
        if (slot >= 0) rows.add(row, slot);
    }
}

// The lines of the products (positions, wide) of a share's rows at a time step: of `x`, and of `h` unless it is null.
static Prefetch lines_of_products(const Sizes& sizes, const Share& s, index_t t, const T* x, const T* h, index_t wide) {
    static constexpr index_t VALUES = CACHE_LINE / sizeof(T);
    index_t row = s.first_row, rows = 0;
    while (row < s.last_row && sizes.slot(t, row) < 0) ++row;
    for (index_t each = row; each < s.last_row; ++each) rows += sizes.slot(t, each) >= 0;
    if (rows == 0) return Prefetch();
    const auto first = reinterpret_cast<uintptr_t>(x + sizes.slot(t, row) * wide);  // slots of a time step follow one another
    const index_t lines = rows * wide / VALUES;
    const index_t to_h = h ? index_t(reinterpret_cast<uintptr_t>(h) - reinterpret_cast<uintptr_t>(x)) : 0;
    return {first, CACHE_LINE, lines, 0, lines, lines, to_h};
}

// Keeps a share's entries of the gradient of a state (batch, stride) within -limit .. limit, for the rows that take part in
// a time step. NaN stays NaN. A limit of 0 is none.
static void bound(T* gradient, const Rows& rows, const Sizes& sizes, const Share& s, T limit) {
    if (limit <= 0) return;
    for (const index_t row : rows.row) {
        T* own = gradient + row * sizes.stride;
        for (index_t j = s.first_panel * W; j < s.last_panel * W; ++j)
            own[j] = own[j] > limit ? limit : own[j] < -limit ? -limit : own[j];
    }
}

// Where the sums of a parameter's gradient grow, of so many gates.
struct Gradient {
    T** of;
    index_t gates;
};

// Gradients whose sums grow in memory of their own, from 0 on: `of` points there.
class OwnRoom {
  protected:
    struct Sum {
        T *room, *total;
        index_t gates;
    };
    std::vector<Sum> sums_;

    OwnRoom(std::initializer_list<Gradient> gradients, index_t of_gate) : room_(gates_of(gradients) * of_gate) {
        T* room = room_.data();
        for (const Gradient& each : gradients) {
            if (!*each.of) continue;
            sums_.push_back({room, *each.of, each.gates});
            *each.of = room;
            room = std::fill_n(room, each.gates * of_gate, T(0));
        }
    }

  private:
    const Aligned<T> room_;

    static index_t gates_of(std::initializer_list<Gradient> gradients) {
        index_t gates = 0;
        for (const Gradient& each : gradients) gates += each.gates;
        return gates;
    }
};

// A thread's part of sums (blocks of rows, gates * stride) that grow at each time step. Threads that share rows add to separate
// buffers and copy them in the end. This avoids false sharing at the edge of a thread's columns.
class OwnSums : OwnRoom {
  public:
    OwnSums(const Sizes& sizes, const Share& s, const Barrier& barrier, std::initializer_list<Gradient> gradients)
        : OwnRoom(barrier.members > 1 ? gradients : std::initializer_list<Gradient>{}, blocks(sizes) * sizes.stride),
          sizes_(sizes), s_(s) {}
    OwnSums(const OwnSums&) = delete;
    OwnSums& operator=(const OwnSums&) = delete;
    ~OwnSums() {
        const index_t first = s_.first_panel * W, count = s_.last_panel * W - first;
        for (const Sum& each : sums_)
            for (index_t k = 0; k < blocks(sizes_) * each.gates; ++k)
                std::copy_n(each.room + k * sizes_.stride + first, count, each.total + k * sizes_.stride + first);
    }

  private:
    const Sizes& sizes_;
    const Share& s_;

    static index_t blocks(const Sizes& sizes) { return (sizes.batch + ROW_BLOCK - 1) / ROW_BLOCK; }
};

static inline void add_to(T* values, vector more) {
    store(values, load(values) + more);
}

// Packs the recurrent weights, and lets a team walk with them: walk(packed, panel_sums, share, barrier). `panel_sums` has `sums`
// numbers of each row and panel.
template <class Walk>
static void walk_forward(const Weights& weights, const Sizes& sizes, index_t sums, bool by_units, const Walk& walk) {
    const Aligned<T> packed(weights.gates * sizes.stride * sizes.hidden), panel_sums(sizes.batch * sizes.panels * sums);
    weights.pack(packed.data());
    as_team(sizes, weights.threads, by_units, [&](const Share& share, const Barrier& barrier) {
        walk(packed.data(), panel_sums.data(), share, barrier);
    });
}

// The same for the gradient, which multiplies with the transposed weights.
template <class Walk>
static void walk_backward(const Weights& weights, const Sizes& sizes, index_t sums, bool by_units, const Walk& walk) {
    const Aligned<T> packed(weights.gates * sizes.stride * sizes.stride), panel_sums(sizes.batch * sizes.panels * sums);
    weights.pack_transposed(packed.data());
    as_team(sizes, weights.threads, by_units, [&](const Share& share, const Barrier& barrier) {
        walk(packed.data(), panel_sums.data(), share, barrier);
    });
}
