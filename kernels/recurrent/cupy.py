"""The rules of the recurrent operators on CUDA: by steps, in one launch, and one time step of an LSTM."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any

import cupy

from duoln import ops
from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.core.storage import converted, in_float32
from duoln.kernels.launch import cuda as launch
from duoln.kernels.recurrent import cuda, cuda_steps, cuda_walk
from duoln.kernels.recurrent.cells import bounds_unmasked
from duoln.kernels.recurrent.cuda_steps import Gradients, Saved
from duoln.kernels.recurrent.launches import STEPS
from duoln.ops.recurrent.variants import CELLS, norm_shapes

_CELL_STORED = (0, 1)
"""The arrays of `lstm_cell` that may be stored in 16 bits: x_proj and h_proj."""
_CELL_BIAS = 3
"""The place of the bias among the arrays of `lstm_cell`; the parameters of the norms follow it."""
_POOLED_VALUES = 1 << 24
"""Values of x_proj that are merged at once for the gradients of parameters that many time steps share."""

_Use = tuple[Saved, tuple[Array | None, Array | None]]
"""A call of `lstm_cell`: what it saved, and the gradients of its states."""


def _rule(name: str, cell: str, driver: Any, supports: Callable[..., str | None], **options: Any) -> Rule:
    """A rule over sequences; `driver` is a module with `forward` and `vjp`."""
    states, variants = len(CELLS[cell].states), CELLS[cell].variants

    def forward(be: Backend, x: Array, *arrays: Any, norm: str, eps: float, reverse: bool,
                gradient_limit: float | None, **unused: Any) -> tuple[tuple[Array, ...], Any]:
        w_x, w_h, bias, mask, *norms = arrays[states:]
        bias, *norms = launch.packed(bias, *norms)
        problem = cuda.Problem(cuda.Variant.of(cell, norm), cuda.Walk.of(x, mask, reverse, gradient_limit), w_x, w_h,
                               bias, dict(zip(variants[norm].norms, norms, strict=True)))
        out, saved = driver.forward(problem, be, arrays[:states], eps)
        return out, saved

    return Rule(name, forward, driver.vjp, supports, **options)


def _cell_forward(be: Backend, x_proj: Array, h_proj: Array, c: Array, bias: Array, *norm_arrays: Array, norm: str,
                  eps: float, **unused: Any) -> tuple[tuple[Array, Array], Saved]:
    bias, *packed_norms = launch.packed(bias, *norm_arrays)
    norms = dict(zip(norm_shapes("lstm", norm, 1), packed_norms, strict=True))
    variant = cuda.Variant.of("lstm", norm)
    problem = cuda.Problem(variant, cuda.Walk(x_proj, None, False, None), bias, bias, bias, norms)
    if variant.has_inner_bias:
        x_proj = in_float32(be, x_proj, lambda proj: proj + bias)
    x_proj = cupy.ascontiguousarray(x_proj)[None]
    h_proj, cs = cupy.ascontiguousarray(h_proj)[None], cuda.states(c, 1)
    hs = cupy.empty(cs.shape, dtype=x_proj.dtype)  # the kernel reads the first state of masked rows only
    stats = cupy.empty((variant.norm_count, len(c), 3), dtype=c.dtype)
    saved = Saved(problem, x_proj, h_proj, hs, hs, cs, stats)
    STEPS["lstm", norm, "forward"].bind(saved.arguments(eps=eps))()
    return (hs[1], cs[1]), saved


def _cell_vjp(be: Backend, saved: Saved, gouts: tuple[Array | None, Array | None],
              needs: Sequence[bool]) -> list[Array | None]:
    gradients, dc = _cell_gradient(be, saved, gouts)
    of_parameters = cuda_steps.parameter_gradients(saved, gradients) if any(needs[_CELL_BIAS:]) else {}
    return [gradients.x_proj[0], gradients.h_proj[0], dc,
            *(of_parameters.get(name) for name in ("bias", *saved.problem.norms))]


def _cell_gradient(be: Backend, saved: Saved,
                   gouts: tuple[Array | None, Array | None]) -> tuple[Gradients, Array]:
    """Gradients of the products and norms, and of the cell before the time step."""
    assert saved.c is not None
    d_h = converted(be, gouts[0], "float32")
    dh = cupy.zeros(saved.c.shape[1:], dtype=saved.c.dtype) if d_h is None else cupy.ascontiguousarray(d_h)
    dc = cuda.gradient_buffer(gouts[1], dh)
    gradients = Gradients.room(saved)
    STEPS["lstm", saved.problem.variant.norm, "backward"].bind(
        saved.arguments(**gradients.arguments(), dh=dh, dc=dc))()
    return gradients, dc


def _cell_pooled(place: int) -> Callable[..., Array]:
    """The gradient of the bias or of a norm's parameter that many time steps share.

    The cell's kernel runs again, for many time steps at once: a launch costs more than what it computes for one.
    """

    def gradient(be: Backend, uses: Sequence[_Use]) -> Array:
        parts = []
        for merged, gouts in _merge_uses(be, uses):
            gradients, _ = _cell_gradient(be, merged, gouts)
            name = ("bias", *merged.problem.norms)[place - _CELL_BIAS]
            parts.append(cuda_steps.parameter_gradients(merged, gradients)[name])
        return reduce(operator.add, parts)

    return gradient


def _merge_uses(be: Backend, uses: Sequence[_Use]) -> Iterator[_Use]:
    """As few calls as can be: those that have all parameters in common are merged, up to some size."""
    alike: dict[tuple[Any, ...], list[_Use]] = {}
    for use in uses:
        problem = use[0].problem
        parameters = (problem.bias, *problem.norms.values())
        alike.setdefault((problem.variant.norm, *(launch.address(p) for p in parameters)), []).append(use)
    for some in alike.values():
        count = max(_POOLED_VALUES // max(some[0][0].x_proj.size, 1), 1)
        for k in range(0, len(some), count):
            yield _merged(be, some[k:k + count])


def _merged(be: Backend, uses: Sequence[_Use]) -> _Use:
    """Several time steps as one, with the rows of all."""
    if len(uses) == 1:
        return uses[0]
    saved, first = [s for s, _ in uses], uses[0][0]
    x_proj, h_proj, c, stats = (be.concat(arrays, 1) for arrays in zip(*(
        (s.x_proj, s.h_proj, s.c, s.stats) for s in saved), strict=True))
    gouts = []
    assert first.c is not None
    for like, *each in zip((first.h[0], first.c[0]), *(g for _, g in uses), strict=True):
        none = cupy.zeros_like(like) if any(g is None for g in each) else None
        gouts.append(be.concat([none if g is None else g for g in each]))
    return first._replace(x_proj=x_proj, h_proj=h_proj, c=c, stats=stats), (gouts[0], gouts[1])


def attach() -> None:
    """Add the rules to `rnn`, `lstm`, `gru` and `lstm_cell`."""
    for name, of_cell in CELLS.items():
        count, op = len(of_cell.states), getattr(ops, name)
        stored = (0, count + 1, count + 2)  # what may be stored in 16 bits: x, w_x and w_h
        supports = bounds_unmasked(name, cuda.supports(name))
        op.add(_rule("cuda steps", name, cuda_steps, supports, stored=stored), backend="cupy")
        op.add(_rule("cuda walk", name, cuda_walk, cuda_walk.supports(name, supports)), backend="cupy")
    most = max(len(variant.norms) for variant in CELLS["lstm"].variants.values())
    pooled = {place: _cell_pooled(place) for place in range(_CELL_BIAS, _CELL_BIAS + 1 + most)}
    ops.lstm_cell.add(Rule("cuda step", _cell_forward, _cell_vjp, cuda.supports("lstm"), pooled, stored=_CELL_STORED),
                      backend="cupy")
