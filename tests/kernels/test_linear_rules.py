"""Products of a few rows, compiled: against the composed rule, the same bits for any number of threads, NaN and infinity."""

import numpy as np
import pytest
from conftest import every_second

from duoln import ops, runtime
from duoln.kernels import native
from duoln.kernels.linear import cpu as linear
from duoln.testing import check_rule

DTYPES, THREADS = ["float32", "float64"], [1, 2, 3]
pytestmark = pytest.mark.skipif(native.compiler() is None, reason="there is no C++ compiler")


@pytest.fixture(autouse=True)
def _small_weights_too(monkeypatch):
    monkeypatch.setattr(linear, "LEAST_WEIGHTS", 1)


def _rule():
    [rule] = [r for r in runtime.backend("numpy") and ops.linear.rules("numpy") if r.name == "compiled few rows"]
    return rule


def _matmul_rule():
    [rule] = [r for r in runtime.backend("numpy") and ops.matmul.rules("numpy") if r.name == "compiled few rows"]
    return rule


@pytest.mark.parametrize(("rows", "sizes", "dtype", "threads"), every_second(
    [(1,), (2,), (3,), (2, 2), (7,), (8,), ()], [(1, 1), (1, 300), (300, 1), (7, 16), (129, 17), (256, 31), (517, 1000)],
    DTYPES, THREADS), ids=str, indirect=["threads"])
def test_values_and_gradients(rows, sizes, dtype, threads, rng, numpy_backend):
    n_in, n_out = sizes
    x, weight, bias = (rng.standard_normal(s).astype(dtype) for s in ((*rows, n_in), sizes, (n_out,)))
    for given in (bias, None):
        check_rule(ops.linear, _rule(), [x, weight, given], numpy_backend, length=max(sizes))


@pytest.mark.parametrize(("rows", "sizes", "dtype", "threads"), every_second(
    [(1,), (3,), (2, 2)], [(1, 1), (7, 16), (256, 31), (517, 1000)], DTYPES, THREADS), ids=str, indirect=["threads"])
def test_products_with_a_matrix(rows, sizes, dtype, threads, rng, numpy_backend):
    x, y = (rng.standard_normal(s).astype(dtype) for s in ((*rows, sizes[0]), sizes))
    check_rule(ops.matmul, _matmul_rule(), [x, y], numpy_backend, length=max(sizes))


def test_products_of_a_stack_of_matrices_are_left_to_the_composed_rule(numpy_backend):
    supports = _matmul_rule().supports
    x, y = np.ones((2, 1, 256), np.float32), np.ones((2, 256, 256), np.float32)
    assert supports(numpy_backend, x, y) and supports(numpy_backend, x[0], y[0]) is None


@pytest.mark.parametrize("rows", [5, 9, 13])
def test_more_rows_than_a_group_holds(rows, rng, numpy_backend, monkeypatch):
    monkeypatch.setattr(linear, "MOST_ROWS", 16)
    x, weight, bias = (rng.standard_normal(s).astype(np.float32) for s in ((rows, 131), (131, 70), (70,)))
    check_rule(ops.linear, _rule(), [x, weight, bias], numpy_backend, length=131)


def test_strided_inputs(rng, numpy_backend):
    x, weight, bias = (rng.standard_normal(s).astype(np.float32) for s in ((4, 130), (65, 70), (140,)))
    check_rule(ops.linear, _rule(), [x[::2, ::2], weight, bias[::2]], numpy_backend, length=130)


def test_the_rest_is_left_to_blas(numpy_backend, monkeypatch):
    monkeypatch.undo()
    x, weight = np.ones((4, 256), np.float32), np.ones((256, 256), np.float32)
    supports = _rule().supports
    assert supports(numpy_backend, x, weight, None) is None
    for other_x, other_weight in ((np.ones((9, 256), np.float32), weight), (x[:0], weight), (x[:, :9], weight[:9]), (x, weight.T)):
        assert supports(numpy_backend, other_x, other_weight, None)


def test_the_same_bits_for_any_number_of_threads_and_any_repeat(numpy_backend, same_bits, rng):
    rule = _rule()
    x, weight, dy = (rng.standard_normal(s).astype(np.float32) for s in ((4, 997), (997, 313), (4, 313)))

    def run():
        y, saved = rule.forward(numpy_backend, x, weight, None)
        return y, *rule.vjp(numpy_backend, saved, dy, (True, True, False))

    same_bits(run)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_a_number_comes_out_where_it_belongs(value, numpy_backend):
    x, weight, dy = np.ones((3, 40), np.float32), np.ones((40, 50), np.float32), np.ones((3, 50), np.float32)
    x[1, 7] = value
    dy[2, 49] = value
    y, saved = _rule().forward(numpy_backend, x, weight, None)
    dx, d_weight, _ = _rule().vjp(numpy_backend, saved, dy, (True, True, False))
    assert np.isfinite(y[[0, 2]]).all() and not np.isfinite(y[1]).any()
    assert np.isfinite(dx[[0, 1]]).all() and not np.isfinite(dx[2]).any()
    strange = ~np.isfinite(d_weight)
    assert strange[7].all() and strange[:, 49].all() and strange.sum() == 50 + 40 - 1
