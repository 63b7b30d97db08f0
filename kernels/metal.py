"""Typed launches of Metal kernels through MLX.

    backward = Kernel("norm/layer_norm_backward.metal", "x: float32[2], gain: float32[1]?, eps: float32")
    dx, = backward(groups=512, threads=128, inputs=(x, gain, 1e-5), outputs={"dx": x.shape}, macros={"UNITS": 8})

A `.metal` file is the body of a function: MLX writes the signature from the names and the arrays. Macros are lines
above it, and `HAS_<NAME>` says whether an optional input (see `signature`) is given. A kernel is compiled at its first
launch for each set of macros, inputs and outputs.

Inputs of dtype `storage` are of float32, float16 or bfloat16, all alike; `STORAGE` says of which (see common.metal.h).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import mlx.core as mx

from duoln.backends.protocol import Array, Shape
from duoln.errors import KernelError
from duoln.kernels import source
from duoln.kernels.signature import Parameter, parameters

MOST_THREADS = 512
"""Of a threadgroup. A pipeline allows fewer than Metal's 1,024 where a kernel uses many registers."""
_SURE_THREADS = 256
"""That every pipeline should allow; more are tried (see `Layouts`)."""
_DTYPES = {"float32": mx.float32, "int32": mx.int32, "bool": mx.bool_}
_STORED = "storage"
STORAGES = {mx.float32: 0, mx.float16: 1, mx.bfloat16: 2}
"""The numbers in common.metal.h of what values are stored in."""


def missing() -> str | None:
    """The reason why no Metal kernel can run here; None if one can."""
    return None if mx.metal.is_available() else "there is no Metal device"


class Kernel:
    """One `.metal` file; an output is float32, or stored as the inputs are if `stored` has its name."""

    def __init__(self, file: str, inputs: str, stored: Container[str] = ()) -> None:
        self.file, self.inputs, self.stored = file, parameters(inputs), stored
        self.name = file.rsplit("/", 1)[-1].removesuffix(".metal")
        self._made: dict[tuple[Any, ...], Any] = {}

    def __call__(self, groups: int, threads: int, inputs: Sequence[Any], outputs: Mapping[str, Shape],
                 macros: Mapping[str, int]) -> list[Array]:
        """The outputs, in their order; MLX computes them when they are needed.

        Args:
            groups: the number of threadgroups.
            threads: the number of threads in each threadgroup.
            inputs: one for each parameter.
            outputs: the shape of each output.
            macros: the macros with which the source is compiled.

        Raises:
            KernelError: the inputs do not fit the declaration, or there are too many threads.
        """
        if threads > MOST_THREADS:
            raise KernelError(f"[{self.name}] expected at most {MOST_THREADS} threads, found {threads}")
        if len(inputs) != len(self.inputs):
            raise KernelError(f"[{self.name}] expected {len(self.inputs)} inputs, found {len(inputs)}")
        storage = self._storage(inputs)
        given = [(p, self._checked(p, value, storage)) for p, value in zip(self.inputs, inputs, strict=True)]
        present = [(p.name, value) for p, value in given if value is not None]
        every = {**macros, **{f"HAS_{p.name.upper()}": int(value is not None) for p, value in given if p.optional}}
        if STORAGES[storage]:
            every["STORAGE"] = STORAGES[storage]
        kernel = self._compiled(every, [name for name, _ in present], list(outputs))
        return list(kernel(
            inputs=[value for _, value in present], grid=(groups * threads, 1, 1), threadgroup=(threads, 1, 1),
            output_shapes=list(outputs.values()),
            output_dtypes=[storage if name in self.stored else mx.float32 for name in outputs]))

    def _compiled(self, macros: Mapping[str, int], inputs: list[str], outputs: list[str]) -> Any:
        key = (*sorted(macros.items()), *outputs)
        if key not in self._made:
            header, body = source.metal(self.file)
            defines = "".join(f"#define {k} {v}\n" for k, v in sorted(macros.items()))
            # MLX identifies a compiled kernel by its name, so each variation needs its own name.
            name = "_".join(["duoln", self.name, *(f"{k}{v}" for k, v in sorted(macros.items()))]).lower()
            self._made[key] = mx.fast.metal_kernel(name=name, input_names=inputs, output_names=outputs, source=body,
                                                   header=defines + header)
        return self._made[key]

    def _storage(self, inputs: Sequence[Any]) -> Any:
        """The dtype of the first input that is stored; float32 if there is none, or it has another one."""
        first = next((value for p, value in zip(self.inputs, inputs, strict=True) if p.dtype == _STORED), None)
        return first.dtype if isinstance(first, mx.array) and first.dtype in STORAGES else mx.float32

    def _checked(self, expected: Parameter, given: Any, storage: Any) -> Array | None:
        if given is None and expected.optional:
            return None
        if expected.rank is None and isinstance(given, int | float) and not isinstance(given, bool):
            return mx.array(given, _DTYPES[expected.dtype])
        if not isinstance(given, mx.array):
            raise KernelError(f"[{self.name}] {expected.name}: expected {expected}, found {type(given).__name__}")
        dtype = storage if expected.dtype == _STORED else _DTYPES[expected.dtype]
        if given.dtype != dtype or given.ndim != expected.rank:
            wanted = expected._replace(dtype=str(dtype).rpartition(".")[2])
            raise KernelError(f"[{self.name}] {expected.name}: expected {wanted}, found {given.dtype} of "
                              f"{given.ndim} dimensions")
        return given


