"""Paths with the home folder, wherever a caller of Python gives one."""

import os
from pathlib import Path

import numpy as np
import pytest
from small_runs import Line

import duoln
from duoln.data import read_idx
from duoln.data.idx import write_idx
from duoln.errors import DataMissingError, UsageError
from duoln.examples.own_text import OwnText
from duoln.tasks.originals import in_home
from duoln.testing import check_error


@pytest.fixture
def home(monkeypatch, tmp_path):
    for name in ("home", "here"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    yield tmp_path / "home"
    assert not os.path.lexists(tmp_path / "here" / "~")


@pytest.mark.parametrize(("path", "below"), [("~", "."), ("~/a", "a"), (Path("~/a/b"), "a/b"), ("~//a", "a")])
def test_a_path_in_the_home_folder(home, path, below):
    assert in_home(path) == home / below


@pytest.mark.parametrize("path", ["a", "a/~", "./~", "./~/a", "/~", "", "a~"])
def test_a_path_elsewhere(home, path):
    assert in_home(path) == Path(path)


def test_a_home_folder_that_is_not_there(home, monkeypatch):
    check_error(DataMissingError, lambda: in_home("~no-such-user/a"), "~no-such-user/a: expected a home folder, found none", "./~no-such-user/a")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    check_error(DataMissingError, lambda: in_home("~/a"), "~/a: expected a home folder, found none; set HOME")


def test_a_run_from_python(home):
    run = duoln.tasks.train(Line(), "plain", backend="numpy", out="~/run", epochs=1)
    assert run.folder == home / "run" and (home / "run" / "result.json").is_file()
    assert duoln.tasks.train(Line(), "plain", backend="numpy", out=Path("~/run"), resume=True, epochs=2).config.epochs == 2
    check_error(UsageError, lambda: duoln.tasks.train(Line(), "plain", out=""), "[train] out: expected a path, found ''")
    check_error(UsageError, lambda: duoln.tasks.train(Line(), "plain", data="~/none"), f"expected a folder, found {home / 'none'} where none is")


def test_files_of_parameters_and_of_digits(home):
    duoln.save("~/weights", {"w": np.ones(2, np.float32)})
    assert (home / "weights").is_file() and duoln.load("~/weights")["w"].shape == (2,)
    write_idx("~/a.gz", np.zeros((2, 3), np.uint8))
    assert read_idx("~/a.gz").shape == (2, 3) and (home / "a.gz").is_file()


def test_a_file_that_a_setting_names(home):
    (home / "text.txt").write_text("A text of some length. " * 400)
    task = OwnText()
    splits = task.data(duoln.tasks.make_config(task, "ln", "smoke", {"file": "~/text.txt"}))
    assert splits.dataset.name == "text.txt"
