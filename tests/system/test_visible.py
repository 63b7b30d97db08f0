"""Texts from outside reach a terminal or a picture as characters, never as commands."""

import json
import re
import shutil
from pathlib import Path

import pytest

from duoln.cli import console, main
from duoln.cli.rows_table import RowsTable
from duoln.pictures import drawing
from duoln.system.visible import visible
from duoln.tasks.events import RunStart, Update
from duoln.tasks.task import Config
from duoln.tasks.values import Dataset

EVIL = ["\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\x1b]8;;http://x\x1b\\link", "\x9b31m", "\x7f", "\x00", "\x08\x08", "a\rb", "\x0b\x0c",
        "\u202eabc", "\u2066x\u2069", "\u200e", "\u061c", "\ufeff", "\u2028", "\ud800", "\U000e0041", "\x85", "\x1bP+q\x1b\\"]
MARKUP = ["[red]x[/red]", "[link=http://x]y[/link]", "[/]", "[bold", ":bomb:", "[@click=app.bell]z[/]", "\\[red]"]
STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\u061c\ufeff\ud800-\udfff]")


@pytest.mark.parametrize("text", ["plain", "zwei W\u00f6rter", "\u65e5\u672c\u8a9e", "a\nb\tc", "\U0001f600", "e\u0301", "\u06a9\u200c\u0627", "1\u00a0000\u2009km", ""])
def test_what_anybody_writes_stays(text):
    assert visible(text) == text


@pytest.mark.parametrize("text", EVIL)
def test_what_steers_is_shown(text):
    safe = visible(f"a {text} b")
    assert not STEERS.search(safe) and safe.startswith("a ") and safe.endswith(" b") and "\\" in safe
    assert visible(safe) == safe


def test_how_it_is_shown():
    assert visible("\x1b[31m \u202e \ud800 \U000e0041 \x7f") == r"\x1b[31m \u202e \ud800 \U000e0041 \x7f"


@pytest.mark.parametrize("text", [*EVIL, *MARKUP])
@pytest.mark.parametrize("forced", [False, True])
def test_every_way_to_the_terminal(text, forced, capsys, monkeypatch):
    """Colour is rich's alone: with it there are escapes, and none of the text's."""
    monkeypatch.setattr(console.talk, "_force_terminal", forced)
    console.say(text)
    console.put(text)
    for data in (True, False):
        console.show(RowsTable(text, ["one", "two", text], [["a", "b", text]], bad=[0]), data=data)
    captured = capsys.readouterr()
    ours = re.compile("\x1b\\[[0-9;]*m")
    for stream in captured:
        assert not STEERS.search(ours.sub("", stream) if forced else stream)
    assert visible(text).split("\n")[0] in captured.out and visible(text).split("\n")[0] in ours.sub("", captured.err)


@pytest.mark.parametrize("text", [*EVIL, *MARKUP])
def test_progress(text, capsys, monkeypatch):
    start = RunStart("t", text, Config(), Dataset(text, "synthetic"), "numpy", 0, 10, 5, 3, (text,))
    for forced in (False, True):
        monkeypatch.setattr(console.talk, "_force_terminal", forced)
        display = console.ProgressDisplay([])
        display.on_start(start)
        monkeypatch.setattr(console, "_BAR_SECONDS", 0.0)
        monkeypatch.setattr(console, "_PLAIN_SECONDS", 0.0)
        display.on_update(Update(1, 0.5, 0.1, 0.2))
        display.on_end("done", {})
    stderr = capsys.readouterr().err
    assert "\x1b]" not in stderr and "\x1b[31m" not in stderr and "\u202e" not in stderr and "\x9b" not in stderr
    assert visible(text) in stderr


def test_cells_stay_in_their_columns(capsys):
    console.show(RowsTable("t", ["a", "b"], [["\x1b[31m", "x"], ["plain", "y"]]), data=True)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("\u2502", "|"))]
    assert len({len(line) for line in lines}) == 1


# From files and plug-ins ---------------------------------------------------------------------------------

@pytest.fixture(scope="module", autouse=True)
def _runs_draw_nothing():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("duoln.cli.run.write_curves", lambda task, series, out, by: [])
        patch.setattr("duoln.cli.report.write_curves", lambda task, series, out, by: [out / "curves.csv"])
        yield


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A run in which every text is hostile."""
    folder = tmp_path_factory.mktemp("runs") / "\x1b[31mr\u202e"
    assert main(["run", "mnist", "--plugin", "mnist", "--preset", "smoke", "--variant", "none", "--epochs", "1",
                 "--backend", "numpy", "--out", str(folder)]) == 0
    log = folder / "none" / "log.jsonl"
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    entries[0]["dataset"]["name"] = "\x1b[31m[red]$x_{$\ud800"
    log.write_text("\n".join(map(json.dumps, entries)) + "\n")
    config = folder / "none" / "config.json"
    config.write_text(config.read_text().replace('"none"', json.dumps("\x1b]0;t\x07$\\frac$"), 1))
    return folder


@pytest.fixture
def run(original, tmp_path):
    return Path(shutil.copytree(original, tmp_path / original.name))


@pytest.mark.parametrize("words", [["report", "RUN", "--out", "\x1b[31m"], ["paper", "--runs", "RUN"], ["report", "RUN", "--json"],
                                   ["sample", "RUN", "--out", "\x1b[31m"], ["report", "RUN/\x1b[31mnothing"]])
def test_reports_of_such_a_run(run, tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    main([word.replace("RUN", str(run)) for word in words])
    captured = capsys.readouterr()
    assert not STEERS.search(captured.out) and not STEERS.search(captured.err)
    assert words[0] != "report" or "\\x1b" in captured.err


def test_damaged_files_are_quoted(run, capsys):
    for file, content in (("config.json", '{"task": "\x1b[31m"'), ("log.jsonl", "\x1b[31m\n{}\n")):
        (run / "none" / file).write_text(content)
        assert main(["report", str(run)]) != 0
        assert not STEERS.search(capsys.readouterr().err)


def test_plug_ins_that_cannot_be_loaded(install, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    install("bad", "raise ValueError('\\x1b[31m[red]\\u202e')")
    for command in ("list", "doctor"):
        assert main([command, "--plugin", "bad"]) == 0
        captured = capsys.readouterr()
        assert "\\x1b[31m[red]\\u202e" in captured.out and not STEERS.search(captured.out + captured.err)


FORMULAS = ["$x_{$", "$\\frac$ $", "$", "$$", "\\$", "$a$"]


@pytest.mark.filterwarnings("ignore:Glyph")
def test_pictures_take_every_text(tmp_path):
    with drawing.figure(tmp_path / "p.svg") as (whole, panels):
        axes = panels[0][0]
        for text in (*EVIL, *FORMULAS):
            axes.plot([1.0, 1000.0], [1.0, 1e5], label=text)
            axes.text(1, 1, text)
        axes.set_yscale("log")
        axes.set_title(FORMULAS[0])
        axes.set_xlabel(FORMULAS[1])
        axes.set_xticks(range(len(EVIL + FORMULAS)), EVIL + FORMULAS)
        axes.legend()
        whole.suptitle(FORMULAS[0])
    drawn = (tmp_path / "p.svg").read_text()
    assert not STEERS.search(drawn) and "<!-- $x_{$ -->" in drawn
