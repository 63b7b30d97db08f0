"""The Fisher information against its definition, with derivatives by complex steps, and the paper's statements."""

import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from duoln.errors import BackendError, UsageError
from duoln.plugins.theory import fisher, geometry, glm, growth
from duoln.plugins.theory.glm import FAMILIES, NORMS, random_glm
from duoln.plugins.theory.statements import statements


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
    np.testing.assert_allclose(glm.predictor(model, numpy_backend), _natural(model, _vector(model)), rtol=1e-12)
    exact = _jacobian(model)
    np.testing.assert_allclose(glm.jacobian(model, numpy_backend), exact, rtol=1e-9, atol=1e-10 * np.abs(exact).max())


@pytest.mark.parametrize("norm", NORMS)
def test_the_exact_fisher_is_the_expectation_over_all_labels(norm, numpy_backend):
    model, family = random_glm(norm, 2, 9), FAMILIES["logistic"]
    rows, natural = _jacobian(model), _natural(model, _vector(model))
    p = 1 / (1 + np.exp(-natural))
    total = 0.0
    for labels in itertools.product((0, 1), repeat=3):
        chance = np.prod(np.where(labels, p, 1 - p), axis=1)
        score = np.einsum("nk,nkp->np", np.array(labels) - p, rows)
        total = total + np.einsum("n,np,nq->pq", chance, score, score) / len(p)
    exact = fisher.fisher(glm.jacobian(model, numpy_backend), fisher.covariance(family, natural), family.dispersion)
    np.testing.assert_allclose(exact, total, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("norm", NORMS)
def test_the_papers_vectors_are_the_derivatives_by_an_outputs_own_parameters(norm):
    model = random_glm(norm, 3, 11)
    rows = _jacobian(model).reshape(11, model.outputs, model.outputs, model.width)
    own = rows[:, np.arange(3), np.arange(3)]
    np.testing.assert_allclose(fisher.paper_vectors(model), own, rtol=1e-8, atol=1e-9)


def test_batch_and_weight_norm_couple_no_outputs_and_layer_norm_does():
    for norm in ("batch", "weight", "layer"):
        rows = _jacobian(random_glm(norm, 3, 11)).reshape(11, 3, 3, 6)
        assert (np.abs(rows[:, 0, 1]).max() > 0.01) == (norm == "layer")


def test_layer_norms_jacobian_in_closed_form():
    model = random_glm("layer", 4, 13, 5, 6)
    np.testing.assert_allclose(fisher.layer_norm_jacobian(model), _jacobian(model), rtol=1e-9, atol=1e-10)


def test_families_are_what_their_names_say():
    s, t = np.array([[-3.0, 0.0, 1.5]]), np.array([[-2.0, 0.4, 1.0]])
    p, q = 1 / (1 + np.exp(-s)), 1 / (1 + np.exp(-t))
    divergences = {"logistic": p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q)), "gaussian": (s - t)**2 / (2 * 0.5),
                   "poisson": np.exp(s) * (s - t) - np.exp(s) + np.exp(t)}
    for name, family in FAMILIES.items():
        np.testing.assert_allclose(fisher.divergence(family, s, t), divergences[name].sum(), rtol=1e-12)
        np.testing.assert_allclose(family.log_partition(s + 1e-6) - family.log_partition(s - 1e-6), 2e-6 * family.mean(s), rtol=1e-6)
        np.testing.assert_allclose(family.mean(s + 1e-6) - family.mean(s - 1e-6), 2e-6 * family.slope(s), rtol=1e-6)
    deviation = np.sqrt(p * (1 - p))
    both = fisher.covariance(FAMILIES["logistic"], s, 0.5)[0]
    np.testing.assert_allclose(np.diag(both), (p * (1 - p))[0])
    np.testing.assert_allclose(both[0, 1], 0.5 * deviation[0, 0] * deviation[0, 1])


@pytest.fixture(scope="module")
def measured():
    from duoln import runtime

    return geometry.examine(runtime.backend("numpy"), cases=200)


@pytest.mark.long
def test_what_is_exact_and_what_is_not(measured):
    layer = [b for b in measured.blocks if b.norm == "layer"]
    others = [b for b in measured.blocks if b.norm != "layer"]
    assert max(max(b.weights, b.weights_largest, b.cross, b.others) for b in others) < 1e-9
    assert all(0.5 < b.weights < 0.9 and 0.4 < b.weights_largest < 0.9 and b.cross > 0.01 and b.others < 1e-9 for b in layer)
    assert measured.shared < 1e-9


def test_every_statement_is_as_it_is_known_to_be(measured):
    checked = statements(measured)
    assert len(checked) == 23 and all(s.agrees for s in checked)
    assert {(s.where, s.holds) for s in checked} >= {("eq. 13", False), ("eq. 13", True), ("eq. 32", False), ("eq. 35", False)}


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_whatever_the_seed(seed, numpy_backend):
    assert all(s.agrees for s in statements(geometry.examine(numpy_backend, seed, 40)))


def test_a_wrong_measurement_is_told(measured):
    def change(kind, key, value):
        rows = [dataclasses.replace(row, **{key: value}) for row in getattr(measured, kind)]
        return [s.where for s in statements(dataclasses.replace(measured, **{kind: rows})) if not s.agrees]

    assert set(change("blocks", "weights", 1e-6)) == {"eq. 12", "eq. 13"}
    assert change("doubled", "own", 0.5) == ["5.2.2", "instead", "instead"]
    assert set(change("gains", "error", 1e-6)) == {"eq. 32", "eq. 33", "eq. 34"}
    assert change("descents", "along", 0.1) == ["5.2.2"]
    last = dataclasses.replace(measured.blocks[-1], weights=float("nan"))
    assert "eq. 13" in [s.where for s in statements(dataclasses.replace(measured, blocks=[*measured.blocks[:-1], last])) if not s.agrees]


def test_longer_weights_learn_less(measured, numpy_backend):
    assert measured.same_update and {d.norm for d in measured.descents} == {"none", *geometry.NORMALISED}
    for update in measured.same_update:
        for norm in geometry.NORMALISED:
            assert update.divergence[norm] == pytest.approx(update.scale**-2, rel=0.02)
    for descent in measured.descents:
        lengths = [length for _, length, _ in descent.points]
        if descent.norm == "none":
            assert descent.along > 0.1 and descent.squares > 0.1
        else:
            assert lengths == sorted(lengths) and lengths[-1] > 1.2 * lengths[0]
            assert descent.points[-1][2] == pytest.approx(growth.RATE / lengths[-1]**2)


def test_geometry_wants_float64_and_some_cases(numpy_backend):
    with pytest.raises(BackendError, match="float64"):
        geometry.examine(SimpleNamespace(name="small", device="a toy", dtypes=("float32",)))
    with pytest.raises(UsageError, match="10 cases, found 9"):
        geometry.examine(numpy_backend, cases=9)
