"""The operators, their rules and their cases: tests, proofs, `selftest` and benchmarks walk these, and have no lists.

Each folder of kernels may have a module `cases`, found by its name, with:

    cases()      the cases that prove the rules of its operators
    TIMED        by operator, the shapes, bytes and operations that `duoln bench ops` times

Other packages bring the same by `register`, beside their operators.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

import duoln.kernels
from duoln import ops
from duoln.backends.protocol import Backend
from duoln.core import Op, Rule
from duoln.core.arguments import check_function, described
from duoln.errors import CallError, DtypeError, PluginError, UsageError, words_of

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
        return _cached_arrays(self.make)

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


class Registered(NamedTuple):
    """An operator of another package, with what proves and times it."""

    op: Op[..., Any]
    cases: Callable[[], Iterable[Case]]
    timed: Timed | None


_registered: dict[str, Registered] = {}


def register(op: Op[..., Any], cases: Callable[[], Iterable[Case]], timed: Timed | None = None) -> None:
    """Let `duoln selftest`, `doctor --ops` and `bench ops` know an operator of your package.

        extend.register(squash, lambda: [extend.case(squash, shape) for shape in ((1, 1), (3, 33), (257, 1000))])

    Args:
        op: the operator, with its composed rule.
        cases: gives the calls by which each of its rules is compared with the composed one in float64.
        timed: what is timed; None if nothing is.

    Raises:
        DtypeError: an argument is of another kind.
        UsageError: the operator has no composed rule, or another one has its name, by which verdicts are kept.
    """
    if not isinstance(op, Op):
        raise DtypeError(f"[register] op: expected an operator, as @extend.op makes it, found {described(op)}")
    check_function("register", "cases", cases)
    if not (timed is None or isinstance(timed, Timed)):
        raise DtypeError(f"[register] timed: expected extend.Timed or None, found {described(timed)}")
    if not op.has_rules:
        raise UsageError(f"[register] expected an operator with a composed rule, found {op.name} without one; "
                         f"{op.name}.add(extend.Rule('composed', forward, vjp)) adds it")
    first = _registered[op.name].op if op.name in _registered else getattr(ops, op.name, None)
    if isinstance(first, Op) and first.__module__ != op.__module__:  # of the same one: it is loaded again
        raise UsageError(f"[register] expected an operator with a name of its own, found a second '{op.name}' of "
                         f"{op.__module__}; the first is of {first.__module__}")
    _registered[op.name] = Registered(op, cases, timed)


def registered() -> dict[str, Registered]:
    """The operators of other packages that this process has imported, by name."""
    return dict(_registered)


def registered_cases() -> list[Case]:
    """The cases of these operators.

    Raises:
        PluginError: what a package gives is no case, or one of another operator, or it raises.
    """
    made: list[Case] = []
    for name, known in _registered.items():
        try:
            cases = list(known.cases())
        except Exception as error:
            raise PluginError(f"the cases of {name}, of {known.op.__module__}: {type(error).__name__}: "
                              f"{words_of(error)}") from error
        wrong = next((each for each in cases if not isinstance(each, Case) or each.op != name), None)
        if wrong is not None:
            raise PluginError(f"the cases of {name}, of {known.op.__module__}: expected extend.Case objects of {name}, "
                              f"found {wrong if isinstance(wrong, Case) else described(wrong)}")
        made += cases
    return made


def operator(name: str) -> Op[..., Any]:
    """The operator of that name: duoln's, or one that a package has registered.

    Raises:
        LookupError: there is none.
    """
    own = getattr(ops, name, None)
    if isinstance(own, Op):
        return own
    if name not in _registered:
        raise LookupError(f"expected an operator of duoln or one that a package registers, found '{name}'")
    return _registered[name].op


def case(op: Op[..., Any], *shapes: Sequence[int], length: int | None = None, label: str | None = None,
         seed: int = 0, **attrs: Any) -> Case:
    """A case of arrays of normal values.

        extend.case(leaky, (33, 1000), slope=0.2)

    Args:
        op: the operator.
        shapes: of its arrays.
        length: the number of values in its longest sum; by default those of the largest axis.
        label: the name; by default the shapes and attributes.
        seed: of the values.
        attrs: the operator's attributes.

    Raises:
        CallError: the operator takes other arrays or attributes.
    """
    inputs = op.spec.inputs if op.spec is not None else []
    most, least = len(inputs), sum(not each.optional for each in inputs)
    if op.spec is not None and not least <= len(shapes) <= most:
        raise CallError(f"[case] {op.name}: expected the shapes of {least} to {most} arrays, found {len(shapes)}")
    for each, shape in zip(inputs, shapes, strict=False):
        if not isinstance(shape, tuple | list) or each.kind not in ("real", "any"):
            raise CallError(f"[case] {op.name}: expected a shape of an array of floats as {each.name}, found "
                            f"{described(shape)}{'' if each.kind == 'real' else f' for {each.kind}'}; "
                            "extend.Case(..., make=function) gives any arrays")
    known = [p.name for p in inspect.signature(op).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for key in attrs:
        if op.spec is not None and key not in known:
            raise CallError(f"[case] {op.name}: expected attributes of {', '.join(known) or 'none'}; found {key!r}")
    named = ", ".join([*map(sizes_text, shapes), *(f"{key} {value}" for key, value in attrs.items())])
    longest = max((n for shape in shapes for n in shape), default=1)
    return Case(op.name, label or named, drawn(*shapes, seed=seed), attrs, length or max(longest, 1),
                tuple(shapes[0]) if shapes else ())


@lru_cache(maxsize=2)
def _cached_arrays(make: Callable[[], Arrays]) -> Arrays:
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


def sizes_text(sizes: Sequence[int]) -> str:
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
    own = {op: timed for module in modules("cases") for op, timed in getattr(module, "TIMED", {}).items()}
    return own | {name: known.timed for name, known in _registered.items() if known.timed is not None}


def every_op() -> list[Op[..., Any]]:
    """Duoln's own operators that rules compute."""
    return [op for _, op in sorted(vars(ops).items()) if isinstance(op, Op) and op.has_rules]


def every_rule(backend: Backend) -> Iterator[tuple[Op[..., Any], Rule]]:
    """The fused rules of a backend, each with its operator."""
    return ((op, rule) for op in every_op() for rule in op.rules(backend.name)[:-1])
