"""Digits that DRAW generates, and its bound on whole sets: from the command line, the same again, and refused options."""

import json

import numpy as np
import pytest
from task_checks import short_run

from duoln import cli, runtime
from duoln.pictures import drawing
from duoln.plugins.draw import data, sampling
from duoln.plugins.draw.task import DrawTask
from duoln.runs.trained import load_trained
from duoln.testing import check_close

TASK = DrawTask()


@pytest.fixture(scope="module", autouse=True)
def _few_images():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "MADE", {"train": 60, "valid": 30, "test": 30})
        yield


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """A run of two updates on made digits, and its result."""
    folder = tmp_path_factory.mktemp("draw") / "run"
    return folder, short_run(TASK, "ln", folder, rows=40, hidden=8, evaluate_images=None)


@pytest.fixture(scope="module")
def run(evaluated):
    return evaluated[0]


def _sample(run, out, *options):
    return cli.main(["sample", str(run), "--out", str(out), "--backend", "numpy", *options])


@pytest.mark.long
def test_generated_digits_are_those_of_the_decoder(run):
    trained = load_trained(TASK, run, runtime.backend("numpy"))
    chances, squares = sampling.generate(trained, 6, 1)
    assert chances.shape == (3, 6, 28, 28) and squares.shape == (3, 6, 4)
    assert chances.min() > 0 and chances.max() < 1
    again = sampling.generate(trained, 6, 1)
    assert np.array_equal(chances, again[0])
    assert not np.array_equal(chances, sampling.generate(trained, 6, 2)[0])


def test_squares_are_where_the_grids_are():
    where = np.array([[0.0, 0.5, 0.0, np.log(0.5), 0.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    check_close(sampling.window_corners(where), np.array([[14 - 6.75, 21 - 6.75, 14 + 6.75, 21 + 6.75],
                                                  [0.5, 0.5, 27.5, 27.5]]), 1e-12, "squares")


@pytest.mark.long
@pytest.mark.skipif(not drawing.can_draw(), reason="matplotlib is not installed")
def test_pictures_from_the_command_line(run, tmp_path, capsys):
    assert _sample(run, tmp_path / "digits.png", "--count", "5", "--seed", "3") == 0
    written = [tmp_path / "digits.png", tmp_path / "digits-glimpses.png"]
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in written)
    told = capsys.readouterr().err
    assert all(path.name in told for path in written)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(p.name for p in written)


def test_what_is_refused_before_anything_is_computed(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sampling, "generate", lambda *a: pytest.fail("computed"))
    for out, options, words in ((tmp_path / "digits.txt", (), (".png", ".txt")),
                                (tmp_path / "d.png", ("--count", "0"), ("count", "0")),
                                (tmp_path / "d.png", ("--count", "x"), ("--count", "int", "'x'"))):
        assert _sample(run, out, *options) == 2
        told = capsys.readouterr().err
        assert all(word in told for word in words), told


def test_one_draw_is_the_evaluation_of_the_training(evaluated, capsys):
    folder, result = evaluated
    assert cli.main(["evaluate", str(folder), "--backend", "numpy", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["update"] == 2
    for name in ("valid", "test"):
        assert figures[f"{name}_bound"] == pytest.approx(result[f"{name}_bound"], rel=1e-6)
        assert figures[f"{name}_bound"] == pytest.approx(figures[f"{name}_reconstruction"] + figures[f"{name}_divergence"])
