"""Tensors: their creation, their values, their operators, and the arguments that they refuse."""

import numpy as np
import pytest

import duoln
from duoln import ops
from duoln.errors import DtypeError, ShapeError
from duoln.testing import check_error


def test_numbers_and_lists_become_float32_and_int32(be):
    assert duoln.tensor(1.0, be).dtype == "float32"
    assert duoln.tensor([1, 2], be).dtype == "int32"
    assert duoln.tensor([True], be).dtype == "bool"
    assert duoln.tensor(np.ones(2, np.float32), be).dtype == "float32"


def test_dtypes_that_the_backend_lacks_are_refused(be):
    check_error(DtypeError, lambda: duoln.tensor(np.ones(2, complex), be), "complex128", "float32", "dtype=")
    check_error(DtypeError, lambda: duoln.tensor("text", be), "expected one of")


def test_shape_size_and_values(be):
    x = duoln.tensor(np.arange(6, dtype=np.float32).reshape(2, 3), be)
    assert (x.shape, x.ndim, x.size, len(x)) == ((2, 3), 2, 6, 2)
    np.testing.assert_array_equal(x.numpy(), [[0, 1, 2], [3, 4, 5]])
    assert repr(x) == f"Tensor([[0., 1., 2.],\n        [3., 4., 5.]], shape=(2, 3), dtype=float32, backend={be.name})"


def test_one_value_as_a_number(be):
    assert float(duoln.tensor([[2.5]], be)) == 2.5
    assert bool(duoln.tensor(1.0, be) > 0.5) is True
    check_error(ShapeError, duoln.tensor([1.0, 2.0], be).item, "one value", "(2,)")
    with pytest.raises(TypeError, match="no dimensions"):
        len(duoln.tensor(1.0, be))


def test_operators(be):
    x, y = duoln.tensor([1.0, 4.0], be), duoln.tensor([2.0, 3.0], be)
    for actual, expected in [(x + y, [3, 7]), (x - y, [-1, 1]), (x * y, [2, 12]), (x / y, [0.5, 4 / 3]), (x ** 2, [1, 16]),
                            (-x, [-1, -4]), (1 + x, [2, 5]), (1 - x, [0, -3]), (2 * x, [2, 8]), (1 / x, [1, 0.25]),
                            (x[1], 4), (x < y, [1, 0]), (x <= 1, [1, 0]), (x > y, [0, 1]), (x >= 4, [0, 1]),
                            (x == 1.0, [1, 0]), (x != y, [1, 1])]:
        np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-6)
    np.testing.assert_allclose((x[None] @ y[:, None]).numpy(), [[14.0]])


def test_shape_errors_begin_with_the_op_and_name_both_sides(be):
    a, b = duoln.tensor(np.ones((3, 4), np.float32), be), duoln.tensor(np.ones((5,), np.float32), be)
    check_error(ShapeError, lambda: a + b, "[add]", "(3, 4)", "(5,)")
    check_error(ShapeError, lambda: a @ a, "[matmul]", "(3, 4)")
    check_error(ShapeError, lambda: b @ a, "[matmul]", "inner sizes")
    check_error(ShapeError, lambda: ops.linear(a, a), "[linear]", "(3, 4)")
    check_error(ShapeError, lambda: ops.layer_norm(a, b), "[layer_norm] last axis is 4, gain has 5")
    check_error(ShapeError, lambda: ops.batch_norm(a[:0]), "[batch_norm]", "at least 2 rows")
    check_error(ShapeError, lambda: ops.batch_norm(a[:1], unbiased=True), "at least 2 rows")
    check_error(ShapeError, lambda: ops.weight_norm(b, b), "[weight_norm]", "2 axes")
    check_error(ShapeError, lambda: ops.reshape(a, shape=(5, -1)), "[reshape]", "12 values")
    check_error(ShapeError, lambda: ops.permute_dims(a, axes=(0, 0)), "[permute_dims]")
    check_error(ShapeError, lambda: ops.squeeze(a, axis=0), "[squeeze]", "size 1")
    check_error(ShapeError, lambda: ops.broadcast_to(a, shape=(4, 4)), "[broadcast_to]", "(3, 4)")
    check_error(ShapeError, lambda: ops.concat(a, a[:, :2]), "[concat]", "(3, 2)")
    check_error(ShapeError, lambda: ops.concat(), "[concat]", "none")
    check_error(ShapeError, lambda: ops.split(a, 3), "[split]", "divisible by 3")
    check_error(ShapeError, lambda: ops.sum(a, axis=2), "[sum]", "axis", "2")
    check_error(ShapeError, lambda: ops.sum(a, axis=(0, -2)), "[sum]", "different axes")
    check_error(ShapeError, lambda: ops.mean(a[:0]), "[mean]", "at least one")
    check_error(ShapeError, lambda: ops.max(a[:0], axis=0), "[max]", "at least one")
    check_error(ShapeError, lambda: ops.pad(a, widths=((1, 1),)), "[pad]", "2 pairs")
    check_error(ShapeError, lambda: a[3], "[getitem]", "below 3")
    check_error(ShapeError, lambda: a[0, 0, 0], "[getitem]", "at most 2")
    check_error(ShapeError, lambda: ops.conv2d(a, a), "[conv2d]", "KH, KW")
    check_error(ShapeError, lambda: ops.max_pool2d(a, size=2), "[max_pool2d]", "batch, height")


