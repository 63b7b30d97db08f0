"""Compiled products of two matrices: values in every layout and size, gradients, the same bits for any number of threads."""

import os
import subprocess
import sys

import numpy as np
import pytest

import duoln
from duoln import ops
from duoln.kernels import native
from duoln.kernels.linear import multiply as module
from duoln.kernels.linear.multiply import MOST_ROWS, MOST_ROWS_TRANSPOSED, multiply, multiply_and_sum, multiply_pieces
from duoln.testing import check_rule

pytestmark = [pytest.mark.skipif(native.compiler() is None, reason="there is no C++ compiler"), pytest.mark.numerical]

SIZES = [(1, 1, 1), (1, 300, 17), (5, 1, 33), (9, 270, 80), (6, 7, 16), (7, 257, 15), (13, 1025, 31), (48, 64, 64), (97, 33, 130),
         (257, 40, 19), (270, 1030, 40), (300, 2049, 5), (640, 17, 48), (256, 1100, 20), (40, 6600, 9), (3, 130, 33), (8, 1025, 31),
         (300, 270, 530), (1025, 20, 515), (129, 513, 97), (136, 64, 65), (207, 260, 160),
         (260, 300, 1300), (7, 1030, 3), (3, 130, 149), (33, 130, 2), (300, 2049, 4), (2049, 40, 1), (640, 17, MOST_ROWS),
         (50, 3, 1001), (67, 8, 128), (10, 1, 300)]


@pytest.fixture(autouse=True)
def _small_products_too(monkeypatch):
    monkeypatch.setattr(module, "LEAST", 1)
    monkeypatch.setattr(module, "LEAST_OF_VECTOR", 1)
    monkeypatch.setattr(module, "_WORTH_THREADS", 1)
    monkeypatch.setattr(module, "_WORTH_THREADS_BYTES", 1)


def _laid_out(layout, matrix):
    """The same values in another layout."""
    if layout == "transposed":
        return np.ascontiguousarray(matrix.T).T
    if layout == "in a wider one":
        wide = np.full((matrix.shape[0], matrix.shape[1] + 3), np.nan, matrix.dtype)
        wide[:, 2:-1] = matrix
        return wide[:, 2:-1]
    if layout == "strided":
        sparse = np.full((matrix.shape[0], 2 * matrix.shape[1]), np.nan, matrix.dtype)
        sparse[:, ::2] = matrix
        return sparse[:, ::2]
    return matrix[::-1].copy()[::-1] if layout == "from its end" else matrix


@pytest.mark.long
@pytest.mark.few
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layout", ["as it is", "transposed", "in a wider one", "strided", "from its end"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_values_in_every_layout(sizes, layout, dtype, threads, rng):
    rows, depth, columns = sizes
    a, b, bias = rng.standard_normal((rows, depth)), rng.standard_normal((depth, columns)), rng.standard_normal(columns)
    exact = np.asarray(a.astype(dtype), np.longdouble) @ b.astype(dtype) + bias.astype(dtype)
    bound = 8 * np.finfo(dtype).eps * (np.abs(a) @ np.abs(b) + np.abs(bias))
    for first, second in ((layout, "as it is"), ("as it is", layout), (layout, layout)):
        out = np.full((rows, columns + 2), 7, dtype)
        product = multiply(_laid_out(first, a.astype(dtype)), _laid_out(second, b.astype(dtype)), out[:, 1:-1], bias.astype(dtype))
        assert (np.abs(product - exact) <= bound).all()
        assert (out[:, [0, -1]] == 7).all()
        product = multiply(_laid_out(first, a.astype(dtype)), _laid_out(second, b.astype(dtype)), added=bias.astype(dtype))
        assert product.dtype == dtype and (np.abs(product - exact) <= bound).all()


