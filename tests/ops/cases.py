"""One table of cases for all operators: it drives the tests of values, of gradients and of rules.

Each case has a plain NumPy reference, written from the equation and not from our code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from duoln import ops


@dataclass(frozen=True)
class Case:
    name: str
    fn: Callable[..., Any]
    inputs: Callable[[np.random.Generator], Sequence[np.ndarray]]
    reference: Callable[..., Any]
    length: int = 1
    differentiable: bool = True

    def __str__(self) -> str:
        return self.name


CASES: list[Case] = []


def case(name, fn, inputs, reference, length=1, differentiable=True):
    CASES.append(Case(name, fn, inputs, reference, length, differentiable))


def gaussians(*shapes):
    """Gaussian arrays."""
    return lambda rng: [rng.standard_normal(s) for s in shapes]


def positive(*shapes):
    """Values in [0.5, 2]."""
    return lambda rng: [rng.uniform(0.5, 2.0, s) for s in shapes]


SHAPES = [(), (1,), (7,), (0,), (3, 5), (2, 0, 3), (33, 129)]


def _phi(x):
    """The share of a standard Gaussian's values below x."""
    return math.erfc(-x / math.sqrt(2)) / 2


# Elementwise, one argument
UNARY = {
    "abs": (ops.abs, np.abs, gaussians), "cos": (ops.cos, np.cos, gaussians), "exp": (ops.exp, np.exp, gaussians),
    "expm1": (ops.expm1, np.expm1, gaussians), "log": (ops.log, np.log, positive), "log1p": (ops.log1p, np.log1p, positive),
    "negative": (ops.negative, np.negative, gaussians), "relu": (ops.relu, lambda x: np.where(x > 0, x, 0), gaussians),
    "sigmoid": (ops.sigmoid, lambda x: 1 / (1 + np.exp(-x)), gaussians), "sin": (ops.sin, np.sin, gaussians),
    "softplus": (ops.softplus, lambda x: np.log(1 + np.exp(x)), gaussians), "sqrt": (ops.sqrt, np.sqrt, positive),
    "square": (ops.square, lambda x: x ** 2, gaussians), "tanh": (ops.tanh, np.tanh, gaussians),
    "floor": (ops.floor, np.floor, gaussians), "sign": (ops.sign, np.sign, gaussians),
    "ceil": (ops.ceil, np.ceil, gaussians), "round": (ops.round, lambda x: np.floor(x + 0.5), gaussians),
    "rsqrt": (ops.rsqrt, lambda x: x ** -0.5, positive), "erf": (ops.erf, np.vectorize(math.erf, otypes="d"), gaussians),
    "silu": (ops.silu, lambda x: x / (1 + np.exp(-x)), gaussians), "elu": (ops.elu, lambda x: np.where(x > 0, x, np.exp(x) - 1), gaussians),
    "gelu": (ops.gelu, lambda x: x * np.vectorize(_phi, otypes="d")(x), gaussians),
}
for name, (fn, reference, make) in UNARY.items():
    for shape in SHAPES:
        case(f"{name}{shape}", fn, make(shape), reference, 16)
case("power 3", lambda x: x ** 3, gaussians((3, 5)), lambda x: x * x * x, 4)
case("power -0.5", lambda x: x ** -0.5, positive((3, 5)), lambda x: 1 / np.sqrt(x), 4)
case("power 0", lambda x: x ** 0, gaussians((3, 5)), lambda x: np.ones_like(x))
for a, b in [((3, 5), (3, 5)), ((3, 1), (5,)), ((), (4,)), ((0, 3), (3,))]:
    case(f"pow{a}{b}", ops.pow, positive(a, b), lambda x, y: np.exp(y * np.log(x)), 16)
case("pow number left", lambda x: ops.pow(1.3, x), gaussians((3, 5)), lambda x: np.exp(x * np.log(1.3)), 4)
case("round ties", ops.round, lambda rng: [np.array([0.5, 1.5, 2.5, -0.5, -1.5, 1023.5])], lambda x: np.array([0.0, 2, 2, 0, -2, 1024]),
     differentiable=False)
case("erf far", ops.erf, lambda rng: [np.array([-7.0, -4.5, -0.5001, -1e-30, 0, 0.4999, 3.9, 4.1, 5.9])], np.vectorize(math.erf, otypes="d"), 4)
case("elu 0.3", lambda x: ops.elu(x, alpha=0.3), gaussians((3, 5)), lambda x: np.where(x > 0, x, 0.3 * (np.exp(x) - 1)))
case("gelu tanh", lambda x: ops.gelu(x, approximate="tanh"), gaussians((3, 5)),
     lambda x: x / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3))), 4)
case("leaky_relu of 0.01", ops.leaky_relu, gaussians((3, 5)), lambda x: np.where(x > 0, x, 0.01 * x))
case("leaky_relu", lambda x: ops.leaky_relu(x, slope=0.1), gaussians((3, 5)), lambda x: np.where(x > 0, x, 0.1 * x))
case("clip", lambda x: ops.clip(x, -0.5, 0.5), gaussians((9, 5)), lambda x: np.clip(x, -0.5, 0.5))
case("clip by tensors", lambda x, low, high: ops.clip(x, low, max=high), lambda rng: [*gaussians((9, 5), (5,))(rng), rng.uniform(0.5, 2, (9, 1))],
     lambda x, low, high: np.minimum(np.maximum(x, low), high))
case("clip below", lambda x: ops.clip(x, max=0.2), gaussians((9, 5)), lambda x: np.minimum(x, 0.2))
case("signbit", ops.signbit, lambda rng: [np.array([1.0, -1.0, 0.0, -0.0, -np.inf, np.nan])], np.signbit, differentiable=False)
for name in ("isinf", "isnan"):
    case(name, getattr(ops, name), lambda rng: [np.array([1.0, np.inf, np.nan, -np.inf, 6e4])], getattr(np, name), differentiable=False)
case("isfinite", ops.isfinite, lambda rng: [np.array([1.0, np.inf, np.nan])], np.isfinite, differentiable=False)

# Elementwise, two arguments, with broadcasting
PAIRS = [((3, 5), (3, 5)), ((3, 5), (5,)), ((3, 1), (1, 5)), ((), (4,)), ((0, 3), (3,)), ((2, 3, 4), (3, 1)), ((1,), ())]
BINARY = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide, "maximum": np.maximum, "minimum": np.minimum,
          "floor_divide": lambda x, y: np.floor(x / y), "remainder": lambda x, y: x - y * np.floor(x / y), "hypot": lambda x, y: np.sqrt(x * x + y * y),
          "logaddexp": lambda x, y: np.log(np.exp(x) + np.exp(y))}
