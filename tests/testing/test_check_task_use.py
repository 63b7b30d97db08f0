"""`check_task` runs what a run, its evaluation and its report will run; errors name the task and the method, as there."""

import numpy as np
import pytest

from duoln import optim
from duoln.errors import TaskError
from duoln.examples.own_task import Spirals, SpiralsConfig
from duoln.tasks import Findings
from duoln.testing import check_error, check_task


def checked(**members):
    """A check of the spirals with other members."""
    check_task(type("Mine", (Spirals,), members)(), gradients=False, agreement=False, steps=2)


def raising(*args):
    raise KeyError("embd")


RAISES = {name: raising for name in ("data", "model", "loss", "predict", "metrics", "optimizer")}


@pytest.mark.parametrize("method", RAISES)
def test_a_method_that_raises_is_named(method):
    check_error(TaskError, lambda: checked(**{method: raising}), f"task 'spirals' of {__name__}: {method} raised KeyError: 'embd' ({__file__}:")


def test_an_evaluation_and_pictures_are_tried():
    pytest.importorskip("matplotlib")
    check_error(TaskError, lambda: checked(pictures=raising), "pictures raised KeyError: 'embd'")
    check_error(TaskError, lambda: checked(evaluating=SpiralsConfig, evaluate=raising), "evaluate raised KeyError: 'embd'")
    check_error(TaskError, lambda: checked(evaluating=SpiralsConfig, evaluate=lambda *args: Findings("a", ["b"], [["c", "d"]], [], {})),
                "evaluate: expected rows of 1 cells")
    with pytest.raises(AssertionError, match=r"pictures: expected the files that it names, found no .*none\.png"):
        checked(pictures=lambda self, runs, folder: [folder / "none.png"])


def test_an_empty_split():
    def data(self, cfg, root=None):
        splits = Spirals.data(self, cfg, root)
        return splits._replace(evaluation={"test": {k: a[:0] for k, a in splits.evaluation["test"].items()}}) \
            if hasattr(splits, "_replace") else type(splits)(splits.dataset, splits.train, splits.steps_per_epoch, {
                "test": {k: a[:0] for k, a in splits.evaluation["test"].items()}})

    check_error(TaskError, lambda: checked(data=data), "data: expected examples in the split 'test', found none")


@pytest.mark.parametrize(("name", "meant"), [("optimiser", "optimizer"), ("metric", "metrics"), ("colums", "columns"), ("predicts", "predict")])
def test_a_member_that_nothing_calls(name, meant):
    members = {name: lambda self, *args: None}
    if meant in ("metrics", "columns"):  # the class has these, and the other name may be the author's own
        checked(**members)
        return
    with pytest.raises(AssertionError, match=f"found '{name}', which nothing calls; did you mean '{meant}'"):
        checked(**members)


def test_an_optimizer_knows_how_many_updates_there_will_be():
    seen = []

    def optimizer(self, cfg, updates):
        seen.append(updates)
        return optim.Adam(learning_rate=1e-3)

    checked(optimizer=optimizer)
    assert set(seen) == {16} and np.isfinite(seen[0])
