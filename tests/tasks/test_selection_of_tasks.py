"""The best model is the one with the best figure: by the task's own word, or by what the figure's name says; never by a guess."""

import json

import pytest
from small_runs import Line

import duoln
from duoln.errors import UsageError
from duoln.tasks import Column
from duoln.tasks.task import selected_by
from duoln.testing import check_error, check_task


class Told(Line):
    """A task with given figures, one for each evaluation."""

    presets = {}  # noqa: RUF012

    def __init__(self, metric, figures=(), selection=None):
        self.columns, self.selection = (Column(f"valid_{metric}", metric),), selection
        self._metric, self._figures = metric, iter(figures)

    def metrics(self, predict, split):
        return {self._metric: next(self._figures)}


@pytest.mark.parametrize(("metric", "which"), [
    ("accuracy", "highest"), ("acc", "highest"), ("top1", "highest"), ("macro_f1", "highest"), ("log_likelihood", "highest"),
    ("r2", "highest"), ("spearman_rho", "highest"), ("recall", "highest"),
    ("error", "lowest"), ("nll", "lowest"), ("mse", "lowest"), ("bits", "lowest"), ("perplexity", "lowest"), ("ctc_loss", "lowest")])
def test_the_name_of_a_metric_says_which_values_are_better(metric, which):
    assert selected_by(Told(metric), Line.config(patience=1)) == selected_by(Told(metric), Line.config()) == (f"valid_{metric}", which)


@pytest.mark.parametrize("metric", ["score", "x", "negative_log_likelihood", "accuracy_error", "tokens_per_second", "inaccuracy"])
def test_a_name_that_does_not_say_it_wants_a_selection(metric, numpy_backend):
    assert selected_by(Told(metric), Line.config()) is None
    check_error(UsageError, lambda: duoln.tasks.train(Told(metric), "plain", backend=numpy_backend, patience=1),
                "[line] selection", f"'valid_{metric}'", "does not say")
    chosen = Told(metric, selection=(f"valid_{metric}", "highest"))
    assert selected_by(chosen, Line.config(patience=1)) == (f"valid_{metric}", "highest")


@pytest.mark.parametrize(("metric", "figures", "steps", "best"), [
    ("accuracy", [0.1, 0.5, 0.4, 0.3, 0.2], 10, 0.5), ("accuracy", [0.1, 0.2, 0.3, 0.4, 0.5], 25, 0.5),
    ("error", [0.5, 0.1, 0.4, 0.3, 0.2], 10, 0.1)])
def test_patience_keeps_the_best_model(metric, figures, steps, best, numpy_backend, tmp_path):
    run = duoln.tasks.train(Told(metric, figures), "plain", backend=numpy_backend, epochs=5, patience=2, out=tmp_path)
    assert (run.figures["updates"], run.figures[f"valid_{metric}"]) == (steps, best)
    assert json.loads((tmp_path / "result.json").read_text())["updates"] == steps


def test_a_check_of_the_task_finds_it():
    class Scored(Told):
        presets = {"smoke": {"patience": 2}}  # noqa: RUF012

    with pytest.raises(AssertionError, match=r"selection: .*'valid_score', does not say"):
        check_task(Scored("score"), gradients=False, agreement=False)
