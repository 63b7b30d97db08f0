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


LINES = {
    "x.sum(dim=0)": (lambda: X.sum(dim=0), "[Tensor.sum]", "'dim'", "did you mean 'axis'?"),
    "x.mean(keepdim=True)": (lambda: X.mean(keepdim=True), "[Tensor.mean]", "did you mean 'keepdims'?"),
    "x.astype()": (lambda: X.astype(), "[Tensor.astype]", "expected dtype too"),
    "x.item(3)": (lambda: X.item(3), "[Tensor.item] expected at most 0 arguments by position, found 1"),
    "Tensor([1.0])": (lambda: duoln.Tensor([1.0]), "[Tensor]", "duoln.tensor(x) makes a tensor"),
    "tensor()": (lambda: duoln.tensor(), "[tensor] expected x too, found none"),
    "value_and_grad(f, argnum=0)": (lambda: duoln.value_and_grad(len, argnum=0), "[value_and_grad]", "'argnum'"),
    "optimizer.update()": (lambda: ADAM.update(), "[Adam.update] expected params, gradients, slots and rate too"),
    "optimizer.init()": (lambda: ADAM.init(), "[Adam.init] expected params too"),
    "Adam(eps=1e-8)": (lambda: optim.Adam(eps=1e-8), "[Adam] expected learning_rate too, found only eps"),
    "Adam(8 values)": (lambda: optim.Adam(1e-3, None, True, 0.9, 0.9, 1e-8, "standard", 8), "[Adam] expected at most 7"),
    "model()": (lambda: nn.Linear(3, 4)(), "[Linear] expected params too"),
    "model.init(seed=1)": (lambda: nn.Linear(3, 4).init(seed=1), "[Linear.init]", "'seed'"),
    "ops.mean()": (lambda: ops.mean(), "[mean] expected x too"),
    "ops.sum(x, 0, True)": (lambda: ops.sum(X, 0, True), "write keepdims=True: keepdims goes by name"),
    "value_and_grad(loss)()": (lambda: duoln.value_and_grad(ops.sum)(), "[value_and_grad] expected argument 0 of sum, for its gradient",
                               "found 0 arguments by position and none by name"),
    "Linear(3)": (lambda: nn.Linear(3), "it is Linear(n_in, n_out, bias=True, weight_init=glorot, activation=None)"),
    "Embedding(3)": (lambda: nn.Embedding(3), "padding_idx=None, *, table_init=uniform(0.1))"),
    "Own()": (lambda: Own(), "[Own] expected width too", "activation=relu, scale=_double)"),
    "Batches(arrays, 2)": (lambda: Batches(ROWS, 2), "[Batches] expected seed too, found only arrays and batch_size"),
    "Batches(shuffle=True)": (lambda: Batches(ROWS, 2, 0, shuffle=True), "[Batches]", "'shuffle'", "a new random order each epoch"),
    "batches()": (lambda: Batches(ROWS, 2, 0)(), "[Batches] expected step too"),
    "for batch in batches": (lambda: list(Batches(ROWS, 2, 0)), "[Batches] expected a call, batches(step)", "found iteration"),
    "len(batches)": (lambda: len(Batches(ROWS, 2, 0)), "[Batches]", "found len(batches)", "steps_per_epoch"),
    "batches[0]": (lambda: Batches(ROWS, 2, 0)[0], "[Batches] expected a call, batches(step)", "found batches[...]"),
}


@pytest.mark.parametrize("name", LINES)
def test_line(name):
    call, *words = LINES[name]
    check_error(CallError, call, *words)


@pytest.mark.parametrize("place", range(len(FUNCTIONS)), ids=lambda k: f"{FUNCTIONS[k][0]}.{FUNCTIONS[k][1]}")
def test_an_unknown_keyword_is_named(place):
    _, name, function = FUNCTIONS[place]
    if any(p.kind is p.VAR_KEYWORD for p in inspect.signature(function).parameters.values()):
        pytest.skip("it takes any keyword")
    check_error(CallError, lambda: function(of_no_signature=1), f"[{name}]", "'of_no_signature'")


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
