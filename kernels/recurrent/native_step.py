"""One time step of a few rows where no gradient is recorded, compiled: one call, which keeps and packs nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.core.gradient import is_recording
from duoln.kernels import host, native
from duoln.kernels.linear.few_rows import MOST_ROWS
from duoln.kernels.recurrent.cells import COMPILED_WALKS, Supports
from duoln.kernels.recurrent.native_walk import compiled_walks, file_of
from duoln.kernels.recurrent.positions import PARAMETERS, Parameters
from duoln.kernels.recurrent.weights import Means, is_transposed, laid_out
from duoln.ops.recurrent.variants import CELLS

_WORTH_THREADS_BYTES = 1 << 21
"""Bytes of the weights below which a second thread costs more than it saves."""
_PARAMETERS = ("gain_x", "gain_h", "bias", "bias_2", "bias_3", "gain_c", "bias_c", "bias_h")
_NAMES = ("w_h", "x", "w_x", *_PARAMETERS, "inner_bias", "h", "c", "h_new", "c_new", "batch", "inputs", "units", "eps",
          "threads", "transposed", "theirs")
_SIGNATURE = ("w_h: real[2], x: real[2], w_x: real[2], gain_x: real[1]?, gain_h: real[1]?, bias: real[1]?, "
              "bias_2: real[1]?, bias_3: real[1]?, {}inner_bias: real[1]?, {}batch: int64, inputs: int64, "
              "units: int64, eps: float64, threads: int32, transposed: int32{}")
_OWN = {"rnn": ("", "h: real[2], h_new: real[2], ", ""),
        "gru": ("bias_h: real[1]?, ", "h: real[2], h_new: real[2], ", ", theirs: int32"),
        "lstm": ("gain_c: real[1]?, bias_c: real[1]?, ",
                 "h: real[2], c: real[2], h_new: real[2], c_new: real[2], ", "")}
"""The parameters, the states and the last argument of each cell."""


class _Step(NamedTuple):
    function: native.Function
    run: Callable[[np.dtype, tuple[Any, ...]], None]
    means: Means
    has_inner_bias: bool
    given: tuple[int | None, ...]
    """The place of each of `_PARAMETERS` among (bias, *norms); None for one that is not there."""

    @classmethod
    def of(cls, cell: str, norm: str) -> _Step:
        walk = compiled_walks(cell)[norm]
        function = native.Function(file_of(cell, norm), f"{cell}_step", _SIGNATURE.format(*_OWN[cell]))
        terms = {PARAMETERS[slot]: terms for slot, terms, _ in Parameters.of(cell, norm).read}
        bias = dict(zip(("bias", "bias_2", "bias_3"), terms.pop("bias_x", ()), strict=False))
        places = {name: place for name, (place,) in terms.items()} | bias
        return cls(function, function.unchecked(_NAMES), walk.means, walk.has_inner_bias,
                   tuple(places.get(name) for name in _PARAMETERS))


def rule(cell: str, of_walk: Rule) -> Rule:
    """The rule of a cell. A gradient that was not foreseen is that of the walk, which runs then."""
    steps = {norm: _Step.of(cell, norm) for of_cell, norm in COMPILED_WALKS if of_cell == cell}
    count = len(CELLS[cell].states)

    def forward(be: Backend, x: Array, *arrays: Any, norm: str, eps: float, **attrs: Any) -> tuple[Any, Any]:
        step = steps[norm]
        states, (w_x, w_h, bias, _, *norms) = arrays[:count], arrays[count:]
        before = [host.contiguous(state) for state in states]
        after = [host.empty_like(state) for state in before]
        transposed, given = is_transposed(w_h), (bias, *norms)
        step.run(x.dtype, (laid_out(w_h, transposed), host.contiguous(x[0]), laid_out(w_x, transposed),
                           *[None if k is None else host.contiguous(given[k]) for k in step.given],
                           host.contiguous(step.means.without_of_bias(bias)) if step.has_inner_bias else None,
                           before[0], before[-1], after[0], after[-1], *_sizes(x, w_x), w_h.shape[0], eps,
                           _threads(w_x, w_h), transposed, False))
        return (after[0].reshape(1, *after[0].shape), *after), ((x, *arrays), {"norm": norm, "eps": eps, **attrs})

    def vjp(be: Backend, saved: Any, gouts: Any, needs: Sequence[bool]) -> Any:
        arrays, attrs = saved
        assert of_walk.vjp is not None
        return of_walk.vjp(be, of_walk.forward(be, *arrays, **attrs)[1], gouts, needs)

    def bind(be: Backend, x: Array, *arrays: Any, norm: str, eps: float, theirs: bool = False, **attrs: Any,
             ) -> Callable[..., None] | None:
        step, (w_x, w_h, _, _, *norms) = steps[norm], arrays[count:]
        transposed = is_transposed(w_h)
        lie = laid_out(w_h, transposed) is w_h and laid_out(w_x, transposed) is w_x
        if step.has_inner_bias or not lie or not all(a.flags.c_contiguous for a in norms):
            return None
        numbers = *_sizes(x, w_x), w_h.shape[0], eps, _threads(w_x, w_h), transposed, theirs
        values: dict[str, Any] = dict(zip(_NAMES[-7:], numbers, strict=True))
        values |= {name: host.address(norms[k - 1]) for name, k in zip(_PARAMETERS, step.given, strict=True) if k}
        values |= {"w_h": host.address(w_h), "w_x": host.address(w_x)}
        names = step.function.names
        of_bias = next((name for name, k in zip(_PARAMETERS, step.given, strict=True) if k == 0), "inner_bias")
        states = ("h", "c")[:count]
        free = [names.index(name) for name in ("x", of_bias, *states, *(f"{name}_new" for name in states))]
        entry, words, kept = step.function.by_address(x.dtype), [values.get(name) for name in names], (w_x, w_h, norms)

        def run(*addresses: int | None) -> None:
            filled = words.copy()
            for place, address in zip(free, addresses, strict=True):
                filled[place] = address
            entry(*filled)

        run.kept = kept  # type: ignore[attr-defined]  # the memory of what is bound lives as long
        return run

    return Rule("compiled time step", forward, vjp, _supports(count, of_walk), bind=bind)


def _sizes(x: Array, w_x: Array) -> tuple[int, int]:
    return x.shape[1], w_x.shape[0]


def _threads(w_x: Array, w_h: Array) -> int:
    return host.threads_for(w_x.nbytes + w_h.nbytes, _WORTH_THREADS_BYTES)


def _supports(count: int, of_walk: Rule) -> Supports:
    def refusal(be: Backend, x: Array, *arrays: Array, **attrs: Any) -> str | None:
        if x.shape[0] != 1 or x.shape[1] > MOST_ROWS or arrays[count + 3] is not None:
            return f"it is for one time step of at most {MOST_ROWS} rows without a mask"
        if is_recording():
            return "a gradient needs what the walk keeps"
        return None if of_walk.supports is None else of_walk.supports(be, x, *arrays, **attrs)

    return refusal
