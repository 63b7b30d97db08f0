"""Configurations: defaults, then the preset, the variant and last the settings, which may be text."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import pytest

from duoln.errors import UsageError
from duoln.optim import Adam
from duoln.tasks import Config, Dataset, Task, make_config
from duoln.testing import check_error


@dataclass(frozen=True)
class Settings(Config):
    """One field of each kind."""

    count: int = 1
    rate: float = 1.0
    flag: bool = False
    norm: Literal["none", "layer"] = "none"
    rows: int | None = None
    title: str = "untitled"


class Thing(Task):
    """A task with presets and variants that all set `count`."""

    name = "thing"
    config = Settings
    presets: ClassVar = {"small": {"count": 2, "rate": 0.2, "epochs": 7}, "paper": {}}
    variants: ClassVar = {"plain": {}, "ln": {"count": 3, "norm": "layer"}}


def _config(variant="plain", preset=None, **settings):
    return make_config(Thing(), variant, preset, settings)


# Precedence -------------------------------------------------------------------------------------------

def test_defaults():
    assert _config() == Settings()


@pytest.mark.parametrize(("variant", "preset", "settings", "count"), [
    ("plain", None, {}, 1), ("plain", "small", {}, 2), ("ln", None, {}, 3), ("ln", "small", {}, 3),
    ("plain", "paper", {}, 1), ("plain", None, {"count": 4}, 4), ("plain", "small", {"count": 4}, 4),
    ("ln", "small", {"count": "4"}, 4)])
def test_settings_before_variant_before_preset_before_defaults(variant, preset, settings, count):
    assert _config(variant, preset, **settings).count == count


def test_each_source_gives_what_the_others_leave_open():
    assert _config("ln", "small", seed=5) == Settings(count=3, rate=0.2, norm="layer", epochs=7, seed=5)


# Values -----------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("key", "value", "expected"), [
    ("count", "1.5", "int"), ("count", "", "int"), ("count", "many", "int"), ("count", 1.5, "int"),
    ("count", None, "int"), ("count", [1], "int"), ("rate", "fast", "float"), ("rate", None, "float"),
    ("flag", "yes", "true or false"), ("flag", "True", "true or false"), ("flag", 2, "true or false"),
    ("flag", None, "true or false"), ("norm", "batch", "none, layer"), ("norm", None, "none, layer"),
    ("rows", "1.5", "int"), ("rows", "all", "int"), ("rows", 0.5, "int"), ("title", "caf\udce9", "str")])
def test_a_value_that_does_not_fit(key, value, expected):
    check_error(UsageError, lambda: _config(**{key: value}), "[thing]", f"{key}: expected", expected, repr(value))


# Names ------------------------------------------------------------------------------------------------

def test_unknown_variant():
    check_error(UsageError, lambda: _config("lm"), "[thing]", "plain, ln", "'lm'")


@pytest.mark.parametrize("preset", ["large", ""])
def test_unknown_preset(preset):
    check_error(UsageError, lambda: _config(preset=preset), "[thing]", "small, paper", repr(preset))


@pytest.mark.parametrize("key", ["cuont", "", "name"])
def test_unknown_setting(key):
    check_error(UsageError, lambda: _config(**{key: "1"}), "[thing]", "seed, epochs", "count, rate", repr(key))


# The rest of a task -----------------------------------------------------------------------------------

def test_only_the_original_goes_without_its_rung():
    assert Dataset("MNIST", "original").label == "MNIST"
    assert Dataset("digits", "synthetic").label == "digits, synthetic"
    assert Dataset("corpus", "substitute").label == "corpus, substitute"


@pytest.mark.parametrize("call", [lambda t: t.data(None), lambda t: t.model(None), lambda t: t.loss(None, {}, {}),
                                  lambda t: t.metrics(None, {}), lambda t: t.peer("torch")])
def test_what_a_task_leaves_out_is_named(call):
    check_error(UsageError, lambda: call(Thing()), "[thing]")


def test_defaults_of_a_task():
    optimizer = Thing().optimizer(Settings(learning_rate=0.25), 1000)
    assert isinstance(optimizer, Adam) and optimizer.learning_rate == 0.25
    assert Thing().predict(lambda params, x: x + params, np.float32(1), {"x": np.float32(2)}) == 3
