"""Every operator with a fused rule, at small sizes; the table of layouts is generated from these cases."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from duoln.kernels.case_table import RuleCase, recurrent, rule_cases
from duoln.kernels.recurrent.cells import FUSED, fused_norms
from duoln.ops.recurrent.variants import CELLS, norm_shapes


def _floats(rng: np.random.Generator, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def rows() -> Iterator[RuleCase]:
    """Layer norm, both cross-entropies, rows of a table."""
    rng = np.random.default_rng(1)
    for shape in ((3, 5), (1, 7), (2, 1, 6), (5,)):
        for activation in (None, "relu", "tanh"):
            yield RuleCase("layer_norm", f"{shape} {activation}", _floats(rng, shape, shape[-1:], shape[-1:]),
                        {"eps": 1e-3, "activation": activation}, 40)
    yield RuleCase("layer_norm", "alone", [*_floats(rng, (4, 6)), None, None], {"eps": 1e-3, "activation": None}, 40)
    for shape in ((3, 5), (1, 7), (2, 1, 6), (5,)):
        along = shape[-1:]
        yield RuleCase("rms_norm", f"{shape}", _floats(rng, shape, along), {"eps": 1e-3}, 40)
        yield RuleCase("add_layer_norm", f"{shape}", _floats(rng, shape, shape, along, along), {"eps": 1e-3}, 40)
        yield RuleCase("add_rms_norm", f"{shape}", _floats(rng, shape, shape, along), {"eps": 1e-3}, 40)
    for shape in ((4, 6), (1, 3), (2, 3, 5), (7,)):
        labels = rng.integers(0, shape[-1], shape[:-1]).astype(np.int32)
        yield RuleCase("softmax_cross_entropy", f"{shape}", [*_floats(rng, shape), labels], {}, 10)
    for shape, classes in (((4, 5), 6), ((1, 3), 4), ((2, 3, 2), 5), ((3, 1), 3), ((9, 33), 1000)):
        labels = rng.integers(-1, classes, shape[:-1]).astype(np.int32)
        labels.reshape(-1)[0] = 1
        arrays = _floats(rng, shape, (shape[-1], classes), (classes,))
        yield RuleCase("linear_cross_entropy", f"{shape} {classes}", [*arrays, labels], {}, 40)
    yield RuleCase("linear", "(3, 257) 256", _floats(rng, (3, 257), (257, 256), (256,)), {}, 300)
    yield RuleCase("linear", "(701, 3) 130", _floats(rng, (701, 3), (3, 130), (130,)), {}, 300)
    yield RuleCase("activated_linear", "(701, 3) 130 relu", _floats(rng, (701, 3), (3, 130), (130,)), {"activation": "relu"}, 300)
    for activation in ("relu", "tanh"):
        yield RuleCase("activated_linear", f"(17, 65) 300 {activation}", _floats(rng, (17, 65), (65, 300), (300,)), {"activation": activation}, 300)
    yield RuleCase("matmul", "(3, 257) 256", _floats(rng, (3, 257), (257, 256)), {}, 300)
    for words, width, taken in ((5, 3, (4,)), (3, 1, (2, 3)), (1, 4, (3,)), (6, 2, (1, 2))):
        indices = rng.integers(0, words, taken).astype(np.int32)
        yield RuleCase("take", f"{words} {width} {taken}", [*_floats(rng, (words, width)), indices], {"axis": 0}, 10)
    for shape, sizes, axis in (((2, 6), (2, 2, 2), 1), ((3, 4), (1, 2), 0), ((2, 3, 4), (1, 0, 3), 2), ((5,), (5,), 0)):
        yield RuleCase("split", f"{shape} {sizes}", _floats(rng, shape), {"sizes": sizes, "axis": axis}, 1)


def attention() -> Iterator[RuleCase]:
    """Attention of some heads and of none, with masks."""
    rng = np.random.default_rng(4)
    for before, queries, keys, width, n_values, causal, mask in (
            ((2, 3), 5, 4, 3, 2, True, None), ((1, 2), 3, 5, 4, 4, False, (3, 5)), ((2,), 4, 4, 1, 3, True, (1, 1, 4)),
            ((), 2, 3, 2, 1, False, (1, 3)), ((2, 1, 2), 3, 3, 2, 2, True, (2, 1, 1, 3, 3))):
        arrays = _floats(rng, (*before, queries, width), (*before, keys, width), (*before, keys, n_values))
        yield RuleCase("scaled_dot_product_attention", f"{before} {queries} {keys}", [*arrays, None if mask is None else rng.random(mask) < 0.7],
                       {"causal": causal, "scale": 0.7}, 40)


def images() -> Iterator[RuleCase]:
    """Convolution, pooling, and the operators used with them."""
    rng = np.random.default_rng(2)
    for x, weight, padding in (((2, 5, 4, 3), (3, 2, 3, 2), 1), ((2, 5, 5, 1), (3, 3, 1, 1), 0), ((1, 4, 5, 2), (2, 2, 2, 3), 0),
                               ((3, 1, 4, 2), (1, 3, 2, 1), 1), ((2, 4, 1, 3), (3, 1, 3, 2), 0), ((1, 1, 6, 1), (1, 2, 1, 2), 0),
                               ((2, 3, 3, 2), (1, 1, 2, 3), 0), ((1, 3, 3, 1), (3, 3, 1, 1), 0), ((2, 3, 3, 1), (1, 1, 1, 2), 2)):
        yield RuleCase("conv2d", f"{x} {weight} {padding}", _floats(rng, x, weight), {"stride": 1, "padding": padding}, 80)
    for shape, size in (((2, 4, 6, 3), 2), ((1, 5, 3, 1), 2), ((2, 3, 3, 1), 3), ((2, 2, 3, 2), 1)):
        yield RuleCase("max_pool2d", f"{shape} {size}", _floats(rng, shape), {"size": size, "stride": size}, 9)
    for shape in ((2, 3, 4), (1, 5), (7,), (2, 1, 3)):
        yield RuleCase("leaky_relu", f"{shape}", _floats(rng, shape), {"slope": 0.1}, 1)
        yield RuleCase("relu", f"{shape}", _floats(rng, shape), {}, 1)
    for shape in ((4, 3), (2, 3, 3, 2), (3, 1, 4), (2, 5, 1)):
        for unbiased in (False, True):
            arrays = _floats(rng, shape, shape[-1:], shape[-1:])
            yield RuleCase("batch_norm", f"{shape} {unbiased}", arrays, {"eps": 1e-2, "unbiased": unbiased}, 60)
    for shape in ((2, 3, 3, 2), (3, 1, 4), (1, 5, 1)):
        yield RuleCase("add", f"{shape}", _floats(rng, shape, shape[-1:]), {}, 20)
    for shape in ((64, 64), (2, 50, 43)):
        yield RuleCase("where", f"{shape}", [rng.random(shape) < 0.6, *_floats(rng, shape, shape)], {}, 1)
    for operator in ("add", "multiply"):
        yield RuleCase(operator, "of two", _floats(rng, (2, 129, 257), (2, 129, 257)), {}, 1)
    yield RuleCase("sum", "of all", _floats(rng, (2, 129, 257)), {"axis": (0, 1, 2), "keepdims": False}, 2 * 129 * 257)


def cells() -> Iterator[RuleCase]:
    """Whole sequences of every variant, and single steps."""
    for cell, norm in FUSED:
        yield _sequence(cell, norm, (2, 3, 2, 4))
    for norm in fused_norms("lstm"):
        yield _step(norm, 2, 3)


def more_cells() -> Iterator[RuleCase]:
    """Masked and walked backwards, padded; of one row and one input."""
    for cell in CELLS:
        yield from _masked(cell, "layer")


def all_cells() -> Iterator[RuleCase]:
    """The same of every variant."""
    for cell, norm in FUSED:
        yield from _masked(cell, norm)
        yield _sequence(cell, norm, (1, 2, 3, 1))
    for norm in fused_norms("lstm"):
        yield _step(norm, 1, 4)


def _sequence(cell: str, norm: str, sizes: tuple[int, ...], masked: bool = False) -> RuleCase:
    return _forgiving(recurrent(cell, norm, sizes, masked, reverse=masked))


def _forgiving(rule_case: RuleCase) -> RuleCase:
    """With an epsilon under which rows of one value, all mean and no deviation, show no more than rounding."""
    return rule_case._replace(attrs={**rule_case.attrs, "eps": 0.1}) if "eps" in rule_case.attrs else rule_case


def _masked(cell: str, norm: str) -> Iterator[RuleCase]:
    yield _sequence(cell, norm, (3, 1, 1, 3), masked=True)
    padded = _sequence(cell, norm, (3, 4, 2, 3))
    arrays = list(padded.inputs)
    arrays[6 if cell == "lstm" else 5] = np.arange(3)[:, None] < np.array([2, 3, 1, 1])
    yield padded._replace(inputs=arrays, label=f"{norm} padded")


def _step(norm: str, batch: int, hidden: int) -> RuleCase:
    shapes = ((batch, 4 * hidden), (batch, 4 * hidden), (batch, hidden), (4 * hidden,), *norm_shapes("lstm", norm, hidden).values())
    arrays = _floats(np.random.default_rng(3), *shapes)
    return RuleCase("lstm_cell", f"{norm} B{batch}", arrays, {"norm": norm, "eps": 0.1}, 80)


def updates() -> Iterator[RuleCase]:
    """Adam, of arrays that it may overwrite where they can be written to, and of those that it must not."""
    rng = np.random.default_rng(4)
    shapes: tuple[tuple[int, ...], ...] = ((3, 2), (1, 4), ())
    for donate in (False, True):
        arrays = [_floats(rng, *shapes) for _ in range(4)]
        arrays[3] = [np.abs(a) for a in arrays[3]]
        flat = [a for group in arrays for a in group]
        yield RuleCase("adam_update", f"donate {donate}", [np.array(0.1, np.float32), np.array(1e-3, np.float32), None, None, *flat],
                    {"beta1": 0.9, "beta2": 0.999, "donate": donate}, 1)
    yield RuleCase("global_norm", "three", _floats(rng, *shapes), {}, 10)


def layout_cases() -> list[RuleCase]:
    """The cases of every test run."""
    return [*rows(), *attention(), *images(), *cells(), *more_cells(), *updates()]


def long_layout_cases() -> list[RuleCase]:
    """What is left over for the long run: all variants, and the smaller of the cases on which kernels are proved."""
    of_cells = [*CELLS, "lstm_cell"]
    without_cells = (p for p in rule_cases() if p.op not in of_cells and not p.misaligned)
    small = (p for p in without_cells if sum(a.size for a in p.inputs if a is not None) < 3000)
    return [*all_cells(), *(_forgiving(p) for p in small)]
