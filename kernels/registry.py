"""The operators, their rules and their cases: tests, proofs, `selftest` and benchmarks walk these, and have no lists.

Each folder of kernels may have a module `cases`, found by its name, with:

    cases()      the cases that prove the rules of its operators
    TIMED        by operator, the shapes, bytes and operations that `duoln bench ops` times
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

import duoln.kernels
from duoln import ops
from duoln.backends.protocol import Backend
from duoln.core import Op, Rule

Arrays = Sequence[np.ndarray | None]
Macros = Mapping[str, int]
STORED = ("float16", "bfloat16")


class Case(NamedTuple):
    """One call of an operator, by which its rules are compared with float64. Its arrays are made when they are used."""

    op: str
    label: str
    """The name of the case together with `op` and `stored`: no two cases have the same."""
    make: Callable[[], Arrays]
    """The operator's arrays, in float32, from a fixed seed."""
    attrs: Mapping[str, Any]
    length: int
    """The number of values in its longest sum; the tolerance grows with it."""
    sizes: Sequence[int] = ()
    """The numbers that decide a kernel's plan: the shape of a norm's rows; time steps, rows, inputs and units."""
    misaligned: bool = False
    """True if the arrays begin one value after an aligned address."""
    stored: str = "float32"
    """The dtype of the arrays that a rule takes in 16 bits; the other ones are float32."""
    roundings: int = 1
    """The most roundings to `stored` that follow each other; the tolerance grows with it, too."""
    gpu: bool = False
    """True for sizes and runs that a CPU does not need, and for 16 bits."""
    cpu: bool = False
    """True for what GPUs leave to the composed rule."""
    net: bool = False
    """True for the few that prove a GPU's rule before a user's first call of it."""
    runs: int = 2
    """The number of runs that must give the same bits."""
    layouts: bool = False
    """True if the tests also place each of its arrays in each layout of memory; such a case has few values."""

    def __str__(self) -> str:
        return f"{self.op} {self.label}" if self.stored == "float32" else f"{self.op} {self.stored} {self.label}"

    @property
    def inputs(self) -> Arrays:
        """The operator's arrays; those of the last two cases are kept."""
        return _made(self.make)

    def on_gpu(self, stored: str = "float32", net: bool = False, runs: int = 2) -> Case:
        """The same for GPUs alone."""
        return self._replace(gpu=True, stored=stored, net=net, runs=runs)


Shape = tuple[int, int]
"""Rows and their width."""


class Timed(NamedTuple):
    """An operator on rows of values in `duoln bench ops`: its shapes, its least traffic, and its peer."""

    case: Callable[[Shape], Case]
    """The case of a shape."""
    shapes: Sequence[Shape]
    small: Sequence[Shape]
    """A reduced suite, for a CPU."""
    arrays: tuple[int, int]
    """Arrays like x that forward reads and writes, and those that backward adds. Each counts once: it may be in a cache
    when it is read again."""
    flops: tuple[int, int]
    """Floating-point operations for a value, of forward and of backward; an exponential counts as one."""
    peer: Callable[..., Any] | None = None
    """`peer(torch, *arrays, **attrs)`: the same in PyTorch; None if it has none."""
    on_device: Sequence[Shape] = ()
    """Shapes that the survey of a GPU times: large arrays that memory bounds first, then odd rows and widths."""
    row_bytes: tuple[int, int] = (0, 0)
    """Bytes that forward and backward move beside them, for a row."""

    def bytes_moved(self, rows: int, width: int, backward: bool) -> int:
        """The least number of bytes that a run reads and writes, without what rows share and what is kept of each."""
        passes = 2 if backward else 1
        return rows * (4 * width * sum(self.arrays[:passes]) + sum(self.row_bytes[:passes]))

    def operations(self, rows: int, width: int, backward: bool) -> int:
        """Floating-point operations of the formulas, to leading order in the number of values."""
        return rows * width * sum(self.flops[:2 if backward else 1])


@lru_cache(maxsize=2)
def _made(make: Callable[[], Arrays]) -> Arrays:
    return make()


def drawn(*shapes: Sequence[int], seed: int | Sequence[int]) -> Callable[[], Arrays]:
    """A function that makes arrays of normal values in these shapes."""
    def arrays() -> Arrays:
        rng = np.random.default_rng(seed)
        return [floats(rng, *shape) for shape in shapes]

    return arrays


def floats(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    """Normal values in float32."""
    return _drawn(rng, shape, scale)


def _drawn(rng: np.random.Generator, shape: Sequence[int], scale: float) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32) * np.float32(scale)


def by(sizes: Sequence[int]) -> str:
    """Sizes in words: 3 x 5."""
    return " x ".join(map(str, sizes))


def folders() -> list[str]:
    """The names of the folders of kernels."""
    return sorted(m.name for m in pkgutil.iter_modules(duoln.kernels.__path__) if m.ispkg)


def modules(name: str) -> list[ModuleType]:
    """The module of that name of each folder that has one."""
    those = []
    for folder in folders():
        package = importlib.import_module(f"duoln.kernels.{folder}")
        if any(m.name == name for m in pkgutil.iter_modules(package.__path__)):
            those.append(importlib.import_module(f"duoln.kernels.{folder}.{name}"))
    return those


@cache
def every_case(gpu: bool = False) -> tuple[Case, ...]:
    """The cases of all folders for any machine; or those for GPUs alone."""
    return tuple(case for module in modules("cases") for case in module.cases() if case.gpu is gpu)


def timed() -> dict[str, Timed]:
    """The operators that `duoln bench ops` times, by name."""
    return {op: timed for module in modules("cases") for op, timed in getattr(module, "TIMED", {}).items()}


def every_op() -> list[Op[..., Any]]:
    """Duoln's own operators that rules compute."""
    return [op for _, op in sorted(vars(ops).items()) if isinstance(op, Op) and op.has_rules]


def every_rule(backend: Backend) -> Iterator[tuple[Op[..., Any], Rule]]:
    """The fused rules of a backend, each with its operator."""
    return ((op, rule) for op in every_op() for rule in op.rules(backend.name)[:-1])
