"""gradcheck finds wrong gradients, also small ones and those of one argument among many."""

import numpy as np
import pytest

import duoln
from duoln import nn, ops
from duoln.core import Rule, op
from duoln.errors import DtypeError, GradientError
from duoln.testing import check_error


def _cube(scale):
    """x^3 with a gradient that is off by a factor."""
    @op
    def cube(x):
        return cube.apply(x)

    cube.add(Rule("composed", lambda be, x: (x * x * x, x), lambda be, x, g, needs: (scale * 3 * g * x * x,)))
    return cube


def _x(numpy_backend, rng, shape=(3, 4)):
    return duoln.tensor(rng.standard_normal(shape), numpy_backend)


def test_a_right_gradient_passes(numpy_backend, rng):
    assert duoln.testing.gradcheck(_cube(1.0), _x(numpy_backend, rng)) < 1e-7


@pytest.mark.parametrize("scale", [0.0, 0.5, -1.0, 1.0 + 1e-5])
def test_a_wrong_gradient_fails(numpy_backend, rng, scale):
    check_error(GradientError, lambda: duoln.testing.gradcheck(_cube(scale), _x(numpy_backend, rng)), "argument 0", "(3, 4)")


def test_the_wrong_argument_is_named(numpy_backend, rng):
    wrong = _cube(0.9)
    a, b = _x(numpy_backend, rng), _x(numpy_backend, rng)
    check_error(GradientError, lambda: duoln.testing.gradcheck(lambda x, y: ops.tanh(x) * wrong(y), a, b), "argument 1")


def test_only_float64_is_judged(numpy_backend, rng):
    x = duoln.tensor(rng.standard_normal(3).astype(np.float32), numpy_backend)
    check_error(DtypeError, lambda: duoln.testing.gradcheck(ops.tanh, x), "float32")
    check_error(DtypeError, lambda: duoln.testing.gradcheck(lambda: None), "no float tensor")


def test_empty_arguments_pass(numpy_backend, rng):
    assert duoln.testing.gradcheck(ops.tanh, _x(numpy_backend, rng, (0, 3))) == 0.0


def test_a_constant_function_passes(numpy_backend, rng):
    assert duoln.testing.gradcheck(ops.sign, _x(numpy_backend, rng)) == 0.0


def test_a_tree_of_parameters(numpy_backend, rng):
    model = nn.Sequential(hidden=nn.Linear(3, 4), drop=nn.Dropout(0.5), out=nn.Linear(4, 2))
    params, x = duoln.to_tensors(model.init(0), numpy_backend, dtype="float64"), _x(numpy_backend, rng, (5, 3))
    assert duoln.testing.gradcheck(model, params, x) < 1e-7, "and nothing warns of masks"

    def wrong(p, x):
        return model(p, x) + duoln.stop_gradient(p["out"]["bias"])

    check_error(GradientError, lambda: duoln.testing.gradcheck(wrong, params, x), "argument 0, 'out.bias', of shape (2,)")
    check_error(GradientError, lambda: duoln.testing.gradcheck(lambda n, pair: duoln.stop_gradient(pair[1]) * pair[0], 3, [x, x]), "argument 1, '1', of shape (5, 3)")
    check_error(DtypeError, lambda: duoln.testing.gradcheck(model, duoln.to_tensors(model.init(0), numpy_backend), x), "found float32, float64")
