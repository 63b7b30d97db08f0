"""Plug-ins from outside, as real distributions on sys.path: good ones are loaded, broken ones do not stop the
others.
"""

import importlib.metadata
import json
import re
import signal
import sys
import tomllib
from pathlib import Path
from textwrap import dedent

import pytest

from duoln.cli import build_parser, main
from duoln.errors import PluginError, UsageError
from duoln.plugins.mnist import Mnist
from duoln.tasks import registry
from duoln.tasks.events import Listener
from duoln.tasks.registry import Registry, find_task
from duoln.testing import check_error

PROJECT = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
PLUGINS = list(PROJECT["project"]["entry-points"]["duoln"])
"""Our own plug-ins."""
BUILT_IN = [name for name in PLUGINS if name not in ("paper", "theory")]
"""Those that bring a task, one of their own name each; the others bring commands."""

GOOD = """
    from duoln.tasks import Task, hookimpl

    class Mine(Task):
        name, variants = "mine", {"plain": {}}

    @hookimpl
    def duoln_tasks():
        return [Mine()]
"""

GREETING = """
    from duoln.cli import console
    from duoln.tasks import Command, hookimpl

    def options(parser):
        parser.add_argument("name")

    def run(args):
        console.put(f"hello {args.name}")
        return 7

    @hookimpl
    def duoln_commands():
        return [Command("greet", "say hello, 50 % louder", options, run)]
"""


def _only_broken():
    """The one broken row of a registry in which the built-in task still is."""
    registry = Registry()
    assert isinstance(registry.tasks["mnist"].task, Mnist)
    assert list(registry.tasks) == BUILT_IN
    [row] = registry.broken
    return row


# What is not there ------------------------------------------------------------------------------------

def test_a_task_of_nowhere():
    for name in ("speech", "..", "a/b", ""):
        check_error(UsageError, lambda name=name: find_task(name), f"found {name!r}; a task of another package is there once that package is installed")
    check_error(UsageError, lambda: find_task("mnits"), "found 'mnits'; did you mean 'mnist'?")


# What is found ----------------------------------------------------------------------------------------

def test_the_built_in_tasks_are_there_without_metadata(monkeypatch, tmp_path):
    """As in a copied folder, which nothing has installed."""
    monkeypatch.setattr(registry, "_CHECKOUT", tmp_path / "pyproject.toml")
    for has_metadata in (True, False):
        if not has_metadata:
            monkeypatch.setattr(registry.Distribution, "from_name", _not_installed)
        names = {entry.name: entry.value for entry in registry._own_entry_points()}
        assert {*BUILT_IN, "paper", "theory"} == names.keys() and names["las"] == "duoln.plugins.las"


def _not_installed(name):
    raise importlib.metadata.PackageNotFoundError(name)


def test_an_outside_plugin_is_found_with_its_distribution(install):
    install("good", GOOD)
    registry = Registry()
    assert registry.broken == []
    assert registry.tasks["mine"].distribution == "good-dist"
    assert registry.tasks["mnist"].distribution == "duoln"
    assert find_task("mine").name == "mine"  # by the task's name, which is not the entry point's


def test_an_object_may_be_the_plugin(install):
    install("good", """
        from duoln.tasks import Task, hookimpl

        class Mine(Task):
            name, variants = "mine", {"plain": {}}

        class Plugin:
            @hookimpl
            def duoln_tasks(self):
                return [Mine()]

        plugin = Plugin()
    """, value="good_module:plugin")
    assert Registry().tasks["mine"].distribution == "good-dist"


def test_a_plugin_need_not_bring_tasks(install):
    install("empty", "")
    assert Registry().broken == [] and list(Registry().tasks) == BUILT_IN
    check_error(PluginError, lambda: find_task("empty"), "plug-in 'empty' of empty-dist: expected tasks, found none", "@hookimpl")


def test_the_second_command_of_a_name_is_refused(install):
    install("greeting", GREETING)
    install("paper2", GREETING.replace('"greet"', '"paper"'))
    registry = Registry()
    assert registry.commands["paper"][1] == "duoln" and "greet" in registry.commands
    [row] = registry.broken
    assert row[:2] == ("paper", "paper2-dist")
    assert row.reason == "PluginError: expected one command named 'paper', found a second in plug-in 'paper2'; the first is duoln's"


