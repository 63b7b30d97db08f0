"""The operators on rows of values that `duoln bench ops` times, with their arrays."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from inspect import signature
from math import gcd
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.bench.records import source_hash
from duoln.core import Op, Tensor, composed_only
from duoln.core.arguments import described
from duoln.core.gradient import pullback
from duoln.errors import UsageError
from duoln.kernels import source
from duoln.kernels.device_limits import memory
from duoln.kernels.registry import Case, Shape, Timed, drawn, operator, timed
from duoln.runtime import tensor
from duoln.tasks.registry import load_plugins, package_of

KERNELS = source.FOLDER

STREAMING = "streaming"
"""The rule of a copy by our own C++."""
RESULTS = ("value", "total")
"""The names of an operator's results; only the norm of a sum has the second one."""


class Subject(NamedTuple):
    """An operator in the benchmark: it takes rows `x` and further arguments, which stay the same."""

    name: str
    op: Op[..., Any] | None
    """None for the copy, which is no operator of duoln and has no gradient here."""
    timed: Timed
    shared: tuple[str, ...] = ()
    """Arguments that all rows share: their gradients are sums over rows."""
    labels: tuple[str, ...] = ()
    """Arguments with an integer for each row."""
    by_row: bool = False
    """True if the operator returns a number for each row."""
    residual: bool = False
    """True if the first argument after x is a residual: as large as x, and the operator returns the sum of both too."""
    attributes: Mapping[str, Any] = {}

    @property
    def link(self) -> str | None:
        """The name of an argument of the size of a row, if any. It can be a row of the last result, so that each launch
        needs the last one.
        """
        return self.shared[-1] if self.shared else None

    def inputs(self, shape: Shape) -> dict[str, np.ndarray]:
        """The arrays, equal for every side: x, the arguments, and the gradient of the output as `gout`."""
        rows, width = shape
        rng = np.random.default_rng(0)
        made = {name: rng.standard_normal(shape, np.float32) for name in self.rows_arguments()}
        made |= {name: 1 + 0.1 * rng.standard_normal(width, np.float32) for name in self.shared}
        made |= {name: rng.integers(0, width, rows).astype(np.int32) for name in self.labels}
        gout_shape = (0,) if self.op is None else (rows,) if self.by_row else shape
        return {**made, "gout": rng.standard_normal(gout_shape, np.float32)}

    def rule(self, tensors: Mapping[str, Tensor]) -> str:
        """The name of the rule that runs these arguments."""
        if self.op is None:
            return STREAMING if _streams(tensors["x"].backend) else "the library's"
        return self.op.explain(*_given(tensors), **self.attributes)[-1][0]

    def source(self, rule: str) -> str | None:
        """The hash of the rule's source files; None if it has none of its own."""
        if self.op is None or rule == "composed":
            return None
        cases = Path(inspect.getfile(self.timed.case))
        place = (cases if cases.is_relative_to(KERNELS) else Path(inspect.getfile(self.op.function))).parent
        return source_hash(place.parent, [place.name])

    @property
    def package(self) -> str:
        """The package and version of an operator that is not duoln's; empty for one of duoln."""
        name = "" if self.op is None else self.op.__module__
        return "" if name.partition(".")[0] in ("", "duoln") else package_of(name)

    def rows_arguments(self) -> tuple[str, ...]:
        """The arguments as large as x, and x."""
        return ("x", "residual") if self.residual else ("x",)

    def gouts(self, tensors: Mapping[str, Any], gout: Any) -> tuple[Any, ...]:
        """The gradient of each result. That of a sum is the residual itself: an array of this size that is at hand."""
        return (gout, tensors["residual"]) if self.residual else (gout,)

    def named(self, results: Any) -> dict[str, Any]:
        """The results by their names."""
        return dict(zip(RESULTS, results if isinstance(results, tuple) else (results,), strict=False))

    def run(self, tensors: Mapping[str, Tensor], gout: Array | None) -> dict[str, Array]:
        """One launch: the value, and with a `gout` the gradients of x and of shared arguments."""
        if self.op is None:
            return {"value": _copy(tensors["x"].backend, tensors["x"].data)}
        if gout is None:
            return {name: out.data for name, out in self.named(self.op(*_given(tensors), **self.attributes)).items()}
        wanted = {name: tensors[name] for name in ("x", *self.shared)}
        op = self.op
        value, back, tape = pullback(lambda tracked: op(*_given({**tensors, **tracked}), **self.attributes), wanted)
        native = {name: tensor.data for name, tensor in tensors.items()}
        try:
            return {**{name: out.data for name, out in self.named(value).items()},
                    **back(list(self.gouts(native, gout)))}
        finally:
            tape.closed = True