for name, reference in BINARY.items():
    for a, b in PAIRS:
        case(f"{name}{a}{b}", getattr(ops, name), positive(a, b), reference, 16)
    case(f"{name} number right", lambda x, f=getattr(ops, name): f(x, 1.1), positive((3, 5)),
         lambda x, f=reference: f(x, 1.1), 4)
    case(f"{name} number left", lambda x, f=getattr(ops, name): f(1.1, x), positive((3, 5)),
         lambda x, f=reference: f(1.1, x), 4)
for name in ("floor_divide", "remainder", "hypot", "logaddexp"):
    case(f"{name} of both signs", getattr(ops, name), gaussians((9, 5), (5,)), BINARY[name], 16)
for name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"):
    case(name, getattr(ops, name), lambda rng: [rng.integers(0, 3, (4, 5)).astype(float) for _ in range(2)],
         getattr(np, name), differentiable=False)
for name in ("logical_and", "logical_or"):
    case(name, getattr(ops, name), lambda rng: [rng.random((4, 5)) < 0.5 for _ in range(2)], getattr(np, name),
         differentiable=False)
case("logical_not", ops.logical_not, lambda rng: [rng.random((4, 5)) < 0.5], np.logical_not, differentiable=False)
case("where", ops.where, lambda rng: [rng.random((4, 5)) < 0.5, *gaussians((4, 5), (5,))(rng)], np.where, 4)
case("where number", lambda c, x: ops.where(c, x, 2.0), lambda rng: [rng.random((4, 5)) < 0.5, *gaussians((4, 5))(rng)],
     lambda c, x: np.where(c, x, 2.0))

case("astype", lambda x: ops.astype(x, dtype="int32"), lambda rng: [rng.random((4, 5)) < 0.5],
     lambda x: x.astype(np.int32), differentiable=False)

# Reductions
for shape, axis in [((7,), None), ((3, 5), 0), ((3, 5), -1), ((3, 5), (0, 1)), ((2, 3, 4), (0, 2)), ((33, 129), 1),
                    ((), None), ((3, 0), 0)]:
    for keep in (False, True):
        case(f"sum{shape}{axis}{keep}", lambda x, a=axis, k=keep: ops.sum(x, axis=a, keepdims=k), gaussians(shape),
             lambda x, a=axis, k=keep: np.sum(x, axis=a, keepdims=k), 129)
for shape, axis in [((7,), None), ((3, 5), 0), ((3, 5), -1), ((2, 3, 4), (0, 2)), ((33, 129), 1), ((1,), 0)]:
    for keep in (False, True):
        for name in ("mean", "max", "min"):
            case(f"{name}{shape}{axis}{keep}",
                 lambda x, f=getattr(ops, name), a=axis, k=keep: f(x, axis=a, keepdims=k), gaussians(shape),
                 lambda x, f=getattr(np, name), a=axis, k=keep: f(x, axis=a, keepdims=k), 129)
for shape, axis in [((7,), None), ((3, 5), 0), ((3, 5), (0, 1)), ((2, 3, 4), (0, 2)), ((33, 9), 1), ((1,), 0), ((), None), ((3, 0), 1), ((0, 3), 1)]:
    for keep in (False, True):
        case(f"prod{shape}{axis}{keep}", lambda x, a=axis, k=keep: ops.prod(x, axis=a, keepdims=k), positive(shape),
             lambda x, a=axis, k=keep: np.prod(x, axis=a, keepdims=k), 33)
case("prod with zeros", lambda x: ops.prod(x, axis=1), lambda rng: [np.array([[2.0, 0, 3, 0.5], [0, 5, 0, 1], [1, 2, 3, 4]])], lambda x: np.prod(x, 1), 4)
case("prod of integers", lambda x: ops.prod(x, axis=0), lambda rng: [rng.integers(-3, 4, (3, 5)).astype(np.int32)],
     lambda x: np.prod(x, axis=0, dtype=np.int32), differentiable=False)
for shape, axis, correction in [((7,), None, 0), ((3, 5), 0, 1), ((2, 3, 4), (0, 2), 1), ((33, 129), -1, 0.5), ((4, 1), 1, 0)]:
    for keep in (False, True):
        case(f"var{shape}{axis}{keep}", lambda x, a=axis, k=keep, c=correction: ops.var(x, axis=a, keepdims=k, correction=c), gaussians(shape),
             lambda x, a=axis, k=keep, c=correction: np.var(x, axis=a, keepdims=k, ddof=c), 129)
        if shape != (4, 1):
            case(f"std{shape}{axis}{keep}", lambda x, a=axis, k=keep, c=correction: ops.std(x, axis=a, keepdims=k, correction=c), gaussians(shape),
                 lambda x, a=axis, k=keep, c=correction: np.std(x, axis=a, keepdims=k, ddof=c), 129)
for _ord in (0, 1, 2, 3, 0.5, math.inf, -math.inf):
    case(f"vector_norm {_ord}", lambda x, o=_ord: ops.vector_norm(x, axis=1, ord=o), gaussians((4, 9)),
         lambda x, o=_ord: np.linalg.norm(x, axis=1, ord=o), 9, differentiable=_ord != 0)
for shape, axis, keep in [((3, 4), None, False), ((2, 3, 4), (0, 2), True), ((), None, False), ((0, 3), 0, True)]:
    case(f"vector_norm{shape}{axis}", lambda x, a=axis, k=keep: ops.vector_norm(x, axis=a, keepdims=k), gaussians(shape),
         lambda x, a=axis, k=keep: np.sqrt(np.sum(x * x, axis=a, keepdims=k)), 12)
case("sum of bool", ops.sum, lambda rng: [rng.random((4, 5)) < 0.5], lambda x: np.sum(x).astype(np.int32),
     differentiable=False)
case("all", lambda x: ops.all(x, axis=1), lambda rng: [rng.random((9, 2)) < 0.5], lambda x: np.all(x, axis=1),
     differentiable=False)
case("any", lambda x: ops.any(x, axis=1), lambda rng: [rng.random((9, 2)) < 0.5], lambda x: np.any(x, axis=1),
     differentiable=False)
case("argmax", lambda x: ops.argmax(x, axis=0), gaussians((9, 5)), lambda x: np.argmax(x, axis=0).astype(np.int32),
     differentiable=False)
for axis, keep in [(None, False), (None, True), (1, False), (0, True)]:
    for name in ("argmax", "argmin"):
        case(f"{name} {axis} {keep}", lambda x, f=getattr(ops, name), a=axis, k=keep: f(x, axis=a, keepdims=k), gaussians((4, 5)),
             lambda x, f=getattr(np, name), a=axis, k=keep: np.asarray(f(x, axis=a, keepdims=k), np.int32), differentiable=False)