def test_listeners(install):
    install("listening", """
        from duoln.tasks import hookimpl
        from duoln.tasks.events import Listener

        @hookimpl
        def duoln_listeners():
            return [Listener()]
    """)
    [listener] = Registry().listeners(print)
    assert isinstance(listener, Listener)


def test_listeners_that_cannot_be_made(install):
    install("deaf", """
        from duoln.tasks import hookimpl

        @hookimpl
        def duoln_listeners():
            raise OSError("no socket")
    """)
    registry = Registry()
    assert registry.broken == [] and registry.listeners(print) == []
    [broken] = registry.broken
    assert broken[:2] == ("deaf", "deaf-dist") and re.fullmatch(r"OSError: no socket \(/.*/deaf_module\.py:6\)", broken.reason)


# What is broken ---------------------------------------------------------------------------------------

HOOK = "from duoln.tasks import Task, hookimpl\n@hookimpl\n"
BROKEN = {
    "import": ("import no_such_module_at_all", "ModuleNotFoundError: No module named 'no_such_module_at_all'"),
    "syntax": ("def f(:", "SyntaxError: invalid syntax"),
    "exit": ("import sys; sys.exit(3)", "SystemExit: 3"),
    "silent exit": ("import sys; sys.exit()", "SystemExit: no message"),
    "a hook of operators": (HOOK + "def duoln_rules():\n    return []", "unknown hook 'duoln_rules'"),
    "misspelt": (HOOK + "def duoln_taks():\n    return []", "unknown hook 'duoln_taks'"),
    "argument": (HOOK + "def duoln_tasks(config):\n    return []", "'config'"),
    "raises": (HOOK + "def duoln_tasks():\n    raise RuntimeError('first line\\nsecond')", "RuntimeError: first line"),
    "the marker of another project": ("import pluggy\n" + HOOK[:HOOK.index("@")] + "@pluggy.HookimplMarker('pytest')\ndef duoln_tasks():\n    return []", "duoln_tasks: expected @hookimpl of duoln.tasks above it"),
    "exits": (HOOK + "def duoln_tasks():\n    raise SystemExit('bye')", "SystemExit: bye"),
    "no task": (HOOK + "def duoln_tasks():\n    return ['speech']",
                "PluginError: duoln_tasks: expected Task objects, found 'speech'"),
    "class": (HOOK + "def duoln_tasks():\n    return [Task]", "expected Task objects, found type"),
    "nameless": (HOOK + "def duoln_tasks():\n    return [Task()]", "a task of class Task: name: expected a name of 1 to 64"),
    "no list": (HOOK + "def duoln_tasks():\n    return Task()", "PluginError: duoln_tasks: expected a list, found Task"),
    "half good": (dedent(GOOD).replace("[Mine()]", "[Mine(), 3]"), "expected Task objects, found 3"),
    "no command": (HOOK + "def duoln_commands():\n    return ['greet']", "PluginError: duoln_commands: expected Command objects, found 'greet'"),
    "command of two words": (dedent(GREETING).replace('"greet"', '"say hello"'), "whose name is one word and whose help is a text, found 'say hello'"),
    "command without help": (dedent(GREETING).replace('"say hello, 50 % louder"', "None"), "whose help is a text, found 'greet' and None"),
    "options that raise": (dedent(GREETING).replace('"name")', '"-n", "n")'), "ValueError: "),
    "help that raises": (dedent(GREETING).replace('"name")', '"name", help="50 %!")'), "ValueError: "),
}


