"""Tensors: their creation, values, operators and copies, the arguments that they refuse, and what would be a constant."""

import copy
import warnings

import numpy as np
import pytest

import duoln
from duoln import nn, ops, optim, tree
from duoln.errors import DtypeError, GradientError, GradientWarning, ShapeError
from duoln.randomness import Stream
from duoln.testing import check_error


def test_numbers_and_lists_become_float32_and_int32(be):
    assert duoln.tensor(1.0, be).dtype == "float32"
    assert duoln.tensor([1, 2], be).dtype == "int32"
    assert duoln.tensor([True], be).dtype == "bool"
    assert duoln.tensor(np.ones(2, np.float32), be).dtype == "float32"


def test_numbers_beyond_float64_are_refused_and_so_is_none_where_it_says_nothing(be):
    for x in (10**400, [1, -10**400]):
        check_error(DtypeError, lambda x=x: duoln.tensor(x, be), "[tensor] expected numbers within float64")
    check_error(DtypeError, lambda: ops.leaky_relu(duoln.tensor(1.0, be), slope=None), "[leaky_relu] slope", "None")


def test_the_text_of_a_tensor(be):
    x = duoln.tensor(np.arange(6, dtype=np.float32).reshape(2, 3), be)
    assert repr(x) == f"Tensor([[0., 1., 2.],\n        [3., 4., 5.]], shape=(2, 3), dtype=float32, backend={be.name})"


def test_one_value_as_a_number(be):
    assert float(duoln.tensor([[2.5]], be)) == 2.5
    with pytest.raises(TypeError, match="no dimensions"):
        len(duoln.tensor(1.0, be))


def test_shape_errors_begin_with_the_op_and_name_both_sides(be):
    a, b = duoln.tensor(np.ones((3, 4), np.float32), be), duoln.tensor(np.ones((5,), np.float32), be)
    check_error(ShapeError, lambda: a + b, "[add]", "(3, 4)", "(5,)")
    check_error(ShapeError, lambda: a @ a, "[matmul]", "(3, 4)")
    check_error(ShapeError, lambda: b @ a, "[matmul]", "inner sizes")
    check_error(ShapeError, lambda: ops.linear(a, a), "[linear]", "(3, 4)")
    check_error(ShapeError, lambda: ops.layer_norm(a, b), "[layer_norm] last axis is 4, gain has 5")
    check_error(ShapeError, lambda: ops.batch_norm(a[:0]), "[batch_norm]", "at least 2 rows")
    check_error(ShapeError, lambda: ops.batch_norm(a[:1], unbiased=True), "at least 2 rows")
    check_error(ShapeError, lambda: ops.squeeze(a, axis=0), "[squeeze]", "size 1")
    check_error(ShapeError, lambda: ops.concat(a, a[:, :2]), "[concat]", "(3, 2)")
    check_error(ShapeError, lambda: ops.concat(), "[concat]", "none")
    check_error(ShapeError, lambda: ops.mean(a[:0]), "[mean]", "at least one")
    check_error(ShapeError, lambda: ops.max(a[:0], axis=0), "[max]", "at least one")


def test_losses_are_finite_for_extreme_logits(be):
    logits = duoln.tensor([[1e4, -1e4], [-1e4, 1e4]], be)
    labels = duoln.tensor([0, 0], be)
    np.testing.assert_allclose(ops.softmax_cross_entropy(logits, labels).numpy(), [0.0, 2e4])
    targets = duoln.tensor([[1.0, 0.0], [1.0, 0.0]], be)
    np.testing.assert_allclose(ops.bce_with_logits(logits, targets).numpy(), [[0, 0], [1e4, 1e4]])
    assert np.isfinite(ops.sigmoid(logits).numpy()).all() and np.isfinite(ops.softplus(logits).numpy()).all()


# Copies and pickles: the values are the copy's own, the backend is the process's -----------------------

def _t(be, x):
    return duoln.tensor(np.asarray(x, np.float32), be)


def test_a_deep_copy_works_beside_what_it_was_copied_from(be):
    x = _t(be, [1.0, 2.0])
    twin = copy.deepcopy({"x": [x]})["x"][0]
    assert twin.backend is be and twin.dtype == x.dtype
    np.testing.assert_array_equal((x + twin).numpy(), [2.0, 4.0])


