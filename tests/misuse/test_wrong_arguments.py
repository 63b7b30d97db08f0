"""Arguments that do not fit a public function, method or constructor: the error names them and shows the form of the call."""

import inspect
import pydoc

import numpy as np
import pytest

import duoln
import duoln.tasks
from duoln import nn, ops, optim, testing
from duoln.data import Batches
from duoln.errors import CallError
from duoln.testing import check_error

X = duoln.tensor(np.ones((3, 4), np.float32), "numpy")
ADAM = optim.Adam(1e-3)
FUNCTIONS = [(module.__name__, name, getattr(module, name)) for module in (duoln, duoln.data, duoln.tasks, ops, nn, nn.init, optim, testing)
             for name in sorted(getattr(module, "__all__", None) or dir(module))
             if not name.startswith("_") and inspect.isroutine(getattr(module, name))
             and getattr(module, name).__module__.startswith(module.__name__) and name != "hookspec"]

ROWS = {"x": np.ones((6, 2), np.float32)}


def _double(x):
    return 2 * x


class Own(nn.Module):
    def __init__(self, width, activation=ops.relu, scale=_double):
        self.width = width


HINTS = {
    "x.sum(dim=0)": (lambda: X.sum(dim=0), "Tensor.sum() got an unexpected keyword argument 'dim'; did you mean 'axis'?"),
    "x.mean(keepdim=True)": (lambda: X.mean(keepdim=True), "did you mean 'keepdims'?"),
    "ops.softmax(x, dim=1)": (lambda: ops.softmax(X, dim=1), "softmax() got", "did you mean 'axis'?"),
    "ops.mean(x, dim=1)": (lambda: ops.mean(X, dim=1), "mean() got", "did you mean 'axis'?"),
    "tensor(requires_grad=True)": (lambda: duoln.tensor([1.0], requires_grad=True), "'requires_grad'; in duoln: "),
    "Linear(in_features=3)": (lambda: nn.Linear(in_features=3, out_features=4), "did you mean 'n_in'?"),
    "Adam(lr=1e-3)": (lambda: optim.Adam(lr=1e-3), "Adam() got an unexpected keyword argument 'lr'; did you mean 'learning_rate'?"),
    "Own(widht=3)": (lambda: Own(widht=3), "did you mean 'width'?"),
    "Batches(shuffle=True)": (lambda: Batches(ROWS, 2, 0, shuffle=True), "'shuffle'", "a new random order each epoch"),
}
"""Calls whose unknown argument is one of PyTorch's, or nearly one of ours: Python's error, which ends with our name for it."""


@pytest.mark.parametrize("name", HINTS)
def test_an_unknown_argument(name):
    call, *words = HINTS[name]
    check_error(TypeError, call, *words)


LINES = {
    "Tensor([1.0])": (lambda: duoln.Tensor([1.0]), "[Tensor]", "duoln.tensor(x) makes a tensor"),
    "value_and_grad(loss)()": (lambda: duoln.value_and_grad(ops.sum)(), "[value_and_grad] expected argument 0 of sum, for its gradient",
                               "found 0 arguments by position and none by name"),
    "for batch in batches": (lambda: list(Batches(ROWS, 2, 0)), "[Batches] expected a call, batches(step)", "found iteration"),
    "len(batches)": (lambda: len(Batches(ROWS, 2, 0)), "[Batches]", "found len(batches)", "steps_per_epoch"),
    "batches[0]": (lambda: Batches(ROWS, 2, 0)[0], "[Batches] expected a call, batches(step)", "found batches[...]"),
}


@pytest.mark.parametrize("name", LINES)
def test_line(name):
    call, *words = LINES[name]
    check_error(CallError, call, *words)


def test_errors_inside_a_function_stay_what_they_are():
    def loss(params):
        return len(3)

    with pytest.raises(TypeError, match="has no len") as caught:
        duoln.value_and_grad(loss)({"w": X})
    assert type(caught.value) is TypeError


def test_batches_are_still_true():
    assert Batches(ROWS, 2, 0)


@pytest.mark.parametrize("place", range(len(FUNCTIONS)), ids=lambda k: f"{FUNCTIONS[k][0]}.{FUNCTIONS[k][1]}")
def test_no_address_of_memory_is_in_a_signature(place):
    assert " at 0x" not in str(inspect.signature(FUNCTIONS[place][2]))


@pytest.mark.parametrize("layer", [getattr(nn, name) for name in nn.__all__ if inspect.isclass(getattr(nn, name))])
def test_no_address_of_memory_is_in_the_help_of_a_layer(layer):
    assert " at 0x" not in pydoc.plain(pydoc.render_doc(layer))
