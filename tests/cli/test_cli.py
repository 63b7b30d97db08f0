"""The command line as a user meets it: output, exit codes, and errors.

A command is a process of its own where its modules, its terminal or its signals matter; the others run in this process.
"""
import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import PATIENCE

from duoln.cli import build_parser, main, run_task
from duoln.examples.own_task import Spirals

SMOKE = ["--preset", "smoke"]


def _run(*args, cwd, env=None, **kwargs):
    return subprocess.run([sys.executable, "-m", *args], cwd=cwd, capture_output=True, text=True, check=False,
                          timeout=PATIENCE, env={**os.environ, "DUOLN_OFFLINE": "1", "COLUMNS": "100", **(env or {})}, **kwargs)


class _Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def here(tmp_path, monkeypatch, capsys):
    """A command of duoln in this process, in a folder of its own: its exit code and what it wrote."""
    monkeypatch.chdir(tmp_path)

    def run(*words, columns="100"):
        monkeypatch.setenv("COLUMNS", columns)
        try:
            code = main(words)
        except SystemExit as end:
            code = end.code
        return _Done(code, *capsys.readouterr())

    return run


@pytest.mark.long
def test_runs_that_begin_in_one_second_have_folders_of_their_own(tmp_path, here, monkeypatch):
    class Clock:
        now = staticmethod(lambda zone=None: datetime(2026, 1, 2, 3, 4, 5))

    monkeypatch.setattr("duoln.cli.planned.datetime", Clock)
    runs = [here("run", "mnist", *SMOKE, "--epochs", "0", "--backend", "numpy", "--variant", variant) for variant in ("ln", "ln", "none,bn")]
    assert [done.returncode for done in runs] == [0, 0, 0], runs
    made = {p.parents[1].name for p in (tmp_path / "runs").glob("*/*/config.json")}
    name = "mnist-20260102-030405"
    assert made == {name, f"{name}-2", f"{name}-3"}
    assert here("run", "mnist", "--resume", "auto", "--backend", "numpy").returncode == 0


def test_run_shows_progress_a_table_and_leaves_a_folder(tmp_path, here):
    out = here("run", "mnist", *SMOKE, "--out", "r", "--json", "--backend", "numpy")
    assert out.returncode == 0, out.stderr
    results = json.loads(out.stdout)["results"]
    assert {"variant", "batch_size", "epochs", "train_nll", "test_error", "seconds_per_epoch"} <= results[0].keys()
    figures = [line for line in out.stderr.splitlines() if "%" in line]
    assert len(figures) == 2 * len(results) > 4  # for each variant a line of progress and a row of the table
    assert [("│" in line) for line in figures] == ["synthetic" in line for line in figures]
    assert out.stderr.splitlines().count("data: made digits, synthetic") == 1
    assert "\x1b" not in out.stderr
    assert {p.name for p in (tmp_path / "r").iterdir()} == {*(r["variant"] for r in results), "curves.csv", "curves.png"}
    assert (tmp_path / "r" / "curves.png").read_bytes()[:4] == b"\x89PNG"
    assert (tmp_path / "r" / "curves.csv").read_text().count("synthetic") == len(results)


@pytest.mark.long
def test_tables_of_results_are_on_stdout_and_progress_is_on_stderr(here):
    out = here("run", "mnist", *SMOKE, "--variant", "ln", "--epochs", "1", "--out", "r", "--backend", "numpy")
    assert "the paper" in out.stdout and "data: made digits" in out.stdout and "run folder" not in out.stdout, out.stdout
    assert "epoch 1" in out.stderr and "━" not in out.stderr
    told = here("report", "r")
    assert told.stdout.splitlines()[0] == out.stdout.splitlines()[0] and "━" not in told.stderr
    document = here("report", "r", "--json")
    assert json.loads(document.stdout)["runs"][0]["task"] == "mnist" and "━" in document.stderr
    both = here("report", "r", "--json", "--markdown")
    assert both.returncode == 2 and "--markdown or --json" in both.stderr


@pytest.mark.long
def test_a_task_of_no_paper_says_once_what_its_data_are(tmp_path, capsys):
    assert run_task(Spirals, ["--epochs", "0", "--backend", "numpy", "--out", str(tmp_path / "r")]) == 0
    told = capsys.readouterr().err
    assert [line for line in told.splitlines() if line.startswith("data:")] == ["data: two spirals, synthetic"], told


