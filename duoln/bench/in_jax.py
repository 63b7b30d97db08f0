"""JAX's side of the rows of `duoln bench`, by `jax.jit`; AdamW is written out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from duoln.bench import machine
from duoln.bench.clock import Work, figures
from duoln.bench.row import CLIP, RATE, WEIGHT_DECAY, Call, Functions, Row, call_of
from duoln.errors import UsageError

_BETA1, _BETA2, _EPS = 0.9, 0.999, 1e-8


def prepare(row: Row, asked: Mapping[str, Any]) -> Work:
    """The work of a row on JAX's own device."""
    import jax

    if row.passes in ("backward", "tokens"):
        raise UsageError(f"[bench] JAX has no peer of {row.name}")
    machine.begin_peak()
    values = [jax.numpy.asarray(array) for array in row.arrays().values()]
    call = call_of(row, _functions(jax), values, jax.value_and_grad, jax.jit, partial(_step, jax), lambda logits: None)
    call()
    results = call()
    facts = {"library": f"jax {jax.__version__}", "device": str(jax.devices()[0]), "peak_bytes": machine.peak()}
    return Work(lambda k: call(), figures(np.asarray(result) for result in results), facts, jax.block_until_ready)


def _step(jax: Any, row: Row, loss: Any, params: list[Any], others: list[Any]) -> Call:
    of = jax.numpy

    def train_step(params: list[Any], m: list[Any], v: list[Any], count: Any, *others: Any) -> Any:
        if row.passes == "update":
            norm = of.sqrt(sum(of.vdot(g, g) for g in others[0]))
            value, gradients = RATE, [g * of.minimum(1.0, CLIP / norm) for g in others[0]]
        else:
            value, gradients = jax.value_and_grad(loss)(params, *others)
        count += 1
        m = [_BETA1 * a + (1 - _BETA1) * g for a, g in zip(m, gradients, strict=True)]
        v = [_BETA2 * a + (1 - _BETA2) * g * g for a, g in zip(v, gradients, strict=True)]
        first, second = 1 - _BETA1 ** count, 1 - _BETA2 ** count
        params = [(1 - RATE * WEIGHT_DECAY) * p - RATE * (a / first) / (of.sqrt(b / second) + _EPS)
                  for p, a, b in zip(params, m, v, strict=True)]
        return params, m, v, count, value

    step = jax.jit(train_step)
    state = [params, [of.zeros_like(p) for p in params], [of.zeros_like(p) for p in params], of.float32(0)]
    inputs = [[2 * p for p in params]] if row.passes == "update" else others

    def call() -> Sequence[Any]:
        *state[:], value = step(*state, *inputs)
        return [value, *state[0]]

    return call


def _functions(jax: Any) -> Functions:
    of = jax.numpy

    def gelu(x: Any, approximate: str = "none") -> Any:
        return jax.nn.gelu(x, approximate=approximate == "tanh")

    def huber(x: Any, y: Any) -> Any:
        size = of.abs(x - y)
        return of.mean(of.where(size < 1, 0.5 * size * size, size - 0.5))

    def bce_with_logits(x: Any, y: Any) -> Any:
        return of.mean(of.maximum(x, 0) - x * y + of.log1p(of.exp(-of.abs(x))))

    def normed(x: Any, axes: tuple[int, ...]) -> Any:
        return (x - of.mean(x, axes, keepdims=True)) / of.sqrt(of.var(x, axes, keepdims=True) + 1e-5)

    def layer_norm(x: Any, gain: Any, bias: Any) -> Any:
        return gain * normed(x, (-1,)) + bias

    def add_layer_norm(x: Any, residual: Any, gain: Any, bias: Any) -> tuple[Any, Any]:
        return layer_norm(x + residual, gain, bias), x + residual

    def group_norm(x: Any, gain: Any, bias: Any, groups: int) -> Any:
        grouped = x.reshape((*x.shape[:-1], groups, x.shape[-1] // groups))
        return gain * normed(grouped, (1, 2, 4)).reshape(x.shape) + bias

    def conv2d(x: Any, w: Any, padding: int, dilation: int = 1, groups: int = 1) -> Any:
        return jax.lax.conv_general_dilated(
            x, w, (1, 1), [(padding, padding)] * 2, rhs_dilation=(dilation, dilation),
            dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups)

    def linear(x: Any, w: Any, b: Any) -> Any:
        return x @ w + b

    def softmax_cross_entropy(logits: Any, labels: Any) -> Any:
        return -of.mean(of.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], -1))

    def attention(*heads: Any, causal: bool) -> Any:
        """JAX's own has the time before the heads."""
        q, k, v = (of.swapaxes(each, 1, 2) for each in heads)
        return of.swapaxes(jax.nn.dot_product_attention(q, k, v, is_causal=causal), 1, 2)

    return Functions(
        of, jax.nn, jax.scipy.special, gelu=gelu, huber=huber, bce_with_logits=bce_with_logits,
        squared_error=lambda x, y: of.mean(of.square(x - y)), layer_norm=layer_norm, add_layer_norm=add_layer_norm,
        group_norm=group_norm, instance_norm=lambda x, gain, bias: gain * normed(x, (1, 2)) + bias, conv2d=conv2d,
        linear=linear, softmax_cross_entropy=softmax_cross_entropy, attention=attention,
        linear_cross_entropy=lambda x, w, b, labels: softmax_cross_entropy(linear(x, w, b), labels))