case("argmin tie", lambda x: ops.argmin(x, axis=1), lambda rng: [np.array([[2.0, 0, 0], [1, 1, 1]])], lambda x: np.array([1, 0], np.int32),
     differentiable=False)
case("cumulative_sum of a vector", ops.cumulative_sum, gaussians((9,)), np.cumsum, 9)
case("cumulative_sum from 0", lambda x: ops.cumulative_sum(x, axis=0, include_initial=True), gaussians((4, 3)),
     lambda x: np.concatenate([np.zeros((1, 3)), np.cumsum(x, 0)]), 4)
for axis in (0, 1, -1):
    case(f"cumulative_sum {axis}", lambda x, a=axis: ops.cumulative_sum(x, axis=a), gaussians((6, 7)), lambda x, a=axis: np.cumsum(x, a), 7)
    case(f"logsumexp {axis}", lambda x, a=axis: ops.logsumexp(x, axis=a), gaussians((6, 7)),
         lambda x, a=axis: np.log(np.sum(np.exp(x), axis=a)), 7)
    case(f"softmax {axis}", lambda x, a=axis: ops.softmax(x, axis=a), gaussians((6, 7)),
         lambda x, a=axis: np.exp(x) / np.sum(np.exp(x), axis=a, keepdims=True), 49)
    case(f"log_softmax {axis}", lambda x, a=axis: ops.log_softmax(x, axis=a), gaussians((6, 7)),
         lambda x, a=axis: x - np.log(np.sum(np.exp(x), axis=a, keepdims=True)), 49)
case("logsumexp huge", ops.logsumexp, lambda rng: [np.array([[1000.0, 1000.0], [-1000.0, -1001.0]])],
     lambda x: np.logaddexp(x[:, 0], x[:, 1]), 4)
case("logsumexp of -inf", lambda x: ops.logsumexp(x), lambda rng: [np.array([[-np.inf, 0.0], [-np.inf, -np.inf]])],
     lambda x: np.logaddexp(x[:, 0], x[:, 1]), differentiable=False)

# Shape
case("reshape", lambda x: ops.reshape(x, shape=(5, -1)), gaussians((3, 5)), lambda x: x.reshape(5, 3))
case("reshape empty", lambda x: ops.reshape(x, shape=(3, 0)), gaussians((0, 3)), lambda x: x.reshape(3, 0))
case("permute_dims", lambda x: ops.permute_dims(x, axes=(2, 0, 1)), gaussians((2, 3, 4)), lambda x: x.transpose(2, 0, 1))
case("expand_dims", lambda x: ops.expand_dims(x, axis=1), gaussians((2, 3)), lambda x: x[:, None])
case("squeeze", lambda x: ops.squeeze(x, axis=-2), gaussians((2, 1, 3)), lambda x: x[:, 0])
case("broadcast_to", lambda x: ops.broadcast_to(x, shape=(4, 2, 3)), gaussians((2, 1)),
     lambda x: np.broadcast_to(x, (4, 2, 3)), 12)
case("concat", lambda *x: ops.concat(*x, axis=1), gaussians((2, 3), (2, 0), (2, 4)), lambda *x: np.concatenate(x, axis=1))
case("concat one", lambda x: ops.concat(x), gaussians((2, 3)), lambda x: x)
case("stack", lambda *x: ops.stack(*x, axis=-1), gaussians((2, 3), (2, 3)), lambda *x: np.stack(x, axis=-1))
case("split", lambda x: ops.split(x, 3), gaussians((9, 2)), lambda x: tuple(np.split(x, 3)))
case("split last", lambda x: ops.split(x, 3, axis=-1), gaussians((2, 9)), lambda x: tuple(np.split(x, 3, axis=-1)))
case("unstack", ops.unstack, gaussians((3, 2, 2)), lambda x: tuple(x))
case("unstack last", lambda x: ops.unstack(x, axis=-1)[1:], gaussians((2, 3)), lambda x: (x[:, 1], x[:, 2]))
case("flip", lambda x: ops.flip(x, axis=0), gaussians((4, 3)), lambda x: x[::-1])
case("flip all", ops.flip, gaussians((4, 3)), lambda x: x[::-1, ::-1])
case("flip two", lambda x: ops.flip(x, axis=(0, -1)), gaussians((2, 3, 4)), lambda x: x[::-1, :, ::-1])
case("squeeze two", lambda x: ops.squeeze(x, axis=(0, -2)), gaussians((1, 2, 1, 3)), lambda x: x[0, :, 0])
case("concat in a row", lambda *x: ops.concat(x, axis=None), gaussians((2, 3), (4,), ()), lambda *x: np.concatenate([a.reshape(-1) for a in x]))
case("split in sizes", lambda x: ops.split(x, (2, 0, 4, 3), axis=1), gaussians((2, 9)), lambda x: (x[:, :2], x[:, 2:2], x[:, 2:6], x[:, 6:]))
case("broadcast_arrays", ops.broadcast_arrays, gaussians((3, 1), (4,), (2, 3, 4)), lambda *x: tuple(np.broadcast_arrays(*x)), 8)
case("matrix_transpose", ops.matrix_transpose, gaussians((2, 3, 4)), lambda x: np.swapaxes(x, 1, 2))
case("moveaxis", lambda x: ops.moveaxis(x, 0, -1), gaussians((2, 3, 4)), lambda x: np.moveaxis(x, 0, -1))
case("moveaxis two", lambda x: ops.moveaxis(x, (0, 3), (2, 0)), gaussians((2, 3, 4, 5)), lambda x: np.moveaxis(x, (0, 3), (2, 0)))
for _shape, _counts in [((2, 3), (2, 2)), ((3,), (2, 2)), ((2, 1, 3), (2,)), ((), (3,)), ((2, 3), (0, 1)), ((2, 3), ())]:
    case(f"tile{_shape}{_counts}", lambda x, n=_counts: ops.tile(x, n), gaussians(_shape), lambda x, n=_counts: np.tile(x, n), 6)
for _shape, _count, _axis in [((2, 3), 2, 0), ((2, 3), 3, -1), ((2, 3), 2, None), ((2, 3), 0, 1), ((1,), 4, 0)]:
    case(f"repeat{_shape}{_count}{_axis}", lambda x, n=_count, a=_axis: ops.repeat(x, n, axis=a), gaussians(_shape),
         lambda x, n=_count, a=_axis: np.repeat(x, n, axis=a), 4)
