// What the compiled walks over the time steps of a sequence share: who computes what, and the layout of the arrays.
//
// Hidden units stand in panels (`packed_product.h`), so a gate takes `stride` columns: H, filled up with zeros. Only the
// positions (time step, row) that no mask takes out have a place in the products: `slots` gives the place, or -1.
#pragma once
#include <atomic>

#include "../packed_product.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

// Rows whose shares of a parameter's gradient are added up together. Threads get whole blocks.
static const index_t ROW_BLOCK = 8;

// Waits until all members of a team have come. It spins, because a step is short; after some microseconds it lets others
// have the core, because a member may be waiting for it.
class Barrier {
  public:
    explicit Barrier(int members) : members_(members) {}
    void wait() {
        if (members_ == 1) return;
        const unsigned round = round_.load(std::memory_order_acquire);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) == members_ - 1) {
            arrived_.store(0, std::memory_order_relaxed);
            round_.store(round + 1, std::memory_order_release);
            return;
        }
        for (int spins = 0; round_.load(std::memory_order_acquire) == round;) {
            if (++spins > SPINS) std::this_thread::yield();
#if defined(__x86_64__)
            else _mm_pause();
#endif
        }
    }

  private:
    static const int SPINS = 2000;
    const int members_;
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<unsigned> round_{0};
};

// The rows and the panels of units that one member of the team computes.
struct Share {
    index_t first_row, last_row, first_panel, last_panel;
};

struct Sizes {
    index_t steps, batch, hidden, panels;
    bool reverse;
    const index_t* slots;  // (steps, batch), or null: every position has its own place

    index_t slot(index_t t, index_t row) const { return slots ? slots[t * batch + row] : t * batch + row; }
    // The states stand in (steps + 1, batch, stride): these are the blocks before and after a time step.
    index_t before(index_t t) const { return reverse ? t + 1 : t; }
    index_t after(index_t t) const { return reverse ? t : t + 1; }
    index_t time(index_t position) const { return reverse ? steps - 1 - position : position; }
};

// Calls work(share, barrier) for each member. Either every member has its own rows and none waits for another, or all have
// all rows and their own units, and wait for each other.
template <class Work>
static void as_team(const Sizes& sizes, int threads, bool by_units, const Work& work) {
    const index_t blocks = (sizes.batch + ROW_BLOCK - 1) / ROW_BLOCK;
    const index_t most = by_units ? sizes.panels : blocks;
    if (threads > most) threads = int(most);
    std::vector<Share> shares(threads, Share{0, sizes.batch, 0, sizes.panels});
    if (by_units) {
        for (index_t k = 0; k < threads; ++k) {
            shares[k].first_panel = sizes.panels * k / threads;
            shares[k].last_panel = sizes.panels * (k + 1) / threads;
        }
    } else {
        std::vector<index_t> until(blocks + 1, 0);  // positions before each block
        for (index_t row = 0; row < sizes.batch; ++row) {
            index_t& count = until[row / ROW_BLOCK + 1];
            for (index_t t = 0; t < sizes.steps; ++t) count += sizes.slot(t, row) >= 0;
        }
        for (index_t b = 0; b < blocks; ++b) until[b + 1] += until[b];
        index_t block = 0;
        for (index_t k = 0; k < threads; ++k) {
            shares[k].first_row = block * ROW_BLOCK;
            while (block < blocks && (until[block] + until[block + 1]) * threads < 2 * until[blocks] * (k + 1)) ++block;
            if (k == threads - 1) block = blocks;
            shares[k].last_row = block * ROW_BLOCK < sizes.batch ? block * ROW_BLOCK : sizes.batch;
        }
    }
    Barrier barrier(by_units ? threads : 1);
    std::vector<std::thread> team;
    team.reserve(threads - 1);
    for (int k = 1; k < threads; ++k) team.emplace_back([&, k] { work(shares[k], barrier); });
    work(shares[0], barrier);
    for (auto& one : team) one.join();
}

// Packs a matrix (depth, gates * hidden) into panels of each gate: (gates * panels, depth, width).
template <class T>
static void pack(const T* w, index_t depth, index_t gates, index_t hidden, T* packed) {
    const index_t W = Panel<T>::width, panels = Panel<T>::count(hidden);
    for (index_t gate = 0; gate < gates; ++gate)
        for (index_t p = 0; p < panels; ++p)
            for (index_t k = 0; k < depth; ++k, packed += W)
                for (index_t j = 0; j < W; ++j) {
                    const index_t unit = p * W + j;
                    packed[j] = unit < hidden ? w[(k * gates + gate) * hidden + unit] : T(0);
                }
}

// Packs the same matrix transposed, for the gradient: from (gates * stride) to the units of `depth`.
template <class T>
static void pack_transposed(const T* w, index_t depth, index_t gates, index_t hidden, T* packed) {
    const index_t W = Panel<T>::width, stride = Panel<T>::count(hidden) * W, panels = Panel<T>::count(depth);
    for (index_t p = 0; p < panels; ++p)
        for (index_t gate = 0; gate < gates; ++gate)
            for (index_t unit = 0; unit < stride; ++unit, packed += W)
                for (index_t j = 0; j < W; ++j) {
                    const index_t k = p * W + j;
                    packed[j] = unit < hidden && k < depth ? w[(k * gates + gate) * hidden + unit] : T(0);
                }
}

// Sums over the values of a row, in a fixed order: each panel's own sum, then the panels one after another.
template <class T>
static T row_sum(const T* of_panels, index_t panels, index_t between) {
    T sum = 0;
    for (index_t p = 0; p < panels; ++p) sum += of_panels[p * between];
    return sum;
}

// The same for mean and squares of values with a mean: each panel's mean and squares around it, merged in order.
template <class T>
struct Spread {
    T mean, rstd;
};

template <class T>
static Spread<T> merged(const T* of_panels, index_t between, index_t hidden, T eps) {
    const index_t W = Panel<T>::width, panels = Panel<T>::count(hidden);
    T sum = 0, squares = 0;
    for (index_t p = 0; p < panels; ++p) sum += of_panels[p * between] * T(hidden - p * W < W ? hidden - p * W : W);
    const T mean = sum / T(hidden);
    for (index_t p = 0; p < panels; ++p) {
        const T away = of_panels[p * between] - mean;
        squares += of_panels[p * between + 1] + away * away * T(hidden - p * W < W ? hidden - p * W : W);
    }
    return {mean, T(1) / std::sqrt(squares / T(hidden) + eps)};
}

template <class T>
static void panel_spread(const T* values, index_t count, T* mean_and_squares) {
    T sum = 0, squares = 0;
    for (index_t j = 0; j < count; ++j) sum += values[j];
    const T mean = sum / T(count);
    for (index_t j = 0; j < count; ++j) squares += (values[j] - mean) * (values[j] - mean);
    mean_and_squares[0] = mean;
    mean_and_squares[1] = squares;
}

// The rows of a share that take part in a time step, and where their values are.
template <class T>
struct Rows {
    std::vector<index_t> row, slot;
    std::vector<const T*> in;
    std::vector<T*> out;

    void clear() { row.clear(); slot.clear(); in.clear(); out.clear(); }
    void add(index_t its_row, index_t its_slot, const T* its_in, T* its_out) {
        row.push_back(its_row);
        slot.push_back(its_slot);
        in.push_back(its_in);
        out.push_back(its_out);
    }
    index_t count() const { return index_t(row.size()); }
};

template <class T>
static inline void add_to(T* values, typename Vector<T>::type vector) {
    store(values, load(values) + vector);
}
