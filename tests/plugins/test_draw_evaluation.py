"""`duoln evaluate draw`: the bound on whole sets, by the evaluation during training and by the model itself."""

import json

import numpy as np
import pytest
from task_checks import short_run

from duoln import cli, runtime
from duoln.plugins.draw import data, evaluation
from duoln.plugins.draw.task import DrawTask
from duoln.runs.trained import load_trained

TASK = DrawTask()
IMAGES = 30


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two updates on made digits, and its result."""
    folder = tmp_path_factory.mktemp("draw") / "run"
    return folder, short_run(TASK, "ln", folder, rows=40, hidden=8, evaluate_images=None)


@pytest.fixture(scope="module", autouse=True)
def _few_images():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "MADE", {"train": 60, "valid": IMAGES, "test": IMAGES})
        yield


def _evaluate(run, *options):
    return cli.main(["evaluate", str(run), "--backend", "numpy", *options])


def test_one_draw_is_the_evaluation_of_the_training(run, capsys):
    folder, result = run
    assert _evaluate(folder, "--json") == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["update"] == 2
    for name in ("valid", "test"):
        assert figures[f"{name}_bound"] == pytest.approx(result[f"{name}_bound"], rel=1e-6)
        assert figures[f"{name}_bound"] == pytest.approx(figures[f"{name}_reconstruction"] + figures[f"{name}_divergence"])


def test_more_draws_are_means_with_noise_of_their_own(run):
    trained = load_trained(TASK, run[0], runtime.backend("numpy"))
    split = data.splits(trained.config, None).evaluation["test"]
    first, second = (evaluation.of_images(trained, split, draw) for draw in (0, 1))
    assert first.shape == (IMAGES, 2) and not np.array_equal(first, second)
    answer = evaluation.findings(trained, evaluation.Options(draws=2), lambda line: None)
    both = (first + second).sum(axis=1) / 2
    assert answer.figures["test_bound"] == pytest.approx(both.mean())
    assert answer.figures["test_error"] == pytest.approx(both.std(ddof=1) / np.sqrt(IMAGES))
    assert [row[0] for row in answer.rows] == ["valid", "test"] and "drawn 2 times" in answer.remarks[0]


def test_no_draws_are_refused(run, capsys):
    assert _evaluate(run[0], "--draws", "0") == 2
    assert "at least 1, found 0" in capsys.readouterr().err