for _shift, _axis in [(1, None), (-2, 0), (7, 1), ((1, -1), (0, 1)), (2, (0, 1))]:
    case(f"roll{_shift}{_axis}", lambda x, n=_shift, a=_axis: ops.roll(x, n, axis=a), gaussians((3, 5)), lambda x, n=_shift, a=_axis: np.roll(x, n, a))
case("roll nothing", lambda x: ops.roll(x, 2, axis=0), gaussians((0, 2)), lambda x: x, differentiable=False)
case("roll by 0", lambda x: ops.roll(x, 0, axis=0), gaussians((3, 2)), lambda x: x, differentiable=False)
for name in ("tril", "triu"):
    for _shape, _k in [((4, 4), 0), ((3, 5), 1), ((2, 5, 3), -2), ((3, 3), 9), ((0, 3), 0)]:
        case(f"{name}{_shape}{_k}", lambda x, f=getattr(ops, name), k=_k: f(x, k=k), gaussians(_shape), lambda x, f=getattr(np, name), k=_k: f(x, k))
    case(f"{name} of bools", getattr(ops, name), lambda rng: [rng.random((3, 4)) < 0.7], getattr(np, name), differentiable=False)
case("pad", lambda x: ops.pad(x, widths=((1, 0), (0, 2)), value=3.0), gaussians((4, 3)),
     lambda x: np.pad(x, ((1, 0), (0, 2)), constant_values=3.0))
for text, key in {"int": 1, "negative": -1, "slice": slice(1, 3), "step": slice(None, None, 2),
                  "pair": (slice(None), 2), "dots": (..., 0), "new axis": (None, slice(0, 2)), "nothing": slice(2, 2),
                  "reversed": slice(None, None, -1)}.items():
    case(f"getitem {text}", lambda x, k=key: x[k], gaussians((4, 5)), lambda x, k=key: x[k])

# Index
case("getitem by rows", lambda x, i: x[i], lambda rng: [*gaussians((5, 3))(rng), np.array([[4, 0], [-1, 4]], np.int32)], lambda x, i: x[i], 4)
case("getitem by pairs", lambda x, i, j: x[i, j], lambda rng: [*gaussians((5, 3))(rng), np.array([[4], [-5], [4]], np.int32), np.array([0, -1], np.int32)],
     lambda x, i, j: x[i, j], 4)
case("getitem by a number and an array", lambda x, j: x[-2, j, 1], lambda rng: [*gaussians((5, 3, 2))(rng), np.array([0, 2, 2, 2], np.int32)],
     lambda x, j: x[-2, j, 1], 4)
case("take from a vector", ops.take, lambda rng: [*gaussians((5,))(rng), np.array([4, 0, 4], np.int32)], lambda x, i: x[i], 4)
case("take rows", lambda x, i: ops.take(x, i, axis=0), lambda rng: [*gaussians((5, 3))(rng), np.array([4, 0, 4, 2], np.int32)],
     lambda x, i: x[i], 4)
case("take columns", lambda x, i: ops.take(x, i, axis=1),
     lambda rng: [*gaussians((3, 5))(rng), np.array([[4, 0], [4, 2]], np.int32)], lambda x, i: x[:, i], 4)
case("take nothing", lambda x, i: ops.take(x, i, axis=0), lambda rng: [*gaussians((5, 3))(rng), np.array([], np.int32)],
     lambda x, i: x[i])
case("embedding", ops.embedding, lambda rng: [*gaussians((50, 7))(rng), rng.integers(0, 50, (6, 9)).astype(np.int32)],
     lambda t, i: t[i], 54)
case("take_along_axis", lambda x, i: ops.take_along_axis(x, i, axis=1),
     lambda rng: [*gaussians((4, 6))(rng), rng.integers(0, 6, (4, 3)).astype(np.int32)],
     lambda x, i: np.take_along_axis(x, i, axis=1), 3)
case("take_along_axis 3d", lambda x, i: ops.take_along_axis(x, i, axis=0),
     lambda rng: [*gaussians((4, 2, 3))(rng), rng.integers(0, 4, (5, 2, 3)).astype(np.int32)],
     lambda x, i: np.take_along_axis(x, i, axis=0), 5)
case("one_hot", lambda i: ops.one_hot(i, size=4) == 1.0, lambda rng: [np.array([[0, 3], [2, 9]], np.int32)],
     lambda i: i[..., None] == np.arange(4), differentiable=False)

# Products
for a, b in [((3, 4), (4, 5)), ((1, 1), (1, 1)), ((0, 4), (4, 5)), ((3, 0), (0, 5)), ((2, 3, 4), (4, 5)),
             ((2, 3, 4), (2, 4, 5)), ((2, 1, 3, 4), (5, 4, 2)), ((65, 129), (129, 33))]:
    case(f"matmul{a}{b}", ops.matmul, gaussians(a, b), np.matmul, 130)
for a, b in [((4,), (4,)), ((4,), (4, 3)), ((3, 4), (4,)), ((2, 3, 4), (4,)), ((4,), (2, 4, 3)), ((0,), (0,))]:
    case(f"matmul{a}{b}", ops.matmul, gaussians(a, b), np.matmul, 8)
case("outer", ops.outer, gaussians((3,), (4,)), lambda x, y: x[:, None] * y[None, :], 4)
case("vecdot", ops.vecdot, gaussians((2, 3, 4), (3, 4)), lambda x, y: (x * y).sum(-1), 8)
case("vecdot rows", lambda x, y: ops.vecdot(x, y, axis=-2), gaussians((2, 3, 4), (3, 1)), lambda x, y: (x * y).sum(-2), 8)
for _axes in (0, 1, 2, ((0, 2), (1, 0)), ([-1], [0])):
    case(f"tensordot{_axes}", lambda x, y, a=_axes: ops.tensordot(x, y, axes=a), gaussians(*(((3, 4, 2), (2, 3)) if isinstance(_axes, tuple) else
         ((3, 2, 3), (2, 3)) if _axes == 2 else ((2, 3, 4), (4, 5)))), lambda x, y, a=_axes: np.tensordot(x, y, axes=a), 12)