@pytest.mark.few
@pytest.mark.parametrize("layout", ["as it is", "transposed", "in a wider one", "strided", "from its end"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_matrix_is_added_which_may_be_the_result(sizes, layout, threads, rng):
    rows, depth, columns = sizes
    a, b, added = (rng.standard_normal(shape, np.float32) for shape in ((rows, depth), (depth, columns), (rows, columns)))
    exact, bound = a.astype(float) @ b + added, 8 * np.finfo(np.float32).eps * (np.abs(a) @ np.abs(b) + np.abs(added))
    for first, second in ((a, b), (_laid_out("transposed", a), b), (a, _laid_out("transposed", b))):
        assert (np.abs(multiply(first, second, added=_laid_out(layout, added)) - exact) <= bound).all()
        for out in (added.copy(), _laid_out("in a wider one", added)):
            assert multiply(first, second, out, added=out) is out and (np.abs(out - exact) <= bound).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layout", ["as it is", "transposed", "in a wider one", "strided", "from its end"])
@pytest.mark.parametrize("sizes", [*SIZES, (259, 1030, 1100)], ids=str)
def test_the_sums_of_columns_beside_a_product(sizes, layout, dtype, threads, rng):
    rows, depth, columns = sizes
    a, b = rng.standard_normal((rows, depth)).astype(dtype), rng.standard_normal((depth, columns)).astype(dtype)
    exact, bound = b.astype(np.longdouble).sum(axis=0), np.finfo(dtype).eps * depth * np.abs(b).sum(axis=0)
    for first in ("as it is", "transposed"):
        product, sums = multiply_and_sum(_laid_out(first, a), _laid_out(layout, b))
        assert np.array_equal(product, multiply(_laid_out(first, a), _laid_out(layout, b)))
        wide = np.empty((rows, columns + 3), dtype)[:, 1:-2]
        same, _ = multiply_and_sum(_laid_out(first, a), _laid_out(layout, b), wide)
        assert same is wide and np.allclose(same, product, rtol=1e-4, atol=1e-4)
        assert sums.dtype == dtype and sums.shape == (columns,) and (np.abs(sums - exact) <= bound).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layout", ["as it is", "transposed", "in a wider one", "strided", "from its end"])
@pytest.mark.parametrize("ends", [(1, 2, 3), (0, 5, 5, 40), (8, 16, 24, 31), (700, 1023, 1025, 2100)], ids=str)
@pytest.mark.parametrize("rows, columns", [(MOST_ROWS + 1, MOST_ROWS + 1), (200, 40), (270, 40), (270, 530)])
def test_a_product_with_pieces_has_the_bits_of_that_with_the_whole_matrix(rows, columns, ends, layout, dtype, threads, rng):
    a, b = rng.standard_normal((rows, ends[-1])).astype(dtype), rng.standard_normal((ends[-1], columns)).astype(dtype)
    pieces = [_laid_out(layout, piece) for piece in np.split(b, ends[:-1])]
    for first in (a, np.ascontiguousarray(a.T).T):
        product = multiply_pieces(first, pieces)
        assert product.dtype == b.dtype and np.array_equal(product, multiply(first, b))


@pytest.mark.parametrize("layout", ["as it is", "transposed"])
@pytest.mark.parametrize("few", [1, MOST_ROWS_TRANSPOSED, MOST_ROWS])
def test_few_rows_and_few_columns_pack_nothing(few, layout, rng, monkeypatch):
    """Where the other matrix lies so that it is read in one pass; each is the transpose of the other."""
    monkeypatch.setattr(module, "_product", None)
    matrix, few_rows = (rng.standard_normal(shape, np.float32) for shape in ((130, 170), (few, 130)))
    if layout == "transposed" and few > MOST_ROWS_TRANSPOSED:
        monkeypatch.undo()
    matrix = _laid_out(layout, matrix)
    exact, bound = few_rows.astype(float) @ matrix, 8 * np.finfo(np.float32).eps * (np.abs(few_rows) @ np.abs(matrix))
    for product in (multiply(few_rows, matrix), multiply(matrix.T, few_rows.T).T):
        assert (np.abs(product - exact) <= bound).all()


@pytest.mark.parametrize("rows", [1, MOST_ROWS])
def test_a_product_of_few_rows_with_pieces(rows, threads, rng):
    a, b = rng.standard_normal((rows, 300), np.float32), rng.standard_normal((300, 33), np.float32)
    exact, bound = a.astype(float) @ b, 8 * np.finfo(np.float32).eps * (np.abs(a) @ np.abs(b))
    assert (np.abs(multiply_pieces(a, np.split(b, [7, 130])) - exact) <= bound).all()


@pytest.mark.parametrize("op", [ops.linear, ops.matmul], ids=str)
@pytest.mark.parametrize("batch", [3, 20])
def test_the_gradient_of_a_weight_that_is_used_many_times(op, batch, threads, rng, monkeypatch):
    """By one product, whose second matrix is that of the gradients where they lie."""
    monkeypatch.setattr("duoln.kernels.linear.cpu.LEAST_WEIGHTS", 1)
    x, weight = rng.standard_normal((5, batch, 70)).astype(np.float32), rng.standard_normal((70, 33)).astype(np.float32)
    scale = rng.standard_normal((5, batch, 33)).astype(np.float32)
    xs, scales = ([duoln.tensor(each, "numpy") for each in whole] for whole in (x, scale))
    bias = {"bias": duoln.tensor(np.zeros(33, np.float32), "numpy")} if op is ops.linear else {}

    def loss(p):
        products = [op(each, **p) if op is ops.linear else op(each, p["weight"]) for each in xs]
        return ops.sum(ops.stack([y * s for y, s in zip(products, scales, strict=True)], axis=0))

    _, gradients = duoln.value_and_grad(loss)({"weight": duoln.tensor(weight, "numpy"), **bias})
    exact = np.einsum("tbi,tbo->io", x.astype(np.float64), scale)
    assert np.allclose(gradients["weight"].numpy(), exact, rtol=1e-5, atol=1e-4)
    if bias:
        assert np.allclose(gradients["bias"].numpy(), scale.sum(axis=(0, 1), dtype=np.float64), rtol=1e-5, atol=1e-4)


def test_the_product_of_nothing_is_zero():
    assert multiply(np.ones((3, 0), np.float32), np.ones((0, 2), np.float32)).tolist() == [[0, 0]] * 3
    assert multiply(np.ones((0, 3), np.float32), np.ones((3, 2), np.float32)).shape == (0, 2)


@pytest.mark.parametrize("op", [ops.linear, ops.matmul], ids=str)
@pytest.mark.parametrize("shape", [(37, 530), (3, 11, 257), (2, 150, 20)], ids=str)
def test_the_rules_of_linear_and_matmul(op, shape, threads, rng, numpy_backend):
    [rule] = [r for r in op.rules("numpy") if r.name == "compiled product"]
    arrays = [rng.standard_normal(s).astype(np.float32) for s in (shape, (shape[-1], 67), (67,))][:3 if op is ops.linear else 2]
    check_rule(op, rule, arrays, numpy_backend, length=530)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(37, 530), (3, 11, 257), (2, 150, 20), (9, 1), (MOST_ROWS, 100)], ids=str)
