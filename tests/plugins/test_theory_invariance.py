"""Table 1, measured."""

import numpy as np
import pytest

from duoln import ops
from duoln.plugins.theory import invariance
from duoln.plugins.theory.invariance import NORMS, TABLE_1, TRANSFORMATIONS, table_one


@pytest.fixture(autouse=True)
def draws(monkeypatch):
    monkeypatch.setattr(invariance, "DRAWS", 4)


def _reference(norm, layer, eps):
    summed = layer.x @ layer.weight
    if norm == "weight":
        normalised = summed / np.sqrt((layer.weight**2).sum(0))
    else:
        axis = 0 if norm == "batch" else 1
        normalised = (summed - summed.mean(axis, keepdims=True)) / np.sqrt(summed.var(axis, keepdims=True) + eps)
    return np.tanh(layer.gain * normalised + layer.bias)


def test_all_cells_agree_on_every_backend(be):
    content = invariance.measure(be).content
    assert all(c["measured"] is c["expected"] for c in content["cells"]) and content["bias_inside"] > invariance.CLEAR
    assert content["dtype"] == ("float64" if be.name == "numpy" else "float32")
    assert [c["expected"] for c in content["cells"]] == [word for norm in NORMS for word in TABLE_1[norm]]


def test_the_changes_are_those_of_the_formulas(numpy_backend):
    cells = {(c.norm, c.transformation): c for c in table_one(numpy_backend, seed=3)}
    assert all(c.agrees for c in cells.values())
    for norm in NORMS:
        for name, change in TRANSFORMATIONS.items():
            changes = []
            for draw in range(4):
                before, scale, rng = invariance._draw(3, name, draw)
                a, b = (_reference(norm, layer, 1e-5) for layer in (before, change(before, scale, rng)))
                changes.append(np.linalg.norm(b - a) / np.linalg.norm(a))
            cell = cells[norm, name]
            np.testing.assert_allclose([cell.least, cell.greatest], [min(changes), max(changes)], rtol=1e-6, atol=1e-14)


def test_without_epsilon_only_rounding_is_left(numpy_backend, monkeypatch):
    monkeypatch.setattr(invariance, "EPS", 0.0)
    cells = table_one(numpy_backend)
    assert max(c.greatest for c in cells if c.expected) < 1e-14 and max(c.tolerance for c in cells) < 1e-13


def test_a_nan_is_not_passed_by(numpy_backend, monkeypatch):
    made = []

    def sometimes(*args, **kwargs):
        made.append(None)
        return ops.layer_norm(*args, **kwargs) * (float("nan") if len(made) == 4 else 1.0)

    monkeypatch.setattr(invariance, "ops", type("Ops", (), {**vars(ops), "layer_norm": staticmethod(sometimes)}))
    [wrong] = [c for c in table_one(numpy_backend) if not c.agrees]
    assert wrong.norm == "layer" and wrong.measured is None


def test_a_change_between_yes_and_no_is_neither():
    cell = invariance.Cell("layer", "any", True, 1e-4, 1e-3, 1e-5)
    assert cell.measured is None and not cell.agrees and not cell._replace(expected=False).agrees
    assert str(cell).startswith("unclear") and str(cell).endswith("the paper: yes")
