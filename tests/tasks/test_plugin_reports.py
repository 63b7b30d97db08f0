"""Situations of public reports about plug-ins and extensions of other projects, each with its source, as authors of duoln's meet them.

A case is named by the project and the number of the report. What is wanted is either the right result or an error that names the
plug-in, or the operator, and what was expected.
"""

import importlib
import json
import sys
import threading
from dataclasses import dataclass
from typing import Literal, Optional

import numpy as np
import pytest
from hostile_plugins import task

import duoln
from duoln import ops
from duoln.cli import main
from duoln.errors import DuolnError, GradientError, KernelError, PluginError, UsageError
from duoln.examples.own_task import Spirals
from duoln.extend import Launch, Rule, Tensor, native, op
from duoln.kernels.native import storage
from duoln.tasks import Column, Config, train
from duoln.tasks.events import Listener
from duoln.tasks.registry import Registry, find_task
from duoln.tasks.settings import make_config
from duoln.testing import check_error, check_rule

HOOK = "from duoln.examples.own_task import Spirals\nfrom duoln.tasks import Task, hookimpl\n"
REFUSED = {
    "pytest: #1443, an import fails": ("import no_such_module", None, "plug-in 'mine' of mine-dist is broken: ModuleNotFoundError: No module named 'no_such_module' (", "mine_module.py:1)"),
    "pytest: #375, an import inside an import fails": ("import json\nfrom json import no_such_name", None, "ImportError: cannot import name 'no_such_name' from 'json'", "mine_module.py:2)"),
    "llm: #327, another version of a library": ("from duoln.tasks import OfLater", None, "ImportError: cannot import name 'OfLater' from 'duoln.tasks'"),
    "pluggy: #128, a class with self and no object of it": (HOOK + "class P:\n    @hookimpl\n    def duoln_tasks(self): return []", "mine_module:P", "missing 1 required positional argument: 'self'"),
    "pluggy: #89, an argument that the hook has not": (HOOK + "@hookimpl\ndef duoln_tasks(config): return []", None, "duoln_tasks(config)", "Argument(s) {'config'}"),
    "pytest: #6475, an unknown hook": (HOOK + "@hookimpl\ndef duoln_task(): return []", None, "unknown hook 'duoln_task'"),
    "pytest: #855, a text in the place of a plug-in": (HOOK + "@hookimpl\ndef duoln_tasks(): return ['spirals']", None, "duoln_tasks: expected Task objects, found 'spirals'"),
    "tox-pipenv: #40, the marker of another project": ("import pluggy\n" + HOOK + "@pluggy.HookimplMarker('pytest')\ndef duoln_tasks(): return [Spirals()]", None, "duoln_tasks: expected @hookimpl of duoln.tasks above it, found none"),
    "llm: #833, an entry point without its module": ("", "mine_module.task", "is not a package"),
    "avocado: #3195, an entry point without its object": ("", "mine_module:plugin", "module 'mine_module' has no attribute 'plugin'"),
}


@pytest.mark.parametrize(("source", "value", "words"), [(source, value, words) for source, value, *words in REFUSED.values()], ids=REFUSED)
def test_who_asks_for_a_task_is_told_why_it_is_not_there(install, source, value, words):
    install("mine", source, value=value)
    check_error(PluginError, lambda: find_task("mine"), "plug-in 'mine' of mine-dist", *words)
    assert "mnist" in Registry().tasks, "llm: #1280, and all others are"


