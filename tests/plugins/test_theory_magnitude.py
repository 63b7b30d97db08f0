"""The metric along the magnitude of incoming weights, against closed forms in plain NumPy."""

from types import SimpleNamespace

import numpy as np
import pytest

from duoln import runtime
from duoln.errors import BackendError, UsageError
from duoln.plugins.theory import magnitude
from duoln.plugins.theory.glm import NORMS, random_glm
from duoln.testing import check_error


@pytest.fixture(scope="module")
def measured():
    return magnitude.measure(runtime.backend("numpy"), seed=3, cases=60, scale=4.0, shift=3.0)


def _closed(model):
    """E[u^2] / phi of Gaussian outputs, whose variance is the dispersion phi = 0.5 everywhere."""
    summed = model.x @ model.weight
    if model.norm in ("none", "weight"):
        unit = summed / np.sqrt((model.weight**2).sum(0))
    else:
        axis = 0 if model.norm == "batch" else 1
        unit = (summed - summed.mean(axis, keepdims=True)) / summed.std(axis, keepdims=True)
    return (unit**2).mean(0) / 0.5


@pytest.mark.parametrize("norm", NORMS)
def test_the_metric_of_gaussian_outputs_in_closed_form(norm, numpy_backend):
    model = random_glm(norm, 1, 40)
    np.testing.assert_allclose(magnitude.metric(model, "gaussian", numpy_backend), _closed(model), rtol=1e-9)
    np.testing.assert_allclose(magnitude.by_formula(model, "gaussian", numpy_backend), _closed(model), rtol=1e-12)


def test_batch_norms_is_one_constant_and_layer_norms_sums_to_one(numpy_backend):
    """The mean of u^2 is 1 over the cases in batch norm, and over the outputs in layer norm."""
    np.testing.assert_allclose(magnitude.metric(random_glm("batch", 1, 40), "gaussian", numpy_backend), 2.0, rtol=1e-9)
    layer = magnitude.metric(random_glm("layer", 1, 40), "gaussian", numpy_backend)
    assert layer.sum() == pytest.approx(3 * 2.0, rel=1e-9) and np.ptp(layer) > 0.1


@pytest.mark.long
@pytest.mark.parametrize(("change", "ratio"), [("inputs x 4", 16), ("inputs x 0.25", 1 / 16), ("weights x 4", 1)])
def test_a_scale_of_the_inputs_is_squared_in_plain_models_and_weight_norm(change, ratio, measured):
    for norm in NORMS:
        effect = measured.of(change, "gaussian", norm)
        expected = 1 if norm in magnitude.ROBUST else ratio
        np.testing.assert_allclose([effect.ratio, effect.least, effect.greatest], expected, rtol=1e-9)


def test_of_a_shift_batch_norm_alone_sees_nothing(measured):
    for norm in NORMS:
        effect = measured.of("inputs + 3", "gaussian", norm)
        assert (max(abs(effect.least - 1), abs(effect.greatest - 1)) < 1e-9) == (norm == "batch")


def test_predictions_decide_with_logistic_outputs(measured):
    """The variance of a sure prediction is small: weight norm does not see longer weights, the plain model does."""
    ratios = {norm: measured.of("weights x 4", "logistic", norm).ratio for norm in NORMS}
    assert ratios["none"] < 0.5 and all(ratios[norm] == pytest.approx(1) for norm in ("batch", "weight", "layer"))
    assert all(effect.error < 1e-9 for effect in measured.effects) and measured.holds


def test_a_model_that_sees_the_scale_is_told(measured):
    [first] = [k for k, e in enumerate(measured.effects) if (e.change, e.family, e.norm) == ("inputs x 4", "gaussian", "layer")]
    wrong = [e._replace(ratio=1.01) if k == first else e for k, e in enumerate(measured.effects)]
    assert not measured._replace(effects=wrong).holds
    assert not measured._replace(effects=[measured.effects[0]._replace(error=0.1)]).holds


def test_what_cannot_be_measured(numpy_backend):
    for settings, word in (({"cases": 9}, "10 cases"), ({"scale": 1.0}, "scale"), ({"scale": -2.0}, "scale"),
                           ({"shift": 0.0}, "shift"), ({"scale": np.inf}, "scale")):
        check_error(UsageError, lambda s=settings: magnitude.measure(numpy_backend, **s), word)
    single = SimpleNamespace(name="single", device="nowhere", dtypes=("float32",))
    check_error(BackendError, lambda: magnitude.measure(single), "float64", "single")
