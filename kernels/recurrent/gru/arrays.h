// The arrays of a GRU's walk, the products of its states, and the loops over time (sequence.h).
#pragma once
#include "../norms.h"
#include "gru.h"

static const index_t GATES = 3;
static constexpr bool APART = OVER == Over::ROW || OVER == Over::BATCH, OF_BATCH = OVER == Over::BATCH;
static constexpr bool GATES_ALONE = OVER == Over::GATE;  // the weights keep their means: n's norm comes after r
static constexpr index_t PARTS = GATES_ALONE ? 0 : parts_of(GATES, 2);
static constexpr index_t SUMS_OF_ROW = GATES_ALONE ? 6 : 4;  // numbers of each row and panel

// If the products are not apart, x_proj gets the state's for z and r, too, and h_proj (positions, stride) is that of n alone. Norms of
// rows keep SUMS_OF_ROW: rstd of x_proj's z and r, of its n, and those of h_proj; mean and rstd of each gate alone.
struct Gru : Arrays<GATES, 4 * GATES> {
    const T* bias_h;  // (3 * stride), or null; a bias of n alone (stride)
};

struct GruGradients {
    const T* d_hidden;  // (steps, batch, hidden), or null
    T* dh;  // (batch, stride)
    T *d_x_proj, *d_h_proj;  // (positions, 3 * stride)
    T *d_gain_x, *d_bias_x, *d_gain_h, *d_bias_h;  // (blocks of rows, 3 * stride) or null, as the parameters
    T limit;  // of the gradient that a time step hands to the one before; 0 for none
};

// The products of the states before a time step.
static void multiply(const Gru& g, const T* packed, const Rows& rows, const Share& s, index_t t) {
    const Sizes& sizes = g.sizes;
    const index_t P = sizes.panels, S = sizes.stride;
    const T* states = g.hidden + sizes.before(t) * sizes.batch * S;
    for (index_t gate = 0; packed && gate < GATES; ++gate)
        if (!APART && gate == 2)  // its product stands alone: the reset gate comes before the sum
            multiply_states(rows, states, S, packed + gate * P * sizes.hidden * W, s.first_panel, s.last_panel,
                            sizes.hidden, g.h_proj, S, false);
        else
            multiply_states(rows, states, S, packed, gate * P + s.first_panel, gate * P + s.last_panel, sizes.hidden,
                            APART ? g.h_proj : g.x_proj, GATES * S, !APART);
}

// The rows of a time step go through its phases, phase(t, row, slot); threads that share rows wait for each other between two phases.
template <class... Phases>
static void each_phase(const Rows& rows, const Barrier& barrier, index_t t, const Phases&... phases) {
    const index_t together = barrier.together(rows.count());
    for (index_t first = 0; first < rows.count(); first += together) {
        bool begun = false;
        const auto run = [&](const auto& phase) {
            if (begun) barrier.wait();
            begun = true;
            for (index_t r = first; r < first + together; ++r) phase(t, rows.row[r], rows.slot[r]);
        };
        (run(phases), ...);
    }
}

template <class... Phases>
static void walk_rows(const Gru& g, const T* packed, const Share& s, const Barrier& barrier, const Phases&... phases) {
    Rows rows;
    for (index_t position = 0; position < g.sizes.steps; ++position) {
        const index_t t = g.sizes.time(position);
        begin_step(rows, g.sizes, s, t, {g.hidden});
        multiply(g, packed, rows, s, t);
        each_phase(rows, barrier, t, phases...);
        barrier.wait();
    }
}

template <class... Phases>
static void walk_rows_back(const Gru& g, const GruGradients& d, const T* packed, const Share& s, const Barrier& barrier,
                           const Phases&... phases) {
    Rows rows;
    for (index_t position = g.sizes.steps - 1; position >= 0; --position) {
        const index_t t = g.sizes.time(position);
        begin_step_back(rows, g.sizes, s, t, d.d_hidden, d.dh);
        each_phase(rows, barrier, t, phases...);
        barrier.wait();
        multiply_products(rows, d.d_h_proj, GATES * g.sizes.stride, packed, s, g.sizes, d.dh, true);
        bound(d.dh, rows, g.sizes, s, d.limit);
    }
}