@pytest.mark.parametrize("n_out", [1, 15, 67, 130])
def test_an_activation_after_a_product(n_out, shape, dtype, activation, threads, rng, numpy_backend):
    """The value before it has the bits of a product without one; NaN and infinity come out as they do of two operators."""
    [rule] = ops.activated_linear.rules("numpy")[:-1]
    x, weight, bias = (rng.standard_normal(s).astype(dtype) for s in (shape, (shape[-1], n_out), (n_out,)))
    weight *= np.array(shape[-1] ** -0.5, dtype)  # so that tanh is not flat
    for given in (bias, None):
        check_rule(ops.activated_linear, rule, [x, weight, given], numpy_backend, {"activation": activation}, length=530)
    x[0, ..., 0], x[1, ..., -1] = np.nan, np.inf
    before, _ = ops.linear.rules("numpy")[0].forward(numpy_backend, x, weight, bias)
    after, saved = rule.forward(numpy_backend, x, weight, bias, activation=activation)
    gradient = rule.vjp(numpy_backend, saved, np.ones_like(after), (True,) * 3)[2]
    follow = ops.relu if activation == "relu" else ops.tanh
    expected = follow(duoln.tensor(before, "numpy")).numpy()
    np.testing.assert_allclose(after, expected, rtol=0 if activation == "relu" else 16 * np.finfo(dtype).eps)
    slope = np.where(expected > 0, 1, 0) if activation == "relu" else 1 - expected ** 2
    np.testing.assert_allclose(gradient, slope.reshape(-1, n_out).sum(axis=0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sizes", [(300, 70, 33), (30, 2100, 70), (3, 2100, 70), (300, 40, 530), (300, 700, 3),
                                   (303, 5, 700)], ids=str)
