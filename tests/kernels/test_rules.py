"""The fused NumPy rules beside the composed ones: odd sizes, views, numbers of threads, what is not finite, and what they leave."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from conftest import every_second

from duoln import ops, runtime
from duoln.kernels import channel_norm, host, native
from duoln.kernels.linear import cpu as linear
from duoln.kernels.softmax import cpu as linear_cross_entropy
from duoln.testing import check_rule

DTYPES, THREADS, FEW = ["float32", "float64"], [1, 2, 3], "compiled few rows"
NEEDS_COMPILER = pytest.mark.skipif(native.machine_refusal() is not None, reason="the only fused rule is compiled")
SMALL_WEIGHTS = ((linear, "LEAST_WEIGHTS", 1),)


class Row(NamedTuple):
    """A call of an operator: a function that makes its arrays, and what a rule of it needs."""

    op: str
    label: str
    make: Callable[[np.random.Generator, str], list[Any]]
    attrs: dict[str, Any] = {}  # noqa: RUF012
    length: int = 1
    """The longest sum."""
    rule: str | None = None
    """Its name, where not all fused rules are meant."""
    settings: tuple = ()
    """Constants of modules, and their values here."""

    def __str__(self):
        return f"{self.op} {self.label}"


def gaussians(*shapes, view=lambda *arrays: arrays):
    """Normal values in these shapes, None where there is none; perhaps seen in another way."""
    return lambda rng, dtype: list(view(*[None if s is None else rng.standard_normal(s).astype(dtype) for s in shapes]))


def with_integers(*shapes, low=0, high, shape):
    """The same, and after them integers."""
    return lambda rng, dtype: [*gaussians(*shapes)(rng, dtype), np.asarray(rng.integers(low, high, shape), np.int32)]


def rules_of(row):
    """The fused ones, of which the compiled ones want a compiler."""
    compiled = native.machine_refusal() is None
    rules = runtime.backend("numpy") and [rule for rule in getattr(ops, row.op).rules("numpy")[:-1]
                                          if row.rule in (None, rule.name) and (compiled or "compiled" not in rule.name)]
    return rules or pytest.skip("the only fused rule is compiled")


def prepared(row, rng, monkeypatch, dtype="float32"):
    """Its arrays, with its settings."""
    for module, name, value in row.settings:
        monkeypatch.setattr(module, name, value)
    return row.make(rng, dtype)


def _parts(shape):
    """The array, and each choice of a gain and a bias."""
    return [(gain, bias) for gain in (shape, None) for bias in (shape, None)]


# Values and gradients ---------------------------------------------------------------------------------------

SHAPES = [(1, 1), (1, 7), (3, 5), (5,), (2, 3, 33), (128, 1000), (130, 4097), (2, 300_001), (700, 1024)]
BESIDE = [("rms_norm", 1, 1), ("add_layer_norm", 2, 2), ("add_rms_norm", 2, 1)]
"""The norms that share layer norm's compiled text: how many arrays of rows, and parameters."""
NORMS = [("layer_norm", 1, 2), *BESIDE]
VIEWS = [lambda x: x[::2, ::-1], lambda x: x.T]


