"""Attention on the CPU, compiled: the scores of some queries of one head are computed at a time.

The arrays are read where they lie, with the heads before the time steps or behind them, as a product makes them. The
results have the heads of a time step side by side, as the next product wants them. Gradients of operands that are
parts of one array are parts of one, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from duoln.backends.protocol import Array, Backend, Shape
from duoln.core import Rule
from duoln.kernels import host, native
from duoln.kernels.launch import Launch
from duoln.ops import scaled_dot_product_attention

_FILE = "attention/attention.cpp"
_TEXT = _FILE.removesuffix(".cpp")
_OPERANDS = ("query: own[batch, heads, queries, width], key: own[batch, heads, keys, width], "
             "value: own[batch, heads, keys, n_values], mask: own bool?, out: own, tops: own, totals: own")
_HOW = "to_next: own int64, causal: int32, scale: float64, threads: int32"
_attend = Launch(_TEXT, "attention_forward", f"{_OPERANDS}, {_HOW}")
_differentiate = Launch(_TEXT, "attention_backward", f"{_OPERANDS}, g: own, d_query: own, d_key: own, "
                                                     f"d_value: own, {_HOW}")


class _Saved(NamedTuple):
    operands: tuple[Array, Array, Array]
    """Queries, keys and values with four axes."""
    mask: Array | None
    results: tuple[Array, Array, Array]
    """The output, and two numbers of each query: its largest score and the sum of the powers."""
    shapes: tuple[Shape, Shape, Shape]
    """The shapes of the arguments: queries, keys and values."""
    causal: bool
    scale: float


def _supports(be: Backend, query: Array, key: Array, value: Array, mask: Array | None, causal: bool,
              scale: float) -> str | None:
    return native.refusal(_FILE, query.dtype) if query.size and value.size else "there are no values"


def _by_heads(x: Array) -> Array:
    """(..., T, D) as (batch, heads, T, D) with contiguous rows."""
    x = x.reshape(prod(x.shape[:-3]), *((1,) * (3 - x.ndim)), *x.shape[-3:])
    return x if x.strides[-1] == x.itemsize and min(x.strides) >= 0 else host.contiguous(x)


def _result(like: Array, width: int) -> Array:
    """Room for (batch, heads, T, width), with the heads of a time step side by side."""
    batch, heads, steps, _ = like.shape
    return host.empty((batch, steps, heads, width), like.dtype).transpose(0, 2, 1, 3)


def _empty_gradients(query: Array, key: Array, value: Array) -> list[Array]:
    """Room for their gradients: side by side in one array, as they are, if they are parts of one."""
    operands = query, key, value
    rows = host.side_by_side([x.transpose(0, 2, 1, 3) for x in operands], axis=2)
    if rows is None:
        return [_result(x, x.shape[3]) for x in operands]
    whole, heads = host.empty(rows.shape, rows.dtype), query.shape[1]
    return [whole[:, :, first:first + heads].transpose(0, 2, 1, 3) for first in range(0, 3 * heads, heads)]


def _whole_mask(mask: Array | None, scores: Shape) -> Array | None:
    """A mask with four axes, of which the last is whole, and so are those that become the first, unless all are 1."""
    if mask is None:
        return None
    shape = (*(1,) * (len(scores) - mask.ndim), *mask.shape)
    before = scores[:-3] if max(shape[:-3], default=1) > 1 else shape[:-3]
    whole = np.broadcast_to(mask, (*before, *shape[-3:-1], scores[-1]))
    return _by_heads(host.contiguous(whole))


def _strides(*arrays: Array | None) -> Array:
    """The strides of each array in values along the first three axes; 0 for an axis of size 1."""
    return np.array([[0, 0, 0] if x is None else [0 if n == 1 else step // x.itemsize for n, step in
                                                  zip(x.shape[:3], x.strides, strict=False)] for x in arrays], np.int64)


def _threads(query: Array, key: Array) -> int:
    return native.threads_for(query.itemsize * prod(query.shape[:3]) * key.shape[2])


def _forward(be: Backend, query: Array, key: Array, value: Array, mask: Array | None, causal: bool,
             scale: float) -> tuple[Array, _Saved]:
    q, k, v = _by_heads(query), _by_heads(key), _by_heads(value)
    whole = _whole_mask(mask, (*query.shape[:-1], key.shape[-2]))
    out = _result(q, v.shape[3])
    tops, totals = (host.empty((prod(q.shape[:3]),), q.dtype) for _ in range(2))
    _attend[be.name](q, k, v, whole, out, tops, totals, _strides(q, k, v, whole, out), causal, scale, _threads(q, k))
    saved = _Saved((q, k, v), whole, (out, tops, totals), (query.shape, key.shape, value.shape), causal, scale)
    return out.reshape(*query.shape[:-1], value.shape[-1]), saved


def _vjp(be: Backend, saved: _Saved, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, ...]:
    q, k, v = saved.operands
    g = _by_heads(gout)
    gradients = _empty_gradients(q, k, v)
    _differentiate[be.name](q, k, v, saved.mask, *saved.results, g, *gradients,
                            _strides(q, k, v, saved.mask, saved.results[0], g, *gradients), saved.causal, saved.scale,
                            _threads(q, k))
    return *(x.reshape(shape) if need else None
             for x, shape, need in zip(gradients, saved.shapes, needs[:3], strict=True)), None


def attach(backend: str) -> None:
    """Add the rule to `scaled_dot_product_attention` of NumPy's arrays."""
    if backend == "numpy":
        scaled_dot_product_attention.add(Rule("compiled", _forward, _vjp, _supports), backend="numpy")
