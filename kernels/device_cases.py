"""The cases that prove a rule on a device that nobody has seen: every path of every kernel for GPUs, as plain data.

The cases of `case_table` have the sizes around each boundary of a kernel, and run on any machine. Those here have what
makes a device differ from it: walks whose places are used again, for many rows of a cluster and in every layout; so
many rows that each block takes several; and each kernel on values of 16 bits. Arrays are made one case at a time,
because those of a large case are a hundred megabytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from duoln.kernels.case_table import (
    MANY,
    RuleCase,
    adam_rates,
    adam_update,
    cross_entropy,
    global_norm,
    linear,
    lstm_cell,
    norm,
    norm_label,
    recurrent,
    recurrent_label,
    take,
)
from duoln.kernels.recurrent.cells import FUSED

STORED = ("float16", "bfloat16")
NORMS = ("layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm")
LONG = 100
"""Time steps of the walks that run many times: what happens once in many exchanges shows there."""
_MANY_RUNS = 50


class DeviceCase(NamedTuple):
    """A case whose arrays do not exist yet."""

    op: str
    label: str
    build: Callable[..., RuleCase]
    arguments: tuple[Any, ...]
    net: bool = False
    """Whether it is one of the few that prove a rule before a user's first call of it."""
    stored: str = "float32"
    """The dtype of the arrays that a rule takes as they are stored."""
    runs: int = 2
    """How many runs have to give the same bits."""

    @property
    def name(self) -> str:
        """That of the case; no two have the same."""
        return self.op + ("" if self.stored == "float32" else f" {self.stored}") + f" {self.label}"

    def make(self) -> RuleCase:
        """The case with its arrays, on the host."""
        return self.build(*self.arguments)._replace(op=self.op, label=self.label, stored=self.stored)


def device_cases() -> list[DeviceCase]:
    """Every case of duoln's own operators, those of the net first."""
    every = [*_walks(), *_steps_of_16_bits(), *_cells(), *_norms(), *_others()]
    return sorted(every, key=lambda case: not case.net)


# Walks and steps --------------------------------------------------------------------------------------------------

def _walk(cell: str, kind: str, sizes: Sequence[int], masked: bool = False, reverse: bool = False,
          limit: float | None = None, net: bool = False, stored: str = "float32", runs: int = 2) -> DeviceCase:
    arguments = cell, kind, sizes, masked, reverse, limit
    return DeviceCase(cell, recurrent_label(*arguments[1:]), recurrent, arguments, net, stored, runs)


_EVERY_VARIANT = ((9, 8, 3, 400), (9, 17, 3, 100), (9, 128, 4, 256))
"""Time steps, rows, inputs, hidden units. An exchange has two places with two parities each: the fifth time step is the
first at which both come again.
"""
_LAYOUTS = (("lstm", "layer", 3, 13), ("lstm", "layer", 3, 33), ("rnn", "none", 3, 33), ("rnn", "layer", 16, 100),
            ("lstm", "layer", 128, 128), ("gru", "none", 32, 128), ("lstm", "layer", 64, 128),
            ("rnn", "layer", 256, 256), ("rnn", "layer", 32, 240), ("rnn", "layer", 64, 512), ("rnn", "none", 64, 512),
            ("lstm", "layer", 32, 240), ("gru", "layer", 100, 400), ("lstm", "layer", 64, 240),
            ("lstm", "layer", 64, 512), ("lstm", "layer", 100, 400), ("rnn", "layer", 8, 1000),
            ("lstm", "layer", 1, 400), ("lstm", "none", 8, 240), ("gru", "layer", 3, 560))
"""Cells, norms, rows and hidden units. With `_EVERY_VARIANT` they have all layouts of common sizes on an H100: blocks
of a cluster, rows of a cluster and units of a lane.
"""
_LONG = (("lstm", "layer", 8, 400), ("lstm", "layer", 64, 256), ("lstm", "layer", 3, 130), ("gru", "layer", 8, 400),
         ("rnn", "layer", 8, 400))


