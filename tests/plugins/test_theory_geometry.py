"""The Fisher information against its definition, the paper's statements, and the metric along the magnitude of the weights."""

import itertools

import numpy as np
import pytest

from duoln.plugins.theory import geometry, magnitude, report
from duoln.plugins.theory.geometry import FAMILIES, LOGISTIC, NORMS, exact, random_glm


def _natural(model, vector):
    """The natural parameters of a parameter vector, complex numbers allowed."""
    parts = vector.reshape(model.outputs, model.width)
    weight, bias = parts[:, :model.inputs].T, parts[:, model.inputs]
    summed = model.x @ weight
    if model.norm == "none":
        return summed + bias
    gain = parts[:, -1]
    if model.norm == "weight":
        return gain * summed / np.sqrt((weight * weight).sum(0)) + bias
    axis = 0 if model.norm == "batch" else 1
    centred = summed - summed.mean(axis, keepdims=True)
    return gain * centred / np.sqrt((centred * centred).mean(axis, keepdims=True)) + bias


def _vector(model):
    gain = [] if model.norm == "none" else [model.gain[:, None]]
    return np.concatenate([model.weight.T, model.bias[:, None], *gain], axis=1).ravel()


def _jacobian(model):
    start = _vector(model)
    return np.stack([_natural(model, start + 1e-30j * unit).imag / 1e-30 for unit in np.eye(len(start))], axis=-1)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("cases", "inputs", "outputs"), [(7, 4, 3), (12, 1, 4), (30, 5, 3)])
def test_the_jacobian_of_the_tape_is_that_of_complex_steps(norm, cases, inputs, outputs, numpy_backend):
    model = random_glm(norm, 1, cases, inputs, outputs)
    np.testing.assert_allclose(geometry.predictor(model, numpy_backend), _natural(model, _vector(model)), rtol=1e-12)
    expected = _jacobian(model)
    np.testing.assert_allclose(geometry.jacobian(model, numpy_backend), expected, rtol=1e-9, atol=1e-10 * np.abs(expected).max())


@pytest.mark.parametrize("norm", NORMS)
def test_the_exact_fisher_is_the_expectation_over_all_labels(norm, numpy_backend):
    model = random_glm(norm, 2, 9)
    rows, natural = _jacobian(model), _natural(model, _vector(model))
    p = 1 / (1 + np.exp(-natural))
    total = 0.0
    for labels in itertools.product((0, 1), repeat=3):
        chance = np.prod(np.where(labels, p, 1 - p), axis=1)
        score = np.einsum("nk,nkp->np", np.array(labels) - p, rows)
        total = total + np.einsum("n,np,nq->pq", chance, score, score) / len(p)
    np.testing.assert_allclose(exact(model, numpy_backend).fisher(LOGISTIC), total, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("norm", NORMS)
def test_the_papers_vectors_are_the_derivatives_by_an_outputs_own_parameters(norm):
    model = random_glm(norm, 3, 11)
    rows = _jacobian(model).reshape(11, model.outputs, model.outputs, model.width)
    own = rows[:, np.arange(3), np.arange(3)]
    np.testing.assert_allclose(geometry.paper_vectors(model), own, rtol=1e-8, atol=1e-9)


def test_families_are_what_their_names_say():
    s, t = np.array([[-3.0, 0.0, 1.5]]), np.array([[-2.0, 0.4, 1.0]])
    p, q = 1 / (1 + np.exp(-s)), 1 / (1 + np.exp(-t))
    divergences = {"logistic": p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q)), "gaussian": (s - t)**2 / (2 * 0.5),
                   "poisson": np.exp(s) * (s - t) - np.exp(s) + np.exp(t)}
    for name, family in FAMILIES.items():
        np.testing.assert_allclose(geometry.divergence(family, s, t), divergences[name].sum(), rtol=1e-12)
        np.testing.assert_allclose(family.log_partition(s + 1e-6) - family.log_partition(s - 1e-6), 2e-6 * family.mean(s), rtol=1e-6)
        np.testing.assert_allclose(family.mean(s + 1e-6) - family.mean(s - 1e-6), 2e-6 * family.slope(s), rtol=1e-6)
    deviation = np.sqrt(p * (1 - p))
    both = geometry.covariance(LOGISTIC, s, 0.5)[0]
    np.testing.assert_allclose(np.diag(both), (p * (1 - p))[0])
    np.testing.assert_allclose(both[0, 1], 0.5 * deviation[0, 0] * deviation[0, 1])