class Layouts:
    """Threads of a row and values of a thread, by the width of a row, as the device's pipelines allow them.

    MLX tells that a pipeline allows fewer threads only when a result is computed, too late for another rule. So a
    layout of many threads runs once, on zeros, when it is first asked for; if it fails, half the threads have twice
    the values.

    Args:
        ladder: threads and values, which hold rows up to their product; the first that is wide enough is wanted.
        run: the results of the kernels that have these layouts, for one row of zeros of a width and a kind. It asks for
            the layout itself.
    """

    def __init__(self, ladder: Sequence[tuple[int, int]], run: Callable[..., list[Array]]) -> None:
        self._ladder, self._run = ladder, run
        self._refused: dict[tuple[Any, ...], str | None] = {}
        """What was tried, with the error of MLX."""
        self._trying = threading.RLock()

    def plan(self, width: int, *kind: Any) -> tuple[int, int]:
        """Threads, and values of each, for rows of this width and kind.

        Raises:
            KernelError: the device's pipelines allow none.
        """
        layout, reason = self._first(width, kind)
        if reason is not None:
            raise KernelError(reason)
        return layout

    def refusal(self, width: int, *kind: Any) -> str | None:
        """The reason why the device's pipelines allow no layout; None if they allow one."""
        return self._first(width, kind)[1]

    def _first(self, width: int, kind: tuple[Any, ...]) -> tuple[tuple[int, int], str | None]:
        threads, values = next(layout for layout in self._ladder if width <= layout[0] * layout[1])
        with self._trying:
            reason = self._tried(threads, values, width, kind)
            while reason is not None and threads > _SURE_THREADS:
                threads, values = threads // 2, values * 2
                reason = self._tried(threads, values, width, kind)
        return (threads, values), reason

    def _tried(self, threads: int, values: int, width: int, kind: tuple[Any, ...]) -> str | None:
        key = (threads, values, *kind)
        if threads <= _SURE_THREADS and (threads, values) in self._ladder:
            return None
        if key not in self._refused:
            self._refused[key] = None  # the run asks for this layout again
            try:
                with mx.stream(mx.new_stream(mx.default_device())):  # no lock of the backend's stream is needed
                    mx.eval(self._run(width, *kind))
            except Exception as error:  # whatever it is, another layout or another rule runs
                self._refused[key] = f"{threads} threads with {values} values each cannot run here: {error}"
        return self._refused[key]
