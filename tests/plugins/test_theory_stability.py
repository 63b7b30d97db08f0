"""States and gradients over time."""

import numpy as np
import pytest

from duoln import nn
from duoln.plugins.theory import stability
from duoln.randomness import Stream


def test_a_plain_rnn_is_walked_as_its_formula_says(numpy_backend, monkeypatch):
    steps, scale = 12, 2.0
    monkeypatch.setattr(stability, "STEPS", steps)
    hidden, gradient = stability.walk(numpy_backend, "rnn", "none", "w_h", scale, 5)
    params = nn.RNNCell(stability.INPUTS, stability.HIDDEN, norm="none").init(Stream(5, "stability.init"))
    rng = Stream(5, "stability")
    x, end = rng.gaussian((steps, stability.BATCH, stability.INPUTS)), rng.gaussian((stability.BATCH, stability.HIDDEN))
    w_x, w_h = params["w_x"].astype(np.float64), scale * params["w_h"].astype(np.float64)
    h, states = np.zeros_like(end), []
    for t in range(steps):
        h = np.tanh(x[t] @ w_x + h @ w_h)
        states.append(h)
    g, gradients = end / np.linalg.norm(end, axis=1, keepdims=True), []
    for h in reversed(states):
        gradients.append(np.sqrt((g**2).sum() / len(g)))
        g = (g * (1 - h * h)) @ w_h.T
    np.testing.assert_allclose(hidden, states, rtol=1e-10)
    np.testing.assert_allclose(gradient, gradients[::-1], rtol=1e-10)


@pytest.mark.long
def test_what_does_not_see_the_scale(be, monkeypatch):
    """In few steps, so that no network magnifies rounding much."""
    for name, value in (("STEPS", 5), ("SCALES", (1.0, 4.0)), ("EPS", 1e-10), ("DRAWS", 1)):
        monkeypatch.setattr(stability, name, value)
    for walk in stability.measure(be).content["walks"]:
        stays = walk["norm"] == "layer" and (walk["cell"], walk["scaled"]) != ("rnn", "w_h")  # eq. 4 norms the sum of both sides
        if walk["scale"] != 1:
            assert walk["moved"] < 1e-3 if stays else walk["moved"] > 0.1, walk


@pytest.mark.long
def test_plain_gradients_vanish_and_explode(numpy_backend, monkeypatch):
    monkeypatch.setattr(stability, "STEPS", 40)
    content = stability.measure(numpy_backend).content
    assert all(walk["gradient"][-1] == pytest.approx(1.0) for walk in content["walks"])
    spans = {(s["cell"], s["norm"]): s["span"] for s in content["spans"] if s["seed"] == 0}
    first = [walk["gradient"][0] for walk in content["walks"] if (walk["cell"], walk["norm"], walk["scaled"]) == ("rnn", "none", "w_h")]
    assert spans["rnn", "none"] == pytest.approx(np.log10(max(first) / min(first)))
    assert all(spans[cell, "layer"] < spans[cell, "none"] / 2 for cell in ("rnn", "lstm", "gru"))


def test_an_explosion_is_a_finding_not_a_warning(numpy_backend, monkeypatch):
    for name, value in (("STEPS", 4), ("SCALES", (1.0, 1e308)), ("DRAWS", 1)):
        monkeypatch.setattr(stability, name, value)
    report = stability.measure(numpy_backend)
    assert {s["span"] for s in report.content["spans"] if s["norm"] == "none"} == {float("inf")} and "overflow" in report.summary
