"""`duoln analyze` as a user meets it, what is kept of it, and the paper's equations and text."""

import json
from types import SimpleNamespace

import pytest

from duoln import nn
from duoln.cli import main
from duoln.errors import BackendError
from duoln.plugins.las import spoken
from duoln.plugins.paper.evidence import KEPT
from duoln.plugins.theory import equations, geometry, invariance, magnitude, report, stability
from duoln.testing.references import STEPS

TINY = ["--preset", "smoke", "--updates", "4", "--every", "2", "--seeds", "2"]
SOUNDS = ["--variant", "none,both", "--set", "batch_size=4", "--set", "buckets=2", "--set", "mels=3"]
CASES = {
    "invariance": ([], (invariance, "DRAWS", 2), 6, ["18 of 18 cells", "the table, which says"]),
    "equations": ([], None, 19, ["eq. 20-22", "8 of 8 layers and cells", "11 of 11"]),
    "geometry": ([], (geometry, "CASES", 40), 23, ["does not hold", "eq. 13: exact for batch norm"]),
    "magnitude": ([], (magnitude, "CASES", 20), 8, ["inputs x 4: the metric along |w| of a plain model x 16,"]),
    "stability": ([], (stability, "STEPS", 3), 12, ["RNN, gradient over 3 steps", "(eq. 4)"]),
    "shift": ([*TINY, *SOUNDS], None, 6, ["listener 1, gates", "loss at the end", "of 2 seeds"]),
    "smoothness": ([*TINY, *SOUNDS], None, 2, ["of the gradient", "of 2 seeds"]),
    "borders": ([*TINY, "--variant", "none,ln"], None, 9, ["first.block1", "in 1"])}
NAMES = ("where", "text", "holds", "limit", "norm", "transformation", "expected", "cell", "scaled", "scale")
"""What tells the members of a list apart; everything else is measured."""


def _covers(kept, present):
    """True if a kept value has the keys of a present one, and the members of its lists; a measured value is its kind alone."""
    if isinstance(present, dict):
        return all(key in kept and (kept[key] == value if key in NAMES else _covers(kept[key], value)) for key, value in present.items())
    if isinstance(present, list) and present and isinstance(present[0], dict):
        same = slice(1 if "seed" in present[0] else None)  # of seeds the kept ones are more
        return len(kept[same]) == len(present[same]) and all(map(_covers, kept[same], present[same]))
    return isinstance(kept, list) == isinstance(present, list)


@pytest.mark.parametrize("kind", [kind if kind in ("invariance", "equations", "magnitude") else pytest.param(kind, marks=pytest.mark.long) for kind in CASES])
def test_an_analysis_has_a_table_and_a_document_like_the_kept_one(kind, capsys, tmp_path, monkeypatch):
    assert {path.stem for path in KEPT.iterdir()} == set(CASES)
    words, smaller, rows, texts = CASES[kind]
    monkeypatch.setattr(spoken, "COUNTS", {"train": 12, "dev": 3, "test": 3})
    if smaller:
        monkeypatch.setattr(*smaller)
    assert main(["analyze", kind, "--backend", "numpy", "--out", str(tmp_path / "new"), *words]) == 0
    captured = capsys.readouterr()
    table = [line for line in captured.out.splitlines() if line.startswith("│") and line.split("│")[1].strip()]
    out = " ".join(captured.out.split())
    assert len(table) == rows and all(text in out for text in texts) and "UNEXPECTED" not in out
    assert f"{kind}.json" in captured.err and "numpy" in captured.err
    [path] = (tmp_path / "new").iterdir()
    present, kept = json.loads(path.read_text()), json.loads((KEPT / f"{kind}.json").read_text())
    for key in ("git", "backend", "losses"):  # of another machine, and of other variants
        present.pop(key, None)
    assert _covers(kept, present) and kept["agrees"] is present["agrees"] and kept["summary"] and path.name == f"{present['analysis']}.json"


