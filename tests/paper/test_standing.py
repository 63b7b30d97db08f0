"""What `duoln paper` says: the contents of the paper, joined with tasks and run folders."""

import json
import shutil
from types import SimpleNamespace

import pytest

from duoln.cli import build_parser, main
from duoln.errors import CheckpointError
from duoln.paper.contents import CONTENTS
from duoln.paper.standing import standings
from duoln.runs import kept
from duoln.tasks.registry import Broken, Registry

ONLY_MNIST = SimpleNamespace(tasks=Registry(["mnist"]).tasks, broken=[])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder of one smoke run of two variants."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DUOLN_OFFLINE", "1")
        assert main(["run", "mnist", "--preset", "smoke", "--variant", "none,ln", "--backend", "numpy",
                     "--out", str(folder / "runs" / "a")]) == 0
    return folder / "runs"


@pytest.fixture
def runs(made, tmp_path):
    return shutil.copytree(made, tmp_path / "runs")


def _mnist(*folders, registry=ONLY_MNIST):
    rows, refused = standings(registry, folders)
    return next(s for s in rows if s.entry.task == "mnist"), refused


def _rewrite(run, **start):
    """Change what the log's first line says."""
    lines = (run / "log.jsonl").read_text().splitlines()
    lines[0] = json.dumps({**json.loads(lines[0]), **start})
    (run / "log.jsonl").write_text("\n".join(lines) + "\n")


# The contents -----------------------------------------------------------------------------------------------

def test_every_table_and_figure_is_there():
    wheres = [entry.where for entry in CONTENTS]
    assert len(set(wheres)) == len(wheres)
    for word in (*(f"figure {k}" for k in range(1, 7)), *(f"table {k}" for k in (1, 2, 3))):
        assert any(where.split(",")[0] == word for where in wheres), word


def test_every_entry_has_one_way_to_show_it_and_its_command_parses():
    for entry in CONTENTS:
        assert sum(map(bool, (entry.task, entry.analysis, entry.check))) == 1, entry.where
    rows = standings(Registry(), [])[0]
    assert len(rows) == len(CONTENTS) > 9 and any(standing.command for standing in rows)
    for standing in rows:
        if standing.command:
            build_parser().parse_args(standing.command.split()[1:])
        else:
            assert standing.missing


# Tasks and runs ---------------------------------------------------------------------------------------------

def test_without_runs_everything_is_open():
    rows, refused = standings(ONLY_MNIST, [])
    mnist = next(s for s in rows if s.entry.task == "mnist")
    assert refused == [] and mnist.command == "duoln run mnist --preset paper" and mnist.provenance is None
    assert mnist.open == ["no run", mnist.entry.open]
    assert {v.name: v.reference for v in mnist.variants} == dict(ONLY_MNIST.tasks["mnist"].task.references)
    draw = next(s for s in rows if s.entry.task == "draw")
    assert draw.open[0] == "no plug-in draw is loaded" and draw.command == "" and draw.variants == []


def test_a_broken_plugin_gives_its_reason():
    broken = SimpleNamespace(tasks={}, broken=[Broken("mnist", "duoln", "ImportError: no such thing")])
    assert _mnist(registry=broken)[0].open[0] == "plug-in mnist is broken: ImportError: no such thing"


def test_our_figures_are_the_logs_last(runs):
    mnist, refused = _mnist(runs)
    assert refused == [] and mnist.provenance == "synthetic"
    run = mnist.runs["ln"]
    last = [e for line in (runs / "a" / "ln" / "log.jsonl").read_text().splitlines()
            if (e := json.loads(line))["event"] == "evaluation"][-1]
    assert run.figures == {key: last[key] for key in ("train_nll", "test_error")} and run.step == last["step"] == 15
    assert run.differs["epochs"] == (1, 60) and run.differs["hidden"] == (64, 1000)
    assert "norm" not in run.differs and "source" not in run.differs and "seed" not in run.differs
    assert mnist.open[:2] == ["no run of bn", "none, ln on synthetic data only"]
    assert mnist.open[2] == "not the paper's: epochs, learning_rate, hidden, rows"


def test_what_a_run_ended_with_counts_and_an_end_that_is_missing_is_told(runs):
    log = runs / "a" / "ln" / "log.jsonl"
    lines = log.read_text().splitlines()
    end = json.loads(lines[-1])
    assert end["event"] == "end"
    log.write_text("\n".join([*lines[:-1], json.dumps({**end, "test_error": 0.125, "steps": 7})]) + "\n")
    mnist, _ = _mnist(runs)
    assert (mnist.runs["ln"].figures["test_error"], mnist.runs["ln"].step) == (0.125, 7) and "ln not ended" not in mnist.open
    log.write_text("\n".join(lines[:-1]) + "\n")
    mnist, _ = _mnist(runs)
    assert mnist.runs["ln"].step == 15 and "ln not ended" in mnist.open


@pytest.mark.parametrize("where", [".", "a", "a/ln"])
def test_a_run_is_found_from_each_folder_above_it(runs, where):
    assert "ln" in _mnist(runs / where)[0].runs


def test_better_data_come_before_newer_runs_and_newer_before_older(runs):
    old, new = shutil.copytree(runs / "a", runs / "b"), shutil.copytree(runs / "a", runs / "c")
    _rewrite(new / "ln", time="2999-01-01T00:00:00+00:00")
    assert _mnist(runs)[0].runs["ln"].path == new / "ln"
    _rewrite(old / "ln", time="2001-01-01T00:00:00+00:00", dataset={"name": "MNIST", "provenance": "original"})
    mnist, _ = _mnist(runs)
    assert mnist.runs["ln"].path == old / "ln" and mnist.provenance == "synthetic"
    assert "none on synthetic data only" in mnist.open


