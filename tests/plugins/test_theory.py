"""`duoln analyze` as a user meets it."""

import json
from types import SimpleNamespace

import pytest

import duoln
from duoln import nn
from duoln.cli import main
from duoln.errors import BackendError
from duoln.plugins.paper.findings import KEPT, read_finding
from duoln.plugins.theory import equations as module, invariance, magnitude, statements
from duoln.plugins.theory.equations import equations
from duoln.plugins.theory.properties import properties
from duoln.testing.references import STEPS

NUMPY = ["--backend", "numpy"]


def test_invariance_prints_table_1(capsys):
    assert main(["analyze", "invariance", *NUMPY, "--draws", "3"]) == 0
    out = capsys.readouterr().out
    rows = [line for line in out.splitlines() if "re-" in line and "│" in line]
    assert len(rows) == 6 and sum(row.count("yes") for row in rows) == sum(map(sum, invariance.TABLE_1.values()))
    assert "18 of 18 cells" in out


def test_a_cell_that_disagrees_is_an_error(capsys, monkeypatch):
    monkeypatch.setitem(invariance.TABLE_1, "weight", (True, False, True, True, False, False))  # what the text says
    assert main(["analyze", "invariance", *NUMPY, "--draws", "3"]) == 1
    out = capsys.readouterr().out
    assert "17 of 18 cells" in out and "the paper: yes" in out