@pytest.mark.parametrize(("args", "code", "words"), [
    (["run", "mnist", "--set", "hidden"], 2, ["KEY=VALUE", "'hidden'"]),
    (["run", "mnist", "--set", "hidden=big"], 2, ["hidden", "int", "'big'"]),
    (["run", "mnist", "--set", "norm=weight"], 2, ["none, layer, layer-logits, batch", "'weight'"]),
    (["run", "mnist", "--epochs", "-1"], 2, ["epochs", "-1"]),
    (["run", "mnist", "--batch-size", "0"], 2, ["batch_size", "0"]),
    (["run", "mnist", *SMOKE, "--batch-size", "9999"], 2, ["batch_size", "2000", "9999"]),
    (["run", "mnist", "--backend", "tpu"], 2, ["invalid choice", "tpu"]),
    (["run", "mnist", "--backend", "cuda"], 2, ["did you mean 'cupy'?"]),
    (["run", "mnist", "--set", "source=mnist"], 4, ["DUOLN_OFFLINE", "sha256", "DUOLN_DATA"]),
    (["run", "mnist", *SMOKE, "--resume", "yes"], 2, ["invalid choice", "yes"]),
    (["run", "mnist", *SMOKE, "--resume", "auto"], 1, ["no run of mnist"]),
    (["report", "nowhere"], 1, ["nowhere", "nothing there"]),
    (["bench", "train", "--peer", "jax"], 2, ["torch", "'jax'"]),
    (["bench", "train", "--rounds", "0"], 2, ["rounds", "0"]),
    (["bench", "rnn", "--cell", "gru", "--norm", "layer-cell"], 2, ["layer-theano", "'layer-cell'"]),
    (["bench", "rnn", "--shape", "99999999999999999999,4,3,16"], 2, ["T,B,IN,H whose product is below 2 ** 48"]),
    (["bench", "ops", "--shape", "3"], 2, ["ROWS,WIDTH", "'3'"]),
    (["bench", "ops", "--op", "gelu"], 2, ["softmax_cross_entropy", "'gelu'"]),
    (["bench", "ops", "--label", ""], 2, ["label"]),
    (["bench", "train", "--json", "none/a.json"], 2, ["none/a.json", "no folder"]),
    (["compare", "a.json", "b.json"], 4, ["a.json", "found nothing there"]),
])
def test_errors_say_what_was_expected_and_found(here, args, code, words):
    out = here(*args)
    assert out.returncode == code, out.stderr
    assert out.stdout == "" and "Traceback" not in out.stderr
    for word in words:
        assert word in out.stderr


@pytest.mark.long
def test_a_backend_from_the_environment_that_cannot_be_used(tmp_path):
    out = _run("duoln.examples.mnist", cwd=tmp_path, env={"DUOLN_BACKEND": "cupy"})
    assert out.returncode == 3 and "set by DUOLN_BACKEND" in out.stderr


@pytest.mark.long
def test_a_run_folder_that_is_taken_or_cannot_be_written(tmp_path, here):
    args = ("run", "mnist", *SMOKE, "--variant", "none", "--epochs", "0", "--out")
    assert here(*args, "r").returncode == 0
    before = (tmp_path / "r" / "none" / "log.jsonl").read_text()
    out = here(*args, "r")
    assert out.returncode == 1 and "already holds a run of none" in out.stderr and "--resume auto" in out.stderr
    assert (tmp_path / "r" / "none" / "log.jsonl").read_text() == before
    (tmp_path / "file").write_text("")
    out = here(*args, "file/r")
    assert out.returncode == 1 and "cannot be written" in out.stderr and "Traceback" not in out.stderr


@pytest.mark.long
def test_ctrl_c_leaves_a_checkpoint_and_resume_goes_on(tmp_path, here):
    words = ["run", "mnist", *SMOKE, "--variant", "ln", "--set", "rows=300", "--batch-size", "20", "--out", "r"]
    process = subprocess.Popen([sys.executable, "-m", "duoln", *words, "--epochs", "100000"], cwd=tmp_path, text=True,
                               stderr=subprocess.PIPE, env={**os.environ, "DUOLN_OFFLINE": "1"})
    log = tmp_path / "r" / "ln" / "log.jsonl"
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and not (log.exists() and log.read_text().count('"update"') > 40):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, talk = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130 and "Traceback" not in talk
    [line] = [line for line in talk.splitlines() if "--resume auto" in line]
    assert line.startswith("    duoln run mnist --preset smoke") and line.endswith("--epochs 100000 --resume auto --out r")
    again = here(*words, "--epochs", "1", "--resume", "auto")
    assert again.returncode == 0 and "is finished, after update" in again.stderr


