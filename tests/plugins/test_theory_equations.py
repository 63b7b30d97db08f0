"""The paper's equations, as printed, against our layers and cells."""

import pytest

from duoln import nn
from duoln.errors import BackendError
from duoln.plugins.theory import equations as module
from duoln.plugins.theory.equations import equations
from duoln.testing.references import STEPS


@pytest.mark.parametrize("seed", range(3))
def test_every_layer_and_cell_is_its_equation(seed, numpy_backend):
    checked = equations(numpy_backend, seed)
    assert [s.where for s in checked] == ["eq. 2", "eq. 3, 15", "eq. 4", "eq. 17-19", "eq. 20-22", "eq. 23-25", "eq. 26-28",
                                          "eq. 29-31"]
    assert all(s.agrees for s in checked)


@pytest.mark.parametrize(("printed", "cell", "norm"), [
    ("none", nn.LSTMCell, "layer"), ("layer-cell", nn.LSTMCell, "layer"), ("layer", nn.LSTMCell, "layer-theano"),
    ("layer", nn.GRUCell, "layer-theano"), ("layer", nn.RNNCell, "layer-theano")])
def test_another_variant_of_a_cell_is_found_out(printed, cell, norm, numpy_backend):
    made = cell(module.INPUTS, module.HIDDEN, norm, eps=0.0)
    assert module._of_cell(made, STEPS[made.cell, printed], 0, numpy_backend) > 0.01


def test_an_epsilon_is_found_out(numpy_backend):
    made = nn.LSTMCell(module.INPUTS, module.HIDDEN, "layer", eps=1e-5)
    assert module._of_cell(made, STEPS["lstm", "layer"], 0, numpy_backend) > 1e-7


def test_a_backend_without_float64_is_refused(numpy_backend):
    class Single:
        name, device, dtypes = "single", "none", ("float32",)

    with pytest.raises(BackendError, match=r"\[equations\] expected a backend with float64, found single"):
        equations(Single())
