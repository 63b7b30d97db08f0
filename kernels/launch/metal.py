"""Declared launches of Metal kernels through MLX, see `launch.declared`.

A `.metal` file is the body of a function: MLX writes the signature from the names and the arrays. Macros are lines
above it, and `HAS_<NAME>` says whether an optional array is given. A kernel is compiled at its first launch for each
set of macros, inputs and outputs. What is `stored` is of float32, float16 or bfloat16, all alike; `STORAGE` says of
which (see common.metal.h).
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import mlx.core as mx

from duoln.backends.protocol import Array, Shape
from duoln.core.spec import ArraySpec as Declared, Spec
from duoln.errors import KernelError
from duoln.kernels import source
from duoln.kernels.launch import declared
from duoln.kernels.launch.declared import Layout

MOST_THREADS = 512
"""The most threads of a threadgroup; a pipeline allows fewer than Metal's 1,024 where a kernel uses many registers."""
_SURE_THREADS = 256
"""That every pipeline should allow; more are tried (see `Layouts`)."""
STORAGES = {mx.float32: 0, mx.float16: 1, mx.bfloat16: 2}
"""The numbers in common.metal.h of what values are stored in."""


def refusal() -> str | None:
    """The reason why no Metal kernel can run here; None if one can."""
    return None if mx.metal.is_available() else "there is no Metal device"


_made: dict[tuple[Any, ...], Any] = {}
"""MLX's kernels, by file, name, macros and outputs."""


def _compiled(file: str, name: str, macros: Mapping[str, int], inputs: list[str], outputs: list[str]) -> Any:
    key = (file, name, *sorted(macros.items()), *outputs)
    if key not in _made:
        header, body = source.metal(file)
        defines = "".join(f"#define {k} {v}\n" for k, v in sorted(macros.items()))
        # MLX identifies a compiled kernel by its name, so each variation needs its own name.
        whole = "_".join(["duoln", name, *(f"{k}{v}" for k, v in sorted(macros.items()))]).lower()
        _made[key] = mx.fast.metal_kernel(name=whole, input_names=inputs, output_names=outputs, source=body,
                                          header=defines + header)
    return _made[key]


def launch(file: str, entry: str, spec: Spec, plan: Callable[..., Layout] = declared.a_thread_each,
           ) -> Callable[..., Any]:
    """The function that a declaration describes; MLX computes its results when they are needed.

    The text is that of all entries of a file: each is what stands where its name in capitals is defined. All leading
    axes of an argument are one there. Macros are those of the plan, THREADS, HAS_NAME of each optional array, and
    STORAGE.

    Args:
        file: the Metal text, below `kernels/`, or the whole path of a plug-in's.
        entry: the name of the kernel.
        spec: arguments and results. `stored` is the dtype of the call, `real` is float32.
        plan: the layout, from what its parameters name: an axis, `storage`, `has_NAME`, or a number, which is a macro
            then and no argument of the text.
    """
    arrays, axes = declared.arrays_of(spec), declared.axes_of(spec)
    wanted = list(inspect.signature(plan).parameters)
    kinds = {each.name: declared.dtype_of(each, spec, lambda name: f"mx.{'bool_' if name == 'bool' else name}")
             for each in (*arrays, *spec.outputs)}
    stored, of_storage = declared.stored_in(spec)
    optional = [each.name for each in (*arrays, *spec.outputs) if each.optional]
    numbers = [each for each in declared.numbers_of(spec) if each.name not in wanted]

    def run(layout: Layout, storage: int, given: Mapping[str, Any], shapes: Mapping[str, Shape | None],
            dtypes: Sequence[Any]) -> list[Any]:
        """The results, None for those without a shape; the sums of their parts are added up."""
        threads = prod(layout.block)
        if threads > MOST_THREADS:
            raise KernelError(f"[{entry}] expected at most {MOST_THREADS} threads, found {threads}")
        macros = {**layout.macros, "THREADS": threads, entry.upper(): 1, **({"STORAGE": storage} if storage else {}),
                  **{f"HAS_{name.upper()}": int((given if name in given else shapes)[name] is not None)
                     for name in optional}}
        inputs = {name: x for name, x in given.items() if x is not None}
        outputs = {name: shape for name, shape in shapes.items() if shape is not None}
        kernel = _compiled(file, entry, macros, list(inputs), list(outputs))
        made = dict(zip(outputs, kernel(
            inputs=list(inputs.values()), grid=(layout.grid[0] * threads, 1, 1), threadgroup=(threads, 1, 1),
            output_shapes=list(outputs.values()),
            output_dtypes=[dtype for name, dtype in zip(shapes, dtypes, strict=True) if name in outputs]), strict=True))
        return [made.get(each.name) if each.kind != "sum" or each.name not in made else mx.sum(made[each.name], axis=0)
                for each in spec.outputs]

    known = {"mx": mx, "prod": prod, "misfit": declared.misfit, "run": run, "plan": plan, "STORAGES": STORAGES,
             "unstored": declared.unstored}
    lines = of_storage or ["storage = 0"]
    bound = {each.name for each in declared.numbers_of(spec)}
    for each in arrays:
        lines += declared.argument_lines(each, None if each is stored else kinds[each.name], bound, copies=False)
    told = {"storage": "storage", **{axis.lstrip("*"): declared.size_of(axis) for axis in axes},
            **{f"has_{name}": f"{name} is not None" if any(name == a.name for a in arrays) else name
               for name in optional}}
    lines.append(f"layout = plan({', '.join(f'{name}={told.get(name, name)}' for name in wanted)})")
    given = [f"{each.name!r}: {_flat(each)}" for each in arrays]
    given += [f"{each.name!r}: mx.array({each.name}, mx.{'int' if each.kind[0] == 'i' else 'float'}32)"
              for each in numbers]
    shapes = []
    for each in spec.outputs:
        shape = declared.result_shape(each, "layout.parts")
        shapes.append(f"{each.name!r}: {f'{shape} if {each.name} else None' if each.optional else shape}")
    lines += [f"made = run(layout, storage, {{{', '.join(given)}}}, {{{', '.join(shapes)}}}, "
              f"({', '.join(kinds[each.name] for each in spec.outputs)},))",
              "return made[0]" if len(spec.outputs) == 1 else "return tuple(made)"]
    return declared.function(file, entry, spec, lines, known)


def _flat(array: Declared) -> str:
    """An argument whose leading axes are one, as an expression."""
    axes = array.axes or ()
    if not axes or axes[0][0] != "*":
        return array.name
    flat = f"{array.name}.reshape({', '.join(map(declared.size_of, axes)) if len(axes) > 1 else '-1'})"
    return f"None if {array.name} is None else {flat}" if array.optional else flat


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
        """The layouts that were tried, each with the error of MLX, or None."""
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