def _walks() -> Iterator[DeviceCase]:
    """The walk and the rule by steps run on each of them."""
    for cell, kind in FUSED:
        yield _walk(cell, kind, (9, 32, 3, 240 if cell == "rnn" else 128), masked=True, reverse=True, net=True)
        if kind == "layer":
            yield _walk(cell, kind, (9, 3, 2, 600 if cell == "rnn" else 130), net=True)
            yield _walk(cell, kind, (9, 3, 2, 33), reverse=True, limit=0.05, net=True)
        for sizes in _EVERY_VARIANT:
            yield _walk(cell, kind, sizes)
        yield _walk(cell, kind, (9, 8, 3, 400), masked=True)
    for cell in ("lstm", "gru", "rnn"):
        yield _walk(cell, "layer", (9, 8, 3, 400), reverse=True)
        yield _walk(cell, "layer", (9, 8, 3, 400), masked=True, reverse=True, limit=0.05)
    for cell, kind, rows, hidden in _LAYOUTS:
        yield _walk(cell, kind, (9, rows, 3, hidden))
    for cell, kind, rows, hidden in _LONG:
        yield _walk(cell, kind, (LONG, rows, 3, hidden), runs=_MANY_RUNS)


def walked_layers() -> list[tuple[str, str, int, int]]:
    """Cell, norm, rows and units of each layer that walks, for who compiles ahead."""
    return list(dict.fromkeys((cell, kind, rows, hidden) for case in _walks()
                              for cell, kind, (_, rows, _, hidden), *_ in [case.arguments]))


def _steps_of_16_bits() -> Iterator[DeviceCase]:
    """One for each launch plan; and so many rows that the sum over them takes two levels."""
    for stored in STORED:
        for cell, kind in FUSED:
            yield _walk(cell, kind, (4, 5, 3, 33), masked=True, reverse=True, net=True, stored=stored)
            for sizes in ((9, 5, 3, 9), (3, 3, 3, 130), (3, 3, 3, 300), (3, 3, 3, 600), (2, 3, 3, 1100)):
                yield _walk(cell, kind, sizes, stored=stored)
        for cell in ("rnn", "lstm", "gru"):
            yield _walk(cell, "layer", (2, 3, 3, 1100), masked=True, reverse=True, net=True, stored=stored)
        yield _walk("gru", "layer", (3, 1030, 3, 9), stored=stored)


def _cells() -> Iterator[DeviceCase]:
    for stored in ("float32", *STORED):
        for kind in ("none", "layer", "layer-cell", "layer-theano"):
            for batch, hidden in ((3, 33), (3, 9), (5, 70), (3, 130), (2, 600), (2500, 33)):
                yield DeviceCase("lstm_cell", f"{kind} B{batch} H{hidden}", lstm_cell, (kind, batch, hidden),
                                 net=(batch, hidden) == (3, 33) or (kind, hidden) == ("layer", 600), stored=stored)


# Norms ------------------------------------------------------------------------------------------------------------

class _Norm(NamedTuple):
    """What `norm` takes beside the operator, by place: plain data may be compared and sent to another process."""

    shape: tuple[int, ...]
    activation: str | None = None
    mean: float = 0
    absent: tuple[str, ...] = ()
    misaligned: bool = False


def _make_norm(op: str, of: _Norm) -> RuleCase:
    return norm(op, **of._asdict())


def _norm(op: str, of: _Norm, net: bool = False, stored: str = "float32") -> DeviceCase:
    return DeviceCase(op, norm_label(op, **of._asdict()), _make_norm, (op, of), net, stored)


_NET_SHAPES = ((9, 64), (5, 33), (3, 8192), (3, 8193))
_MANY_ROWS = (50_021, 7)
"""Rows of few values, so many that each block takes several: an H100 has 2,112 blocks with 16 rows each."""
_LOOPS = ((25_013, 33), (12_007, 100), (12_007, 256), (6007, 512), (4099, 1000), (4099, 1001), (4099, 2048),
          (4099, 4096), (4099, 8192), (1033, 8201))
