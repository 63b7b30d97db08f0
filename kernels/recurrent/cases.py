"""The cases of the recurrent operators and of one time step; what is timed of them, with its operations and bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from duoln.kernels.norm.cases import epsilon
from duoln.kernels.recurrent.cells import COMPILED_WALKS, FUSED, fused_norms
from duoln.kernels.registry import STORED, Arrays, Case, floats
from duoln.ops.recurrent.variants import CELLS, has_bias, norm_shapes

_SIZES = ((1, 1, 1, 1), (3, 5, 3, 9), (2, 9, 2, 32), (2, 3, 2, 33), (2, 3, 17, 70), (2, 2, 3, 130), (2, 2, 1, 300),
          (1, 3, 2, 600), (2, 1, 1, 1100))
"""Time steps, rows, inputs, hidden units: one case for each launch plan of the cell kernels."""
LONG_SIZES = ((1, 2, 1, 2100), (1, 1, 1, 4096))
"""Rows that a block reads again."""
LONG = 100
"""Time steps of the walks that run many times: what happens once in many exchanges shows there."""
_MANY_RUNS = 50
_ROUNDINGS = 3 * 4
"""Roundings to 16 bits in a time step: both products and the state, which a gain of two makes twice as large each."""
_EVERY_VARIANT = ((9, 8, 3, 400), (9, 17, 3, 100), (9, 128, 4, 256))
"""An exchange has two places with two parities each: the fifth time step is the first at which both come again."""
_LAYOUTS_OF_CLUSTERS = (
    ("lstm", "layer", 3, 13), ("lstm", "layer", 3, 33), ("rnn", "none", 3, 33), ("rnn", "layer", 16, 100),
    ("lstm", "layer", 128, 128), ("gru", "none", 32, 128), ("lstm", "layer", 64, 128), ("rnn", "layer", 256, 256),
    ("rnn", "layer", 32, 240), ("rnn", "layer", 64, 512), ("rnn", "none", 64, 512), ("lstm", "layer", 32, 240),
    ("gru", "layer", 100, 400), ("lstm", "layer", 64, 240), ("lstm", "layer", 64, 512), ("lstm", "layer", 100, 400),
    ("rnn", "layer", 8, 1000), ("lstm", "layer", 1, 400), ("lstm", "none", 8, 240), ("gru", "layer", 3, 560))
"""Cells, norms, rows and hidden units. With `_EVERY_VARIANT` they have all layouts of common sizes on an H100: blocks
of a cluster, rows of a cluster and units of a lane.
"""
_LONG_WALKS = (("lstm", "layer", 8, 400), ("lstm", "layer", 64, 256), ("lstm", "layer", 3, 130),
               ("gru", "layer", 8, 400), ("rnn", "layer", 8, 400))


def cases() -> Iterator[Case]:
    """Sequences and single steps; then what a GPU adds."""
    for cell, norm in COMPILED_WALKS:
        for case in (*_of_every_plan(cell, norm), *_small(cell, norm)):
            if norm != "batch" or case.sizes[1] > 1:
                yield case._replace(cpu=(cell, norm) not in FUSED)
    for norm in fused_norms("lstm"):
        for batch, hidden in ((1, 1), (3, 9), (2, 33), (5, 70), (2, 600)):
            yield step(norm, batch, hidden)._replace(net=(norm, hidden) == ("layer", 600))
        yield step(norm, 1, 4)
        yield step(norm, 2, 3)._replace(layouts=True)
    yield from _walks()
    yield from _in_16_bits()
    yield from _steps_on_gpus()


def _of_every_plan(cell: str, norm: str) -> Iterator[Case]:
    for sizes in _SIZES:
        for masked, reverse in ((False, False), (True, True)):
            yield recurrent(cell, norm, sizes, masked, reverse)
    yield recurrent(cell, norm, (4, 3, 2, 33), reverse=True, gradient_limit=0.05)


def _small(cell: str, norm: str) -> Iterator[Case]:
    """Cases of few values: one row, one input, one unit; masked rows, and padded ones."""
    yield recurrent(cell, norm, (2, 3, 2, 4))._replace(layouts=True)
    yield recurrent(cell, norm, (3, 1, 1, 3), masked=True, reverse=True)._replace(layouts=norm == "layer")
    yield recurrent(cell, norm, (3, 4, 2, 3), lengths=(2, 3, 1, 1))._replace(layouts=norm == "layer")
    yield recurrent(cell, norm, (1, 2, 3, 1))


def recurrent(cell: str, norm: str, sizes: Sequence[int], masked: bool = False, reverse: bool = False,
              gradient_limit: float | None = None, lengths: Sequence[int] | None = None) -> Case:
    """One case of a recurrent operator: `sizes` are time steps, rows, inputs and units, `lengths` those of rows."""
    steps, batch, n_in, hidden = sizes
    gates = CELLS[cell].gates * hidden

    def arrays() -> Arrays:
        # With one unit the products of the gates may cancel, and then no rule in float32 has the digits of the sum.
        rng = np.random.default_rng([*sizes, masked, *((1,) if hidden == 1 else ())])
        first = [floats(rng, batch, hidden) for _ in range(len(CELLS[cell].states))]
        weights = [floats(rng, n, gates, scale=n ** -0.5) for n in (n_in, hidden)]
        bias = floats(rng, gates) if has_bias(cell, norm) else None
        mask = rng.random((steps, batch)) < 0.6 if masked else None
        if lengths is not None:
            mask = np.arange(steps)[:, None] < np.array(lengths)
        norms = [floats(rng, *shape) for shape in norm_shapes(cell, norm, hidden).values()]
        return floats(rng, steps, batch, n_in), *first, *weights, bias, mask, *norms

    attrs = {"norm": norm, "eps": epsilon(batch if norm == "batch" else min(n_in, hidden) + 1), "reverse": reverse,
             "gradient_limit": gradient_limit}
    kinds = ("masked" if masked else "", "padded" if lengths else "", "reverse" if reverse else "",
             "" if gradient_limit is None else f"gradients within {gradient_limit}")
    label = f"{norm} T{steps} B{batch} in{n_in} H{hidden} {', '.join(filter(None, kinds))}".rstrip()
    return Case(cell, label, arrays, attrs, 4 * steps * max(gates, batch), sizes, roundings=_ROUNDINGS * steps)


def step(norm: str, batch: int, hidden: int) -> Case:
    """One case of a single time step of an LSTM."""
    def arrays() -> Arrays:
        rng = np.random.default_rng([batch, hidden])
        return (floats(rng, batch, 4 * hidden), floats(rng, batch, 4 * hidden), floats(rng, batch, hidden),
                floats(rng, 4 * hidden), *(floats(rng, *s) for s in norm_shapes("lstm", norm, hidden).values()))

    return Case("lstm_cell", f"{norm} B{batch} H{hidden}", arrays, {"norm": norm, "eps": epsilon(hidden)}, 4 * hidden,
                (batch, hidden), roundings=_ROUNDINGS)


def _walks() -> Iterator[Case]:
    """The walk and the rule by steps run on each of them."""
    for cell, norm in FUSED:
        sizes_of_net = (9, 32, 3, 240 if cell == "rnn" else 128)
        yield recurrent(cell, norm, sizes_of_net, masked=True, reverse=True).on_gpu(net=True)
        if norm == "layer":
            yield recurrent(cell, norm, (9, 3, 2, 600 if cell == "rnn" else 130)).on_gpu(net=True)
            yield recurrent(cell, norm, (9, 3, 2, 33), reverse=True, gradient_limit=0.05).on_gpu(net=True)
            yield recurrent(cell, norm, (9, 8, 3, 400), reverse=True).on_gpu()
            yield recurrent(cell, norm, (9, 8, 3, 400), masked=True, reverse=True, gradient_limit=0.05).on_gpu()
        for sizes in _EVERY_VARIANT:
            yield recurrent(cell, norm, sizes).on_gpu()
        yield recurrent(cell, norm, (9, 8, 3, 400), masked=True).on_gpu()
    for cell, norm, rows, hidden in _LAYOUTS_OF_CLUSTERS:
        yield recurrent(cell, norm, (9, rows, 3, hidden)).on_gpu()
    for cell, norm, rows, hidden in _LONG_WALKS:
        yield recurrent(cell, norm, (LONG, rows, 3, hidden)).on_gpu(runs=_MANY_RUNS)


def _in_16_bits() -> Iterator[Case]:
    """One for each launch plan; and so many rows that the sum over them takes two levels."""
    for stored in STORED:
        for cell, norm in FUSED:
            yield recurrent(cell, norm, (4, 5, 3, 33), masked=True, reverse=True).on_gpu(stored, net=True)
            for sizes in ((9, 5, 3, 9), (3, 3, 3, 130), (3, 3, 3, 300), (3, 3, 3, 600), (2, 3, 3, 1100)):
                yield recurrent(cell, norm, sizes).on_gpu(stored)
        for cell in CELLS:
            yield recurrent(cell, "layer", (2, 3, 3, 1100), masked=True, reverse=True).on_gpu(stored, net=True)
        yield recurrent("gru", "layer", (3, 1030, 3, 9)).on_gpu(stored)


def _steps_on_gpus() -> Iterator[Case]:
    for norm in fused_norms("lstm"):
        for batch, hidden in ((3, 33), (3, 130), (2500, 33)):
            yield step(norm, batch, hidden).on_gpu(net=(batch, hidden) == (3, 33))
        for stored in STORED:
            for batch, hidden in ((3, 33), (3, 9), (5, 70), (3, 130), (2, 600), (2500, 33)):
                net = (batch, hidden) == (3, 33) or (norm, hidden) == ("layer", 600)
                yield step(norm, batch, hidden).on_gpu(stored, net)


# What is timed ----------------------------------------------------------------------------------------------------

class Shape(NamedTuple):
    """Time steps, rows, inputs, hidden units."""

    steps: int
    batch: int
    n_in: int
    hidden: int


SHAPES = (Shape(100, 8, 3, 400), Shape(100, 128, 256, 256), Shape(30, 64, 620, 1024))
"""Handwriting synthesis, a middle size, and sentence encoders."""


def flops(cell: str, shape: Shape, backward: bool) -> int:
    """Floating-point operations of the products of one run; backward adds two products for each one of forward."""
    t, b, n, h = shape
    return 2 * t * b * (n + h) * CELLS[cell].gates * h * (3 if backward else 1)


def least_bytes(cell: str, shape: Shape, itemsize: int = 4) -> int:
    """The least bytes that forward moves: it reads inputs, weights and x_proj, and writes x_proj and hidden states."""
    t, b, n, h = shape
    gates = CELLS[cell].gates * h
    return itemsize * (t * b * (n + 2 * gates + h) + (n + h) * gates)
