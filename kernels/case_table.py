"""The cases that test every fused rule: widths around every boundary of the kernels, odd widths, misaligned arrays.

They are plain data, made on the host from fixed seeds when they are used: together they are half a gigabyte.
`duoln.testing.selftest` runs them on the user's machine, and the tests run them on the CPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from duoln.kernels.recurrent.cells import FUSED
from duoln.ops.recurrent.variants import CELLS, has_bias, norm_shapes


class RuleCase(NamedTuple):
    """One case: an operator, its arrays in float32 and its attributes."""

    op: str
    label: str
    inputs: Sequence[np.ndarray | None]
    attrs: Mapping[str, Any]
    length: int
    """The number of values in its longest sum; the tolerance grows with it."""
    misaligned: bool = False
    """Whether the arrays begin one value after an aligned address."""
    stored: str = "float32"
    """The dtype of the arrays that a rule takes as they are stored; the other ones are float32."""
    roundings: int = 1
    """How many roundings to `stored` follow each other in it at most; the tolerance grows with it, too."""

    def __str__(self) -> str:
        return f"{self.op} {self.label}" if self.stored == "float32" else f"{self.op} {self.stored} {self.label}"


class Made(Sequence[np.ndarray | None]):
    """The arrays of a case, made by a function when one of them is used; those of the last two cases are kept."""

    def __init__(self, make: Callable[[], Sequence[np.ndarray | None]]) -> None:
        self._make = make

    def __getitem__(self, k: Any) -> Any:
        """Array k, or several."""
        return _made(self._make)[k]

    def __len__(self) -> int:
        """The number of arrays."""
        return len(_made(self._make))


@lru_cache(maxsize=2)
def _made(make: Callable[[], Sequence[np.ndarray | None]]) -> Sequence[np.ndarray | None]:
    return make()


_WIDTHS = (1, 2, 7, 31, 32, 33, 64, 65, 100, 128, 129, 255, 256, 257, 500, 512, 513, 1000, 1024, 1025, 2047, 2048, 2050,
           4096, 4097, 8192, 8193, 10_001)
CELL_SIZES = ((1, 1, 1, 1), (3, 5, 3, 9), (2, 9, 2, 32), (2, 3, 2, 33), (2, 3, 17, 70), (2, 2, 3, 130), (2, 2, 1, 300),
               (1, 3, 2, 600), (2, 1, 1, 1100))
"""Time steps, rows, inputs, hidden units: one case for each launch plan of the cell kernels."""
LONG_CELL_SIZES = ((1, 2, 1, 2100), (1, 1, 1, 4096))
_OF_A_STEP = 3 * 4
"""Roundings to 16 bits in a time step: both products and the state, which a gain of two makes twice as large each."""


def rule_cases() -> list[RuleCase]:
    """Every case."""
    return [*_layer_norm(), *_norms_beside(), *_recurrent(), *_cells(), *_cross_entropy(), *_linear_cross_entropy(),
            *_take(), *_linear(), *_adam(), *_adam_rates(), *_norms(), *_images(), *_channels(),
            *_whole_arrays(), *_attention()]


def _floats(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32) * np.float32(scale)


def _drawn(*shapes: Sequence[int], seed: int | Sequence[int]) -> Made:
    """Normal values in these shapes."""
    def arrays() -> Sequence[np.ndarray | None]:
        rng = np.random.default_rng(seed)
        return [_floats(rng, *shape) for shape in shapes]

    return Made(arrays)


def _eps(width: int) -> float:
    """Large for narrow rows: a norm turns two values into +1 and -1, so a small eps leaves no gradient to compare."""
    return 1e-5 if width > 2 else 1.0


def _layer_norm() -> Iterator[RuleCase]:
    for width in _WIDTHS:
        for rows in (1, 3, 70) if width <= 1025 else (1, 3):
            yield norm("layer_norm", (rows, width))
        for activation in ("relu", "tanh"):
            yield norm("layer_norm", (4, width), activation=activation)
        yield norm("layer_norm", (5, width), mean=10, absent=("bias",), misaligned=True)
        yield norm("layer_norm", (2, 2, width), absent=("gain", "bias"))


def _norms_beside() -> Iterator[RuleCase]:
    """The norms that share the kernels of layer norm: its twin without a mean, and both of a sum."""
    for op in ("rms_norm", "add_layer_norm", "add_rms_norm"):
        for width in _WIDTHS:
            for rows in (3, 70) if width <= 1025 else (3,):
                yield norm(op, (rows, width))
            yield norm(op, (2, 2, width), mean=10, absent=("gain", "bias"), misaligned=True)


def norm(op: str, shape: Sequence[int], *, activation: str | None = None, mean: float = 0, absent: Sequence[str] = (),
         misaligned: bool = False) -> RuleCase:
    """One case of a norm over the last axis; `mean` is that of what it normalises, `absent` names gain or bias."""
    width, summands = shape[-1], 2 if op.startswith("add_") else 1

    def arrays() -> Sequence[np.ndarray | None]:
        rng = np.random.default_rng([*shape, summands])
        rows = [_floats(rng, *shape) for _ in range(summands)]
        if mean:
            rows = [x + np.float32(mean / summands) for x in rows]
        return *rows, *(None if name in absent else _floats(rng, width)
                        for name in (("gain", "bias") if op.endswith("layer_norm") else ("gain",)))

    attrs: dict[str, Any] = {"eps": _eps(width)}
    if activation:
        attrs["activation"] = activation
    length = 40 * width if mean else max(prod(shape[:-1]), width)
    label = norm_label(op, shape, activation=activation, mean=mean, absent=absent, misaligned=misaligned)
    return RuleCase(op, label, Made(arrays), attrs, length, misaligned)


def norm_label(op: str, shape: Sequence[int], *, activation: str | None = None, mean: float = 0,
               absent: Sequence[str] = (), misaligned: bool = False) -> str:
    """The label of such a case."""
    left = "alone" if len(absent) > 1 else f"no {absent[0]}" if absent else ""
    return ", ".join(filter(None, (" x ".join(map(str, shape)), activation, f"mean {mean:g}" if mean else "", left,
                                   "misaligned" if misaligned else "")))


def _recurrent() -> Iterator[RuleCase]:
    for cell, norm in FUSED:
        for sizes in CELL_SIZES:
            for masked, reverse in ((False, False), (True, True)):
                yield recurrent(cell, norm, sizes, masked, reverse)
        yield recurrent(cell, norm, (4, 3, 2, 33), masked=False, reverse=True, gradient_limit=0.05)


def recurrent(cell: str, norm: str, sizes: Sequence[int], masked: bool, reverse: bool,
              gradient_limit: float | None = None) -> RuleCase:
    """One case of a recurrent operator; `sizes` are time steps, rows, inputs and hidden units."""
    steps, batch, n_in, hidden = sizes
    gates = CELLS[cell].gates * hidden

    def arrays() -> Sequence[np.ndarray | None]:
        rng = np.random.default_rng([*sizes, masked])
        first = [_floats(rng, batch, hidden) for _ in range(len(CELLS[cell].states))]
        weights = [_floats(rng, n, gates, scale=n ** -0.5) for n in (n_in, hidden)]
        bias = _floats(rng, gates) if has_bias(cell, norm) else None
        mask = rng.random((steps, batch)) < 0.6 if masked else None
        norms = [_floats(rng, *shape) for shape in norm_shapes(cell, norm, hidden).values()]
        return _floats(rng, steps, batch, n_in), *first, *weights, bias, mask, *norms

    attrs = {"norm": norm, "eps": _eps(min(n_in, hidden) + 1), "reverse": reverse, "gradient_limit": gradient_limit}
    label = recurrent_label(norm, sizes, masked, reverse, gradient_limit)
    return RuleCase(cell, label, Made(arrays), attrs, 4 * steps * max(gates, batch), roundings=_OF_A_STEP * steps)


def recurrent_label(norm: str, sizes: Sequence[int], masked: bool, reverse: bool,
                    gradient_limit: float | None = None) -> str:
    """The label of such a case."""
    kinds = ("masked" if masked else "", "reverse" if reverse else "",
             "" if gradient_limit is None else f"gradients within {gradient_limit}")
    return " ".join(filter(None, (norm, *(f"{name}{n}" for name, n in zip(("T", "B", "in", "H"), sizes, strict=True)),
                                  ", ".join(filter(None, kinds)))))


def _cells() -> Iterator[RuleCase]:
    for norm in ("none", "layer", "layer-cell", "layer-theano"):
        for batch, hidden in ((1, 1), (3, 9), (2, 33), (5, 70), (2, 600)):
            yield lstm_cell(norm, batch, hidden)


def lstm_cell(norm: str, batch: int, hidden: int) -> RuleCase:
    """One case of a single time step."""
    def arrays() -> Sequence[np.ndarray | None]:
        rng = np.random.default_rng([batch, hidden])
        return (_floats(rng, batch, 4 * hidden), _floats(rng, batch, 4 * hidden), _floats(rng, batch, hidden),
                _floats(rng, 4 * hidden), *(_floats(rng, *s) for s in norm_shapes("lstm", norm, hidden).values()))

    return RuleCase("lstm_cell", f"{norm} B{batch} H{hidden}", Made(arrays),
                    {"norm": norm, "eps": _eps(hidden)}, 4 * hidden, roundings=_OF_A_STEP)


def _cross_entropy() -> Iterator[RuleCase]:
    for shape in ((1, 1), (3, 2), (5, 10), (130, 10), (9, 1000), (3, 1024), (3, 1025), (2, 3, 33), (2, 20_000)):
        yield cross_entropy(shape)


def cross_entropy(shape: Sequence[int]) -> RuleCase:
    """One case of logits (..., classes)."""
    def arrays() -> Sequence[np.ndarray | None]:
        rng = np.random.default_rng(shape)
        labels = rng.integers(0, shape[-1], shape[:-1]).astype(np.int32)
        return _floats(rng, *shape, scale=5), labels

    return RuleCase("softmax_cross_entropy", " x ".join(map(str, shape)), Made(arrays), {}, shape[-1])


def _linear_cross_entropy() -> Iterator[RuleCase]:
    for rows, n_in, classes in ((1, 1, 1), (3, 2, 5), (70, 33, 1000), (9, 130, 20_001)):
        yield _linear_classes(rows, n_in, classes)


def _linear_classes(rows: int, n_in: int, classes: int) -> RuleCase:
    def arrays() -> Sequence[np.ndarray | None]:
        rng = np.random.default_rng([rows, n_in, classes])
        labels = rng.integers(-1, classes, rows).astype(np.int32)
        x, weights = _floats(rng, rows, n_in), _floats(rng, n_in, classes, scale=n_in ** -0.5)
        return x, weights, _floats(rng, classes), labels

    return RuleCase("linear_cross_entropy", f"{rows} x {n_in} x {classes}", Made(arrays), {}, max(rows, n_in, classes))


def _take() -> Iterator[RuleCase]:
    for words, width, taken in ((1, 1, (1,)), (7, 3, (20,)), (50, 300, (4, 9)), (9, 33, (2, 2, 2)), (3, 5, (200,))):
        yield take(words, width, taken)


def take(words: int, width: int, taken: Sequence[int]) -> RuleCase:
    """One case of rows that are taken from a table (words, width)."""
    def arrays() -> Sequence[np.ndarray | None]:
        rng = np.random.default_rng([words, width])
        indices = rng.integers(0, words, taken).astype(np.int32)
        return _floats(rng, words, width), indices

    return RuleCase("take", f"{prod(taken)} of {words} x {width}", Made(arrays), {"axis": 0}, prod(taken))


def _linear() -> Iterator[RuleCase]:
    for sizes in ((1, 1, 65_536), (2, 257, 256), (3, 1000, 67), (4, 301, 1001), (4, 65_537, 1), (5, 1030, 70),
                  (65, 513, 17), (300, 33, 50), (300, 1025, 3), (1025, 3, 257)):
        whole = linear(*sizes)
        yield whole
        yield whole._replace(op="matmul", inputs=Made(partial(_first_two, whole)))
        for activation in ("relu", "tanh"):
            yield whole._replace(op="activated_linear", label=f"{whole.label}, {activation}",
                                 attrs={"activation": activation})


def _first_two(case: RuleCase) -> Sequence[np.ndarray | None]:
    return case.inputs[:2]


def linear(rows: int, n_in: int, n_out: int) -> RuleCase:
    """One case of `linear`."""
    def arrays() -> Sequence[np.ndarray | None]:
        rng = np.random.default_rng([rows, n_in, n_out])
        return _floats(rng, rows, n_in), _floats(rng, n_in, n_out, scale=n_in ** -0.5), _floats(rng, n_out)

    return RuleCase("linear", f"{rows} x {n_in} x {n_out}", Made(arrays), {}, max(n_in, n_out))


MANY = (*[(5,)] * 56, *[(0,)] * 56, *[(2, 3)] * 10)
"""More tensors than a launch takes; the second launch would have no values."""


def listed(shapes: Sequence[tuple[int, ...]]) -> str:
    """These shapes in words."""
    return f"{len(shapes)} tensors" if shapes is MANY else " and ".join(str(s) for s in shapes)


def _adam() -> Iterator[RuleCase]:
    for shapes in (((1,),), ((4095,), (4096,), (4097,)), ((3, 5), (), (20_001,)), ((0,), (7,)), MANY):
        for scaled, decayed in itertools.product((False, True), repeat=2):
            yield adam_update(shapes, scaled, decayed)


def adam_update(shapes: Sequence[tuple[int, ...]], scaled: bool, decayed: bool) -> RuleCase:
    """One case of an update of tensors of these shapes, whose gradients are scaled, or whose parameters are decayed."""
    def arrays() -> Sequence[np.ndarray | None]:
        rng = np.random.default_rng(len(shapes))
        params, gradients, moments, squares = ([_floats(rng, *s) for s in shapes] for _ in range(4))
        rate, eps, scale, keep = (np.array(value, np.float32) for value in (0.1, 1e-3, 0.3, 0.9))
        return (rate, eps, scale if scaled else None, keep if decayed else None, *params, *gradients, *moments,
                *(np.abs(s) for s in squares))

    return RuleCase("adam_update", listed(shapes) + ", scaled" * scaled + ", decayed" * decayed, Made(arrays),
                    {"beta1": 0.9, "beta2": 0.999, "donate": False}, max(prod(s) for s in shapes))


def _adam_rates() -> Iterator[RuleCase]:
    for beta1, bias_correction, updates in ((0.9, "standard", 0), (0.9, "kiros2015", 3), (0.0, "standard", 1),
                                            (0.5, "standard", 100_000)):
        yield adam_rates(beta1, bias_correction, updates)


def adam_rates(beta1: float, bias_correction: str, updates: int) -> RuleCase:
    """One case of the rates after so many updates."""
    return RuleCase("adam_rates", f"{bias_correction}, beta1 {beta1}, after {updates}",
                    (np.array(0.1, np.float32), np.array(updates, np.int32)),
                    {"beta1": beta1, "beta2": 0.999, "eps": 1e-8, "bias_correction": bias_correction}, 1)


def _norms() -> Iterator[RuleCase]:
    for shapes in (((1,),), ((8191,), (8192, 1), (8193,)), ((3, 5), (), (0, 2), (20_001,)), MANY):
        yield global_norm(shapes)


def global_norm(shapes: Sequence[tuple[int, ...]]) -> RuleCase:
    """One case of the common norm of tensors of these shapes."""
    return RuleCase("global_norm", listed(shapes), _drawn(*shapes, seed=len(shapes)), {}, max(prod(s) for s in shapes))


def _images() -> Iterator[RuleCase]:
    for x, weight, stride, padding in (((1, 1, 1, 1), (1, 1, 1, 1), 1, 0), ((3, 7, 6, 3), (3, 3, 3, 5), 1, 1),
                                       ((5, 6, 9, 4), (2, 3, 4, 3), 2, 0), ((2, 5, 5, 2), (1, 1, 2, 7), 1, 2),
                                       ((2, 12, 12, 64), (3, 3, 64, 96), 1, 1), ((3, 9, 8, 17), (4, 2, 17, 33), 3, 2),
                                       ((2, 19, 40, 5), (3, 3, 5, 16), 1, 1), ((1, 5, 6, 150), (3, 5, 150, 3), 1, 4)):
        yield RuleCase("conv2d", f"{x} by {weight}, stride {stride}, padding {padding}",
                    _drawn(x, weight, seed=[*x, *weight]), {"stride": stride, "padding": padding},
                    max(prod(weight[:3]), prod(x[:3])))
    for shape, size, stride in (((1, 1, 1, 1), 1, 1), ((3, 7, 6, 5), 2, 2), ((2, 9, 9, 33), 3, 3), ((2, 8, 9, 6), 3, 2),
                                ((1, 9, 7, 4), 2, 3)):
        inputs = _drawn(shape, seed=shape)
        yield RuleCase("max_pool2d", f"{shape}, {size} x {size}, stride {stride}", inputs,
                    {"size": size, "stride": stride}, size ** 2)
        yield RuleCase("leaky_relu", f"{shape}", inputs, {"slope": 0.1}, 1)
        yield RuleCase("relu", f"{shape}", inputs, {}, 1)


def _channels() -> Iterator[RuleCase]:
    for shape in ((3, 2, 1), (2, 5, 7, 3), (20, 8, 8, 16), (3, 40, 257), (40, 7, 9, 1)):
        row = shape[-1:]
        yield RuleCase("batch_norm", f"{shape}", _drawn(shape, row, row, seed=shape), {"eps": 1e-2, "unbiased": False},
                    prod(shape))
        yield RuleCase("add", f"{shape} and a bias", _drawn(shape, row, seed=shape), {}, prod(shape))


def _whole_arrays() -> Iterator[RuleCase]:
    shapes: tuple[tuple[int, ...], ...] = ((4096,), (5, 7, 131), (129, 257))
    for shape in shapes:
        yield RuleCase("where", f"{shape}", Made(partial(_either, shape)), {}, 1)
    shapes = ((65536,), (5, 7, 2003), (257, 263))
    for shape in shapes:
        for operator in ("add", "multiply"):
            yield RuleCase(operator, f"{shape}", _drawn(shape, shape, seed=shape), {}, 1)
        all_axes = {"axis": tuple(range(len(shape))), "keepdims": False}
        yield RuleCase("sum", f"{shape}", _drawn(shape, seed=shape), all_axes, prod(shape))


def _either(shape: Sequence[int]) -> Sequence[np.ndarray]:
    rng = np.random.default_rng(shape)
    return rng.random(shape) < 0.6, _floats(rng, *shape), _floats(rng, *shape)


def _attention() -> Iterator[RuleCase]:
    for before, queries, keys, width, n_values, causal in (
            ((), 1, 1, 1, 1, True), ((2, 3), 5, 5, 4, 4, True), ((3, 1), 49, 65, 33, 17, False),
            ((2,), 130, 70, 16, 65, True), ((1, 2), 64, 200, 64, 64, True), ((2, 2, 1), 13, 3, 8, 5, False),
            ((3, 2, 4), 7, 9, 8, 5, True)):
        attrs = {"causal": causal, "scale": width ** -0.5}
        case, length = f"{(*before, queries, width)} by {keys}, causal {causal}", 2 * max(keys, queries, width)
        shapes = (*before, queries, width), (*before, keys, width), (*before, keys, n_values)
        masks = (None, *dict.fromkeys(((queries, keys), (*before, 1, keys), (*before[1:], queries, keys))))
        for mask in masks:
            yield RuleCase("scaled_dot_product_attention", case + (f", mask {mask}" if mask else ""),
                        Made(partial(_attended, shapes, mask)), attrs, length)


def _attended(shapes: Sequence[Sequence[int]], mask: Sequence[int] | None) -> Sequence[np.ndarray | None]:
    """Queries, keys, values and a mask, if any."""
    rng = np.random.default_rng([shapes[0][-2], *shapes[1][-2:]])
    return *(_floats(rng, *shape) for shape in shapes), None if mask is None else rng.random(mask) < 0.6