def test_the_same_bits_for_any_number_of_threads_and_any_repeat(sizes, same_bits, rng):
    rows, depth, columns = sizes
    a, b = rng.standard_normal((rows, depth), np.float32), rng.standard_normal((depth, columns), np.float32)
    same_bits(lambda: [multiply(a, b), multiply(b.T, a.T), multiply_and_sum(a, b)[1]])


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("depth, columns", [(40, 50), (8, 150)])
def test_what_is_not_a_number_stays_in_its_row_and_column(depth, columns, value):
    a, b = np.ones((20, depth), np.float32), np.ones((depth, columns), np.float32)
    a[3, 5], b[7, 49] = value, value
    strange = ~np.isfinite(multiply(a, b))
    assert strange[3].all() and strange[:, 49].all() and strange.sum() == columns + 20 - 1


@pytest.mark.parametrize("rows", [1, 3, 4])
def test_the_rounding_of_a_long_sum_over_a_matrix_that_lies_transposed_stays_small(rows, rng):
    """Positive values: all roundings of a sum in one chain go the same way, here up to 1.4e-5 of it."""
    a, b = rng.random((rows, 1 << 22), np.float32), rng.random((2, 1 << 22), np.float32)
    exact = sum(x.astype(np.float64) @ y.astype(np.float64).T for x, y in zip(np.split(a, 64, 1), np.split(b, 64, 1), strict=True))
    assert np.abs(multiply(a, b.T) / exact - 1).max() <= 2e-6


def test_small_products_and_those_of_few_rows_have_other_rules(monkeypatch, numpy_backend):
    monkeypatch.undo()
    x, weight = np.ones((64, 256), np.float32), np.ones((256, 256), np.float32)
    [rule] = [r for r in ops.linear.rules("numpy") if r.name == "compiled product"]
    assert rule.supports(numpy_backend, x, weight, None) is None
    assert "at least" in rule.supports(numpy_backend, x[:3], weight[:, :9], None)
    assert "few rows" in rule.supports(numpy_backend, x[:5], weight, None)


@pytest.mark.long
@pytest.mark.few
@pytest.mark.parametrize("sizes", [(1, 12_000, 1), (9, 12_000, 1), (1, 30_000, 3), (12_000, 1, 1)], ids=str)
def test_products_of_a_vector_have_the_same_bits_for_any_number_of_threads(sizes):
    """In processes of their own, where BLAS has that number of threads, too; it divides a sum."""
    program = f"""
import duoln, hashlib, numpy as np
from duoln.kernels.linear.multiply import column_sums, multiply
rng = np.random.default_rng(0)
a, b = rng.standard_normal({sizes[:2]}), rng.standard_normal({sizes[1:]})
print(hashlib.sha256(multiply(a, b).tobytes() + column_sums(b).tobytes()).hexdigest())
"""
    printed = {subprocess.run([sys.executable, "-c", program], env={**os.environ, "DUOLN_THREADS": count}, text=True,
                              capture_output=True, check=True).stdout for count in ("1", "2", "3")}
    assert len(printed) == 1
