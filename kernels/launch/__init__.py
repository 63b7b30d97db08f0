"""A fused operator in one host file: launches that are declared once, and the rule that they make on each device.

    _forward = Launch("square/square", "square_forward", "x: stored[*size] -> y: like x")
    _backward = Launch("square/square", "square_backward", "x: stored[*size], dy: like x -> dx: like x")

    def forward(be, x):
        return _forward[be.name](x), x

    def vjp(be, x, gout, needs):
        return (_backward[be.name](x, gout),)

    attach = fused(square, forward, vjp, _forward)

The devices are those that have a text: `square.cpp` for NumPy's arrays, `square.cu` for CuPy's, `square.metal` for
MLX's. `duoln.runtime` calls `attach` with the name of a backend when that is first used.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from duoln.backends.protocol import STORAGE, Array, Backend
from duoln.core import Op, Rule
from duoln.core.spec import Spec
from duoln.errors import KernelError
from duoln.kernels import native, source
from duoln.kernels.launch import cpp, declared
from duoln.kernels.launch.declared import Layout
from duoln.kernels.native import storage
from duoln.kernels.native.entries import Entries

_SUFFIXES = {"numpy": ".cpp", "cupy": ".cu", "mlx": ".metal"}
MODULES = {"cupy": "duoln.kernels.launch.cuda", "mlx": "duoln.kernels.launch.metal"}
DRIVERS: dict[str, Any] = {}
"""Replacements of these modules, see `testing.emulation`."""
_RULES = {"numpy": "compiled", "cupy": "cuda", "mlx": "metal"}
"""The names of rules."""


def driver_of(backend: str) -> Any:
    """The module that launches on a GPU; it loads the device's library."""
    name = MODULES[backend]
    return DRIVERS.get(name) or importlib.import_module(name)


class Launch(dict[str, Callable[..., Any]]):
    """A declared launch of each device, by the name of its backend; each is made when it is first asked for.

    Args:
        file: the texts, below `kernels/` or whole, without their ends.
        entry: the name in all of them; in Metal's it is a macro that says which kernel to compile.
        declaration: arguments and results, see `kernels.launch.declared`.
        plan: the layout on GPUs, see `launch.cuda`.
        block: see `launch.cpp`.
        texts: the CUDA texts, with their entries, of which the plan names one; by default `file` alone.

    Raises:
        ValueError: the declaration is none.
        KernelError: no text has the entry. In a wheel that is not unpacked, which has no texts, there is no error.
    """

    every: list[Launch] = []  # noqa: RUF012
    """Those of this process."""

    def __init__(self, file: str | os.PathLike[str], entry: str, declaration: str,
                 plan: Callable[..., Layout] = declared.a_thread_each,
                 block: int | Callable[[int, int], int] = 1, texts: Sequence[tuple[str, str]] = ()) -> None:
        """Declare it."""
        super().__init__()
        file = os.fspath(file)
        self.file, self.entry = file, entry
        self.spec = Spec.of(declaration)
        self._plan, self._block, self._texts = plan, block, texts
        if source.is_outside(file) and plan is not declared.a_thread_each:  # tests check the plans of duoln
            declared.check_plan(entry, plan, self.spec)
        self._binder: Callable[..., Any] | None = None
        names = [each.name for each in self.spec.inputs]
        self.named: Callable[[Mapping[str, Any]], Any] = itemgetter(*names)
        """The arguments, in their order, among values by name."""
        if len(names) == 1:
            self.named = lambda values: (values[names[0]],)
        self.entries = Entries(file + _SUFFIXES["numpy"], entry, declared.cpp_parameters(self.spec))
        """That of the C++ text; where there is none, its use raises a KernelError."""
        self.cpp_file = file + _SUFFIXES["numpy"] if self.runs_on("numpy") else None
        """See native.foresight."""
        if self.cpp_file is not None:
            storage.count_in(self.cpp_file)
            source.declare(self.cpp_file, entry, declared.cpp_prototype(entry, self.spec))
        if self.runs_on("cupy"):
            for text, name in texts or [(file + _SUFFIXES["cupy"], entry)]:
                source.declare(text, name, declared.cuda_prototype(name, self.spec))
        elif self.cpp_file is None and not self.runs_on("mlx") and source.FOLDER.is_dir():
            raise KernelError(f"[{entry}] expected ENTRY({entry}) in a text {file}.cpp or {file}.cu, or {file}.metal")
        Launch.every.append(self)

    def __missing__(self, backend: str) -> Callable[..., Any]:
        if backend not in _SUFFIXES:
            raise KernelError(f"[{self.entry}] expected the name of a backend, {', '.join(_SUFFIXES)}; found "
                              f"{backend!r}")
        text = self.file + _SUFFIXES[backend]
        if backend == "numpy":
            made = cpp.launch(self.entries, self.spec, self._block)
        else:
            driver = driver_of(backend)
            made = driver.launch(text, self.entry, self.spec, self._plan)
        self[backend] = made
        return made

    def runs_on(self, backend: str) -> bool:
        """True if a text for that backend's device has the entry."""
        text = self.file + _SUFFIXES[backend]
        if not source.is_there(text):
            return False
        if backend == "mlx":  # a file of duoln's may be one kernel alone
            return not source.is_outside(text) or self.entry.upper() in source.own_text(text)
        return self.entry in source.entries_in(text) or (backend == "cupy" and bool(self._texts))

    def bind(self, values: Mapping[str, Any], varying: str | None = None) -> Callable[..., None]:
        """On CUDA, the launch of those of some values that the declaration names, as a function of a number.

        Args:
            values: arguments by name.
            varying: the number that each call gives; None if none varies.
        """
        if self._binder is None:
            driver = driver_of("cupy")
            self._binder = driver.binder(self.file + _SUFFIXES["cupy"], self.entry, self.spec, self._plan)
        bound: Callable[..., None] = self._binder(*self.named(values), varying=varying)
        return bound

    def settings(self) -> list[tuple[str, Mapping[str, int]]]:
        """Each CUDA text of the launch with its macros, for the compiler's tests."""
        return declared.settings(self._plan, self.file + _SUFFIXES["cupy"], self.spec)


