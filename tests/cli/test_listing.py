"""`duoln list` and `duoln show` in terminals of several widths and in a pipe: every name that is typed is whole."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path
from statistics import median

import pytest

from duoln.cli import main, streams
from duoln.errors import PluginError
from duoln.examples.own_task import Spirals
from duoln.plugins import convnet
from duoln.tasks.contract import check_attributes
from duoln.tasks.registry import Registry
from duoln.testing import check_error

TASKS = {name: entry.task for name, entry in Registry().tasks.items()}


def _typed(task):
    return {task.name, *task.variants, *task.presets}


def _on_terminal(columns, *words):
    """What a command prints on a terminal of that many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
    process = subprocess.Popen([sys.executable, "-m", "duoln", *words], stdin=theirs, stdout=theirs, stderr=theirs,
                               env={**env, "TERM": "xterm", "NO_COLOR": "1"})
    os.close(theirs)
    printed = b""
    while True:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:  # Linux ends the reading of a closed terminal so
            break
        if not part:
            break
        printed += part
    os.close(ours)
    assert process.wait() == 0
    return printed.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("columns", [60, 80])
def test_no_name_is_cut_on_a_terminal(columns):
    text = _on_terminal(columns, "list")
    assert max(map(len, text.splitlines())) <= columns
    words = set(re.split(r"[\s,]+|: ", text))
    for task in TASKS.values():
        assert _typed(task) <= {word.rstrip(":") for word in words}, task.name


def test_no_name_is_cut_in_a_pipe(capsys):
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for task in TASKS.values():
        at = lines.index(task.name)
        assert lines[at + 1].startswith(f"  task: {task.title}")
        assert f"  presets: {', '.join(task.presets)}" in lines[at + 3:]


def test_list_tells_which_data_are_here(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DUOLN_DATA", str(tmp_path))
    monkeypatch.setenv("DUOLN_CACHE", str(tmp_path / "cache"))

    def states():
        assert main(["list", "--json"]) == 0
        return {task["name"]: task["data"] for task in json.loads(capsys.readouterr().out)["tasks"]}

    before = states()
    assert set(before) == set(TASKS) and all(set(states.values()) == {"not here"} for states in before.values())
    for task in TASKS.values():
        for corpus in task.corpora.values():
            for file in corpus[-1][:1 if task.name == "handwriting" else None]:
                (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / file).touch()
    after = states()
    assert after.pop("handwriting") == {"IAM-OnDB": "incomplete"}
    assert all(set(states.values()) == {"here"} for states in after.values()), after


def test_the_time_of_a_preset_is_from_runs_that_are_kept(capsys):
    assert main(["list", "--json"]) == 0
    seconds = {task["name"]: task["small_seconds"] for task in json.loads(capsys.readouterr().out)["tasks"]}
    kept = [json.loads(path.read_text()) for path in (Path(convnet.__file__).parent / "results" / "small").glob("*/result.json")]
    assert seconds["convnet"] == pytest.approx(median(r["epochs"] * r["seconds_per_epoch"] for r in kept))
    assert seconds["mnist"] is None  # its kept runs have the paper's settings


@pytest.mark.parametrize("wrong", [[], {"a": "file"}, {"a": ["file"]}, {"a": [()]}, {1: [("file",)]}])
def test_corpora_that_are_none(wrong):
    task = type("Wrong", (Spirals,), {"corpora": wrong})()
    check_error(PluginError, lambda: check_attributes(task), "corpora: expected sets of files by name")


@pytest.mark.parametrize("name", TASKS)
def test_show_has_everything(name, capsys):
    task = TASKS[name]
    assert main(["show", name, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [s["name"] for s in document["settings"]] == list(vars(task.config()))
    assert all(s["type"] and s["meaning"] for s in document["settings"])
    assert {s["name"]: s["default"] for s in document["settings"]} == vars(task.config())
    assert document["presets"] == task.presets and document["variants"] == task.variants
    assert main(["show", name]) == 0
    text = capsys.readouterr().out
    for each in document["settings"]:
        assert f"\n  {each['name']}=" in text and each["meaning"] in text
    for command, kind in (("sample", task.sampling), ("evaluate", task.evaluating)):
        assert (f"duoln {command} RUN" in text) == (kind is not None)
        assert all(f"\n  --{name.replace('_', '-')}\n" in text for name in (() if kind is None else vars(kind())))
    for option in (*task.presets, *task.variants):
        assert f"\n  {option}\n" in text


@pytest.mark.parametrize("words", [["list"], ["show", "mnist"]])
def test_a_reader_that_leaves_early_gets_the_whole_result(words, monkeypatch):
    written = []
    monkeypatch.setattr(streams.Results, "_send", lambda self, text: written.append(text))
    assert main(words) == 0 and len(written) == 1 and len(written[0].splitlines()) > 10


def test_a_task_of_no_paper_has_no_empty_brackets(monkeypatch, capsys):
    monkeypatch.setattr(type(TASKS["mnist"]), "paper", "")
    for words in (["list"], ["show", "mnist"]):
        assert main(words) == 0
        out = capsys.readouterr().out
        assert TASKS["mnist"].title in out and "()" not in out