@pytest.mark.parametrize(("kind", "change", "text"), [
    ("invariance", lambda patch: patch.setitem(invariance.TABLE_1, "weight", (True, False, True, True, False, False)), "17 of 18 cells"),
    pytest.param("geometry", lambda patch: patch.setattr(report, "WRONG", 0.9), "UNEXPECTED", marks=pytest.mark.long),
    ("magnitude", lambda patch: patch.setattr(magnitude, "TOLERANCE", 0.0), "x 16 in weight norm"),
    ("equations", lambda patch: patch.setattr(equations.references, "batch_norm", lambda summed, gain, eps: gain * summed), "7 of 8 layers")])
def test_what_is_not_as_known_is_an_error(kind, change, text, capsys, monkeypatch):
    for module, name in ((invariance, "DRAWS"), (geometry, "CASES"), (magnitude, "CASES")):
        monkeypatch.setattr(module, name, 20)
    change(monkeypatch)
    assert main(["analyze", kind, "--backend", "numpy"]) == 1
    assert text in capsys.readouterr().out.replace("\n", " ")


@pytest.mark.parametrize(("args", "code", "words"), [
    ([], 2, "KIND"), (["colour"], 2, "invariance"), (["invariance", "--backend", "tpu"], 2, "'tpu'"),
    (["shift", "--task", "no"], 2, "'no'"), (["shift", "--updates", "3"], 2, "1 to 3"), (["smoothness", "--every", "0"], 2, "[smoothness]"),
    (["shift", "--seeds", "0"], 2, "--seeds: expected at least 1"), (["shift", "--variant", "x", "--preset", "smoke"], 2, "'x'"),
    (["shift", "--task", "mnist", "--preset", "smoke", "--variant", "ln"], 2, "what its layers get"),
    (["borders", "--task", "mnist", "--preset", "smoke", "--variant", "none", "--updates", "5"], 2, "convolutions, found mnist"),
    (["geometry", "--backend", "cupy"], 3, "cannot be used")])
def test_errors_say_what_was_expected(args, code, words, capsys):
    exit_code = main(["analyze", *args])
    captured = capsys.readouterr()
    assert exit_code == code and words in captured.err and captured.out == ""


def test_a_folder_that_cannot_be_made(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(invariance, "DRAWS", 1)
    (tmp_path / "file").write_text("")
    assert main(["analyze", "invariance", "--backend", "numpy", "--out", str(tmp_path / "file" / "x")]) == 1
    assert "cannot be" in capsys.readouterr().err


@pytest.mark.parametrize("module", [equations, geometry, magnitude])
def test_a_backend_without_float64_is_refused(module):
    with pytest.raises(BackendError, match="expected a backend with float64, found single on nowhere"):
        module.measure(SimpleNamespace(name="single", device="nowhere", dtypes=("float32",)))


# Equations and the text -----------------------------------------------------------------------------------

@pytest.mark.parametrize("seed", range(3))
def test_every_equation_and_statement_is_as_known(seed, numpy_backend):
    assert equations.measure(numpy_backend, seed).agrees


@pytest.mark.parametrize(("printed", "cell", "norm", "eps", "least"), [
    ("none", nn.LSTMCell, "layer", 0.0, 0.01), ("layer", nn.LSTMCell, "layer-theano", 0.0, 0.01), ("layer", nn.GRUCell, "layer-theano", 0.0, 0.01),
    ("layer", nn.LSTMCell, "layer", 1e-5, 1e-7)])
def test_another_variant_or_an_epsilon_is_found_out(printed, cell, norm, eps, least, numpy_backend):
    made = cell(equations.INPUTS, equations.HIDDEN, norm=norm, eps=eps)
    assert equations.of_cell(made, STEPS[made.cell, printed], 0, numpy_backend) > least


@pytest.mark.parametrize(("layer_norm", "wrong"), [
    (lambda width, eps: nn.BatchNorm(width, eps=eps), {"abstract", "3", "4", "7"}), (lambda width, eps: nn.LayerNorm(width, eps=1e-3), {"7"})])
def test_another_norm_in_the_place_of_layer_norm_is_found_out(layer_norm, wrong, numpy_backend, monkeypatch):
    monkeypatch.setattr(equations, "nn", SimpleNamespace(
        **{name: getattr(nn, name) for name in ("Linear", "Sequential", "WeightNorm", "BatchNorm")}, LayerNorm=layer_norm))
    assert {s.where for s in equations.properties(numpy_backend, 0) if not s.agrees} == wrong
