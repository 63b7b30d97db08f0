"""Tensors: their creation, values, operators and copies, the arguments that they refuse, what would be a constant, and lines that people
type by habit from NumPy, PyTorch and MLX.
"""

import copy
import warnings

import numpy as np
import pytest

import duoln
from duoln import nn, ops, optim, tree
from duoln.core import Tensor
from duoln.errors import DtypeError, GradientError, GradientWarning
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


X = np.arange(6, dtype=np.float32).reshape(2, 3)
LINES = {
    # Shape, length, iteration
    "x.shape": (2, 3), "x.ndim": 2, "x.size": 6, "len(x)": 2, "x.dtype": "float32",
    "[row.sum().item() for row in x]": [3.0, 12.0], "len(list(x))": 2, "next(iter(x))": X[0], "[*x][1]": X[1],
    "(lambda a, b: a + b)(*x)": X[0] + X[1], "dict(enumerate(x))[1]": X[1], "list(zip(x, x))[0][1]": X[0],
    "max(row.item() for row in v)": 3.0, "sorted(v.numpy().tolist())": [1.0, 2.0, 3.0], "list(reversed(list(v)))[0].item()": 3.0,
    # Out to NumPy and Python
    "np.asarray(x)": X, "np.array(x, dtype=np.float64)": X.astype(np.float64), "np.asarray(x, dtype='int32')": X.astype(np.int32),
    "np.mean(np.asarray(x)).item()": 2.5, "np.allclose(x, x)": True, "np.testing.assert_allclose(x, x)": None, "x.numpy()": X, "x.numpy().tolist()": X.tolist(),
    "float(s)": 2.0, "int(s)": 2, "bool(s)": True, "int(i[2])": 3, "s.item()": 2.0, "f'{s.item():.1f}'": "2.0", "'abc'[i[0]]": "b",
    "round(float(s))": 2, "[10, 20, 30, 40][i[1]]": 30,
    # Indexing
    "x[0]": X[0], "x[-1]": X[-1], "x[:, 1]": X[:, 1], "x[..., 0]": X[..., 0], "x[None].shape": (1, 2, 3), "x[::-1]": X[::-1], "x[1, 2].item()": 5.0,
    "x[np.int64(1)]": X[1], "x[i[:1]]": X[[1]], "x[i[:1], 2]": X[[1], 2], "x[i[0]]": X[1], "x[i[0], 1:]": X[1, 1:], "x[:, ::2]": X[:, ::2],
    # Arithmetic
    "x + 1": X + 1, "1 - x": 1 - X, "2 * x": 2 * X, "x / 2": X / 2, "1 / (x + 1)": 1 / (X + 1), "x ** 2": X ** 2, "2 ** x": 2 ** X, "-x": -X,
    "x @ x.T": X @ X.T, "x - x.mean()": X - X.mean(), "x - x.max(1, keepdims=True)": X - X.max(1, keepdims=True), "np.float32(2) * x": 2 * X,
    "np.int64(2) + i": np.array([3, 4, 5], np.int32), "sum([x, x, x])": 3 * X, "sum(x)": X[0] + X[1],
    # Comparisons
    "x > 2": X > 2, "x < 2": X < 2, "x <= 1": X <= 1, "x == 2.0": X == 2, "x != x": X != X, "(x >= 1).sum().item()": 5, "bool((x == x).numpy().all())": True, "x is x": True,
    "hash(x) == hash(x)": True, "len({x: 1, s: 2})": 2, "ops.all(x == x).item()": True,
    # Methods
    "x.sum()": 15.0, "x.sum(0)": X.sum(0), "x.sum(axis=1)": X.sum(1), "x.sum((0, 1)).item()": 15.0, "x.mean(-1)": X.mean(-1), "x.max().item()": 5.0,
    "x.min(1)": X.min(1), "x.reshape(3, 2)": X.reshape(3, 2), "x.reshape((6,))": X.reshape(6), "x.reshape(-1)": X.reshape(-1),
    "x.reshape([3, -1])": X.reshape(3, 2), "x.T": X.T, "x.astype('int32')": X.astype(np.int32), "x.astype('float32') is x": True,
    # Operators, attributes by position
    "ops.sum(x, 1)": X.sum(1), "ops.mean(x, (0, 1))": 2.5, "ops.reshape(x, (3, 2))": X.reshape(3, 2), "ops.pow(x, 2)": X ** 2,
    "ops.astype(x, 'int32')": X.astype(np.int32), "ops.concat([x, x], axis=0)": np.concatenate([X, X]), "ops.concat(x, x, axis=1)": np.concatenate([X, X], 1),
    "ops.stack([x, x])": np.stack([X, X]), "ops.stack((x, x), axis=-1)": np.stack([X, X], -1), "ops.expand_dims(x, 0).shape": (1, 2, 3),
    "ops.squeeze(x[:1], 0)": X[0], "ops.permute_dims(x, (1, 0))": X.T, "ops.broadcast_to(v, (2, 3))": np.broadcast_to(np.float32([1, 2, 3]), (2, 3)),
    "ops.flip(x, 1)": X[:, ::-1], "ops.argmax(x, 1)": np.array([2, 2], np.int32), "ops.softmax(x, -1).sum(-1)": np.ones(2, np.float32),
    "ops.take(x, i[:1], 1)": X[:, 1:2], "ops.one_hot(i[:2], 4).shape": (2, 4), "ops.zeros((2, 2), be)": np.zeros((2, 2), np.float32),
    "ops.zeros_like(x)": np.zeros_like(X), "ops.ones_like(i)": np.ones(3, np.int32), "ops.full((2,), 7.0, be)": np.full(2, 7, np.float32),
    "ops.arange(3, backend=be)": np.arange(3, dtype=np.int32), "ops.arange(1, 6, 2, backend=be)": np.arange(1, 6, 2, dtype=np.int32),
    "ops.logical_and(x > 1, x < 4)": (X > 1) & (X < 4), "(x > 1) & (x < 4)": (X > 1) & (X < 4), "(x > 1) & False": X < 0, "True | (x > 1)": X >= 0, "(x < 1) | (x > 4)": (X < 1) | (X > 4), "~(x > 1)": X <= 1,
    "ops.where(x > 2, x, 0.0)": np.where(X > 2, X, 0), "ops.maximum(x, 2.0)": np.maximum(X, 2), "abs(-x)": X, "+x": X, "x.tolist()": X.tolist(),
    "f'{s:.3f}'": "2.000", "'{:.1f}'.format(s)": "2.0", "round(s, 1)": 2.0, "x.astype(np.float32) is x": True, "x.astype(bool).tolist()[0][0]": False,
    "duoln.tensor([1, 2], be, np.float32).dtype": "float32", "ops.concat([x, x], 1)": np.concatenate([X, X], 1), "ops.stack([x, x], -1)": np.stack([X, X], -1),
    # NumPy's functions give NumPy values
    "np.mean(x).item()": 2.5, "np.sum(x, axis=0)": X.sum(0), "np.max(x).item()": 5.0, "np.concatenate([x, x])": np.concatenate([X, X]),
    "np.stack((x, x)).shape": (2, 2, 3), "np.isclose(x, X).all().item()": True, "np.argmax(x, axis=1)": X.argmax(1), "np.shape(x)": (2, 3),
    # Layers, optimizers
    "repr(nn.Linear(2, 3))": "Linear(n_in=2, n_out=3)", "repr(nn.LSTM(8, 16))": "LSTM(n_in=8, n_hidden=16)",
    "repr(nn.Sequential(nn.Linear(2, 3), ops.tanh))": "Sequential(\n  (0): Linear(n_in=2, n_out=3)\n  (1): tanh\n)",
    "sorted(nn.Linear(2, 3).init(0))": ["bias", "weight"], "'gain_h' in nn.LSTM(8, 16).init(0)['forward0']": False,
    "optim.SGD(0.1).update({'w': x}, {'w': x}, optim.SGD(0.1).init({'w': x}), 0.5)[0]['w']": X / 2, "ops.softmax_cross_entropy(x, i[:2], ignore_index=2).shape": (2,),
    # Copies
    "copy.copy(x)": X, "copy.deepcopy({'w': [x]})['w'][0]": X, "copy.deepcopy(nn.Linear(2, 3)).init(Stream(0, 'a'))['weight'].shape": (2, 3),
}