def _norms():
    for op, summands, params in NORMS:
        for shape in SHAPES:
            yield Row(op, f"{shape}", gaussians(*[shape] * summands, *[shape[-1:]] * params),
                      {"eps": 1e-5 if shape[-1] > 1 or op == "layer_norm" else 1.0},
                      max(shape[-1], int(np.prod(shape[:-1]))))
        for kept in range(2 ** params):
            for activation in (None, "relu", "tanh") if op == "layer_norm" else (None,):
                attrs = {"eps": 1e-5, **({"activation": activation} if activation else {})}
                yield Row(op, f"parameters {kept:b}, {activation}",
                          gaussians(*[(4, 6)] * summands, *[6 if kept >> k & 1 else None for k in range(params)]), attrs, 24)
        yield Row(op, "of a view", gaussians((6, 8), (8, 3), view=lambda x, y, n=summands,
                                             p=params: [x[::2, ::-1], y.T][:n] + [None] * p), {"eps": 1e-5}, 24)
        for width in (2, 3, 4, 5, 8, 9, 16, 17, 31, 63, 65, 130):  # a row may end inside a vector
            attrs = {"eps": 1e-2, **({"activation": "tanh"} if op == "layer_norm" else {})}
            yield Row(op, f"3 x {width}", gaussians(*[(3, width)] * summands, *[width] * params), attrs, width)
    for shape in [*SHAPES, *((3, width) for width in (2, 3, 4, 5, 8, 9, 16, 17, 31, 63, 65, 130))]:
        yield Row("softmax_cross_entropy", f"{shape}", with_integers(shape, high=shape[-1], shape=shape[:-1]), {}, shape[-1])
    for shape in [(2, 1), (5, 3), (4, 1, 1, 7), (3, 5, 6, 2), (2, 9, 33), (50, 8, 8, 16), (200, 17), (20, 400), (4000, 1)]:
        rows = int(np.prod(shape[:-1]))
        for unbiased in (False, True):
            for k, parts in enumerate(_parts(shape[-1:])):
                # With two rows the values become +1 and -1 and hardly depend on x, so a larger epsilon is needed for a comparison.
                yield Row("batch_norm", f"{shape} {unbiased} {k}", gaussians(shape, *parts),
                          {"eps": 1e-5 if rows > 2 else 1.0, "unbiased": unbiased}, 4 * rows)
    yield Row("batch_norm", "of a view", gaussians((6, 8, 4), view=lambda x: [x[::2, ::-1], None, None]),
              {"eps": 1e-5, "unbiased": False}, 100)
    for shape, groups in [((1, 1, 1), 1), ((3, 6), 2), ((5, 7), 7), ((2, 3, 4, 6), 3), ((2, 40, 40, 64), 32),
                          ((3, 50, 50, 8), 1), ((1, 300, 100, 12), 4),
                          ((200, 256), 32), ((70, 5, 3), 3), ((2, 9, 700), 7), ((33, 2, 2, 30), 5)]:
        size = int(np.prod(shape[1:])) // groups
        for k, parts in enumerate(_parts(shape[-1:])):
            yield Row("group_norm", f"{shape} in {groups} {k}", gaussians(shape, *parts),
                      {"groups": groups, "eps": 1e-5 if size > 2 else 1.0},
                      4 * max(size, int(np.prod(shape[:-1]))))


def _elementwise_and_pools():
    def with_zero(shape, view=lambda x: x):
        def make(rng, dtype):
            x = rng.standard_normal(shape).astype(dtype)
            x.flat[0] = 0.0
            return [view(x)]
        return make

    for shape, slope in (((1,), 0.1), ((3, 5), 1.0), ((2, 3, 1001), 1e-3), ((7, 301), 0.5), ((4, 9), 0.0), ((3, 7), 1.5)):
        yield Row("leaky_relu", f"{shape} {slope}", with_zero(shape), {"slope": slope})
    for shape in ((1,), (3, 5), (2, 3, 1001), (67,), (300, 1001)):
        yield Row("relu", f"{shape}", with_zero(shape))
        yield Row("relu", f"{shape}, turned", with_zero(shape, np.transpose))
    for shape, size, stride in [((1, 1, 1, 1), 1, 1), ((2, 6, 6, 3), 2, 2), ((5, 7, 5, 2), 2, 2),
                                ((2, 8, 9, 4), 3, 3), ((3, 4, 4, 1), 4, 4),
                                ((2, 9, 8, 17), 3, 2), ((2, 7, 8, 5), 2, 3), ((1, 6, 5, 3), 5, 1)]:
        for ties, make in (("no ties", gaussians(shape)), ("ties", lambda rng, dtype, s=shape: [rng.integers(0, 2, s).astype(dtype)]),
                           ("all equal", lambda rng, dtype, s=shape: [np.zeros(s, dtype)])):
            yield Row("max_pool2d", f"{shape} {size} {stride}, {ties}", make, {"size": size, "stride": stride})