for _text, *_shapes in [("ij,jk->ik", (3, 4), (4, 5)), ("ij,jk", (3, 4), (4, 5)), ("bij,bkj->bik", (2, 3, 4), (2, 5, 4)), ("ii", (4, 4)), ("ii->i", (4, 4)),
                        ("iji->j", (3, 2, 3)), ("ij->ji", (3, 4)), ("ijk->j", (2, 3, 4)), ("i,j->ij", (3,), (4,)), ("i,i->", (5,), (5,)), (",i->i", (), (3,)),
                        ("...i,...i->...", (2, 3, 4), (4,)), ("...ij,...jk", (2, 3, 4), (4, 5)), ("b...,b->...", (2, 3, 4), (2,)), ("ij,ij->ij", (3, 4), (3, 4)),
                        ("bqhd,bkhd->bhqk", (2, 3, 2, 4), (2, 5, 2, 4)), ("ij,jk,kl->il", (3, 4), (4, 5), (5, 2)), ("ab,cd,bd,a->c", (2, 3), (4, 5), (3, 5), (2,)),
                        ("i,i,i->i", (4,), (4,), (4,)), ("ij,jk->ik", (0, 4), (4, 2)), ("ij,jk->ik", (2, 0), (0, 3)), ("i->", (4,)), ("iiii->i", (2, 2, 2, 2)),
                        ("iij->ij", (3, 3, 2)), ("iij->", (3, 3, 2)), ("iij,j->ij", (3, 3, 2), (2,)), ("iij,jk->ik", (3, 3, 2), (2, 4))]:
    case(f"einsum {_text}{_shapes}", partial(ops.einsum, _text), gaussians(*_shapes), partial(np.einsum, _text), 60)
case("linear", ops.linear, gaussians((6, 4), (4, 3), (3,)), lambda x, w, b: x @ w + b, 6)
case("linear 3d", ops.linear, gaussians((2, 6, 4), (4, 3), (3,)), lambda x, w, b: x @ w + b, 12)
case("linear no bias", ops.linear, gaussians((6, 4), (4, 3)), lambda x, w: x @ w, 6)
for _name, _follow in (("relu", lambda y: np.maximum(y, 0)), ("tanh", np.tanh)):
    case(f"activated_linear {_name}", partial(ops.activated_linear, activation=_name), gaussians((6, 4), (4, 3), (3,)),
         lambda x, w, b, f=_follow: f(x @ w + b), 6)
    case(f"activated_linear 3d, no bias, {_name}", partial(ops.activated_linear, activation=_name), gaussians((2, 6, 4), (4, 3)),
         lambda x, w, f=_follow: f(x @ w), 12)
    case(f"activated_linear no rows, {_name}", partial(ops.activated_linear, activation=_name), gaussians((0, 4), (4, 3), (3,)),
         lambda x, w, b, f=_follow: f(x @ w + b), 6)
case("linear no rows", ops.linear, gaussians((0, 4), (4, 3), (3,)), lambda x, w, b: x @ w + b, 6)


# Convolution and pooling
def _pair(value):
    return value if isinstance(value, tuple) else (value, value)


def conv_reference(x, w, stride=1, padding=0, dilation=1, groups=1):
    """Each output is a sum over the pixels and channels that it reads, written as the definition says."""
    stride, dilation, (kh, kw, depth, n_out) = _pair(stride), _pair(dilation), w.shape
    x = np.pad(x, ((0, 0), *map(_pair, _pair(padding)), (0, 0)))
    sizes = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(x.shape[1:3], (kh, kw), stride, dilation, strict=True)]
    y = np.zeros((x.shape[0], *sizes, n_out))
    for i, j, o, a, b, c in np.ndindex(*sizes, n_out, kh, kw, depth):
        first = o // (n_out // groups) * depth
        y[:, i, j, o] += x[:, i * stride[0] + a * dilation[0], j * stride[1] + b * dilation[1], first + c] * w[a, b, c, o]
    return y


