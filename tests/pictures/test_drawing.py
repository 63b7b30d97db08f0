"""A picture never costs the table of a run, whatever is wrong with matplotlib, and has one style."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
from conftest import PATIENCE, TOOLS

from duoln.cli.run import run_task
from duoln.errors import UsageError
from duoln.pictures import drawing
from duoln.testing import check_error

pytestmark = pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")

_RUN = """
import sys
from duoln.cli.run import run_task
from small_runs import Line
sys.exit(run_task(Line, ["--out", sys.argv[1], "--epochs", "1", "--backend", "numpy"], preset="smoke"))
"""
CONDITIONS = {
    "a backend that is none": ({"MPLBACKEND": "garbage"}, {}, True),
    "settings of bytes": ({"MATPLOTLIBRC": "HERE"}, {"matplotlibrc": b"font.size: \xff\xfe\n"}, False),
    "settings that need LaTeX": ({"MATPLOTLIBRC": "HERE", "PATH": ""}, {"matplotlibrc": b"text.usetex: True\n"}, True),
    "an installation that is broken": ({"PYTHONPATH": f"HERE:{TOOLS}"}, {"matplotlib.py": b"raise ValueError('numpy.dtype size changed')\n"},
                                       False),
}


@pytest.mark.long
@pytest.mark.parametrize("name", [name if k in (0, 3) else pytest.param(name, marks=pytest.mark.long) for k, name in enumerate(CONDITIONS)])
def test_a_run_has_its_table(name, tmp_path):
    variables, files, is_drawn = CONDITIONS[name]
    for file, content in files.items():
        (tmp_path / file).write_bytes(content)
    done = subprocess.run(
        [sys.executable, "-c", _RUN, str(tmp_path / "run")], capture_output=True, text=True, check=False, timeout=PATIENCE, cwd=TOOLS,
        env={**os.environ, "DUOLN_OFFLINE": "1", **{key: text.replace("HERE", str(tmp_path)) for key, text in variables.items()}})
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr[-2000:]
    assert "MSE" in done.stdout and (tmp_path / "run" / "curves.csv").exists()
    assert (tmp_path / "run" / "curves.png").exists() == is_drawn
    assert ("matplotlib cannot be imported" in done.stderr) != is_drawn


def test_a_file_that_fails_does_not_cost_the_table(tmp_path, monkeypatch, capsys):
    from small_runs import Line

    def fails(*arguments):
        raise ValueError("no axis of that kind")

    monkeypatch.setattr("duoln.runs.curves_picture.draw", fails)
    argv = ["--out", str(tmp_path / "run"), "--epochs", "1", "--backend", "numpy"]
    assert run_task(Line, argv, preset="smoke") == 1
    told = capsys.readouterr()
    assert "MSE" in told.out and "no axis of that kind" in told.err


def test_a_picture_changes_nothing_in_the_users_matplotlib(tmp_path):
    import matplotlib

    with matplotlib.rc_context({"backend": "svg", "font.size": 31.0, "text.usetex": True}):
        with drawing.figure(tmp_path / "p.png") as (_, [[axes]]):
            axes.set_title("words")
        assert matplotlib.rcParams["backend"] == "svg" and matplotlib.rcParams["font.size"] == 31


def test_every_label_has_its_line_in_the_legend(tmp_path):
    """By itself matplotlib leaves out names that begin with an underscore."""
    with drawing.figure(tmp_path / "p.png") as (whole, [[axes]]):
        axes.plot([0, 1], [0, 1], label="_line")
        axes.plot([0, 1], [1, 1])
        axes.axhline(0.5, label="_level")
        axes.stairs([1.0, 2.0], label="_stairs")
        axes.fill_between([0, 1], [0, 1], label="_area")
        axes.bar([0, 1], [0, 1], label="_bars")
        of_axes, of_figure = axes.legend(), whole.legend(*axes.get_legend_handles_labels())
    names = ["_line", "_level", "_stairs", "_area", "_bars"]
    assert sorted(text.get_text() for text in of_axes.get_texts()) == sorted(names)
    assert sorted(text.get_text() for text in of_figure.get_texts()) == sorted(names)


def test_what_is_wrong_is_said_before_anything_is_computed(tmp_path, monkeypatch):
    drawing.refusal.cache_clear()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setenv("MPLBACKEND", "theirs")
    try:
        check_error(UsageError, lambda: drawing.check_picture(tmp_path / "p.png"), "matplotlib cannot be imported: ")
        assert os.environ["MPLBACKEND"] == "theirs"
    finally:
        drawing.refusal.cache_clear()
