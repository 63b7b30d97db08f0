"""Settings of a task: their precedence, types and meanings; every command reads those that a run has written."""

import dataclasses
import json
import sys
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import pytest
from small_runs import Line, LineConfig

from duoln.cli import main
from duoln.errors import UsageError
from duoln.examples.own_task import Spirals
from duoln.optim import Adam
from duoln.tasks import Config, Dataset, Findings, Task, make_config, option
from duoln.tasks.boundary import guard_task
from duoln.tasks.registry import Registry
from duoln.tasks.settings import convert, is_readable, kind_in_words, meanings_of, settings_of, value_in_words
from duoln.testing import check_error, check_task


@dataclass(frozen=True)
class ThingConfig(Config):
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
    config = ThingConfig
    presets: ClassVar = {"small": {"count": 2, "rate": 0.2, "epochs": 7}, "paper": {}}
    variants: ClassVar = {"plain": {}, "ln": {"count": 3, "norm": "layer"}}


def _config(variant="plain", preset=None, **settings):
    return make_config(Thing(), variant, preset, settings)


# Precedence -------------------------------------------------------------------------------------------

def test_defaults():
    assert _config() == ThingConfig()


@pytest.mark.parametrize(("variant", "preset", "settings", "count"), [
    ("plain", None, {}, 1), ("plain", "small", {}, 2), ("ln", None, {}, 3), ("ln", "small", {}, 3),
    ("plain", "paper", {}, 1), ("plain", None, {"count": 4}, 4), ("plain", "small", {"count": 4}, 4),
    ("ln", "small", {"count": "4"}, 4)])
def test_settings_before_variant_before_preset_before_defaults(variant, preset, settings, count):
    assert _config(variant, preset, **settings).count == count


def test_each_source_gives_what_the_others_leave_open():
    assert _config("ln", "small", seed=5) == ThingConfig(count=3, rate=0.2, norm="layer", epochs=7, seed=5)


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
    optimizer = Thing().optimizer(ThingConfig(learning_rate=0.25), 1000)
    assert isinstance(optimizer, Adam) and optimizer.learning_rate == 0.25
    assert Thing().predict(lambda params, x: x + params, np.float32(1), {"x": np.float32(2)}) == 3


class Kind(NamedTuple):
    """A type with a default, and another value with its text."""

    kind: Any
    default: Any
    text: str
    value: Any


KINDS = {
    "whole": Kind(int, 1, "-2", -2), "real": Kind(float, 1, "0.25", 0.25), "endless": Kind(float, float("inf"), "-inf", float("-inf")),
    "flag": Kind(bool, True, "false", False), "title": Kind(str, "none", "caf\u00e9, 5", "caf\u00e9, 5"), "nothing": Kind(type(None), None, "none", None),
    "number": Kind(int | float, 0.5, "3", 3), "other_number": Kind(float | int, 2, "0.5", 0.5), "maybe": Kind(int | None, None, "7", 7),
    "word": Kind(str | None, "none", "none", None), "word_or_number": Kind(int | str, "5", "6", 6), "switch": Kind(bool | int, 1, "true", True),
    "number_first": Kind(str | float, "auto", "0.1", 0.1),
    "choice": Kind(Literal[1, True, "a", None], True, "a", "a"), "choice_or_number": Kind(Literal["auto"] | float, 0.5, "auto", "auto"),
    "sizes": Kind(tuple[int, ...], (1, 2), "3,4,5", (3, 4, 5)), "none_at_all": Kind(tuple[int, ...], (1,), "", ()), "one": Kind(tuple[float, ...], (), "2", (2.0,)),
    "pair": Kind(tuple[int, str], (1, "a"), "2,b", (2, "b")), "nested": Kind(tuple[tuple[int, ...], ...], ((1,), ()), "[[1, 2], []]", ((1, 2), ())),
    "rows": Kind(list[str], ["a", "b,c"], "d", ["d"]), "flags": Kind(list[bool | None], [True, None], "false,none", [False, None]),
    "shape_or_size": Kind(tuple[int, int] | int | None, (1, 2), "3", 3),
}
EXACT = {key: value for key, value in KINDS.items() if key not in ("title", "word", "word_or_number", "choice", "switch")}
"""Those whose default is what its own text says: `--set word=none` is None, not the text."""


def fields(values):
    return [(key, KINDS[key].kind, option(value, "") if not isinstance(value, list) else dataclasses.field(default_factory=lambda v=value: list(v)))
            for key, value in values.items()]


DEFAULTS = {key: kind.default for key, kind in KINDS.items()}
Settings = dataclasses.make_dataclass("Settings", fields(DEFAULTS), bases=(LineConfig,), frozen=True)
Options = dataclasses.make_dataclass("Options", fields(DEFAULTS), frozen=True)
SET = [word for key, kind in KINDS.items() for word in ("--set", f"{key}={kind.text}")]
GIVEN = [f"--{key.replace('_', '-')}={kind.text}" for key, kind in KINDS.items()]