@pytest.mark.parametrize(("source", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_broken_plugin_is_a_row_and_stops_nobody(install, source, reason):
    install("bad", source)
    row = _only_broken()
    assert (row.name, row.distribution) == ("bad", "bad-dist")
    assert reason in row.reason and "\n" not in row.reason


@pytest.mark.parametrize("source", [s for s, _ in BROKEN.values()], ids=BROKEN)
def test_strict_makes_it_an_error(install, monkeypatch, source):
    install("bad", source)
    monkeypatch.setenv("DUOLN_STRICT_PLUGINS", "1")
    check_error(PluginError, Registry, "plug-in 'bad' of bad-dist: ")


@pytest.mark.parametrize(("value", "reason"), [
    ("bad_module:nothing", "AttributeError"), ("bad_module.sub", "not a package"), ("what is this", "Error: ")])
def test_an_entry_point_that_leads_nowhere(install, value, reason):
    install("bad", "", value=value)
    assert reason in _only_broken().reason


def test_ctrl_c_is_no_broken_plugin(install):
    install("bad", "import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        Registry()
    assert signal.getsignal(signal.SIGINT) is before


def test_two_tasks_of_one_name(install, monkeypatch):
    install("second", GOOD.replace('"mine"', '"mnist"'))
    row = _only_broken()
    assert (row.name, row.distribution) == ("mnist", "second-dist")
    assert "second in plug-in 'second'" in row.reason and "the first is duoln's" in row.reason
    assert isinstance(find_task("mnist"), Mnist)
    monkeypatch.setenv("DUOLN_STRICT_PLUGINS", "1")
    with pytest.raises(PluginError) as caught:
        Registry()
    assert str(caught.value).count("plug-in 'mnist' of second-dist") == 1
    assert "plug-in 'second' of" not in str(caught.value)  # said once, not wrapped again


@pytest.mark.parametrize("entry", ["mnist", "shared"])
def test_two_plugins_of_one_name(install, monkeypatch, entry):
    install("first", GOOD, entry=entry)
    if entry == "shared":
        install("second", GOOD, entry=entry)
    registry = Registry()
    assert isinstance(registry.tasks["mnist"].task, Mnist)
    [row] = registry.broken
    assert row.name == entry and row.distribution in ("first-dist", "second-dist")
    assert f"expected one plug-in named '{entry}', found a second; the first is" in row.reason
    assert ("mine" in registry.tasks) == (entry == "shared")
    monkeypatch.setenv("DUOLN_STRICT_PLUGINS", "1")
    check_error(PluginError, Registry, f"plug-in '{entry}' of ")


# Switches ---------------------------------------------------------------------------------------------

def test_autoload_can_be_switched_off(install, monkeypatch):
    install("good", GOOD)
    install("bad", "raise AssertionError('imported')")
    monkeypatch.setenv("DUOLN_DISABLE_PLUGIN_AUTOLOAD", "1")
    registry = Registry()
    assert list(registry.tasks) == BUILT_IN and registry.broken == []
    check_error(UsageError, lambda: find_task("mine"), "mnist", "'mine'")


@pytest.mark.parametrize("command", [["list"], ["doctor"], ["run", "mine"]])
def test_a_plugin_that_is_named_and_is_not_there(install, capsys, command):
    install("good", GOOD)
    assert main([*command, "--plugin", "good", "--plugin", "goood"]) == 2
    stderr = " ".join(capsys.readouterr().err.split())
    assert f"[--plugin] expected one of {', '.join(PLUGINS)}, good; found 'goood'" in stderr


def test_only_the_plugins_that_are_named_are_loaded(install, capsys, monkeypatch):
    install("good", GOOD)
    install("bad", "raise AssertionError('imported')")
    monkeypatch.setenv("DUOLN_DISABLE_PLUGIN_AUTOLOAD", "1")  # which is about those that are not named
    assert main(["list", "--json", "--plugin", "good"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [t["name"] for t in document["tasks"]] == ["mine"] and document["broken"] == []
    assert main(["doctor", "--json", "--plugin", "good", "--plugin", "mnist"]) == 0
    assert [(p["name"], p["brings"]) for p in json.loads(capsys.readouterr().out)["plugins"]] == [
        ("mnist", ["task mnist"]), ("good", ["task mine"])]
    assert find_task("mine", ["good"]).name == "mine"
    check_error(UsageError, lambda: find_task("mnist", ["good"]), "expected one of mine; found 'mnist'")
    assert "bad_module" not in sys.modules


@pytest.mark.long
def test_run_with_a_plugin_loads_no_other(install, capsys, tmp_path):
    install("bad", "raise AssertionError('imported')")
    args = ["--preset", "smoke", "--variant", "none", "--epochs", "0", "--backend", "numpy", "--out", str(tmp_path / "r")]
    assert main(["run", "mnist", "--plugin", "mnist", *args]) == 0
    assert "bad_module" not in sys.modules
    assert main(["run", "mnist", "--plugin", "bad", *args]) == 2


# find_task --------------------------------------------------------------------------------------------

def test_a_built_in_task_is_found_without_importing_outside_plugins(install):
    install("good", GOOD)
    assert isinstance(find_task("mnist"), Mnist)
    assert "good_module" not in sys.modules
    find_task("mine")
    assert "good_module" in sys.modules


def test_an_outside_task_of_the_plugins_name_is_found_without_importing_others(install):
    install("mine", GOOD)
    install("other", BROKEN["raises"][0])
    assert find_task("mine").name == "mine"
    assert "other_module" not in sys.modules


# The command line -------------------------------------------------------------------------------------

def test_list_shows_tasks_and_broken_rows(install, capsys):
    install("good", GOOD)
    install("bad", BROKEN["import"][0])
    assert main(["list", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {t["name"]: t["distribution"] for t in document["tasks"]} == {
        **dict.fromkeys(BUILT_IN, "duoln"), "mine": "good-dist"}
    [broken] = document["broken"]
    assert (broken["name"], broken["distribution"]) == ("bad", "bad-dist")
    assert re.fullmatch(re.escape(BROKEN["import"][1]) + r" \(/.*/bad_module\.py:1\)", broken["reason"]), "file and line"


def test_the_line_that_fails_is_the_plugins_own_also_where_it_calls_a_library(install, tmp_path):
    (tmp_path / "helper_of_bad.py").write_text("def make():\n    return 1 / 0\n")
    install("bad", "import helper_of_bad\nhelper_of_bad.make()")
    install("worse", "x = (1,\n  2\ny = 3")
    reasons = {broken.name: broken.reason for broken in Registry().broken}
    assert reasons["bad"].endswith("helper_of_bad.py:2)") and re.search(r"worse_module\.py:\d\)$", reasons["worse"])


def test_a_command_of_an_outside_plugin_runs(install, capsys):
    install("greeting", GREETING)
    assert main(["greet", "Ada"]) == 7
    assert capsys.readouterr().out == "hello Ada\n"
    assert main(["greet"]) == 2
    assert "duoln greet: error: the following arguments are required: name" in capsys.readouterr().err


def test_help_lists_it(install, capsys):
    install("greeting", GREETING)
    for words in (["--help"], []):
        assert main(words) == 0
        out = capsys.readouterr().out
        assert "greet     say hello, 50 % louder" in out and "    paper     every figure" in out


def test_a_command_of_duoln_stays_and_the_other_is_left_out(install, capsys):
    install("greeting", GREETING.replace('"greet"', '"list"'))
    assert main(["--help"]) == 0
    captured = capsys.readouterr()
    assert "left out: command 'list' of greeting-dist, because duoln has one of that name" in captured.err
    assert "50 % louder" not in captured.out
    assert main(["list"]) == 0


@pytest.mark.long
def test_who_asks_for_a_command_of_a_broken_plugin_is_told(install, capsys):
    install("greeting", "import no_such_module_at_all")
    assert main(["greet", "Ada"]) == 2
    captured = capsys.readouterr()
    assert "plug-in 'greeting' of greeting-dist is broken: ModuleNotFoundError" in captured.err
    assert "invalid choice: 'greet'" in captured.err
    assert main(["paper", "6.5"]) == 0
    assert "is broken" not in capsys.readouterr().err


@pytest.mark.parametrize("word", ["run", "list", "bench", "--version"])
def test_no_plugin_is_loaded_for_a_command_of_duoln(word, install):
    install("slow", "raise SystemExit('loaded')")
    [commands] = [action for action in build_parser(word)._actions if action.dest == "command"]
    assert "paper" not in commands.choices and (word in commands.choices) is (word != "--version")