def test_variants_that_were_trained_apart_are_told(runs):
    config = json.loads((runs / "a" / "ln" / "config.json").read_text())
    config["config"]["hidden"] = 65
    (runs / "a" / "ln" / "config.json").write_text(json.dumps(config))
    assert "not the same for all variants: hidden" in _mnist(runs)[0].open


@pytest.mark.parametrize(("file", "content", "words"), [
    ("log.jsonl", '{"event": "evaluation", "step": 1, "epoch": 1, "wall_s": 1}\n'
     '{"event": "end", "status": "done", "steps": 1, "epochs": 1, "test_error": "low"}\n', "test_error"),
    ("config.json", "{", "config.json"), ("config.json", "[1]", "a JSON object"), ("log.jsonl", "{\n{}\n{}\n", "log.jsonl"),
    ("log.jsonl", '{"event": "start", "dataset": {"name": "x", "provenance": "stolen"}}\n'
     '{"event": "evaluation", "step": 1, "epoch": 1, "wall_s": 1}\n', "original, substitute, synthetic")])
def test_a_damaged_run_is_told_and_the_others_stay(runs, file, content, words):
    (runs / "a" / "ln" / file).write_text(content)
    mnist, refused = _mnist(runs)
    assert list(mnist.runs) == ["none"] and len(refused) == 1
    assert words in refused[0] and str(runs / "a" / "ln") in refused[0]


def test_a_run_without_its_log_is_told(runs):
    (runs / "a" / "ln" / "log.jsonl").unlink()
    assert "not a run folder" in _mnist(runs)[1][0]


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(CheckpointError, match="nothing there"):
        standings(ONLY_MNIST, [tmp_path / "none"])
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="a file"):
        standings(ONLY_MNIST, [tmp_path / "file"])


# Findings of duoln analyze ------------------------------------------------------------------------------------

def _finding(folder, summary, time="2026-01-01T00:00:00+00:00"):
    folder.mkdir(exist_ok=True)
    (folder / "invariance.json").write_text(json.dumps({"analysis": "invariance", "summary": summary, "time": time}))


def test_the_newest_finding_counts(tmp_path):
    _finding(tmp_path / "a", "newer", "2026-02-01T00:00:00+00:00")
    _finding(tmp_path / "b", "older")
    [table] = [s for s in standings(ONLY_MNIST, [tmp_path])[0] if s.entry.analysis == "invariance"]
    assert table.finding.summary == "newer" and table.open == [table.entry.open]


@pytest.mark.parametrize("content", ["{", "[]", '{"analysis": "invariance", "summary": 3, "time": "x"}'])
def test_a_damaged_finding_is_told(tmp_path, content):
    (tmp_path / "invariance.json").write_text(content)
    rows, refused = standings(ONLY_MNIST, [tmp_path])
    assert len(refused) == 1 and "invariance.json" in refused[0]
    assert not any(s.finding for s in rows)


# The command --------------------------------------------------------------------------------------------------

def test_in_a_pipe_every_figure_has_its_data_beside_it(runs, capsys):
    assert main(["paper", "--runs", str(runs), "--plugin", "mnist"]) == 0
    lines = capsys.readouterr().out.splitlines()
    ours = [line for line in lines if ", ours: " in line]
    assert len(ours) == 2 and all("made digits, synthetic" in line and "1 epoch, 15 updates" in line for line in ours)
    assert "  $ duoln run mnist --preset paper" in lines


def test_on_a_wide_terminal_it_is_a_table(runs, capsys, monkeypatch):
    monkeypatch.setattr("duoln.cli.console.width", lambda: 200)
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["paper", "--runs", str(runs), "--plugin", "mnist"]) == 0
    out = capsys.readouterr().out
    assert "┃ where" in out and "made digits" in out and "table 1, eq. 5-7" in out


def test_the_narrowest_table_keeps_the_first_column_whole(runs, capsys, monkeypatch):
    for columns, is_table in ((140, True), (139, False)):
        monkeypatch.setattr("duoln.cli.console.width", lambda columns=columns: columns)
        monkeypatch.setenv("COLUMNS", str(columns))
        assert main(["paper", "--runs", str(runs), "--plugin", "mnist"]) == 0
        out = capsys.readouterr().out
        assert ("┃ where" in out) == is_table
        assert all(entry.where in out for entry in CONTENTS)


def test_json_and_damage(runs, capsys):
    (runs / "a" / "ln" / "config.json").write_text("{")
    assert main(["paper", "--runs", str(runs), "--json"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert len(document["paper"]) == len(CONTENTS) and len(document["refused"]) == 1 and "left out: " in captured.err
    mnist = next(s for s in document["paper"] if s["task"] == "mnist")
    ours = {v["variant"]: v["ours"] for v in mnist["variants"]}
    assert ours["ln"] is None and ours["none"]["dataset"] == {"name": "made digits", "provenance": "synthetic"}


def test_without_a_folder_of_runs_it_shows_those_that_are_kept(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["paper", "--plugin", "mnist", "--json"]) == 0
    mnist = next(s for s in json.loads(capsys.readouterr().out)["paper"] if s["task"] == "mnist")
    assert all("results" in v["ours"]["path"] for v in mnist["variants"])


def test_without_any_run_it_says_so(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kept, "home", lambda task: tmp_path / "results")
    assert main(["paper", "--plugin", "mnist"]) == 0
    assert "--runs" in capsys.readouterr().err
    assert main(["paper", "--runs", "none"]) == 1
    assert "nothing there" in capsys.readouterr().err