class Kinds(Line):
    """A task with every type of setting, which notes those that it gets."""

    name, config, sampling, evaluating = "kinds", Settings, Options, Options
    variants: ClassVar = {"plain": {}, "other": {"sizes": [7, 8]}}
    seen: ClassVar[list] = []

    def data(self, cfg, root=None):
        self.seen.append(cfg)
        return super().data(cfg)

    def sample(self, trained, options, out):
        self.seen.extend((trained.config, options))
        out.write_text("sampled")
        return [out]

    def evaluate(self, trained, options, say):
        self.seen.extend((trained.config, options))
        return Findings("found", ["a"], [["1"]], [], {})


@pytest.fixture
def duoln_with(monkeypatch, tmp_path):
    task = guard_task(Kinds(), "a-plug-in")
    Kinds.seen.clear()
    for module in ("duoln.tasks.registry.find_task", "duoln.training.train.find_task"):
        monkeypatch.setattr(module, lambda name, asked=None: task)
    monkeypatch.chdir(tmp_path)
    return lambda *words: main(list(words))


def typed(values):
    """The values with the type of each and of its parts."""
    if dataclasses.is_dataclass(values):
        values = {key: getattr(values, key) for key in KINDS}
    if isinstance(values, dict):
        return {key: typed(value) for key, value in values.items()}
    return (type(values), [typed(v) for v in values]) if isinstance(values, list | tuple) else (type(values), values)


@pytest.mark.long
@pytest.mark.parametrize(("words", "options"), [([], []), (SET, GIVEN)], ids=["defaults", "set"])
def test_every_command_reads_what_a_run_has_written(words, options, duoln_with, tmp_path, capsys):
    expected = {key: kind.value if words else kind.default for key, kind in KINDS.items()} | ({} if words else {"real": 1.0})
    asked = {**expected, "real": 1} if not words else expected  # a class's own default of an option is as it was written
    run = ("run", "kinds", "--variant", "plain", "--backend", "numpy", "--out", "a")
    assert duoln_with(*run, *words, "--epochs", "1") == 0
    assert duoln_with(*run, "--resume", "auto", *words, "--epochs", "2") == 0
    assert duoln_with(*run, "--resume", "auto", "--epochs", "3") == 0
    assert duoln_with("sample", "a", "--backend", "numpy", "--out", "out", *options) == 0
    assert duoln_with("evaluate", "a", "--backend", "numpy", *options) == 0
    for by in ("run", "seed"):
        assert duoln_with("report", "a", "--html", "page.html", "--out", "out-of-report", "--by", by) == 0
    assert duoln_with("report", "a", "--markdown") == 0
    seen = [cfg for cfg in Kinds.seen if isinstance(cfg, Settings)]
    assert len(seen) == 5 and all(typed(cfg) == typed(expected) for cfg in seen)
    assert [typed(o) for o in Kinds.seen if isinstance(o, Options)] == [typed(asked)] * 2
    for kind in ("sample", "evaluate"):
        assert duoln_with(kind, "a", "--help") == 0
    assert duoln_with("show", "kinds") == 0 and "sizes=1,2" in capsys.readouterr().out


def test_a_setting_that_differs_is_named_as_it_is_typed(duoln_with, capsys):
    run = ("run", "kinds", "--variant", "plain", "--backend", "numpy", "--out", "a")
    assert duoln_with(*run) == 0 and duoln_with(*run, "--resume", "auto", "--set", "sizes=3,4") == 2
    assert "sizes 3,4 where it has 1,2" in capsys.readouterr().err


def test_values_of_a_variant_are_of_the_settings_type():
    assert make_config(Kinds(), "other").sizes == (7, 8)


@pytest.mark.parametrize("key", EXACT)
def test_a_value_in_words_is_what_the_command_line_reads(key):
    kind, default, text, value = KINDS[key]
    assert typed(convert("", value_in_words(value), kind)) == typed(value) == typed(convert("", text, kind))
    assert convert("", value_in_words(default), kind) == default


@pytest.mark.parametrize(("kind", "text"), [
    (tuple[int, ...], "1,a"), (tuple[int, ...], "[1"), (tuple[int, ...], "[1.5]"), (tuple[int, int], "1"), (tuple[int, ...], "[[1]]"), (int | float, "many"),
    (int | None, "None"), (Literal[1, True], "2"), (list[bool], "true,1"), (tuple[int, ...] | None, "1,")])
def test_a_text_that_does_not_fit(kind, text):
    check_error(UsageError, lambda: convert("[a] b", text, kind), "[a] b: expected ", kind_in_words(kind), repr(text))


HALVES = [1.5, np.float64(1.5), np.float32(1.5), np.float16(1.5), np.longdouble(1.5), np.array(1.5), Fraction(3, 2), Decimal("1.5")]