def test_index_errors(be):
    x, i = duoln.tensor(np.ones((3, 4), np.float32), be), duoln.tensor([0, 1], be)
    check_error(DtypeError, lambda: x[np.array([0])], "[getitem]", "ndarray", "take")
    check_error(DtypeError, lambda: x[x > 0], "[getitem]", "mask", "where")
    check_error(DtypeError, lambda: x[True], "[getitem]", "bool")
    check_error(DtypeError, lambda: ops.take(x, x, axis=0), "[take]", "int32", "float32")
    check_error(ShapeError, lambda: ops.embedding(x[0], i), "[embedding]", "2 dimensions", "(4,)")
    check_error(ShapeError, lambda: ops.embedding(x[None], i), "[embedding]", "2 dimensions", "(1, 3, 4)")
    check_error(ShapeError, lambda: ops.take_along_axis(x, i), "[take_along_axis]", "(3, 4)")
    check_error(DtypeError, lambda: ops.where(x, x, x), "[where]", "bool")


def test_logical_operators_want_bools_in_every_place(be):
    yes = duoln.tensor([True, False], be)
    for wrong, dtype in [(duoln.tensor([1.0, 0.0], be), "float32"), (duoln.tensor([1, 0], be), "int32"),
                         (np.array([True, False]), "numpy.ndarray"), (1.0, "float")]:
        for name, arguments in [("logical_not", (wrong,)), ("logical_and", (wrong, yes)), ("logical_and", (yes, wrong)),
                                ("logical_or", (wrong, yes)), ("logical_or", (yes, wrong))]:
            check_error(DtypeError, lambda name=name, arguments=arguments: getattr(ops, name)(*arguments),
                        f"[{name}]", "expected a bool tensor", dtype)


def test_loss_errors(be):
    x, labels = duoln.tensor(np.ones((3, 4), np.float32), be), duoln.tensor([0, 1], be)
    check_error(ShapeError, lambda: ops.softmax_cross_entropy(x, labels), "(3, 4)", "(2,)")
    check_error(DtypeError, lambda: ops.softmax_cross_entropy(x, x), "labels", "int32")
    check_error(ShapeError, lambda: ops.bce_with_logits(x, x[:2]), "(3, 4)", "(2, 4)")


def test_losses_are_finite_for_extreme_logits(be):
    logits = duoln.tensor([[1e4, -1e4], [-1e4, 1e4]], be)
    labels = duoln.tensor([0, 0], be)
    np.testing.assert_allclose(ops.softmax_cross_entropy(logits, labels).numpy(), [0.0, 2e4])
    targets = duoln.tensor([[1.0, 0.0], [1.0, 0.0]], be)
    np.testing.assert_allclose(ops.bce_with_logits(logits, targets).numpy(), [[0, 0], [1e4, 1e4]])
    assert np.isfinite(ops.sigmoid(logits).numpy()).all() and np.isfinite(ops.softplus(logits).numpy()).all()