@pytest.mark.parametrize("line", LINES)
def test_a_line_gives_what_one_expects(line, be):
    names = {"x": duoln.tensor(X, be), "v": duoln.tensor([1.0, 2.0, 3.0], be), "i": duoln.tensor([1, 2, 3], be), "s": duoln.tensor(2.0, be),
             "be": be, "np": np, "ops": ops, "nn": nn, "optim": optim, "X": X, "duoln": duoln, "copy": copy, "Stream": Stream}
    result, expected = eval(line, names), LINES[line]
    if isinstance(result, Tensor):
        assert result.dtype == (expected.dtype.name if isinstance(expected, np.ndarray) else "float32")
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-6)
    elif isinstance(expected, np.ndarray):
        assert result.dtype == expected.dtype
        np.testing.assert_array_equal(result, expected)
    else:
        assert result == expected and isinstance(result, type(expected) | np.float32 | np.bool_)


def test_a_repr_is_cut_like_numpys_and_reads_nothing_in_a_compiled_step(be):
    assert "..." in repr(duoln.tensor(np.zeros(5000, np.float32), be))
    seen = []

    def step(x):
        seen.append(repr(x))
        return x * 1.0

    duoln.compile(step)(duoln.tensor([1.0], be))
    assert "shape=(1,), dtype=float32" in seen[0] and "1." not in seen[0]