@pytest.mark.long
def test_list_doctor_and_report(tmp_path, here):
    listed = json.loads(here("list", "--json").stdout)
    assert "mnist" in [t["name"] for t in listed["tasks"]] and listed["broken"] == []
    assert "mnist" in here("list").stdout
    doctor = json.loads(here("doctor", "--json", "--ops").stdout)
    assert [b["name"] for b in doctor["backends"]] == ["numpy", "cupy", "mlx"]
    table = here("doctor", "--ops", "--markdown").stdout.splitlines()
    assert table[0].startswith("| operator | numpy |") and any(line.startswith("| `layer_norm`") for line in table)
    assert "expected --ops too" in here("doctor", "--markdown").stderr
    talk = here("doctor", "--ops", columns="60").stdout
    assert 'pip install "cupy-cuda12x[ctk]>=14.1"' in talk and "layer_norm" in talk
    assert f"threads: {doctor['threads']} for the rules of numpy" in talk and doctor["threads"] >= 1
    assert here("run", "mnist", *SMOKE, "--out", "r").returncode == 0
    before = (tmp_path / "r" / "curves.csv").stat().st_mtime_ns, sorted(tmp_path.rglob("*"))
    assert json.loads(here("report", "r/ln", "--json").stdout)["runs"][0]["name"] == "ln"
    told = here("report", "r/ln")
    assert told.returncode == 0 and "--out DIR" in told.stderr and "--html FILE.html" in told.stderr
    assert ((tmp_path / "r" / "curves.csv").stat().st_mtime_ns, sorted(tmp_path.rglob("*"))) == before
    assert here("report", "r", "--html", "page.html", "--by", "seed").returncode == 0
    assert "train NLL" in (tmp_path / "page.html").read_text()
    assert here("report", "r", "--html", "page.png").returncode == 2
    out = here("report", "r/ln", "r/none", "--out", "both", "--json")
    assert out.returncode == 0 and [r["variant"] for r in json.loads(out.stdout)["runs"]] == ["none", "ln"]
    assert (tmp_path / "both" / "curves.png").exists()


@pytest.mark.long
def test_runs_of_several_tasks_have_a_table_each(tmp_path, here, monkeypatch):
    monkeypatch.setattr("duoln.pictures.drawing.refusal", lambda: "pip install matplotlib")
    for task in ("mnist", "transformer"):
        assert here("run", task, *SMOKE, "--epochs", "0", "--variant", "none", "--out", f"runs/{task}").returncode == 0
    out = here("report", "runs", "--out", "all", "--html", "all.html")
    assert out.returncode == 0 and [line[0] for line in out.stdout.splitlines() if line[0] in "PC┏"] == ["P", "┏", "C", "┏"]
    assert {str(path.relative_to(tmp_path / "all")) for path in (tmp_path / "all").glob("*/*")} == \
        {"mnist/curves.csv", "transformer/curves.csv"}
    page = (tmp_path / "all.html").read_text()
    assert page.count("<h1>") == 2 == page.count("<h2>Curves</h2>") and "<script" not in page
    assert [run["task"] for run in json.loads(here("report", "runs", "--json").stdout)["runs"]] == ["mnist", "transformer"]
    assert here("report", "runs", "--markdown").stdout.count("| variant |") == 2
    assert here("keep", "runs", "--as", "x").returncode == 2


@pytest.mark.long
def test_version_and_help(tmp_path, here):
    assert _run("duoln", "--version", cwd=tmp_path).stdout.startswith("duoln 0.")
    assert "duoln run mnist" in here("--help").stdout
    assert here() == here("--help")
    assert "--seeds" in _run("duoln.examples.mnist", "--help", cwd=tmp_path).stdout
    program = "import sys; from duoln import cli; from duoln.tasks.registry import find_task; " \
        "sys.exit(cli.run_task(lambda: find_task('mnist'), sys.argv[1:]))"
    assert "--paper" in subprocess.run([sys.executable, "-c", program, "--help"], capture_output=True, text=True, check=True).stdout


def _options(parser):
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _options(command)
        else:
            yield action


def test_every_number_that_is_a_default_is_the_one_that_the_help_names():
    """But for 1, which is no choice."""
    numbers = [a for a in _options(build_parser()) if isinstance(a.default, int | float | tuple) and a.default not in (False, 1)]
    assert len(numbers) >= 10
    for action in numbers:
        told = re.search(r"\((?:default )?([0-9.,e-]+)[;)]", action.help)
        assert told, action.help
        values = action.default if isinstance(action.default, tuple) else (action.default,)
        assert tuple(float(word) for word in told[1].split(",")) == values, action.dest


def test_every_path_of_a_command_line_knows_the_home_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    paths = [a for a in _options(build_parser()) if re.match(r"DIR|FILE|RUN$", a.metavar or "") and a.type is not None]
    assert len(paths) >= 25 and not [a for a in _options(build_parser()) if a.type is Path]
    for action in paths:
        assert action.type("~/a") == tmp_path / "a", action.dest
        with pytest.raises(argparse.ArgumentTypeError, match="expected a path, found an empty text"):
            action.type("")
    assert not [a for a in _options(build_parser()) if re.match(r"DIR|FILE|RUN$", a.metavar or "") and a.type is None]
