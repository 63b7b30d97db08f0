// An LSTM over a whole sequence (Ba, Kiros, Hinton 2016, eq. 20-22 and 29-31), forward and backward. The file of a variant says its
// NORMS and CELL, and includes this one.
//
// The input's product x_proj for all positions comes in; large products are not made here. Few inputs of `layer` are multiplied in
// the walk, and then x_proj is only that of a few rows; inputs beside an x_proj are those of one time step (one_step.h). The walk
// backward leaves the gradients of both products in their places: other arrays would be claimed from memory, and written to it. With
// norms over a row's gates both weights are used without the means of their rows, so that no norm need subtract one: the input's was
// before its product, the recurrent one is when it is packed.
#pragma once
#include "backward.h"

static void backward(const Lstm& l, const LstmGradients& d, const T* w_h, bool turned, int threads, bool by_units) {
    const Weights weights{w_h, l.sizes.hidden, GATES, PARTS, threads, turned};
    const Aligned<T> of_inputs(d.d_x ? l.sizes.batch * l.inputs.count * l.sizes.panels : 0);
    walk_backward(weights, l.sizes, ROW_SUMS, by_units, [&](const T* packed, T* panel_sums, const Share& share, const Barrier& barrier) {
        walk_back(l, d, packed, panel_sums, d.d_x ? of_inputs.data() : nullptr, share, barrier);
    });
}

// The objects made of the arguments that forward and backward share.
#define SHARED_VALUES                                                                                                 \
    const Lstm l{{sizes_of(steps, batch, units, reverse != 0, OF_BATCH ? nullptr : slots), T(eps), x_proj, h_proj,    \
                  gain_x, gain_h, bias_x, hidden, norms, OF_BATCH ? slots : nullptr},                                   \
                 {x_proj ? nullptr : x, w_x, inputs}, gain_c, bias_c, cells, raw_cells};

ENTRY(lstm_forward) {
    guarded([&] {
        SHARED_VALUES
        forward(l, {x_proj ? x : nullptr, w_x, inputs}, w_h, transposed != 0, threads, by_units != 0, walk);
    });
}

// One time step outside of a gradient: nothing is kept, and the caller pads no array.
ENTRY(lstm_step) {
    guarded([&] {
        const Sizes sizes = sizes_of(1, batch, units, false, nullptr);
        const index_t S = sizes.stride, of_norms = OF_BATCH ? OF_STEP * S : panels_of(batch * ROW_SUMS) * W;
        Room room((2 * batch + 3) * GATES * S + (5 * batch + 2) * S + of_norms);
        const Lstm l{{sizes, T(eps), room.products(inner_bias, GATES, sizes), APART ? room.take(batch * GATES * S) : nullptr,
                      room.padded(gain_x, GATES, sizes), room.padded(gain_h, GATES, sizes),
                      room.padded_sum(bias, bias_2, bias_3, GATES, sizes), room.states(h, sizes), room.take(of_norms), nullptr},
                     {nullptr, nullptr, 0}, room.padded(gain_c, 1, sizes), room.padded(bias_c, 1, sizes), room.states(c, sizes),
                     CARRIED ? room.take(batch * S) : nullptr};
        forward(l, {x, w_x, inputs}, w_h, transposed != 0, threads, false, walk);
        take_out(l.hidden, sizes, h_new);
        take_out(l.cells, sizes, c_new);
    });
}

ENTRY(lstm_backward) {
    guarded([&] {
        SHARED_VALUES
        const LstmGradients d{d_hidden, dh, dc, d_x, d_w_x, d_bias_x, d_gain_x, d_gain_h, d_gain_c, d_bias_c,
                              T(limit)};
        backward(l, d, w_h, transposed != 0, threads, by_units != 0);
    });
}
