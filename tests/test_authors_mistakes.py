"""Mistakes of authors of tasks, listeners and settings: each is an error that names what was expected and what was found."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import duoln
from duoln import ops, optim
from duoln.errors import DuolnError, PluginError, UsageError
from duoln.examples.own_task import Spirals, SpiralsConfig
from duoln.tasks import Column, Config, Dataset, train
from duoln.tasks.contract import check_attributes
from duoln.tasks.events import Listener
from duoln.testing import check_error, check_task

# Listeners and settings ---------------------------------------------------------------------------------------


def test_a_method_that_no_event_calls():
    for name, meant in (("on_evalution", "on_evaluation"), ("on_epoch_end", "")):
        check_error(UsageError, lambda name=name: type("Mine", (Listener,), {name: lambda self, event: None}),
                    f"[Listener] Mine: expected one of on_start, on_memory, on_update, on_evaluation, on_end; found '{name}'",
                    *([f"did you mean '{meant}'"] if meant else []))


@pytest.mark.parametrize("given", [[Listener], Listener(), [3], "tensorboard"])
def test_listeners_that_are_none(given):
    check_error(UsageError, lambda: train(Spirals(), "ln", preset="smoke", listeners=given), "[train] listeners: expected a list of Listener objects")


def test_an_error_at_the_end_does_not_hide_the_first(tmp_path):
    class Both(Listener):
        def on_evaluation(self, event):
            raise RuntimeError("the first")

        def on_end(self, status, result):
            raise KeyError("the second")

    with pytest.raises(KeyError) as caught:
        train(Spirals(), "ln", preset="smoke", backend="numpy", listeners=[Both()])
    assert str(caught.value.__context__) == "the first"


def settings(**fields):
    """A task whose settings have these fields: by name a type and a default."""
    kind = dataclasses.make_dataclass("Own", [(name, of, dataclasses.field(default=value)) for name, (of, value) in fields.items()],
                                      bases=(SpiralsConfig,), frozen=True)
    return type("Mine", (Spirals,), {"config": kind})()


SETTINGS = {
    "epochs of another type": (settings(epochs=(float, 1.5)), "epochs: expected the type int, which every task has"),
    "a batch size that is a text": (settings(batch_size=(str, "1")), "batch_size: expected the type int, which every task has"),
    "a default of NumPy's": (settings(rate=(float, np.float32(0.5))), "rate: expected a default of Python's own types, found"),
    "a name of train": (settings(backend=(str, "numpy")), "expected another name than 'backend'"),
    "a path": (settings(file=(Path, Path())), "file: expected a type of int, float, bool"),
    "a dict": (settings(extra=(dict, None)), "extra: expected a type of int, float, bool"),
}


@pytest.mark.parametrize(("task", "words"), SETTINGS.values(), ids=SETTINGS)
def test_settings_that_cannot_be(task, words):
    check_error(PluginError, lambda: check_attributes(task), "a task of class Mine: config: ", words)


def test_settings_without_the_decorator():
    class Own(Config):
        width: int = 3

    check_error(PluginError, lambda: check_attributes(type("Mine", (Spirals,), {"config": Own})()),
                "width: expected @dataclass(frozen=True) above Own, found none")


# Tasks ----------------------------------------------------------------------------------------------------------

def with_data(**fields):
    """A method `data` whose splits have other fields; those that are functions get the number of the update."""
    return lambda self, cfg, root=None: dataclasses.replace(Spirals.data(self, cfg, root), **fields)


BATCH = {"x": np.zeros((64, 2), np.float32), "label": np.zeros(64, np.int32)}
TASKS = {
    "a variant with an unknown setting": ({"variants": {"ln": {"nrom": True}}}, "variant 'ln': expected settings of seed, epochs"),
    "a variant with a value of another type": ({"variants": {"ln": {"norm": "yes"}}}, "norm: expected true or false, found 'yes'"),
    "a preset with an unknown setting": ({"presets": {"smoke": {"epoch": 1}}}, "preset 'smoke' or variant 'ln': expected settings of seed"),
    "no variants": ({"variants": {}}, "the task has no variants"),
    "no name": ({"name": ""}, "the task has no name"),
    "a name with blanks": ({"name": "my task"}, "expected a name of 1 to 64 letters"),
    "columns that are a text": ({"columns": "test_error"}, "columns: expected a tuple of Column, found 'test_error'"),
    "a column of no metric": ({"columns": (Column("test_mistake", "m", ".1%"),)}, "columns: expected some of the metrics test_error, found test_mistake"),
    "a column without a format": ({"columns": (Column("test_error", "m", "percent"),)}, "columns: ValueError: Invalid format specifier"),
    "a metric that is a tensor": ({"metrics": lambda self, p, s: {"error": duoln.tensor(0.5, "numpy")}}, "metrics: expected a number as 'error', found Tensor"),
    "a metric that is an array": ({"metrics": lambda self, p, s: {"error": np.ones(3)}}, "metrics: expected a number as 'error', found an array"),
    "metrics that are none": ({"metrics": lambda self, p, s: None}, "metrics: expected figures by name, found None"),
    "metrics that are one number": ({"metrics": lambda self, p, s: 0.5}, "metrics: expected figures by name, found 0.5"),
    "a metric that is NaN": ({"metrics": lambda self, p, s: {"error": float("nan")}}, "metrics: test_error is nan"),
    "a loss for each example": ({"loss": lambda self, m, p, b: ops.softmax_cross_entropy(m(p, b["x"]), b["label"])}, "ops.mean(loss) makes one of it"),
    "a loss of NumPy's": ({"loss": lambda self, m, p, b: np.float32(1)}, "loss: expected a Tensor, found float32; a loss of NumPy's would be a constant"),
    "a loss that is a number": ({"loss": lambda self, m, p, b: 1.0}, "loss: expected a Tensor, found 1.0"),
    "predictions of NumPy's": ({"predict": lambda self, m, p, b: m(p, b["x"]).numpy()}, "predict: expected an object of class Tensor"),
    "data that are a tuple": ({"data": lambda self, cfg, root=None: (1, 2)}, "data: expected Splits, found tuple"),
    "batches of float64": ({"data": with_data(train=lambda k: {**BATCH, "x": np.zeros((64, 2))})}, "'x': expected a NumPy array of float32, int32 or bool, found float64"),
    "labels of int64": ({"data": with_data(train=lambda k: {**BATCH, "label": np.zeros(64, np.int64)})}, "'label': expected a NumPy array of float32, int32 or bool, found int64"),
    "batches of lists": ({"data": with_data(train=lambda k: {"x": [[1.0, 2.0]], "label": [1]})}, "expected an array of numbers as 'x.0.0' of a batch"),
    "batches that differ each time": ({"data": with_data(train=lambda k: {**BATCH, "x": np.random.default_rng().standard_normal((64, 2)).astype(np.float32)})},
                                      "train(step) must depend on the step alone"),
    "labels out of range": ({"data": with_data(train=lambda k: {**BATCH, "label": np.full(64, 7, np.int32)})}, "labels: expected indices in 0 .. 1, found 7"),
    "no updates": ({"data": with_data(steps_per_epoch=0)}, "data: expected steps_per_epoch of at least 1, found 0"),
    "splits in a list": ({"data": with_data(evaluation=[1])}, "data: expected splits by name as evaluation, found list"),
    "a provenance of one's own": ({"data": with_data(dataset=Dataset("mine", "own"))}, "expected a provenance of original, substitute, synthetic"),
    "a model that is a function": ({"model": lambda self, cfg: ops.tanh}, "model: expected an object of class Module, found Op"),
    "a model that is its parameters": ({"model": lambda self, cfg: {"w": 1}}, "model: expected an object of class Module, found dict"),
    "an optimizer without updates": ({"optimizer": lambda self, cfg: optim.Adam(1e-3)}, "optimizer raised TypeError: "),
    "an optimizer that is a rate": ({"optimizer": lambda self, cfg, updates: 1e-3}, "optimizer: expected an object of class Optimizer, found 0.001"),
    "a selection of no metric": ({"selection": ("valid_error", "lowest")}, "selection: expected one of the metrics test_error; found 'valid_error'"),
    "a selection in other words": ({"selection": ("test_error", "smallest")}, "selection: expected None, or a metric and 'lowest' or 'highest'"),
    "options that are no dataclass": ({"sampling": dict}, "sampling: expected a dataclass or None, found type"),
    "an axis of one's own": ({"x_axis": "step"}, "x_axis: expected 'epoch' or 'update', found 'step'"),
    "a reference of no variant": ({"references": {"lm": "x"}}, "references: there is no variant 'lm'"),
}


@pytest.mark.parametrize(("members", "words"), TASKS.values(), ids=TASKS)
def test_a_task_that_check_task_refuses(members, words):
    with pytest.raises((AssertionError, DuolnError)) as caught:
        check_task(type("Mine", (Spirals,), members)(), gradients=False, agreement=False, layering=False, steps=2)
    assert words in str(caught.value)
