"""Units at the border of an image."""

import numpy as np

from duoln import runtime
from duoln.errors import UsageError
from duoln.plugins.convnet.task import ConvNetTask
from duoln.plugins.mnist.task import Mnist
from duoln.plugins.theory import borders
from duoln.plugins.theory.trained import Training
from duoln.testing import check_error


def _measure(task, variants=("none", "wn"), updates=2, seeds=(0,)):
    return borders.measure(Training(task, variants, "smoke", {}, runtime.backend("numpy"), seeds, updates, 1))


def test_rates_are_of_the_outermost_row_and_column_and_of_the_rest():
    on = np.zeros((2, 4, 3, 1), bool)
    on[0, 0, :, 0] = on[1, 1, 1, 0] = True
    assert borders.rates_of(on) == (3 / (2 * 10), 1 / (2 * 2))
    border, inside = borders.rates_of(np.ones((2, 2, 2, 3), bool))
    assert border == 1 and np.isnan(inside)


def test_every_layer_with_a_convolution_has_rates_of_each_variant_and_seed():
    measured = _measure(ConvNetTask(), seeds=(0, 1))
    layers = [f"{stage}.block{k}" for stage in ("first", "second", "third") for k in (1, 2, 3)]
    assert [(r.variant, r.seed, r.layer) for r in measured.rates] == [(v, s, layer) for v in ("none", "wn") for s in (0, 1) for layer in layers]
    assert all(0 < r.border < 1 and 0 < r.inside < 1 for r in measured.rates) and measured.task == "convnet"


def test_a_task_without_convolutions_is_refused():
    check_error(UsageError, lambda: _measure(Mnist(), ["none"]), "[borders]", "convolutions", "mnist")