"""The same for each entry of the table of plans."""
_WIDTHS_OF_PLANS = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_WIDE = ((1, 262_144), (37, 65_537), (37, 262_144), (199, 131_072), (1033, 16_384))
_SHAPES = ((1, 256), (1, 760), (37, 1128), (37, 2048), (199, 760), (199, 4096), (199, 8192), (4099, 7), (4099, 33),
           (4099, 760), (4099, 1128))
"""Odd numbers of rows, and widths that are no powers of two."""


def _norms() -> Iterator[DeviceCase]:
    for op in NORMS:
        for shape in (*_NET_SHAPES, _MANY_ROWS):
            yield _norm(op, _Norm(shape), net=True)
        yield _norm(op, _Norm((5, 64), mean=10, absent=("bias",) if op.endswith("layer_norm") else (), misaligned=True),
                    net=True)
        for shape in (*_LOOPS, *_SHAPES, *_WIDE[:2]):
            yield _norm(op, _Norm(shape))
        for stored in STORED:
            for shape in (*_NET_SHAPES, (5, 1000)):
                yield _norm(op, _Norm(shape), net=True, stored=stored)
            yield _norm(op, _Norm((5, 64), misaligned=True), net=True, stored=stored)
            for width in _WIDTHS_OF_PLANS:
                yield _norm(op, _Norm((37, width)), stored=stored)
                yield _norm(op, _Norm((37, width - 1)), stored=stored)
            for shape in (_MANY_ROWS, (6007, 512), (4099, 1000), (4099, 1001), (4099, 8192), (1033, 8201)):
                yield _norm(op, _Norm(shape), stored=stored)
    for shape in _WIDE[2:]:
        yield _norm("layer_norm", _Norm(shape))
    for activation in ("relu", "tanh"):
        yield _norm("layer_norm", _Norm((5, 1000), activation), net=activation == "tanh")
        yield _norm("layer_norm", _Norm((4099, 1000), activation))
        yield _norm("layer_norm", _Norm((1033, 8201), activation))
        for stored in STORED:
            yield _norm("layer_norm", _Norm((4099, 1000), activation), stored=stored)


# The others -------------------------------------------------------------------------------------------------------

def _others() -> Iterator[DeviceCase]:
    for stored in ("float32", *STORED):
        for shape in ((130, 10), (9, 1000), (3, 1025), (4099, 1000), (515, 30_000)):
            yield DeviceCase("softmax_cross_entropy", " x ".join(map(str, shape)), cross_entropy, (shape,),
                             net=shape in ((130, 10), (3, 1025)), stored=stored)
        for words, width, taken in ((7, 3, (20,)), (50, 300, (4, 9)), (3, 5, (200,)), (50, 333, (4000,)),
                                    (3, 300_001, (5,)), (10_007, 65, (4000,))):
            count = taken[0] * (taken[1] if len(taken) > 1 else 1)
            yield DeviceCase("take", f"{count} of {words} x {width}", take, (words, width, taken),
                             net=words <= 7 and width < 10, stored=stored)
    for sizes in ((2, 257, 256), (2500, 33, 50), (130, 257, 515), (70_001, 3, 33)):
        yield DeviceCase("linear", " x ".join(map(str, sizes)), linear, sizes, net=sizes[0] in (2, 2500))
    for shapes, what in ((((3, 5), (), (20_001,)), "a few tensors"), (MANY, "many tensors"),
                         (((1000, 784), (1000,), (3,), (517, 33)), "a model")):
        yield DeviceCase("global_norm", what, global_norm, (shapes,), net=what != "a model")
        for scaled in (False, True):  # an update that is not scaled has its parameters decayed
            yield DeviceCase("adam_update", what + (", scaled" if scaled else ", decayed"), adam_update,
                             (shapes, scaled, not scaled),
                             net=what != "a model")
    for beta1, correction, updates in ((0.9, "standard", 0), (0.9, "kiros2015", 3), (0.0, "standard", 1)):
        yield DeviceCase("adam_rates", f"{correction}, beta1 {beta1}, after {updates}", adam_rates,
                         (beta1, correction, updates), net=True)