# Statements ---------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("seed", "cases"), [(0, 100), *(pytest.param(seed, 40, marks=pytest.mark.long) for seed in (1, 2, 3))])
def test_every_statement_is_as_it_is_known_to_be(seed, cases, numpy_backend, monkeypatch):
    monkeypatch.setattr(geometry, "CASES", cases)
    measured = geometry.measure(numpy_backend, seed)
    assert measured.agrees and len(measured.content["statements"]) == 23
    assert {(s["where"], s["holds"]) for s in measured.content["statements"]} >= {
        ("eq. 13", False), ("eq. 13", True), ("eq. 32", False), ("eq. 35", False)}


@pytest.mark.parametrize(("name", "wrong", "wheres"), [
    ("paper_fisher", lambda paper: 1.001 * paper, {"eq. 12", "eq. 13"}), ("magnitudes", lambda along: 1.001 * along, {"eq. 35"}),
    ("normalised", lambda parts: (1.001 * parts[0], *parts[1:]), {"eq. 13", "instead", "eq. 33", "eq. 34"}),
    ("divergence", lambda nats: nats + 1e-9, {"eq. 8"}), ("layer_norm_jacobian", lambda rows: rows + 1e-6, {"instead"}),
    ("descend", lambda ends: (0.1, ends[1]), {"5.2.2"}), ("descend", lambda ends: (ends[0], float("nan")), {"5.2.2"})])
def test_a_wrong_measurement_is_told(name, wrong, wheres, numpy_backend, monkeypatch):
    monkeypatch.setattr(geometry, "CASES", 20)
    right = getattr(geometry, name)
    monkeypatch.setattr(geometry, name, lambda *args: wrong(right(*args)))
    assert {s["where"] for s in geometry.measure(numpy_backend).content["statements"] if not s["agrees"]} == wheres


def test_a_nan_is_the_greatest():
    assert np.isnan(report.most([1.0, float("nan"), 0.5]))


def test_the_plain_models_gradient_is_along_its_weights_too(numpy_backend):
    along, squares = geometry.descend(random_glm("none", 0, 60), 0, numpy_backend)
    assert along > 0.1 and squares > 0.1


# Magnitude ----------------------------------------------------------------------------------------------------

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
    model = exact(random_glm(norm, 1, 40), numpy_backend)
    np.testing.assert_allclose(magnitude.metric(model, "gaussian"), _closed(model.glm), rtol=1e-9)


def test_scales_shifts_and_sure_predictions(numpy_backend, monkeypatch):
    """Batch and layer norm see no scale, batch norm no shift, and the plain model alone is surer with longer weights."""
    monkeypatch.setattr(magnitude, "CASES", 60)
    measured = magnitude.measure(numpy_backend, seed=3)
    by = {(e["change"], e["family"], e["norm"]): e for e in measured.content["effects"]}
    for norm in NORMS:
        sees_nothing = norm in ("batch", "layer")
        for change, ratio in (("inputs x 4", 16), ("inputs x 0.25", 1 / 16), ("weights x 4", 1)):
            effect = by[change, "gaussian", norm]
            np.testing.assert_allclose([effect[key] for key in ("ratio", "least", "greatest")], 1 if sees_nothing else ratio, rtol=1e-9)
        effect = by["inputs + 3", "gaussian", norm]
        assert (max(abs(effect["least"] - 1), abs(effect["greatest"] - 1)) < 1e-9) == (norm == "batch")
        assert by["weights x 4", "logistic", norm]["ratio"] == pytest.approx(1) if norm != "none" else by["weights x 4", "logistic", norm]["ratio"] < 0.5
    assert measured.agrees


@pytest.mark.parametrize(("norm", "change", "agrees"), [("layer", "inputs x 4", False), ("layer", "inputs + 3", True), ("none", "inputs x 4", True)])
def test_a_model_that_sees_the_scale_is_told(norm, change, agrees):
    assert magnitude.Effect(change, "gaussian", norm, 1.01, 1.01, 1.01).agrees is agrees
