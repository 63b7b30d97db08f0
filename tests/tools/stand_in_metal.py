"""A stand-in for `mx.fast.metal_kernel`: the text of a Metal kernel runs on the CPU, through `hostgpu`.

It writes the signature as MLX does: a pointer for each input and output in their order, a reference for a number,
`NAME_shape` where the body names it, inputs of fewer than 8 values in `constant` memory. `signature` gives that text
as Metal would read it, `make` a function in the place of MLX's own that runs it.

Where MLX on a Mac may still differ: the order in which `simd_sum` adds, the accuracy of `exp` and `tanh`, when things
are computed (here at once), and what Metal's compiler accepts (`tests/kernels/test_metal_text.py` asks Clang).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from duoln.kernels import registry
from duoln.kernels.launch import Launch, metal
from duoln.testing import hostgpu
from duoln.testing.hostgpu.metal import Argument, arguments, host_text

_ATTRIBUTES = {
    "thread_position_in_threadgroup": "uint3", "threadgroup_position_in_grid": "uint3",
    "thread_position_in_grid": "uint3", "threads_per_threadgroup": "uint3", "threadgroups_per_grid": "uint3",
    "thread_index_in_threadgroup": "uint", "thread_index_in_simdgroup": "uint",
    "simdgroup_index_in_threadgroup": "uint", "threads_per_simdgroup": "uint"}

_MODULES = registry.modules("metal")


def _parts(kind: type) -> Iterator[Any]:
    """The objects of this type that a module of Metal kernels has, by themselves or in a dict."""
    for value in (value for module in _MODULES for value in vars(module).values()):
        yield from (v for v in (value.values() if isinstance(value, dict) else (value,)) if isinstance(v, kind))


KERNELS = {launch.entry: f"{launch.file}.metal" for launch in Launch.every
           if launch.runs_on("mlx") and not Path(launch.file).is_absolute()}
"""The file of every Metal kernel of duoln, by name."""

launches: list[str] = []
"""The kernels that ran, in order; their number is the seed of the next."""


def signature(name: str, given: Sequence[Argument], body: str, header: str) -> str:
    """The whole source that Metal's compiler reads."""
    places = [f"{a.declaration} [[buffer({i})]]" for i, a in enumerate(given)]
    places += [f"{kind} {word} [[{word}]]" for word, kind in _ATTRIBUTES.items() if word in body]
    return f"{header}\n[[kernel]] void {name}(\n  " + ",\n  ".join(places) + f") {{\n{body}\n}}\n"


def make(seed: int = 0, allowed: Callable[[str], int] = lambda name: 1024) -> Any:
    """A function in the place of `mx.fast.metal_kernel`; a pipeline allows so many threads, by its kernel's name."""

    def metal_kernel(name: str, input_names: Sequence[str], output_names: Sequence[str], source: str,
                     header: str = "", ensure_row_contiguous: bool = True, atomic_outputs: bool = False) -> Any:
        def run(inputs: Sequence[Any], grid: Sequence[int], threadgroup: Sequence[int],
                output_shapes: Sequence[Any], output_dtypes: Sequence[Any]) -> list[Any]:
            if any(g % t for g, t in zip(grid, threadgroup, strict=True)):
                raise ValueError("expected whole threadgroups: simd functions and barriers need all their threads")
            if len(inputs) != len(input_names) or len(output_shapes) != len(output_names):
                raise ValueError(f"[{name}] expected {len(input_names)} inputs and {len(output_names)} outputs")
            if threadgroup[0] > allowed(name):  # on a Mac when the result is computed
                raise ValueError(f"Thread group size ({threadgroup[0]}) is greater than the maximum allowed threads per "
                                 f"threadgroup ({allowed(name)})")
            given = {n: on_host(x) for n, x in zip(input_names, inputs, strict=True)}
            made = {n: on_host(mx.full(tuple(s), float("nan"), d))
                    for n, s, d in zip(output_names, output_shapes, output_dtypes, strict=True)}
            all_of_them = arguments(given, made, source)
            program = hostgpu.compile(host_text(name, all_of_them, source, header), prelude="metal.h")
            launches.append(name)
            blocks = tuple(g // t for g, t in zip(grid, threadgroup, strict=True))
            program.launch(name, blocks, threadgroup, [a.value.reshape(-1) for a in all_of_them],
                           seed=seed + len(launches))
            return [_as_mlx(a) for a in made.values()]

        return run

    return metal_kernel


def on_host(x: Any) -> np.ndarray:
    """A copy of an MLX array; of bfloat16 the bits."""
    return np.array(x.view(mx.uint16) if x.dtype == mx.bfloat16 else x)


def _as_mlx(x: np.ndarray) -> Any:
    made = mx.array(x)
    return made.view(mx.bfloat16) if x.dtype == np.uint16 else made


def install(patch: pytest.MonkeyPatch, metal_kernel: Any = None) -> None:
    """Put it in MLX's place, as if there were a Metal device and nothing had been compiled yet."""
    patch.setattr(mx.fast, "metal_kernel", metal_kernel or make())
    patch.setattr(mx.metal, "is_available", lambda: True)
    patch.setattr(metal, "_made", {})
    for layouts in _parts(metal.Layouts):
        patch.setattr(layouts, "_refused", {})


def ran(before: int) -> set[str]:
    """The names of the kernels that ran since there were `before` launches."""
    return {next(k for k in KERNELS if name.startswith(f"duoln_{k}")) for name in launches[before:]}
