"""The newest run is found by what it says about itself, and not by its name."""

import json

import pytest

from duoln.errors import DataFormatError
from duoln.runs.settings import Command, newest_below, read_command, write_command
from duoln.testing import check_error


def _begin(folder, name, time="2026-01-02T03:04:05", task="mnist", variant="ln"):
    write_command(folder / name / variant, Command(["ln"], "smoke", {"epochs": 2}, [], None, task, time))


def test_of_none_none_is_the_newest(tmp_path):
    (tmp_path / "mnist-notes").mkdir()
    (tmp_path / "mnist-notes" / "config.json").write_text("{}")
    assert newest_below(tmp_path, "mnist") is None and newest_below(tmp_path / "nothing", "mnist") is None


@pytest.mark.parametrize("names", [("mnist-20260102-030405", "mnist-20250101-000000"), ("mnist-1-10", "mnist-1-9"), ("b", "deep/a")])
def test_names_do_not_decide(names, tmp_path):
    """Names of the user's own; and folders of other things and of other tasks."""
    (tmp_path / "mnist-z-notes").mkdir()
    _begin(tmp_path, names[0], "2026-01-02T03:04:05.000001")
    _begin(tmp_path, names[1], "2026-01-02T03:04:05.000002")
    _begin(tmp_path, "mnist-zz", "2026-01-02T03:04:06", task="mnist-zz")
    assert newest_below(tmp_path, "mnist") == tmp_path / names[1]


def test_of_twelve_commands_of_one_moment_the_last_name_decides(tmp_path):
    for name in ("mnist-1", *(f"mnist-1-{k}" for k in range(2, 13))):
        _begin(tmp_path, name)
    assert newest_below(tmp_path, "mnist") == tmp_path / "mnist-1-12"


def test_what_was_asked_for_comes_back(tmp_path):
    _begin(tmp_path, "a")
    assert read_command(tmp_path / "a" / "ln") == Command(["ln"], "smoke", {"epochs": 2}, [], None, "mnist", "2026-01-02T03:04:05")
    assert read_command(tmp_path) is None


@pytest.mark.parametrize(("key", "value"), [("preset", 3), ("settings", []), ("task", None)])
def test_a_damaged_command_is_named(key, value, tmp_path):
    _begin(tmp_path, "a")
    path = tmp_path / "a" / "ln" / "command.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    check_error(DataFormatError, lambda: newest_below(tmp_path, "mnist"), "command.json", f"as {key}")