def pool_reference(x, reduce, border, size, stride=None, padding=0):
    """Over each window of the padded image; the border belongs to no pixel."""
    size, stride = _pair(size), _pair(size if stride is None else stride)
    x = np.pad(x, ((0, 0), *map(_pair, _pair(padding)), (0, 0)), constant_values=border)
    sizes = [(n - k) // s + 1 for n, k, s in zip(x.shape[1:3], size, stride, strict=True)]
    y = np.zeros((x.shape[0], *sizes, x.shape[3]))
    for i, j in np.ndindex(*sizes):
        y[:, i, j] = reduce(x[:, i * stride[0]:i * stride[0] + size[0], j * stride[1]:j * stride[1] + size[1]], axis=(1, 2))
    return y


def _on_a_row(given):
    """The settings of one axis as those of the second of two."""
    return {name: value if name == "groups" else (0 if name == "padding" else 1, value) for name, value in given.items()}


for x, w, given, *same in [
        ((2, 6, 7, 3), (3, 3, 3, 4), {"padding": 1}), ((1, 5, 5, 1), (1, 1, 1, 2), {}), ((2, 7, 6, 2), (3, 2, 2, 3), {"stride": 2}),
        ((2, 4, 4, 2), (4, 4, 2, 1), {"stride": 3, "padding": 2}), ((0, 4, 4, 2), (3, 3, 2, 2), {}),
        ((2, 6, 7, 3), (3, 3, 3, 4), {"stride": (2, 1)}), ((1, 6, 7, 2), (3, 2, 2, 2), {"padding": (2, 1)}),
        ((1, 8, 9, 2), (3, 2, 2, 3), {"dilation": (2, 3), "padding": 1}), ((2, 5, 6, 4), (3, 3, 2, 6), {"groups": 2, "padding": 1, "stride": 2}),
        ((2, 9, 8, 4), (3, 3, 2, 8), {"groups": 2, "stride": 3, "dilation": 2, "padding": 2}), ((2, 4, 4, 3), (2, 2, 1, 6), {"groups": 3, "dilation": 2}),
        ((1, 3, 3, 4), (1, 1, 1, 4), {"groups": 4}), ((0, 4, 4, 2), (3, 3, 1, 2), {"groups": 2}), ((1, 5, 6, 2), (3, 3, 2, 2), {"padding": "same"}, 1),
        ((1, 5, 6, 2), (2, 4, 2, 2), {"padding": "same"}, ((0, 1), (1, 2))), ((1, 5, 6, 2), (3, 2, 2, 2), {"padding": "same", "stride": (2, 3)}, (1, 0)),
        ((1, 5, 7, 1), (3, 3, 1, 2), {"padding": "same", "dilation": 2}, 2)]:
    case(f"conv2d{x}{w}{given}", partial(ops.conv2d, **given), gaussians(x, w), partial(conv_reference, **given | ({"padding": same[0]} if same else {})), 60)
for x, w, given, *same in [
        ((2, 9, 3), (3, 3, 4), {}), ((2, 9, 3), (4, 3, 2), {"stride": 2, "padding": 2}), ((1, 9, 4), (3, 2, 6), {"dilation": 3, "groups": 2}),
        ((0, 9, 1), (1, 1, 1), {}), ((1, 8, 2), (4, 2, 1), {"padding": "same", "stride": 3}, (1, 1)), ((1, 1, 1), (1, 1, 1), {})]:
    case(f"conv1d{x}{w}{given}", partial(ops.conv1d, **given), gaussians(x, w), lambda x, w, g=_on_a_row(given | ({"padding": same[0]} if same else {})):
         conv_reference(x[:, None], w[None], **g)[:, 0], 30)
for name, reduce, border in (("max_pool", np.max, -np.inf), ("avg_pool", np.mean, 0.0)):
    for x, given in [((2, 6, 6, 3), {"size": 2, "stride": 2}), ((1, 7, 5, 2), {"size": 3, "stride": 2}), ((2, 3, 3, 1), {"size": 3, "stride": 1}),
                     ((2, 4, 4, 1), {"size": 1, "stride": 1}), ((2, 6, 7, 3), {"size": (2, 3)}), ((1, 7, 5, 2), {"size": 3, "stride": (2, 1), "padding": 1}),
                     ((2, 5, 5, 1), {"size": (2, 4), "stride": 2, "padding": (1, 2)})]:
        case(f"{name}2d{x}{given}", partial(getattr(ops, f"{name}2d"), **given), gaussians(x), partial(pool_reference, reduce=reduce, border=border, **given), 12)
    for x, given in [((2, 9, 3), {"size": 3}), ((1, 8, 2), {"size": 3, "stride": 2, "padding": 1}), ((1, 1, 1), {"size": 1})]:
        case(f"{name}1d{x}{given}", partial(getattr(ops, f"{name}1d"), **given), gaussians(x), lambda x, r=reduce, b=border, g=_on_a_row(given): pool_reference(
            x[:, None], r, b, **g)[:, 0], 3)


# Normalisation
def layer_norm_reference(x, gain=None, bias=None, eps=1e-5, axis=(-1,)):
    """Over one axis or several: gain and bias have the sizes of these axes."""
    centred = x - x.mean(axis, keepdims=True)
    y = centred / np.sqrt((centred ** 2).mean(axis, keepdims=True) + eps)
    along = [n if i in {a % x.ndim for a in axis} else 1 for i, n in enumerate(x.shape)]
    y = y if gain is None else y * gain.reshape(along)
    return y if bias is None else y + bias.reshape(along)


def batch_norm_reference(x, gain=None, bias=None, eps=1e-5, unbiased=False):
    rows = tuple(range(x.ndim - 1))
    mean, variance = x.mean(rows), x.var(rows, ddof=int(unbiased))
    y = (x - mean) / np.sqrt(variance + eps)
    y = y if gain is None else y * gain
    return (y if bias is None else y + bias), mean, variance


for shape in [(3, 5), (5,), (1, 1), (2, 3, 7), (0, 4), (128, 1000), (33, 129)]:
    width = shape[-1]
    case(f"layer_norm{shape}", ops.layer_norm, gaussians(shape, (width,), (width,)), layer_norm_reference, 4 * width)
for _name, _follow in (("relu", lambda y: np.maximum(y, 0)), ("tanh", np.tanh)):
    case(f"layer_norm {_name}", partial(ops.layer_norm, activation=_name), gaussians((4, 6), (6,), (6,)),
         lambda x, g, b, f=_follow: f(layer_norm_reference(x, g, b)), 24)
    case(f"layer_norm alone, {_name}", partial(ops.layer_norm, activation=_name), gaussians((3, 300)),
         lambda x, f=_follow: f(layer_norm_reference(x)), 600)
case("layer_norm alone", ops.layer_norm, gaussians((4, 6)), layer_norm_reference, 24)
case("layer_norm gain", ops.layer_norm, gaussians((4, 6), (6,)), layer_norm_reference, 24)
case("layer_norm bias", lambda x, b: ops.layer_norm(x, None, b), gaussians((4, 6), (6,)),
     lambda x, b: layer_norm_reference(x, None, b), 24)
for shape in [(4, 5), (2, 3), (3, 4, 5), (2, 3, 3, 2), (128, 33)]:
    for unbiased in (False, True):
        case(f"batch_norm{shape}{unbiased}", lambda x, g, b, u=unbiased: ops.batch_norm(x, g, b, unbiased=u),
             gaussians(shape, shape[-1:], shape[-1:]),
             lambda x, g, b, u=unbiased: batch_norm_reference(x, g, b, unbiased=u), 600)
case("batch_norm alone", ops.batch_norm, gaussians((6, 3)), batch_norm_reference, 60)
for shape in [(4, 5), (1, 1), (3, 3, 2, 4)]:
    case(f"weight_norm{shape}", ops.weight_norm, gaussians(shape, shape[-1:]),
         lambda v, g: g * v / np.sqrt((v ** 2).sum(tuple(range(v.ndim - 1)))), 20)


def rms_norm_reference(x, gain=None, axis=(-1,), eps=1e-5):
    y = x / np.sqrt((x ** 2).mean(axis, keepdims=True) + eps)
    return y if gain is None else y * gain.reshape([n if i in {a % x.ndim for a in axis} else 1 for i, n in enumerate(x.shape)])


def group_norm_reference(x, gain=None, bias=None, groups=1, eps=1e-5):
    """Each example and each group of channels alone."""
    y, share = np.empty_like(x), x.shape[-1] // groups
    for example in range(x.shape[0]):
        for first in range(0, x.shape[-1], share):
            values = x[example, ..., first:first + share]
            y[example, ..., first:first + share] = (values - values.mean()) / np.sqrt(values.var() + eps)
    y = y if gain is None else y * gain
    return y if bias is None else y + bias


for shape, axis in [((2, 3, 4, 2), (1, 2, 3)), ((3, 5, 2), (-2, -1)), ((3, 5, 2), (1,)), ((4, 3, 2), (0, 2)), ((2, 3, 4), [2, 0]), ((0, 2, 3), (1, 2)),
                    ((3, 1, 1), (1, 2)), ((2, 33, 129), (1, 2)), ((6, 2), (0, 1))]:
    along = tuple(shape[a] for a in sorted(a % len(shape) for a in axis))
    width, eps = int(np.prod(along)), 1e-5 if np.prod(along) > 1 else 0.5  # one value alone loses its digits beside a small eps
    case(f"layer_norm{shape} over {axis}", partial(ops.layer_norm, axis=axis), gaussians(shape, along, along),
         lambda x, g, b, a=tuple(axis): layer_norm_reference(x, g, b, axis=a), 4 * width)
    case(f"rms_norm{shape} over {axis}", partial(ops.rms_norm, axis=axis, eps=eps), gaussians(shape, along),
         partial(rms_norm_reference, axis=tuple(axis), eps=eps), 4 * width)
case("layer_norm over an axis, alone", partial(ops.layer_norm, axis=0), gaussians((4, 6)), lambda x: layer_norm_reference(x, axis=(0,)), 24)
case("layer_norm over axes, all of it", lambda x, b: ops.layer_norm(x, None, b, axis=(0, 1), eps=0.1, activation="tanh"), gaussians((4, 6, 3), (4, 6)),
     lambda x, b: np.tanh((x - x.mean((0, 1))) / np.sqrt(x.var((0, 1)) + 0.1) + b[..., None]), 72)
for shape in [(3, 5), (5,), (1, 1), (2, 3, 7), (0, 4), (128, 1000), (33, 129)]:
    eps = 1e-5 if shape[-1] > 1 else 0.5
    case(f"rms_norm{shape}", partial(ops.rms_norm, eps=eps), gaussians(shape, shape[-1:]), partial(rms_norm_reference, eps=eps), 4 * shape[-1])
case("rms_norm alone", partial(ops.rms_norm, eps=0.5), gaussians((4, 6)), partial(rms_norm_reference, eps=0.5), 24)
for shape in [(3, 5), (5,), (1, 1), (2, 3, 7), (0, 4), (128, 1000), (33, 129)]:
    eps = 1e-5 if shape[-1] > 1 else 0.5
    case(f"add_layer_norm{shape}", partial(ops.add_layer_norm, eps=eps), gaussians(shape, shape, shape[-1:], shape[-1:]),
         lambda x, r, g, b, eps=eps: (layer_norm_reference(x + r, g, b, eps=eps), x + r), 4 * shape[-1])
    case(f"add_rms_norm{shape}", partial(ops.add_rms_norm, eps=eps), gaussians(shape, shape, shape[-1:]),
         lambda x, r, g, eps=eps: (rms_norm_reference(x + r, g, eps=eps), x + r), 4 * shape[-1])
case("add_layer_norm alone", partial(ops.add_layer_norm, eps=0.5), gaussians((4, 6), (4, 6)),
     lambda x, r: (layer_norm_reference(x + r, eps=0.5), x + r), 24)
case("add_layer_norm bias", lambda x, r, b: ops.add_layer_norm(x, r, None, b), gaussians((4, 6), (4, 6), (6,)),
     lambda x, r, b: (layer_norm_reference(x + r, None, b), x + r), 24)
case("add_rms_norm alone", partial(ops.add_rms_norm, eps=0.5), gaussians((4, 6), (4, 6)), lambda x, r: (rms_norm_reference(x + r, eps=0.5), x + r), 24)
for shape, groups in [((2, 3, 4, 6), 3), ((3, 5, 4), 4), ((3, 6), 2), ((2, 7, 5), 1), ((1, 1, 1), 1), ((2, 1, 8), 2), ((2, 3, 2, 2, 4), 2), ((0, 3, 4), 2), ((3, 33, 6), 2)]:
    case(f"group_norm{shape} in {groups}", partial(ops.group_norm, groups=groups), gaussians(shape, shape[-1:], shape[-1:]),
         partial(group_norm_reference, groups=groups), 4 * int(np.prod(shape[1:])) // groups)
case("group_norm alone", partial(ops.group_norm, groups=2, eps=0.5), gaussians((2, 3, 4)), partial(group_norm_reference, groups=2, eps=0.5), 24)
case("group_norm gain", partial(ops.group_norm, groups=2), gaussians((2, 3, 4), (4,)), partial(group_norm_reference, groups=2), 24)
case("group_norm bias", lambda x, b: ops.group_norm(x, None, b, groups=2), gaussians((2, 3, 4), (4,)), lambda x, b: group_norm_reference(x, None, b, 2), 24)
for shape in [(2, 3, 4, 6), (3, 5, 4), (1, 3, 1), (2, 1, 3, 3), (0, 3, 4), (3, 65, 7)]:
    case(f"instance_norm{shape}", ops.instance_norm, gaussians(shape, shape[-1:], shape[-1:]),
         lambda x, g, b: group_norm_reference(x, g, b, x.shape[-1]), 4 * int(np.prod(shape[1:-1])))
case("instance_norm alone", partial(ops.instance_norm, eps=0.5), gaussians((2, 5, 3)), lambda x: group_norm_reference(x, groups=3, eps=0.5), 24)


# Losses
def cross_entropy_reference(logits, labels):
    total = np.log(np.exp(logits).sum(-1))
    return total - np.take_along_axis(logits, labels[..., None], -1)[..., 0]


for shape in [(4, 10), (1, 1), (2, 3, 5), (0, 4), (128, 10), (3, 4097)]:
    case(f"softmax_cross_entropy{shape}", ops.softmax_cross_entropy,
         lambda rng, s=shape: [rng.standard_normal(s), rng.integers(0, s[-1], s[:-1]).astype(np.int32)],
         cross_entropy_reference, shape[-1])


def linear_cross_entropy_reference(x, weight, bias, labels):
    each = cross_entropy_reference(x @ weight + bias, np.maximum(labels, 0))
    return np.where(labels >= 0, each, 0.0)


for shape, classes in [((4, 5), 10), ((1, 1), 1), ((2, 3, 5), 7), ((0, 4), 6), ((3, 0, 2), 4), ((5,), 3), ((70, 5), 4097)]:
    case(f"linear_cross_entropy{shape}{classes}", partial(ops.linear_cross_entropy, ignore_index=-1),
         lambda rng, s=shape, c=classes: [*gaussians(s, (s[-1], c), (c,))(rng), rng.integers(-1, c, s[:-1]).astype(np.int32)],
         linear_cross_entropy_reference, 70 * classes)


def weighted_reference(logits, labels, weight, share):
    """The formula row by row: a distribution of 1 - share at the label and share over all classes, weighted by class."""
    classes, out = logits.shape[-1], np.zeros(labels.shape)
    for place in np.ndindex(labels.shape):
        target = np.full(classes, share / classes)
        target[labels[place]] += 1 - share
        out[place] = -(weight * target * (logits[place] - np.log(np.exp(logits[place]).sum()))).sum()
    return out


for _share in (0.0, 0.1):
    case(f"softmax_cross_entropy weight {_share}", lambda x, i, w, s=_share: ops.softmax_cross_entropy(x, i, class_weights=w, label_smoothing=s),
         lambda rng: [rng.standard_normal((2, 3, 5)), rng.integers(0, 5, (2, 3)).astype(np.int32), rng.uniform(0.1, 2, 5)],
         lambda x, i, w, s=_share: weighted_reference(x, i, w, s), 16)
case("softmax_cross_entropy smoothed", partial(ops.softmax_cross_entropy, label_smoothing=0.3),
     lambda rng: [rng.standard_normal((4, 5)), rng.integers(0, 5, 4).astype(np.int32)], lambda x, i: weighted_reference(x, i, 1.0, 0.3), 16)
case("softmax_cross_entropy all of it", lambda x, i, w: ops.softmax_cross_entropy(x, i, ignore_index=-1, class_weights=w, label_smoothing=0.2),
     lambda rng: [rng.standard_normal((6, 5)), np.array([0, -1, 4, -1, 2, 0], np.int32), rng.uniform(0.1, 2, 5)],
     lambda x, i, w: np.where(i >= 0, weighted_reference(x, np.maximum(i, 0), w, 0.2), 0), 16)
for shape in [(4, 10), (1, 1), (2, 3, 5), (0, 4)]:
    case(f"probability_cross_entropy{shape}", ops.probability_cross_entropy, lambda rng, s=shape: [rng.standard_normal(s), rng.random(s)],
         lambda x, t: -(t * (x - np.log(np.exp(x).sum(-1, keepdims=True)))).sum(-1), 20)
case("probability_cross_entropy weight", lambda x, t, w: ops.probability_cross_entropy(x, t, class_weights=w),
     lambda rng: [rng.standard_normal((3, 4)), rng.random((3, 4)), rng.random(4)],
     lambda x, t, w: -(w * t * (x - np.log(np.exp(x).sum(-1, keepdims=True)))).sum(-1), 20)
for shape in [(5, 7), (), (0, 3)]:
    case(f"squared_error{shape}", ops.squared_error, gaussians(shape, shape), lambda x, t: (x - t) ** 2, 4)
    case(f"absolute_error{shape}", ops.absolute_error, gaussians(shape, shape), lambda x, t: np.abs(x - t), 4)
    for _delta in (1.0, 0.3):
        case(f"huber{shape}{_delta}", partial(ops.huber, delta=_delta), gaussians(shape, shape), lambda x, t, d=_delta: np.where(
            np.abs(x - t) <= d, 0.5 * (x - t) ** 2, d * (np.abs(x - t) - d / 2)), 4)
    case(f"kl_div{shape}", ops.kl_div, positive(shape, shape), lambda x, t: t * (np.log(t) - x), 8)
case("kl_div of 0", lambda x, t: ops.kl_div(x, t * 0.0), lambda rng: [np.array([-1.0, -np.inf, 2.0]), np.ones(3)], lambda x, t: np.zeros(3))
case("bce_with_logits", ops.bce_with_logits, lambda rng: [3 * rng.standard_normal((5, 7)), rng.random((5, 7))],
     lambda x, t: t * np.log1p(np.exp(-x)) + (1 - t) * np.log1p(np.exp(x)), 16)


# Attention
def additive_attention_reference(query, key, value, score_vector, mask):
    """Bahdanau et al. 2015, one step after another; a row that is masked everywhere gives 0."""
    (rows, steps, _), weights = key.shape, np.zeros(mask.shape)
    for b in range(rows):
        powers = [np.exp(score_vector @ np.tanh(query[b] + key[b, t])) if mask[b, t] else 0.0 for t in range(steps)]
        weights[b] = np.array(powers) / (sum(powers) or 1)
    return np.einsum("bt,btm->bm", weights, value), weights


for rows, steps, width, n_values, first in [(1, 1, 1, 1, 1), (3, 7, 4, 5, 2), (2, 33, 8, 3, 0), (4, 65, 1, 2, 9), (0, 3, 4, 2, 1)]:
    case(f"additive_attention {rows} {steps}", ops.additive_attention,
         lambda rng, r=rows, t=steps, a=width, m=n_values, n=first: [
             *(rng.standard_normal(s) for s in ((r, a), (r, t, a), (r, t, m), (a,))),
             np.arange(t) < (n + np.arange(r) * 2)[:, None]], additive_attention_reference, 65)


def dot_product_attention_reference(query, key, value, mask=None, causal=False, scale=None):
    """Vaswani et al. 2017, eq. 1, one query after another; a query that sees no key gets 0."""
    out, scale = np.zeros((*query.shape[:-1], value.shape[-1])), query.shape[-1] ** -0.5 if scale is None else scale
    seen = np.broadcast_to(True if mask is None else mask, (*query.shape[:-1], key.shape[-2]))
    for place in np.ndindex(query.shape[:-1]):
        visible = [s for s in range(key.shape[-2]) if seen[place][s] and not (causal and s > place[-1])]
        scores = np.array([scale * (query[place] @ key[place[:-1]][s]) for s in visible])
        powers = np.exp(scores - scores.max(initial=-np.inf))
        out[place] = sum((p / powers.sum() * value[place[:-1]][s] for p, s in zip(powers, visible, strict=True)), np.zeros(value.shape[-1]))
    return out


for lead, queries, keys, width, n_values, _causal in [((), 1, 1, 1, 1, True), ((2, 3), 5, 5, 4, 4, True), ((2, 1), 3, 7, 4, 2, True), ((3,), 7, 3, 1, 5, True),
                                                      ((2, 2), 5, 6, 3, 4, False), ((1, 2), 0, 3, 2, 2, False), ((0, 2), 3, 3, 2, 2, True), ((1, 2), 33, 65, 8, 3, False)]:
    for _mask in (None, (queries, keys), (keys,), (1, 1), ()):
        case(f"scaled_dot_product_attention {lead} {queries} {keys}{' causal' * _causal}{'' if _mask is None else f' mask {_mask}'}",
             partial(ops.scaled_dot_product_attention, causal=_causal),
             lambda rng, n=lead, t=queries, s=keys, d=width, v=n_values, m=_mask: [
                 *(rng.standard_normal((*n, *shape)) for shape in ((t, d), (s, d), (s, v))), *([] if m is None else [rng.random(m) < 0.6])],
             partial(dot_product_attention_reference, causal=_causal), 65)
case("scaled_dot_product_attention scale", partial(ops.scaled_dot_product_attention, scale=2.5), gaussians((2, 3, 4), (2, 5, 4), (2, 5, 3)),
     partial(dot_product_attention_reference, scale=2.5), 65)
case("clip_gradient far off", partial(ops.clip_gradient, limit=1e6), gaussians((3, 5)), lambda x: x)
case("global_norm", ops.global_norm, gaussians((3, 5), (7,)), lambda x, y: np.sqrt((x ** 2).sum() + (y ** 2).sum()), 22)