def test_a_shallow_copy_shares_the_values(be):
    x = _t(be, [1.0, 2.0])
    twin = copy.copy(x)
    assert twin is not x and twin.backend is be and twin.data is x.data


def test_a_deep_copy_keeps_its_values_when_the_original_is_donated(be):
    """An optimizer that donates overwrites the parameters that it is given."""
    model = nn.Linear(3, 2)
    params = duoln.to_tensors(model.init(Stream(0, "init")), be)
    optimizer = optim.Adam(1e-2, donate=True)
    before = copy.deepcopy(params)
    values = [leaf.numpy() for leaf in tree.leaves(params)]
    gradients = tree.map(lambda p: _t(be, np.ones(p.shape)), params)
    optimizer.update(params, gradients, optimizer.init(params), _t(be, 0.1))
    for leaf, value in zip(tree.leaves(before), values, strict=True):
        np.testing.assert_array_equal(leaf.numpy(), value)


def test_within_a_gradient_a_shallow_copy_stays_on_the_tape_and_a_deep_copy_is_refused(be):
    _, gradient = duoln.value_and_grad(lambda x: ops.sum(copy.copy(x) * x))(_t(be, [3.0]))
    assert gradient.numpy() == [6.0]
    check_error(GradientError, lambda: duoln.value_and_grad(lambda x: ops.sum(copy.deepcopy(x)))(_t(be, [3.0])),
                "[deepcopy]", "stop_gradient")


def test_a_backend_is_one_object(be):
    assert copy.copy(be) is be and copy.deepcopy(be) is be


# Values that leave a gradient for Python or NumPy would be constants there -----------------------------

ARRAYS = {
    "np.mean": lambda x: ops.sum(x) * float(np.mean(x)), "np.asarray": lambda x: ops.sum(x * duoln.tensor(np.asarray(x), x.backend)),
    "numpy()": lambda x: ops.sum(x * duoln.tensor(np.exp(x.numpy()), x.backend)), "np.array": lambda x: ops.sum(x * np.array(x)[0].item()),
    "tolist": lambda x: ops.sum(x) * x.tolist()[0], "of an intermediate": lambda x: ops.sum(x) * float(np.max(ops.exp(x))),
    "np.concatenate": lambda x: ops.sum(x) * float(np.concatenate([x, x]).sum()),
}
NUMBERS = {
    "float": lambda x: x * float(x), "item": lambda x: x * x.item(), "int": lambda x: x * int(x),
    "math": lambda x: x * __import__("math").exp(x), "an intermediate": lambda x: x * ops.exp(x).item(),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_are_refused(name, be):
    x = duoln.tensor([1.0, 2.0], be)
    check_error(GradientError, lambda: duoln.value_and_grad(ARRAYS[name])(x), "a tensor outside a gradient", "(2,)",
                "duoln.ops", "duoln.stop_gradient(x)")
    ARRAYS[name](x)  # no gradient is asked for


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_warn_at_the_line_of_the_user(name, be):
    x = duoln.tensor(2.0, be)
    with pytest.warns(GradientWarning, match=r"constant.*stop_gradient\(x\)") as caught:
        duoln.value_and_grad(NUMBERS[name])(x)
    assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        NUMBERS[name](x)


def test_what_changes_no_gradient_is_silent(be, capsys):
    kept = []

    def loss(x):
        print(x, f"{x:.1f}", round(x, 1))
        kept.append(x)
        positive, fixed = x > 0, duoln.stop_gradient(x)
        labels = ops.astype(x, dtype="int32")
        return x * (1.0 if x > 0 and bool(x) and positive.item() else 2.0) * fixed.item() * float(fixed.numpy()) * labels.item()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, gradient = duoln.value_and_grad(loss)(duoln.tensor(2.0, be))
        assert gradient.item() == 8.0 and kept[0].item() == float(np.mean(kept[0])) == 2.0  # the tape is closed
    assert "2.0" in capsys.readouterr().out


def test_a_compiled_step_has_its_own_error(be):
    def step(x):
        return duoln.value_and_grad(lambda x: x * float(x))(x)

    check_error(duoln.errors.CompileError, lambda: duoln.compile(step)(duoln.tensor(2.0, be)), "host")
