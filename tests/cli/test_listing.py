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

import pytest

from duoln.cli import main, streams
from duoln.tasks.registry import Registry

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
        [at] = [k for k, line in enumerate(lines) if line.startswith(f"{task.name}: ")]
        assert lines[at + 1] == f"    variants: {', '.join(task.variants)}"
        assert lines[at + 2] == f"    presets: {', '.join(task.presets)}"


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
    for option in (*task.presets, *task.variants):
        assert f"\n  {option}\n" in text


@pytest.mark.parametrize("words", [["list"], ["show", "mnist"]])
def test_a_reader_that_leaves_early_gets_the_whole_result(words, monkeypatch):
    written = []
    monkeypatch.setattr(streams.Results, "_send", lambda self, text: written.append(text))
    assert main(words) == 0 and len(written) == 1 and len(written[0].splitlines()) > 10


def test_show_of_no_task(capsys):
    assert main(["show", "mnits"]) == 2
    assert "did you mean 'mnist'" in " ".join(capsys.readouterr().err.split())


def test_a_task_of_no_paper_has_no_empty_brackets(monkeypatch, capsys):
    monkeypatch.setattr(type(TASKS["mnist"]), "paper", "")
    for words in (["list"], ["show", "mnist"]):
        assert main(words) == 0
        out = capsys.readouterr().out
        assert f"mnist: {TASKS['mnist'].title}" in out and "()" not in out