def _given(tensors: Mapping[str, Tensor]) -> list[Tensor]:
    return [tensor for name, tensor in tensors.items() if name != "gout"]


def _streams(backend: Backend) -> bool:
    return backend.name == "numpy" and memory.refusal() is None


def _copy(backend: Backend, x: Array) -> Array:
    """A plain copy: by our own C++ where it can be, else by the library, which joins two halves: `asarray` may return
    its argument.
    """
    if _streams(backend):
        return memory.copy(x)
    half = (x.shape[0] + 1) // 2
    return backend.concat([x[:half], x[half:]])


def _subject(op: Op[..., Any], timed: Timed) -> Subject:
    """The subject of an operator; its arguments are known by their kinds in a case of 2 rows and 3 columns.

    Raises:
        UsageError: its first argument, or its result, has other axes.
    """
    like = timed.case((2, 3))
    if not isinstance(like, Case) or like.op != op.name:
        raise UsageError(f"[bench] {op.name}: expected of Timed.case an extend.Case of it, found {described(like)}")
    kinds = {name: (a.shape, a.dtype.kind) for name, a in zip(signature(op).parameters, like.inputs, strict=False)
             if a is not None}
    rows, shared, labels = ([name for name, kind in kinds.items() if kind == wanted]
                            for wanted in (((2, 3), "f"), ((3,), "f"), ((2,), "i")))
    if like.inputs[0] is None or like.inputs[0].shape != (2, 3):
        raise UsageError(f"[bench] {op.name}: expected a first argument of (rows, width), as Timed.case makes it of "
                         "the shape (2, 3)")
    with composed_only():
        result = op(*(None if a is None else tensor(a, "numpy") for a in like.inputs), **like.attrs)
    shape = (result[0] if isinstance(result, tuple) else result).shape
    if shape not in ((2, 3), (2,)):
        raise UsageError(f"[bench] {op.name}: expected a result of (rows, width) or (rows,), found {shape} of 2 rows "
                         "and 3 columns")
    return Subject(op.name, op, timed, tuple(shared), tuple(labels), shape == (2,), len(rows) > 1, like.attrs)


_COPIED = ((4096, 4096),)
COPY = Subject("copy", None, Timed(lambda shape: Case("copy", "", drawn(shape, seed=0), {}, 1), _COPIED, _COPIED,
                                   arrays=(2, 0), flops=(0, 0)))


@cache
def every_subject() -> dict[str, Subject]:
    """Every operator that is timed, by name, those of plug-ins too, and the copy."""
    load_plugins()
    return {**{name: _subject(operator(name), what) for name, what in timed().items()}, "copy": COPY}


# Buffers ----------------------------------------------------------------------------------------------

CACHE_BYTES = 128 << 20
"""More than any last-level cache of a core or GPU: H100 50 MiB, B200 126 MiB, Apple's Ultra 96 MiB, one
EPYC core complex 32 or 96 MiB. Cold inputs rotate through more than twice this."""
LEAST_COLD_BYTES = 64 << 10
"""Smaller inputs are timed warm: launching them takes longer than fetching them, and rotating through enough of them
would time the interpreter."""

_ALIGNED_VALUES = 64
"""Each buffer starts at a multiple of 256 bytes after the first one, as arrays of a library do."""


def buffer_count(shape: Shape, cold: bool) -> int:
    """The number of buffers that rotate; two for warm inputs: x and the gradient."""
    rows, width = shape
    return 2 * CACHE_BYTES // (4 * rows * width) + 2 if cold else 2


def buffers(x: np.ndarray, count: int) -> tuple[np.ndarray, list[slice]]:
    """One array with `count` copies of the rows of x, and where in it each copy is."""
    rows, width = x.shape
    step_unit = _ALIGNED_VALUES // gcd(width, _ALIGNED_VALUES)
    step = -(-rows // step_unit) * step_unit
    block = np.zeros((step, width), x.dtype)
    block[:rows] = x
    return np.tile(block, (count, 1)), [slice(k * step, k * step + rows) for k in range(count)]
