"""`duoln evaluate draw`: the bound on whole sets, by the evaluation during training and by the model itself."""

import json

import pytest
from task_checks import short_run

from duoln import cli
from duoln.plugins.draw import data
from duoln.plugins.draw.task import DrawTask

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