def test_json_on_stdout_and_in_a_folder(capsys, tmp_path):
    assert main(["analyze", "invariance", *NUMPY, "--draws", "2", "--json", "--out", str(tmp_path / "new" / "theory")]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document == json.loads((tmp_path / "new" / "theory" / "invariance.json").read_text())
    assert document["analysis"] == "invariance" and document["agrees"] is True and len(document["cells"]) == 18
    assert {"summary", "time", "seed", "backend", "eps", "dtype", "draws"} <= document.keys()
    assert "invariance.json" in captured.err


@pytest.mark.long
def test_geometry_says_where_the_paper_and_the_exact_numbers_differ(capsys):
    assert main(["analyze", "geometry", "--cases", "60"]) == 0
    captured = capsys.readouterr()
    assert "numpy" in captured.err and "does not hold" in captured.out and "UNEXPECTED" not in captured.out
    assert "exact for batch norm" in captured.out.splitlines()[-1]


@pytest.mark.long
def test_geometry_that_is_not_as_known_is_an_error(capsys, monkeypatch):
    monkeypatch.setattr(statements, "WRONG", 0.9)
    assert main(["analyze", "geometry", "--cases", "40"]) == 1
    assert "UNEXPECTED" in capsys.readouterr().out


@pytest.mark.long
def test_geometry_as_json(capsys):
    assert main(["analyze", "geometry", "--cases", "40", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {"statements", "blocks", "doubled", "gains", "directions", "steps", "same_update", "descents"} <= document.keys()
    assert all(s["agrees"] for s in document["statements"])


def test_magnitude_has_a_row_for_each_change_and_family(capsys, tmp_path):
    assert main(["analyze", "magnitude", "--cases", "20", "--scale", "2", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    rows = [line for line in out.splitlines() if "│ gaussian" in line or "│ logistic" in line]
    assert len(rows) == 8 and "inputs x 2: the metric along |w| of a plain model x 4" in out.replace("\n", " ")
    document = json.loads((tmp_path / "magnitude.json").read_text())
    assert document["analysis"] == "magnitude" and document["agrees"] is True and len(document["effects"]) == 32


def test_a_magnitude_that_is_not_as_the_paper_has_it_is_an_error(capsys, monkeypatch):
    monkeypatch.setattr(magnitude, "TOLERANCE", 0.0)
    assert main(["analyze", "magnitude", "--cases", "20"]) == 1


TINY = ["--set", "utterances=12", "--set", "batch_size=4", "--set", "buckets=2", "--set", "mels=3"]


@pytest.mark.long
def test_shift_has_a_row_for_each_layer_and_a_column_for_each_variant(capsys, tmp_path):
    args = ["analyze", "shift", *NUMPY, "--preset", "smoke", "--variant", "none,both", "--updates", "4", "--every", "2", "--seeds", "2",
            *TINY]
    assert main([*args, "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert {p.name for p in tmp_path.iterdir()} == {"shift.json"}
    assert all(name in out for name in ("listener 1, gates", "attention", "softmax", "loss at the end", "none", "both"))
    document = json.loads((tmp_path / "shift.json").read_text())
    assert [m["updates"] for m in document["movements"]] == [[2, 4]] * 2 * 5 * 2 and document["seeds"] == [0, 1] and document["agrees"] is None


@pytest.mark.long
def test_smoothness_has_a_row_for_each_variant(capsys, tmp_path):
    args = ["analyze", "smoothness", *NUMPY, "--preset", "smoke", "--variant", "none,both", "--updates", "4", "--every", "2", "--seeds", "2",
            *TINY]
    assert main([*args, "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert {p.name for p in tmp_path.iterdir()} == {"smoothness.json"}
    assert all(words in out for words in ("of the gradient", "median and range of 2 seeds", "none", "both"))
    document = json.loads((tmp_path / "smoothness.json").read_text())
    assert [(c["variant"], c["seed"], c["updates"]) for c in document["constants"]] == [(v, s, [0, 2]) for v in ("none", "both") for s in (0, 1)]


@pytest.mark.long
def test_stability_prints_a_row_for_each_network(capsys, tmp_path):
    args = ["analyze", "stability", *NUMPY, "--steps", "3", "--scales", "1,4", "--out", str(tmp_path)]
    assert main(args) == 0
    out = capsys.readouterr().out
    assert {p.name for p in tmp_path.iterdir()} == {"stability.json"}
    assert len([line for line in out.splitlines() if "│" in line]) == 12 and "eq. 4" in out


@pytest.mark.parametrize(("args", "code", "words"), [
    ([], 2, "KIND"), (["colour"], 2, "invariance"), (["invariance", "--draws", "0"], 2, "at least 1 draw"),
    (["invariance", "--eps", "-1"], 2, "eps"), (["invariance", "--backend", "tpu"], 2, "'tpu'"),
    (["geometry", "--cases", "3"], 2, "10 cases"), (["shift", "--task", "no"], 2, "'no'"),
    (["shift", "--updates", "3"], 2, "1 to 3"), (["shift", "--seeds", "0"], 2, "--seeds: expected at least 1"), (["smoothness", "--updates", "3"], 2, "[smoothness]"), (["shift", "--variant", "x", "--preset", "smoke"], 2, "'x'"),
    (["shift", "--task", "mnist", "--preset", "smoke", "--variant", "ln"], 2, "what its layers get"), (["magnitude", "--scale", "0"], 2, "a finite scale above 0"),
    (["magnitude", "--cases", "3"], 2, "10 cases"), (["geometry", "--backend", "cupy"], 3, "cannot be used"),
    (["stability", "--scales", "1,x"], 2, "1,x"), (["stability", "--scales", "0"], 2, "positive scale"),
    (["stability", "--steps", "0"], 2, "at least 1 step"),
])
def test_errors_say_what_was_expected(args, code, words, capsys):
    exit_code = main(["analyze", *args])
    captured = capsys.readouterr()
    assert exit_code == code and words in captured.err and captured.out == ""


def test_a_folder_that_cannot_be_made(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["analyze", "invariance", *NUMPY, "--draws", "1", "--out", str(tmp_path / "file" / "x")]) == 1
    assert "cannot be" in capsys.readouterr().err


def test_equations_are_listed_with_their_errors(capsys):
    assert main(["analyze", "equations"]) == 0
    out = capsys.readouterr().out
    assert "eq. 20-22" in out and "UNEXPECTED" not in out and "8 of 8 layers and cells" in out.splitlines()[-1]


def test_an_equation_that_a_cell_does_not_follow_is_an_error(capsys, monkeypatch):
    from duoln.plugins.theory import equations

    monkeypatch.setattr(equations.references, "batch_norm", lambda summed, gain, eps: gain * summed)
    assert main(["analyze", "equations", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["agrees"] is False and [s["where"] for s in document["statements"] if not s["agrees"]] == ["eq. 2"]


# Equations --------------------------------------------------------------------------------------------

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
    made = cell(module.INPUTS, module.HIDDEN, norm=norm, eps=0.0)
    assert module._of_cell(made, STEPS[made.cell, printed], 0, numpy_backend) > 0.01


def test_an_epsilon_is_found_out(numpy_backend):
    made = nn.LSTMCell(module.INPUTS, module.HIDDEN, norm="layer", eps=1e-5)
    assert module._of_cell(made, STEPS["lstm", "layer"], 0, numpy_backend) > 1e-7


def test_a_backend_without_float64_is_refused(numpy_backend):
    class Single:
        name, device, dtypes = "single", "none", ("float32",)

    with pytest.raises(BackendError, match=r"\[equations\] expected a backend with float64, found single"):
        equations(Single())


# The text -----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("seed", range(3))
def test_every_statement_of_the_text_is_as_known(seed, numpy_backend):
    checked = properties(numpy_backend, seed)
    assert [s.where for s in checked] == ["abstract", "abstract", "3", "3", "4", "4", "4", "5.1", "5.1", "7", "7"]
    assert all(s.agrees for s in checked)


@pytest.mark.parametrize(("layer_norm", "wrong"), [
    (lambda width, eps: nn.BatchNorm(width, eps=eps), {"abstract", "3", "4", "7"}), (lambda width, eps: nn.RMSNorm(width, eps=eps), set()),
    (lambda width, eps: nn.LayerNorm(width, eps=1e-3), {"7"})])
def test_another_norm_in_the_place_of_layer_norm_is_found_out(layer_norm, wrong, numpy_backend, monkeypatch):
    monkeypatch.setattr("duoln.plugins.theory.properties.nn", SimpleNamespace(
        **{name: getattr(nn, name) for name in ("Linear", "Sequential", "WeightNorm", "BatchNorm")}, LayerNorm=layer_norm))
    assert {s.where for s in properties(numpy_backend) if not s.agrees} == wrong


# Kept findings ----------------------------------------------------------------------------------------

SMALL = {"invariance": ["--draws", "2"], "geometry": ["--cases", "40"], "stability": ["--steps", "2"], "equations": [], "borders": ["--preset", "smoke", "--updates", "5"], "magnitude": ["--cases", "40"]}
for _kind in ("shift", "smoothness"):
    SMALL[_kind] = ["--preset", "smoke", "--updates", "5", "--set", "utterances=12", "--set", "batch_size=4", "--set", "buckets=2", "--set", "mels=3"]
NAMES = ("where", "text", "holds", "limit", "norm", "transformation", "expected", "cell", "scaled", "scale")
"""What tells the members of a list apart; everything else is measured."""


def _shape(value):
    """The keys of an object, and of a list of objects the names of each; a measured value is its kind alone."""
    if isinstance(value, dict):
        return {key: value[key] if key in NAMES else _shape(value[key]) for key in value}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [_shape(item) for item in value]
    return isinstance(value, list)


@pytest.mark.long
@pytest.mark.few
@pytest.mark.parametrize("kind", SMALL)
def test_a_kept_finding_is_of_the_present_analysis(kind, capsys):
    assert main(["analyze", kind, "--backend", "numpy", "--json", *SMALL[kind]]) == 0
    present = json.loads(capsys.readouterr().out)
    kept = read_finding(KEPT / f"{kind}.json")
    facts, now = ({key: value for key, value in content.items() if key not in ("backend", "git")} for content in (kept.content, present))
    assert _shape(facts) == _shape(now) and "git" in present
    assert kept.content["agrees"] is present["agrees"] and kept.summary and duoln.__version__


def test_every_analysis_is_kept():
    assert sorted(path.stem for path in KEPT.iterdir()) == sorted(SMALL)