@pytest.mark.parametrize("is_link", [True, False], ids=["instawow: #188, a folder by two names", "importlib_metadata: #410, an editable install"])
def test_metadata_that_are_twice_on_the_path(install, tmp_path, monkeypatch, is_link):
    install("mine", task("name = 'mine'"))
    if is_link:
        (tmp_path / "more").symlink_to(tmp_path)
    else:
        egg = tmp_path / "more/mine_dist.egg-info"
        egg.mkdir(parents=True)
        (egg / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: mine_dist\nVersion: 1.0\n")
        (egg / "entry_points.txt").write_text("[duoln]\nmine = mine_module\n")
    monkeypatch.syspath_prepend(tmp_path / "more")
    assert "mine" in Registry().tasks and Registry().broken == []


def test_llm_92_runs_of_a_package_that_is_not_there_any_more(install, tmp_path, capsys):
    install("mine", task("name = 'mine'"))
    train(find_task("mine"), "ln", preset="smoke", epochs=0, backend="numpy", out=tmp_path / "run")
    (tmp_path / "mine_dist-1.0.dist-info/entry_points.txt").unlink()
    capsys.readouterr()
    assert main(["report", str(tmp_path / "run"), "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["runs"][0]["task"] == "mine" and "task 'mine' is not installed; the figures are those of its runs" in told.err


@dataclass(frozen=True)
class Wide(Config):
    flag: "bool" = True
    few: int | bool = 3
    last: Literal[True, False, "link"] = "link"
    model: Literal["all"] | bool = False
    rate: str | float = "auto"
    limit: Optional[float] = None  # noqa: UP045 (authors write it)
    sizes: tuple[int, ...] = (1, 2)
    text: str = ""


class WideTask(Spirals):
    name, config = "wide", Wide
    presets, variants = {}, {"plain": {}}


@pytest.mark.parametrize(("name", "given", "wanted"), [
    pytest.param("flag", "false", False, id="Lightning: #15741, an annotation that is a text"),
    pytest.param("few", "true", True, id="Lightning: #5069, int or bool"),
    pytest.param("last", "true", True, id="Lightning: #19799, a Literal with bools"),
    pytest.param("model", "all", "all", id="Lightning: #18370, a text beside a bool"),
    pytest.param("model", "true", True, id="Lightning: #3235, a bool beside a text"),
    pytest.param("rate", "0.1", 0.1, id="Lightning: #18370, the order of a union"),
    pytest.param("limit", "none", None, id="jsonargparse: #120, None or a number"),
    pytest.param("limit", np.float32(2), 2.0, id="Lightning: #2444, a number of NumPy's"),
    pytest.param("sizes", [3, 4], (3, 4), id="Lightning: #11037, a list"),
    pytest.param("text", "a=b,c", "a=b,c", id="moonworm: #31, signs of the command line in a text"),
])
def test_a_setting_is_what_its_type_says(name, given, wanted):
    value = getattr(make_config(WideTask(), "plain", None, {name: given}), name)
    assert value == wanted and type(value) is type(wanted)
    check_error(UsageError, lambda: make_config(WideTask(), "plain", None, {"flag": "yes"}), "flag: expected true or false, found 'yes'")


@pytest.mark.parametrize(("field", "words"), [
    pytest.param("x: Path = Path()", "x: expected a type of int, float", id="Lightning: #8626, what a file cannot hold"),
    pytest.param("x: list = []", "mutable default", id="ML-CaPsule: #1580, a mutable default"),
    pytest.param("data: int = 1", "expected another name than 'data'", id="phytest: #12, a name that is taken"),
    pytest.param("x: 'Later' = None", "NameError: name 'Later' is not defined", id="jsonargparse: #337, a type that only a type checker sees")])
def test_a_class_of_settings_that_cannot_be_used_is_refused_when_it_is_loaded(install, field, words):
    install("mine", task("name, config = 'mine', C", f"@dataclass(frozen=True)\nclass C(SpiralsConfig):\n    {field}"))
    check_error(PluginError, lambda: find_task("mine"), "plug-in 'mine' of mine-dist is broken: ", words)


class Heard(Listener):
    def __init__(self):
        self.seen, self.ends, self.lock = [], [], threading.Lock()  # of which there is no copy

    def on_evaluation(self, event):
        self.seen.append(dict(event.values))
        event.values["of another"] = 1.0

    def on_end(self, status, result):
        self.ends.append(status)


def _trained(task_, **more):
    return train(task_, "ln", preset="smoke", epochs=1, backend="numpy", **more)


def test_tensorflow_45895_what_a_listener_writes_reaches_no_other():
    first, second = Heard(), Heard()
    _trained(Spirals(), listeners=[first, second])
    assert first.seen == second.seen and first.ends == second.ends == ["done"]


class Failing(Spirals):
    def metrics(self, predict, split):
        raise ValueError("the cause")


class OfExamples(Spirals):
    def loss(self, model, params, batch):
        return ops.sum(model(params, batch["x"]), axis=-1)


class Columned(Spirals):
    columns = (Column("valid_error", "error"),)


@pytest.mark.parametrize(("kind", "ends", "words"), [
    pytest.param(Failing, ["failed"], "metrics raised ValueError: the cause", id="Lightning: #657, the end after a failure"),
    pytest.param(OfExamples, ["failed"], "loss: expected a loss of shape (), found (64,)", id="keras: #3058, a loss for each example"),
    pytest.param(Columned, ["failed"], "[spirals] columns: expected some of the metrics test_error, found valid_error", id="Lightning: #18259, a metric that is not there")])
def test_a_task_that_fails_is_named_and_its_listeners_are_told(kind, ends, words):
    heard = Heard()
    check_error(DuolnError, lambda: _trained(kind(), listeners=[heard]), "spirals", words)
    assert heard.ends == ends


X = np.arange(6, dtype=np.float32).reshape(2, 3)
RIGHT = {"forward": lambda be, x: (x * x, x), "vjp": lambda be, x, gout, needs: (2 * x * gout,)}


def _square(**given):
    @op("x: real[*shape] -> like x")
    def square(x: Tensor) -> Tensor:
        """x^2."""
    square.add(Rule("composed", **{**RIGHT, **given}))
    return square


@pytest.mark.parametrize(("given", "words"), [
    pytest.param({"vjp": lambda be, x, gout, needs: (gout, None)}, "expected a tuple of 1 gradients, one for each array, found a tuple of 2", id="keops: #327, too many gradients"),
    pytest.param({"vjp": lambda be, x, gout, needs: 2 * x * gout}, "expected a tuple of 1 gradients", id="pytorch-image-comp-rnn: #4, no tuple")])
def test_a_wrong_rule_is_named(given, words):
    square, x = _square(**given), duoln.tensor(X, "numpy")
    step = duoln.value_and_grad(lambda x: ops.sum(square(x)))
    for each in (step, duoln.compile(step)):
        check_error(GradientError, lambda each=each: each(x), words)


@pytest.mark.parametrize(("given", "words"), [
    pytest.param({"vjp": lambda be, x, gout, needs: (x * np.multiply(gout, 2, out=gout),)}, "wrote into its gout 0", id="pytorch: #75312, a gradient that is written into"),
    pytest.param({"forward": lambda be, x: (np.multiply(x, x, out=x), np.sqrt(x))}, "wrote into its input 0", id="pytorch: #130487, an input that is written into"),
    pytest.param({"vjp": lambda be, x, gout, needs: ((2 * x * gout)[:, :1],)}, "expected shape (2, 3), found (2, 1)", id="pytorch: #65244, a gradient that would broadcast"),
    pytest.param({"vjp": lambda be, x, gout, needs: ((2 * x * gout).astype(np.float64),)}, "expected dtype float32, found float64", id="chainer: #5748, a gradient of another dtype")])
def test_check_rule_finds_a_rule_that_breaks_its_promises(given, words):
    square = _square()
    wrong = Rule("fast", **{**RIGHT, **given})
    check_error(AssertionError, lambda: check_rule(square, wrong, [X], "numpy"), words)


def test_pytorch_125183_a_module_of_operators_is_loaded_again(tmp_path, monkeypatch):
    text = ("from duoln.extend import Rule, Tensor, op\n@op('x: real[*shape] -> like x')\ndef times(x: Tensor) -> Tensor:\n    'x.'\n"
            "times.add(Rule('composed', lambda be, x: ({} * x, None), lambda be, s, gout, needs: ({} * gout,)))\n")
    monkeypatch.syspath_prepend(tmp_path)
    for scale in (2, 33):  # texts of two lengths, because Python may take one of the same second and length from its cache
        (tmp_path / "reloaded_module.py").write_text(text.format(scale, scale))
        made = importlib.reload(sys.modules["reloaded_module"]) if scale == 33 else importlib.import_module("reloaded_module")
        assert made.times(duoln.tensor(X, "numpy")).tolist() == (scale * X).tolist()
    monkeypatch.delitem(sys.modules, "reloaded_module")


TEXT = '#include "scale.h"\n#include "common.h"\nENTRY(scaled) {\n    for (index_t k = 0; k < size; ++k) y[k] = SCALE * x[k];\n}\n'
needs_compiler = pytest.mark.skipif(native.compiler() is None, reason="there is no C++ compiler")


@pytest.fixture
def launch(tmp_path, monkeypatch):
    """A launch of a text in a package's folder, whose header has a scale."""
    monkeypatch.setattr(storage, "_outside", set())

    def make(package, scale, text=TEXT):
        (tmp_path / package).mkdir(exist_ok=True)
        (tmp_path / package / "scale.h").write_text(f"static const int SCALE = {scale};\n")
        (tmp_path / package / "scaled.cpp").write_text(text)
        return Launch(str(tmp_path / package / "scaled"), "scaled", "x: real[*size] -> y: like x")["numpy"]
    return make


@needs_compiler
def test_kernel_builder_11_two_packages_with_the_same_names_of_files_headers_and_entries(launch):
    first, second = launch("a", 2), launch("b", 5)
    assert first(X).tolist() == (2 * X).tolist() and second(X).tolist() == (5 * X).tolist()
    assert launch("a2", 5)(X).tolist() == (5 * X).tolist(), "exllama: #209, only a header differs"


@needs_compiler
@pytest.mark.parametrize("view", [np.transpose, lambda x: x[:, ::2], lambda x: x[::-1], lambda x: np.broadcast_to(x[0], (4, 3)), lambda x: x[:0]])
def test_flash_attention_355_arrays_in_any_layout(launch, view):
    assert launch("a", 2)(view(X)).tolist() == (2 * view(X)).tolist()


@needs_compiler
def test_pytorch_22445_a_text_that_does_not_compile(launch, capfd):
    check_error(KernelError, lambda: launch("wrong", 2, TEXT.replace("x[k]", "x[k] * unknown"))(X), "[scaled] ", "wrong/scaled.cpp for float32 does not compile")
    assert "scaled.cpp:4:" in capfd.readouterr().err, "the author's own line"


def test_quanto_254_a_package_without_its_text(tmp_path):
    check_error(KernelError, lambda: Launch(str(tmp_path / "gone"), "scaled", "x: real[*size] -> y: like x"), "[scaled] expected ENTRY(scaled) in a text ", "gone.cpp")