@pytest.mark.parametrize("value", HALVES, ids=repr)
def test_a_fraction_of_any_class_is_no_whole_number(value):
    check_error(UsageError, lambda: convert("[a] b", value, int), "[a] b: expected int, found")
    check_error(UsageError, lambda: convert("[a] b", [2, value], tuple[int, ...]), "[a] b: expected tuple")
    assert convert("", value, int | float) == convert("", value, float) == 1.5  # and it is not cut off for a number
    check_error(UsageError, lambda: make_config(Kinds(), "plain", settings={"whole": value}), "[kinds] whole: expected int")


@pytest.mark.parametrize(("value", "kind", "expected"), [
    (np.float32(2), int, 2), (np.int64(2), int, 2), (np.array(2), int, 2), (Fraction(4, 2), int, 2), (Decimal(2), int, 2), (2.0, int, 2),
    (np.bool_(True), bool, True), (np.float32(0.5), float, 0.5), (Decimal("0.1"), float, 0.1), (np.str_("a"), str, "a"), (np.uint8(1), Literal[1, 2], 1)],
    ids=repr)
def test_a_scalar_of_another_library_is_a_plain_value(value, kind, expected):
    assert typed(convert("", value, kind)) == typed(expected)


@pytest.mark.parametrize(("value", "kind"), [(b"12", int), (b"1.5", float), (np.bool_(True), int), (np.bool_(True), float), (np.array([3]), int), (2 + 0j, int),
                                             (1e300 * 10 ** 10, int), (np.float32("nan"), int), (Decimal("nan"), float), (timedelta(1), int)], ids=repr)
def test_a_value_that_is_no_number(value, kind):
    check_error(UsageError, lambda: convert("[a] b", value, kind), "[a] b: expected ")


@pytest.mark.parametrize("kind", [object, Any, dict, dict[str, int], tuple, list, set[int], bytes, complex, type, tuple[object, ...], int | object,
                                  Literal[b"a"], Settings, "int", 3])
def test_types_that_no_setting_may_have(kind):
    assert not is_readable(kind)


def test_the_texts_of_all_types_are_json_too():
    assert json.loads(value_in_words(KINDS["nested"].default)) == [[1], []]


@dataclass(frozen=True)
class Base(Config):
    width: int = 1
    """Of a layer,
    in units."""
    depth: int = 2
    """How many layers."""


@dataclass(frozen=True)
class Own(Base):
    """A class's own string is no setting's."""

    depth: int = 3
    width: int = 4
    """Of every layer."""
    silent: int = 5


@dataclass(frozen=True)
class SilentConfig(Config):
    mute: int = 0
    known: int = 1
    """Something."""


class Silent(Spirals):
    config = SilentConfig


def test_no_setting_of_a_built_in_task_lacks_its_meaning():
    tasks = Registry().tasks
    assert len(tasks) >= 8
    silent = [f"{name}: {s.name}" for name, entry in tasks.items() for s in settings_of(entry.task) if not s.meaning]
    assert not silent


def test_strings_of_a_class_and_of_its_bases():
    meanings = meanings_of(Own)
    assert meanings["width"] == "Of every layer." and meanings["depth"] == "How many layers."
    assert "silent" not in meanings and meanings["seed"]
    assert meanings_of(Base)["width"] == "Of a layer, in units."


def test_a_class_without_source_has_the_meanings_of_its_bases():
    made = {"__name__": "nowhere", "Config": Config, "dataclass": dataclass}
    exec("@dataclass(frozen=True)\nclass Typed(Config):\n    width: int = 1\n    'Of a layer.'\n", made)
    assert "width" not in meanings_of(made["Typed"]) and meanings_of(made["Typed"])["epochs"]


def test_an_installed_package_has_its_meanings(tmp_path, monkeypatch):
    (tmp_path / "guest_settings.py").write_text(
        "from dataclasses import dataclass\nfrom duoln.tasks import Config\n\n\n@dataclass(frozen=True)\n"
        "class GuestConfig(Config):\n    width: int = 1\n    '''Of a layer.'''\n")
    monkeypatch.syspath_prepend(tmp_path)
    import guest_settings

    assert meanings_of(guest_settings.GuestConfig)["width"] == "Of a layer."
    del sys.modules["guest_settings"]


@pytest.mark.parametrize(("kind", "words"), [
    (int, "int"), (float | None, "float or none"), (bool, "true or false"), (Literal["a", "b"], "one of a, b"),
    (Literal["a", 2] | None, "one of a, 2 or none")])
def test_types_in_words(kind, words):
    assert kind_in_words(kind) == words


def test_check_task_names_a_setting_without_meaning():
    with pytest.raises(AssertionError, match=r"string under every field of SilentConfig.* found none under mute$"):
        check_task(Silent())