def _products():
    for rows in ((1,), (2,), (3,), (2, 2), (7,), (8,), ()):
        for n_in, n_out in ((1, 1), (1, 300), (300, 1), (7, 16), (129, 17), (256, 31), (517, 1000)):
            for bias in ((n_out,), None):
                yield Row("linear", f"{rows} {n_in} {n_out} {bias}", gaussians((*rows, n_in), (n_in, n_out), bias),
                          {}, max(n_in, n_out), FEW, SMALL_WEIGHTS)
    for rows in ((1,), (3,), (2, 2)):
        for sizes in ((1, 1), (7, 16), (256, 31), (517, 1000)):
            yield Row("matmul", f"{rows} {sizes}", gaussians((*rows, sizes[0]), sizes), {}, max(sizes), FEW, SMALL_WEIGHTS)
    for rows in (5, 9, 13):  # more than a group holds
        yield Row("linear", f"{rows} rows", gaussians((rows, 131), (131, 70), 70), {}, 131, FEW,
                  (*SMALL_WEIGHTS, (linear, "MOST_ROWS", 16)))
    yield Row("linear", "of views", gaussians((4, 130), (65, 70), 140, view=lambda x, w, b: [x[::2, ::2], w, b[::2]]),
              {}, 130, FEW, SMALL_WEIGHTS)
    for words, width, taken in ((1, 1, (1,)), (7, 3, (20,)), (50, 300, (4, 9)), (9, 33, (2, 2, 2)), (5, 4, ())):
        yield Row("take", f"{words} {width} {taken}", with_integers((words, width), low=-words, high=words, shape=taken), {"axis": 0}, 20)
    for rows, classes in (((1,), 1), ((), 7), ((9,), 33), ((3, 50), 301)):
        for kept in (True, False):
            settings = ((linear_cross_entropy, "KEEP_BYTES", 1 << 30 if kept else 0),
                        (linear_cross_entropy, "BLOCK", 1000))  # several blocks
            for low, high in ((-1, classes), (0, classes), (-1, 0)):
                yield Row("linear_cross_entropy", f"{rows} {classes} {kept} {low} {high}",
                          with_integers((*rows, 12), (12, classes), classes, low=low, high=high, shape=rows), {},
                          150 * classes, settings=settings)


CONVOLUTIONS = [((1, 1, 1, 1), (1, 1, 1, 1), 0), ((2, 6, 7, 3), (3, 3, 3, 4), 1), ((5, 5, 4, 2), (3, 2, 2, 3), 0),
                ((3, 8, 8, 5), (1, 1, 5, 7), 0), ((2, 4, 5, 1), (4, 5, 1, 2), 0), ((2, 3, 3, 2), (2, 2, 2, 2), 3),
                ((1, 4, 4, 3), (1, 1, 3, 2), 2), ((7, 2, 9, 4), (1, 3, 4, 1), 1), ((4, 16, 16, 8), (5, 5, 8, 9), 2)]


def _convolutions():
    for x, weight, padding in CONVOLUTIONS:
        for stride in (1, 2, 3):
            yield Row("conv2d", f"{x} {weight} {padding} {stride}", gaussians(x, weight), {"stride": stride, "padding": padding},
                      max(int(np.prod(weight[:3])), x[0] * x[1] * x[2]))
    # Channels of a group: each alone, fewer than a vector has lanes, many. Pixels of a part of a vector, of one, of several.
    for groups, n_in, n_out in ((2, 1, 1), (5, 1, 1), (16, 1, 1), (33, 1, 1), (64, 1, 1), (3, 1, 2), (4, 2, 3),
                                (4, 4, 4), (8, 8, 8), (2, 16, 16),
                                (2, 17, 33), (3, 5, 1), (2, 1, 40), (7, 3, 9), (16, 2, 1), (2, 20, 3)):
        for kernel, settings in (((3, 3), {"padding": 1}), ((2, 3), {"padding": (2, 0), "dilation": 2}),
                                 ((3, 1), {"stride": 2, "padding": 1}),
                                 ((1, 5), {"stride": (2, 3), "padding": (0, 2), "dilation": (3, 1)}),
                                 ((3, 3), {"stride": 3, "dilation": 2, "padding": 4}), ((1, 1), {})):
            yield Row("conv2d", f"groups {groups} {n_in} {n_out} {kernel} {settings}",
                      gaussians((2, 9, 11, groups * n_in), (*kernel, n_in, groups * n_out)),
                      {"stride": 1, "padding": 0, "dilation": 1, "groups": groups, **settings}, 200)
    # Several bands of rows an image, several panels of channels, weights that do not fit beside a band, groups of bands.
    for x, weight, settings in [((2, 19, 32, 40), (3, 3, 40, 37), {"padding": 1}), ((3, 7, 6, 200), (3, 3, 200, 5), {"padding": 0}),
                                ((1, 2, 700, 3), (2, 3, 3, 17), {"padding": 1}), ((37, 6, 5, 4), (3, 2, 4, 7), {"padding": 1}),
                                ((150, 3, 2, 2), (1, 1, 2, 3), {"padding": 0}),
                                ((3, 40, 40, 64), (3, 3, 1, 64), {"padding": 1, "groups": 64}),
                                ((40, 12, 12, 32), (3, 3, 4, 32), {"padding": 1, "groups": 8}),
                                ((20, 300, 1, 24), (9, 1, 1, 24), {"padding": (4, 0), "groups": 24}),
                                ((2, 19, 32, 40), (3, 3, 40, 37), {"padding": 2, "dilation": 2})]:
        yield Row("conv2d", f"{x} {weight} {settings}", gaussians(x, weight), {"stride": 1, **settings},
                  6000 if len(settings) > 1 else 4000)
    yield Row("conv2d", "of views", gaussians((3, 12, 6, 8), (5, 3, 3, 4), view=lambda x,
                                              w: [x[:, ::2, ::-1, ::2], w.transpose(1, 2, 3, 0)]),
              {"stride": 1, "padding": 1}, 100)


