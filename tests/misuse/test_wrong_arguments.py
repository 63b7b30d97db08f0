"""Arguments that do not fit a public function, method or constructor: the error names them and shows the form of the call."""

import inspect

import numpy as np
import pytest

import duoln
from duoln import nn, ops, optim, testing
from duoln.errors import CallError
from duoln.testing import check_error

X = duoln.tensor(np.ones((3, 4), np.float32), "numpy")
ADAM = optim.Adam(1e-3)
FUNCTIONS = [(module.__name__, name, getattr(module, name)) for module in (duoln, ops, nn, nn.init, optim, testing)
             for name in sorted(getattr(module, "__all__", None) or dir(module))
             if not name.startswith("_") and inspect.isroutine(getattr(module, name))
             and getattr(module, name).__module__.startswith(module.__name__)]

LINES = {
    "x.sum(dim=0)": (lambda: X.sum(dim=0), "[Tensor.sum]", "'dim'", "did you mean 'axis'?"),
    "x.mean(keepdim=True)": (lambda: X.mean(keepdim=True), "[Tensor.mean]", "did you mean 'keepdims'?"),
    "x.astype()": (lambda: X.astype(), "[Tensor.astype]", "expected dtype too"),
    "x.item(3)": (lambda: X.item(3), "[Tensor.item] expected at most 0 arguments by position, found 1"),
    "Tensor([1.0])": (lambda: duoln.Tensor([1.0]), "[Tensor]", "duoln.tensor(x) makes a tensor"),
    "tensor()": (lambda: duoln.tensor(), "[tensor] expected x too, found only none"),
    "value_and_grad(f, argnums=0)": (lambda: duoln.value_and_grad(len, argnums=0), "[value_and_grad]", "'argnums'"),
    "optimizer.update()": (lambda: ADAM.update(), "[Adam.update] expected params, gradients, slots and rate too"),
    "optimizer.init()": (lambda: ADAM.init(), "[Adam.init] expected params too"),
    "Adam(eps=1e-8)": (lambda: optim.Adam(eps=1e-8), "[Adam] expected learning_rate too, found only eps"),
    "Adam(8 values)": (lambda: optim.Adam(1e-3, None, True, 0.9, 0.9, 1e-8, "standard", 8), "[Adam] expected at most 7"),
    "model()": (lambda: nn.Linear(3, 4)(), "[Linear] expected params too"),
    "model.init(seed=1)": (lambda: nn.Linear(3, 4).init(seed=1), "[Linear.init]", "'seed'"),
    "ops.mean()": (lambda: ops.mean(), "[mean] expected x too"),
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