def fused(op: Op[Any, Any], forward: Callable[..., Any], vjp: Callable[..., Any] | None, first: Launch,
          supports: Callable[..., str | None] | None = None, names: Mapping[str, str] | None = None,
          **options: Any) -> Callable[[str], None]:
    """A function that adds the rule of these passes to the operator, for a backend that has a text.

    Args:
        op: the operator.
        forward: the rule's, see `Rule`; its launches are those of the backend's name.
        vjp: the rule's.
        first: the launch of the forward pass; its first arguments are those of the operator.
        supports: the rule's, where that of the launch does not do; see `condition`.
        names: the rule's on some backends; else it is "compiled", "cuda" or "metal".
        options: of `Rule`.
    """

    def attach(backend: str) -> None:
        """Add the rule to the operator."""
        if first.runs_on(backend):
            stored = [k for k, each in enumerate(first.spec.inputs) if each.kind == "stored" and backend != "numpy"]
            name = (names or {}).get(backend, _RULES[backend])
            op.add(Rule(name, forward, vjp, supports or condition(first, backend), stored=tuple(stored), **options),
                   backend=backend)

    return attach


def condition(launch: Launch, backend: str) -> Callable[..., str | None]:
    """The `supports` of a rule by a launch: sizes, dtypes, and whether a text can be compiled here."""
    arrays = declared.arrays_of(launch.spec)
    place, lead = next((k, each) for k, each in enumerate(arrays) if each.kind in ("real", "stored"))
    taken = ("float32", *STORAGE) if lead.kind == "stored" else ("float32",)
    text = launch.file + _SUFFIXES[backend]

    def compiled(be: Backend, *given: Array, **attrs: Any) -> str | None:
        x = given[place]
        return native.refusal(text, x.dtype) if x.size else "there are no values"

    def refusal(be: Backend, *given: Array, **attrs: Any) -> str | None:
        x = given[place]
        if not x.size:
            return "there are no values"
        if be.dtype(x) not in taken:
            return f"the kernel is for {'float32 and 16 bits' if len(taken) > 1 else 'float32'}, not {be.dtype(x)}"
        if x.size >= 1 << 31:
            return f"{x.size} values are more than 2^31"
        return driver_of(backend).refusal() if backend == "mlx" else None

    return compiled if backend == "numpy" else refusal