CASES = [*_norms(), *_elementwise_and_pools(), *_products(), *_convolutions()]


@pytest.mark.parametrize(("case", "dtype", "threads"), every_second(CASES, DTYPES, THREADS), ids=str, indirect=["threads"])
def test_values_and_gradients(case, dtype, threads, rng, monkeypatch, numpy_backend):
    arrays = prepared(case, rng, monkeypatch, dtype)
    for rule in rules_of(case):
        check_rule(getattr(ops, case.op), rule, arrays, numpy_backend, case.attrs, length=case.length)


@pytest.mark.long
@NEEDS_COMPILER
def test_large_results_of_a_norm(rng, numpy_backend):
    """They are written with streaming stores, in lines of which none begins where a vector does."""
    x, gain = rng.standard_normal((3, 15_003, 47)).astype(np.float32), rng.standard_normal(47).astype(np.float32)
    assert x.nbytes > 8 << 20
    check_rule(ops.instance_norm, ops.instance_norm.rules("numpy")[0], [x, gain, gain], numpy_backend,
               {"groups": 47, "eps": 1e-5}, length=4 * x.size // 47)


@pytest.mark.parametrize(("op", "attrs"), [("relu", {}), *(("leaky_relu", {"slope": slope}) for slope in (0.1, 0.5, 1.5))])
@NEEDS_COMPILER
def test_a_kinked_line_has_the_bits_of_the_composed_rule(op, attrs, numpy_backend):
    x = np.array([0.0, -0.0, 1e-45, -1e-45, np.inf, -np.inf, np.nan, 3.0, -3.0], np.float32)
    gout = np.array([1, 2, 3, np.inf, 5, np.nan, 7, 8, np.inf], np.float32)
    rule, composed = (runtime.backend("numpy") and getattr(ops, op).rules("numpy")[k] for k in (0, -1))
    (mine, saved), (theirs, kept) = (r.forward(numpy_backend, x, **attrs) for r in (rule, composed))
    np.testing.assert_array_equal(mine, theirs)
    assert op != "relu" or not np.signbit(mine[[0, 3, 5, 8]]).any()
    np.testing.assert_array_equal(rule.vjp(numpy_backend, saved, gout, (True,))[0], composed.vjp(numpy_backend, kept, gout, (True,))[0])


# What a rule leaves to another one --------------------------------------------------------------------------

_X, _W, _IDS = np.ones((2, 4, 4, 3), np.float32), np.ones((256, 256), np.float32), np.zeros(2, np.int32)
LEFT = [  # the arrays, and the reason; None where it runs
    *(Row(op, "it runs" if reason is None else reason, lambda rng, dtype, a=arrays: a, attrs, rule=rule) for op,
      arrays, attrs, reason, rule in [
        *((op, (_X[:n], *others), attrs, reason, None) for op, others, attrs in (
            ("relu", (), {}), ("leaky_relu", (), {"slope": 0.1}), ("max_pool2d", (), {"size": 2, "stride": 2}),
            ("layer_norm", (None, None), {"eps": 1e-5}), ("rms_norm", (None,), {"eps": 1e-5}), ("batch_norm", (None, None), {}),
            ("conv2d", (np.ones((3, 3, 3, 5), np.float32),), {"stride": 2, "padding": 0})) for n,
            reason in ((0, "no values"), (2, None))),
        ("add_layer_norm", (_X[:0], _X[:0], None, None), {"eps": 1e-5}, "no values", None),
        ("add_rms_norm", (_X[:0], _X[:0], None), {"eps": 1e-5}, "no values", None),
        ("conv2d", (_X, np.ones((3, 3, 3, 0), np.float32)), {"stride": 1, "padding": 0}, "no values", None),
        ("leaky_relu", (_X,), {"slope": -0.5}, "at least 0", None),
        ("linear", (_W[:4], _W, None), {}, None, FEW), *(("linear", (x, w, None), {}, "", FEW) for x, w in (
            (_W[:9], _W), (_W[:0], _W), (_W[:4, :9], _W[:9]), (_W[:4], _W.T))),
        ("matmul", (_W[:1], _W), {}, None, FEW), ("matmul", (np.stack([_W[:1]] * 2), np.stack([_W] * 2)), {}, "", FEW),
        *(("take", (x, _IDS), {"axis": axis}, "", None) for x, axis in (
            (np.ones((3, 4), np.int32), 0), (np.ones(3, np.float32), 0), (np.ones((0, 4), np.float32), 0), (_W, 1)))])]


@pytest.mark.parametrize("place", range(len(LEFT)), ids=lambda k: str(LEFT[k]))
@NEEDS_COMPILER
def test_what_is_left_to_the_composed_rule(place, numpy_backend):
    row = LEFT[place]
    [rule] = [rule for rule in rules_of(row) if rule.name.startswith("compiled")]
    reason = rule.supports(numpy_backend, *row.make(None, None), **row.attrs)
    assert reason is None if row.label == "it runs" else reason and row.label in reason


# What is not finite -----------------------------------------------------------------------------------------

STRANGE = [  # arrays, one of which gets a strange value at a place
    *((row, k, place) for row, k, place in [
        (Row("conv2d", "", gaussians((3, 7, 6, 3), (3, 3, 3, 20)), {"stride": 1, "padding": 1}), 0, (1, 3, 2, 1)),
        *((Row("conv2d", f"groups {g} {i} {o}", gaussians((2, 6, 7, g * i), (3, 2, i, g * o)),
               {"stride": 1, "padding": 1, "groups": g}), 0, (1, 2, 3, i - 1))
          for g, i, o in ((6, 1, 1), (4, 4, 4), (2, 20, 3), (2, 3, 17))),
        *((Row("conv2d", f"weight {s}", gaussians((2, 7, 8, 6), (3, 3, 6 // s.get("groups", 1), 4)), s), 1, (0, 1, 2, 3)) for s in (
            {"stride": 1, "padding": 0}, {"stride": 1, "padding": 1}, {"stride": 2, "padding": 1}, {"stride": 3, "padding": 2},
            {"stride": (1, 2), "padding": (1, 2), "dilation": 2, "groups": 2})),
        (Row("max_pool2d", "", gaussians((3, 7, 6, 3)), {"size": 2, "stride": 2}), 0, (1, 3, 2, 1)),
        *((Row(op, "", gaussians((3, 7, 6, 3)), attrs), 0, (1, 3, 2, 1)) for op, attrs in (("leaky_relu", {"slope": 0.1}), ("relu", {}))),
        (Row("add", "", gaussians((3, 7, 6, 3), 3)), 0, (1, 3, 2, 1)),
        (Row("batch_norm", "", gaussians((3, 7, 6, 3), None, None), {"eps": 1e-5, "unbiased": False}), 0, (1, 3, 2, 1)),
        (Row("group_norm", "", gaussians((3, 20, 6), None, None), {"groups": 3, "eps": 1e-5}), 0, (1, 3, 2)),
        (Row("linear", "", gaussians((3, 40), (40, 50), None), rule=FEW, settings=SMALL_WEIGHTS), 0, (1, 7)),
        (Row("layer_norm", "relu", gaussians((4, 5), None, None), {"eps": 1e-5, "activation": "relu"}), 0, (1, 2)),
        (Row("rms_norm", "", gaussians((4, 37), None), {"eps": 1e-5}), 0, (1, 36)),
        *((Row(op, f"{k}", gaussians((4, 37), (4, 37), *params), {"eps": 1e-5}), k, (1, 36)) for op,
          params in (("add_layer_norm", (None, None)), ("add_rms_norm", (None,)))
          for k in (0, 1)),
        (Row("softmax_cross_entropy", "", with_integers((4, 5), high=5, shape=4)), 0, (1, 2))])]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("row", "array", "place"), STRANGE, ids=str)
@NEEDS_COMPILER
def test_what_is_not_finite_goes_where_the_composed_rule_sends_it(row, array, place, value, rng, monkeypatch, numpy_backend):
    """A value reaches what is computed from it and nothing else."""
    arrays = prepared(row, rng, monkeypatch)
    arrays[array][place] = value
    needs = tuple(a is not None and a.dtype.kind == "f" for a in arrays)
    results = []
    for rule in (rules_of(row)[0], getattr(ops, row.op).rules("numpy")[-1]):
        with np.errstate(all="ignore"):  # some CPUs' BLAS multiplies infinity by 0 in lanes that it then drops
            out, saved = rule.forward(numpy_backend, *arrays, **row.attrs)
            outs = out if isinstance(out, tuple) else (out,)
            gouts = tuple(np.cos(np.arange(o.size, dtype=np.float32)).reshape(o.shape) for o in outs)
            gradients = rule.vjp(numpy_backend, saved, gouts if isinstance(out, tuple) else gouts[0], needs)
            results.append((*outs, *[g for g, need in zip(gradients, needs, strict=True) if need]))
    finite = [np.isfinite(a) for a in results[1]]
    assert any(f.any() for f in finite) and (value == -np.inf or not all(f.all() for f in finite))
    for k, (mine, expected) in enumerate(zip(*results, strict=True)):
        np.testing.assert_array_equal(np.isfinite(mine), finite[k], err_msg=f"result {k}")
        np.testing.assert_allclose(mine[finite[k]], expected[finite[k]], rtol=1e-4, atol=1e-4, err_msg=f"result {k}")


# Threads ----------------------------------------------------------------------------------------------------

_IMAGES, _MANY, _WEIGHT = (5, 19, 17, 21), (37, 6, 5, 21), (3, 3, 21, 35)
SAME_BITS = [
    *(Row("conv2d", f"{x} {attrs}", gaussians(x, weight), attrs) for x, weight, attrs in (
        (_MANY, _WEIGHT, {"stride": 1, "padding": 1}),  # of so many images the gradient is added up in groups
        (_MANY, (3, 3, 1, 21), {"stride": 1, "padding": 1, "groups": 21}), (_IMAGES, _WEIGHT, {"stride": 1, "padding": 2, "dilation": 2}),
        (_IMAGES, _WEIGHT, {"stride": 1, "padding": 1}), (_IMAGES, _WEIGHT, {"stride": 2, "padding": 0}))),
    *(Row("max_pool2d", f"{size}", gaussians(_IMAGES), {"size": size, "stride": 2}) for size in (2, 3)),
    Row("leaky_relu", "", gaussians(_IMAGES), {"slope": 0.1}),
    Row("batch_norm", "", gaussians(_IMAGES, 21, 21), {"eps": 1e-5, "unbiased": True}),
    Row("relu", "", gaussians(_MANY)), Row("add", "", gaussians(_IMAGES, 21)),
    # Of many examples each thread takes some; of few they share the blocks of rows.
    *(Row("group_norm", f"{shape}", gaussians(shape, shape[-1:], shape[-1:]), {"groups": 3, "eps": 1e-5})
      for shape in ((1, 90, 90, 12), (5, 70, 70, 6), (150, 3, 12))),
    Row("layer_norm", "tanh", gaussians((1000, 300), 300, 300), {"eps": 1e-5, "activation": "tanh"}),
    Row("rms_norm", "", gaussians((1000, 300), 300), {"eps": 1e-5}),
    *(Row(op, "", gaussians((1000, 300), (1000, 300), *[300] * params), {"eps": 1e-5}) for op,
      params in (("add_layer_norm", 2), ("add_rms_norm", 1))),
    Row("softmax_cross_entropy", "", with_integers((1000, 300), high=300, shape=1000)),
    Row("linear", "few rows", gaussians((4, 997), (997, 313), None), rule=FEW, settings=SMALL_WEIGHTS),
    Row("take", "an embedding adds in one order", with_integers((40, 30), high=7, shape=5000), {"axis": 0}),
    *(Row("linear_cross_entropy", f"kept {kept}", with_integers((20, 9), (9, 1001), 1001, low=-1, high=1001, shape=20),
          settings=((linear_cross_entropy, "BLOCK", 1), (linear_cross_entropy, "KEEP_BYTES", kept))) for kept in (0, 1 << 20)),
    Row("scaled_dot_product_attention", "", gaussians((3, 5, 130, 33), (3, 5, 97, 33), (3, 5, 97, 20), None),
        {"causal": True, "scale": 33 ** -0.5}),
    Row("multiply", "", gaussians((700, 1025), 1025)), Row("gelu", "", gaussians((700, 1025)), {"approximate": "none"}),
    Row("cumulative_sum", "", gaussians((1, 700 * 1025)), {"axis": 1}),
    *(Row(op, f"{axis}", gaussians((700, 1025)), {"axis": axis, "keepdims": False}) for op in ("sum", "max", "min")
      for axis in ((0,), (1,), (0, 1)))]


@pytest.mark.parametrize("row", SAME_BITS, ids=str)
@NEEDS_COMPILER
def test_any_number_of_threads_gives_the_same_bits(row, rng, monkeypatch, same_bits, numpy_backend):
    arrays, rule = prepared(row, rng, monkeypatch), rules_of(row)[0]
    needs, gouts = tuple(a is not None and a.dtype.kind == "f" for a in arrays), []

    def run():
        out, saved = rule.forward(numpy_backend, *arrays, **row.attrs)
        outs = out if isinstance(out, tuple) else (out,)
        gouts[:] = gouts or [rng.standard_normal(o.shape).astype(np.float32) for o in outs]
        yield from (*outs, *rule.vjp(numpy_backend, saved, tuple(gouts) if isinstance(out, tuple) else gouts[0], needs))

    same_bits(run)


def test_threads_follow_the_environment(monkeypatch):
    host.workers.cache_clear()
    monkeypatch.delenv("DUOLN_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert host.workers() == 3
    host.workers.cache_clear()
    monkeypatch.setenv("DUOLN_THREADS", "2")
    assert host.workers() == 2
    host.workers.cache_clear()


# Of one operator --------------------------------------------------------------------------------------------

@NEEDS_COMPILER
def test_one_output_of_batch_norm_alone(rng, numpy_backend):
    """The loss depends on the normalised values alone, as in training, or on one of the statistics."""
    x, gain, bias = (rng.standard_normal(s) for s in ((3, 4, 5, 2), 2, 2))
    rule, composed = ops.batch_norm.rules("numpy")
    (outs, saved), (_, theirs) = (r.forward(numpy_backend, x, gain, bias, eps=1e-5, unbiased=False) for r in (rule, composed))
    for k in range(3):
        gouts = tuple(rng.standard_normal(o.shape) if i == k else None for i, o in enumerate(outs))
        for a, b in zip(rule.vjp(numpy_backend, saved, gouts, (True,) * 3),
                        composed.vjp(numpy_backend, theirs, gouts, (True,) * 3), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_blocks_cover_all_rows():
    for width in (1, 3, 16, 255, 256, 257, 5000):
        block = channel_norm.block_rows(width)
        assert [channel_norm.blocks(rows, width) for rows in (1, block, block + 1, 3 * block)] == [1, 1, 2, 3]


class TestAdam:
    SHAPES = ((784, 100), (1000,), (), (0, 3), (10, 3001))

    def _arrays(self, rng, dtype):
        p, g, m = ([rng.standard_normal(s).astype(dtype) for s in self.SHAPES] for _ in range(3))
        v = [rng.random(s).astype(dtype) for s in self.SHAPES]
        return [*p, *g, *m, *v]

    @pytest.mark.parametrize("scaled", [False, True])
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    @NEEDS_COMPILER
    def test_equals_the_composed_rule(self, dtype, scaled, threads, rng, numpy_backend):
        rate, eps, scale, keep = (np.array(x, dtype) for x in (1e-2, 1e-8, 0.3, 0.9))
        optional = (scale, keep) if scaled else (None, None)
        check_rule(ops.adam_update, ops.adam_update.rules("numpy")[0], [rate, eps, *optional, *self._arrays(rng, dtype)], numpy_backend,
                   {"beta1": 0.9, "beta2": 0.999, "donate": False}, length=1)

    @NEEDS_COMPILER
    def test_donated_arrays_are_overwritten_and_nothing_else(self, threads, rng, numpy_backend):
        rate, eps = (np.array(x, np.float32) for x in (1e-2, 1e-8))
        arrays, n, rule = self._arrays(rng, np.float32), len(self.SHAPES), ops.adam_update.rules("numpy")[0]
        kept = [a.copy() for a in arrays]
        expected, updated = (rule.forward(numpy_backend, rate, eps, None, None, *arrays, beta1=0.9, beta2=0.999,
                                          donate=donate)[0] for donate in (False, True))
        for a, b in zip(updated, expected, strict=True):
            np.testing.assert_array_equal(a, b)
        assert all(f is a for f, a in zip(updated[:-1], [*arrays[:n], *arrays[2 * n:]], strict=True))
        for a, b in zip(arrays[n:2 * n], kept[n:2 * n], strict=True):
            np.testing.assert_array_equal(a, b)  # the gradients

    @NEEDS_COMPILER
    def test_what_is_not_contiguous_is_left_to_the_composed_rule(self, numpy_backend):
        a, rate = np.ones((4, 4), np.float32), np.array(0.1, np.float32)
        assert "contiguous" in ops.adam_update.rules("numpy")[0].supports(numpy_backend, rate, rate, None, None, a.T[:2], a, a, a)


# A large vocabulary -----------------------------------------------------------------------------------------

@pytest.mark.parametrize(("copies", "width"), [*((copies, width) for copies in (64, 65) for width in (3, 256, 300)), (200_000, 3), *(
    pytest.param(200_000, width, marks=pytest.mark.long) for width in (256, 300))])
@NEEDS_COMPILER
def test_a_word_with_many_copies_keeps_the_digits_of_its_gradient(copies, width, rng, numpy_backend):
    """One chain of additions has an error of 1e-5 at 200,000 copies: values are positive, so their roundings go one way."""
    dy, rule = rng.random((copies + 2, width), np.float32), ops.take.rules("numpy")[0]
    indices = np.full(copies + 2, 1, np.int32)
    indices[[3, copies]] = 2
    gradient = rule.pooled[0](numpy_backend, [(rule.forward(numpy_backend, np.zeros((4, width), np.float32), indices, 0)[1], dy)])
    for word in range(4):
        np.testing.assert_allclose(gradient[word], dy[indices == word].sum(axis=0, dtype=np.float64), rtol=1e-6)


@NEEDS_COMPILER
def test_a_table_that_is_used_twice_gets_the_sum_of_both_gradients(rng, numpy_backend):
    table, rule = rng.standard_normal((500, 9)).astype(np.float32), ops.take.rules("numpy")[0]
    uses, expected = [], np.zeros((500, 9))
    for shape in ((40,), (3, 7), (0,)):
        indices = rng.integers(-500, 500, shape).astype(np.int32)
        dy = rng.standard_normal((*shape, 9)).astype(np.float32)
        uses.append((rule.forward(numpy_backend, table, indices, 0)[1], dy))
        np.add.at(expected, indices, dy)
    gradient = rule.pooled[0](numpy_backend, uses)
    assert gradient.dtype == np.float32
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kept", [0, 1 << 28])
@NEEDS_COMPILER
def test_a_bias_far_from_zero(kept, rng, numpy_backend, monkeypatch):
    """The gradient's logits have the roundings of the value's, or they would not fit the largest one, which is kept."""
    monkeypatch.setattr(linear_cross_entropy, "KEEP_BYTES", kept)
    x, weight = (rng.standard_normal(shape).astype(np.float32) for shape in ((65, 600), (600, 33)))
    bias, labels, rule = np.zeros(33, np.float32), np.zeros(65, np.int32), ops.linear_cross_entropy.rules("numpy")[0]
    bias[7] = 3e6
    _, saved = rule.forward(numpy_backend, x, weight, bias, labels)
    gradient = rule.vjp(numpy_backend, saved, np.ones(65, np.float32), (False, False, True, False))[2]
    np.testing.assert_allclose(gradient, np.where(np.arange(33) == 7, 65, np.where(np.arange(33) == 0, -65, 0)), rtol=1e-6, atol=1e-6)


@NEEDS_COMPILER
def test_logits_that_are_not_finite(rng, numpy_backend, monkeypatch):
    """A whole first block of minus infinity, as of words that are never the next, leaves the loss finite."""
    monkeypatch.setattr(linear_cross_entropy, "BLOCK", 1)  # blocks of 448 classes and a rest
    x, weight, bias = (rng.standard_normal(s).astype(np.float32) for s in ((20, 9), (9, 1001), (1001,)))
    labels, rules = np.full(20, 1000, np.int32), ops.linear_cross_entropy.rules("numpy")
    bias[:500] = -np.inf
    losses = [rule.forward(numpy_backend, x, weight, bias, labels)[0] for rule in rules]
    assert np.isfinite(losses[0]).all()
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    x[3, 0] = np.nan
    loss = rules[0].forward(numpy_backend, x, weight, bias, labels)[0]
    assert np.isnan(loss[3]) and np.isfinite(np.delete(loss, 3)).all()
