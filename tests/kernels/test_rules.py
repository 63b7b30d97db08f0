"""The fused NumPy rules against the composed ones, at odd sizes, with threads, and in place."""

import numpy as np
import pytest
from conftest import every_second

from duoln import ops, runtime
from duoln.kernels import host, native
from duoln.testing import check_rule

DTYPES, THREADS = ["float32", "float64"], [1, 2, 3]
NEEDS_COMPILER = pytest.mark.skipif(native.machine_refusal() is not None, reason="the only fused rule is compiled")
SHAPES = [(1, 1), (1, 7), (3, 5), (5,), (2, 3, 33), (128, 1000), (130, 4097), (2, 300_001), (700, 1024)]


def _rules(op):
    """The compiled rule, if there is a compiler, and NumPy's."""
    return runtime.backend("numpy") and [rule for rule in op.rules("numpy")[:-1] if rule.name != "compiled" or native.machine_refusal() is None]


def _rule(op):
    return _rules(op)[0]


def _check_rules(op, arrays, attrs, backend, length=1):
    for rule in _rules(op):
        check_rule(op, rule, arrays, backend, attrs, length=length)


@pytest.mark.parametrize(("shape", "dtype", "threads"), every_second(SHAPES, DTYPES, THREADS), ids=str, indirect=["threads"])
def test_layer_norm(shape, dtype, threads, rng, numpy_backend):
    x, gain, bias = (rng.standard_normal(s).astype(dtype) for s in (shape, shape[-1:], shape[-1:]))
    _check_rules(ops.layer_norm, [x, gain, bias], {"eps": 1e-5},
               numpy_backend, length=max(shape[-1], x.size // shape[-1]))


@pytest.mark.parametrize("activation", [None, "relu", "tanh"])
@pytest.mark.parametrize("parts", [(), ("gain",), ("bias",), ("gain", "bias")], ids=str)
def test_layer_norm_without_gain_or_bias(parts, activation, rng, numpy_backend):
    x, gain, bias = (rng.standard_normal(s).astype(np.float32) for s in ((4, 6), 6, 6))
    _check_rules(ops.layer_norm, [x, gain if "gain" in parts else None,
               bias if "bias" in parts else None], {"eps": 1e-5, "activation": activation},
               numpy_backend, length=24)


BESIDE = [(ops.rms_norm, 1, ("gain",)), (ops.add_layer_norm, 2, ("gain", "bias")), (ops.add_rms_norm, 2, ("gain",))]
"""The norms that share layer norm's compiled text: their arrays of rows, and their parameters."""


@pytest.mark.parametrize(("norm", "shape", "dtype", "threads"), every_second(BESIDE, SHAPES, DTYPES, THREADS), ids=str, indirect=["threads"])
def test_the_norms_beside_layer_norm(norm, shape, dtype, threads, rng, numpy_backend):
    op, summands, params = norm
    arrays = [rng.standard_normal(s).astype(dtype) for s in [shape] * summands + [shape[-1:]] * len(params)]
    _check_rules(op, arrays, {"eps": 1e-5 if shape[-1] > 1 else 1.0}, numpy_backend, length=max(shape[-1], arrays[0].size // shape[-1]))


@pytest.mark.parametrize("norm", BESIDE, ids=str)
def test_the_norms_beside_layer_norm_without_parameters(norm, rng, numpy_backend):
    op, summands, params = norm
    rows, along = ([rng.standard_normal(s).astype(np.float32) for _ in range(n)] for s, n in (((4, 6), summands), (6, len(params))))
    for kept in range(2 ** len(params)):
        chosen = [p if kept >> k & 1 else None for k, p in enumerate(along)]
        _check_rules(op, [*rows, *chosen], {"eps": 1e-5}, numpy_backend, length=24)


@pytest.mark.parametrize("norm", BESIDE, ids=str)
def test_the_norms_beside_layer_norm_of_a_view(norm, rng, numpy_backend):
    op, summands, params = norm
    views = [rng.standard_normal((6, 8)).astype(np.float32)[::2, ::-1], rng.standard_normal((8, 3)).astype(np.float32).T][:summands]
    _check_rules(op, [*views, *[None] * len(params)], {"eps": 1e-5}, numpy_backend, length=24)
    if native.machine_refusal() is None:  # their only fused rule is compiled
        assert "no values" in _rule(op).supports(numpy_backend, *[view[:0] for view in views], *[None] * len(params), eps=1e-5)


def test_layer_norm_of_a_view(rng, numpy_backend):
    x = rng.standard_normal((6, 8)).astype(np.float32)[::2, ::-1]
    _check_rules(ops.layer_norm, [x, None, None], {"eps": 1e-5},
               numpy_backend, length=24)


@NEEDS_COMPILER
def test_layer_norm_leaves_the_rest_to_the_composed_rule(numpy_backend):
    rule, x = _rule(ops.layer_norm), np.ones((2, 3), np.float32)
    assert "no values" in rule.supports(numpy_backend, x[:0], None, None, eps=1e-5)


@pytest.mark.parametrize(("shape", "dtype", "threads"), every_second(SHAPES, DTYPES, THREADS), ids=str, indirect=["threads"])
def test_softmax_cross_entropy(shape, dtype, threads, rng, numpy_backend):
    logits = rng.standard_normal(shape).astype(dtype)
    labels = rng.integers(0, shape[-1], shape[:-1]).astype(np.int32)
    _check_rules(ops.softmax_cross_entropy, [logits, labels], {}, numpy_backend,
               length=shape[-1])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("width", [2, 3, 4, 5, 8, 9, 16, 17, 31, 63, 65, 130])
def test_a_row_may_end_inside_a_vector(width, dtype, rng, numpy_backend):
    x = (rng.standard_normal((3, width)) + 3 * rng.standard_normal((3, 1))).astype(dtype)
    gain, bias = (rng.standard_normal(width).astype(dtype) for _ in range(2))
    _check_rules(ops.layer_norm, [x, gain, bias], {"eps": 1e-2, "activation": "tanh"},
                 numpy_backend, length=width)
    _check_rules(ops.softmax_cross_entropy, [x, rng.integers(0, width, 3).astype(np.int32)], {}, numpy_backend,
                 length=width)
    residual = rng.standard_normal((3, width)).astype(dtype)
    _check_rules(ops.rms_norm, [x, gain], {"eps": 1e-2}, numpy_backend, length=width)
    _check_rules(ops.add_layer_norm, [x, residual, gain, bias], {"eps": 1e-2}, numpy_backend, length=width)
    _check_rules(ops.add_rms_norm, [x, residual, gain], {"eps": 1e-2}, numpy_backend, length=width)


@pytest.mark.parametrize(("size", "kept", "dtype", "threads"), every_second(
    [((1,), 1), ((), 7), ((9,), 33), ((3, 50), 301)], [True, False], DTYPES, THREADS), ids=str, indirect=["threads"])
def test_linear_cross_entropy(size, kept, dtype, threads, rng, monkeypatch, numpy_backend):
    from duoln.kernels import linear_cross_entropy as rule

    rows, classes = size
    monkeypatch.setattr(rule, "KEEP_BYTES", 1 << 30 if kept else 0)
    monkeypatch.setattr(rule, "BLOCK", 1000)  # several blocks of rows and of classes
    x, weight, bias = (rng.standard_normal(s).astype(dtype) for s in ((*rows, 12), (12, classes), (classes,)))
    for labels in (rng.integers(-1, classes, rows), rng.integers(0, classes, rows), np.full(rows, -1)):
        _check_rules(ops.linear_cross_entropy, [x, weight, bias, np.asarray(labels, np.int32)], {}, numpy_backend, length=150 * classes)


class TestAdam:
    SHAPES = ((784, 100), (1000,), (), (0, 3), (10, 3001))

    def _arrays(self, rng, dtype):
        p, g, m = ([rng.standard_normal(s).astype(dtype) for s in self.SHAPES] for _ in range(3))
        v = [rng.random(s).astype(dtype) for s in self.SHAPES]
        return [*p, *g, *m, *v]

    @pytest.mark.parametrize("scaled", [False, True])
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_equals_the_composed_rule(self, dtype, scaled, threads, rng, numpy_backend):
        rate, eps, scale, keep = (np.array(x, dtype) for x in (1e-2, 1e-8, 0.3, 0.9))
        optional = (scale, keep) if scaled else (None, None)
        _check_rules(ops.adam_update, [rate, eps, *optional, *self._arrays(rng, dtype)],
                   {"beta1": 0.9, "beta2": 0.999, "donate": False}, numpy_backend)

    @NEEDS_COMPILER
    def test_donated_arrays_are_overwritten_and_nothing_else(self, threads, rng, numpy_backend):
        rate, eps = (np.array(x, np.float32) for x in (1e-2, 1e-8))
        arrays, n = self._arrays(rng, np.float32), len(self.SHAPES)
        kept = [a.copy() for a in arrays]
        attrs = {"beta1": 0.9, "beta2": 0.999}
        expected, _ = _rule(ops.adam_update).forward(numpy_backend, rate, eps, None, None, *arrays, **attrs, donate=False)
        updated, _ = _rule(ops.adam_update).forward(numpy_backend, rate, eps, None, None, *arrays, **attrs, donate=True)
        for a, b in zip(updated, expected, strict=True):
            np.testing.assert_array_equal(a, b)
        assert all(f is a for f, a in zip(updated[:-1], [*arrays[:n], *arrays[2 * n:]], strict=True))
        for a, b in zip(arrays[n:2 * n], kept[n:2 * n], strict=True):
            np.testing.assert_array_equal(a, b)  # the gradients

    @NEEDS_COMPILER
    def test_what_is_not_contiguous_is_left_to_the_composed_rule(self, numpy_backend):
        a, rate = np.ones((4, 4), np.float32), np.array(0.1, np.float32)
        assert "contiguous" in _rule(ops.adam_update).supports(numpy_backend, rate, rate, None, None, a.T[:2], a, a, a)


def test_threads_follow_the_environment(monkeypatch):
    host.workers.cache_clear()
    monkeypatch.delenv("DUOLN_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert host.workers() == 3
    host.workers.cache_clear()
    monkeypatch.setenv("DUOLN_THREADS", "2")
    assert host.workers() == 2
    host.workers.cache_clear()
