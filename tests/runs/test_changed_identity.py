"""A run goes through every difference of what its bits depend on, and reads what is said."""

import dataclasses
import json
import os
import signal

import numpy as np
import pytest
from small_runs import At, Line, fit_into, line_trainer, state_bits

import duoln
from duoln import runtime
from duoln.cli import main
from duoln.cli.run import run_task
from duoln.core.op import composed_only
from duoln.errors import CheckpointError, Interrupted
from duoln.runs import checkpoint, identity
from duoln.runs.log import read_log
from duoln.system import openblas
from duoln.tasks import Dataset
from duoln.testing import check_error


@pytest.fixture
def machine(numpy_backend, monkeypatch):
    """What the backend says of the machine, to be changed."""
    facts = {**numpy_backend.info(), "blas_threads": "2", "blas_core": "Haswell"}
    monkeypatch.setattr(numpy_backend, "info", lambda: dict(facts))
    monkeypatch.setattr(runtime, "choose", lambda name: (numpy_backend, "for a test"))
    return facts


@pytest.fixture
def stopped(machine, numpy_backend, tmp_path):
    """The folder of a run that was stopped after update 7 of 15."""
    with pytest.raises(Interrupted):
        fit_into(line_trainer(numpy_backend), tmp_path / "stopped", numpy_backend,
                 [At(7, lambda: os.kill(os.getpid(), signal.SIGINT))])
    return tmp_path / "stopped"


def _rows(splits, count):
    """The same data, cut."""
    return dataclasses.replace(splits, steps_per_epoch=count // 8,
                               evaluation={"valid": {k: x[:count] for k, x in splits.evaluation["valid"].items()}})


def _labels(splits):
    """The same data with other labels in the training batches."""
    return dataclasses.replace(splits, train=lambda step: {**splits.train(step), "y": np.float32(1) - splits.train(step)["y"]})


CHANGES = {
    "threads": ("blas_threads", lambda m, machine: machine.update(blas_threads="64"),
                ["expected blas_threads 2, found 64", "Set OPENBLAS_NUM_THREADS=2, or go on"]),
    "BLAS": ("blas_core", lambda m, machine: machine.update(blas_core="SkylakeX"),
             ["expected blas_core Haswell, found SkylakeX", "Set OPENBLAS_CORETYPE=Haswell, or go on"]),
    "another NumPy": ("library", lambda m, machine: machine.update(library="numpy 9.9"), ["found numpy 9.9"]),
    "another CPU": ("simd", lambda m, machine: m.setattr(identity, "_simd", lambda: "NEON"), ["found NEON"]),
    "interpreted": ("rules", lambda m, machine: m.setattr(runtime, "native_facts", lambda: {
        "rules": "compiled", "compiler": "c++ 99", "vector_bits": 128, "absent": {}}),
        ["found compiled by c++ 99, vectors of 128 bits"]),
    "composed": ("rules", lambda m, machine: m.setattr(identity, "is_composed_only", lambda: True), ["found composed"]),
    "code": ("code", lambda m, machine: m.setattr(identity, "_code", lambda: "changed"), ["found 0.1.0 (changed)"]),
    "task": ("task", lambda m, machine: m.setattr(identity, "fingerprint_of", lambda kind: "edited"), ["(edited)"]),
    "fewer rows": ("data", lambda m, machine: _with_data(m, lambda s: _rows(s, 32)),
                   ["expected data a line, synthetic, 5 updates an epoch", "found a line, synthetic, 4 updates an epoch"]),
    "labels": ("batches", lambda m, machine: _with_data(m, _labels), ["expected batches of the training data ("]),
    "original data": ("data", lambda m, machine: _with_data(m, lambda s: dataclasses.replace(s, dataset=Dataset("a line", "original"))),
                      ["found a line, 5 updates an epoch"])}


def _with_data(monkeypatch, change):
    data = Line.data
    monkeypatch.setattr(Line, "data", lambda self, cfg, root=None: change(data(self, cfg, root)))


@pytest.mark.few
@pytest.mark.parametrize("name", CHANGES)
def test_a_difference_is_refused_and_anyway_is_told(name, stopped, machine, numpy_backend, monkeypatch):
    key, change, words = CHANGES[name]
    change(monkeypatch, machine)
    check_error(CheckpointError, lambda: fit_into(line_trainer(numpy_backend), stopped, numpy_backend, resume=True),
                "update-000000007", f"expected {key} ", *words, "--resume anyway")
    assert checkpoint.newest(stopped / "checkpoints")[0].update == 7
    result = fit_into(line_trainer(numpy_backend), stopped, numpy_backend, resume="anyway")
    [told] = result["changes"]
    assert told.startswith(f"{key} was ") and "up to update 7" in told
    start = [e for e in read_log(stopped) if e["event"] == "start"][-1]
    [noted] = start["changes"]
    assert noted["key"] == key and noted["now"] == start["identity"][key] != noted["was"]


def test_nothing_changed_is_not_refused(stopped, machine, numpy_backend, tmp_path):
    machine["keeps_freed_memory"] = "no"
    whole, resumed = line_trainer(numpy_backend), line_trainer(numpy_backend)
    assert "changes" not in fit_into(resumed, stopped, numpy_backend, resume=True)
    fit_into(whole, tmp_path / "whole", numpy_backend)
    assert state_bits(resumed) == state_bits(whole)


def test_before_the_first_update_nothing_can_have_changed(machine, numpy_backend, tmp_path):
    trainer = line_trainer(numpy_backend)
    trainer.save(tmp_path / "checkpoints")
    machine["blas_threads"] = "64"
    assert "changes" not in fit_into(line_trainer(numpy_backend), tmp_path, numpy_backend, resume=True)


def test_a_change_stays_told_after_another_resume(stopped, machine, numpy_backend):
    machine["blas_threads"] = "64"
    fit_into(line_trainer(numpy_backend), stopped, numpy_backend, resume="anyway")
    result = fit_into(line_trainer(numpy_backend, epochs=4), stopped, numpy_backend, resume=True)
    assert result["changes"] == ["blas_threads was 2 up to update 7, and is 64 since"]


def test_rules_that_are_switched_off_are_seen(stopped, numpy_backend):
    """By the variables themselves, not by what a test says in their place."""
    with composed_only():
        check_error(CheckpointError, lambda: fit_into(line_trainer(numpy_backend), stopped, numpy_backend, resume=True),
                    "found composed")


def test_without_compiled_rules(numpy_backend, monkeypatch):
    monkeypatch.setenv("DUOLN_NATIVE", "0")
    assert identity.rules_of(numpy_backend) == "interpreted"


def test_from_python(stopped, machine):
    machine["blas_threads"] = "1"
    check_error(CheckpointError, lambda: duoln.tasks.train(Line(), "plain", backend="numpy", out=stopped, resume=True),
                'resume="anyway"')
    run = duoln.tasks.train(Line(), "plain", backend="numpy", out=stopped, resume="anyway")
    assert run.figures["changes"] == ["blas_threads was 2 up to update 7, and is 1 since"]


@pytest.mark.long
def test_a_resume_takes_the_backend_of_its_folder(tmp_path, capsys):
    words = ["--out", str(tmp_path / "r"), "--epochs"]
    assert run_task(Line, [*words, "1", "--backend", "mlx"], preset="smoke", variants=["plain"]) == 0
    assert run_task(Line, [*words, "2", "--resume", "auto"], preset="smoke") == 0
    assert "backend: mlx" in capsys.readouterr().err
    assert run_task(Line, [*words, "3", "--resume", "auto", "--backend", "numpy"], preset="smoke") == 1
    told = capsys.readouterr().err
    assert "expected backend mlx, found numpy: it was made with --backend mlx" in told
    assert "OPENBLAS" not in told and "expected library" not in told


def test_another_library_is_not_mended_by_variables_of_its_blas(stopped, machine, numpy_backend):
    machine.update(library="numpy 9.9", blas_threads="64")
    with pytest.raises(CheckpointError, match=r"found numpy 9.9; expected blas_threads 2") as caught:
        fit_into(line_trainer(numpy_backend), stopped, numpy_backend, resume=True)
    assert "OPENBLAS" not in str(caught.value)


@pytest.mark.long
def test_every_table_tells(machine, tmp_path, capsys):
    words, line = ["--out", str(tmp_path / "r"), "--epochs"], "plain: not the bits of one run: blas_threads was 2 up to update 5"
    assert run_task(Line, [*words, "1"], preset="smoke", variants=["plain"]) == 0
    machine["blas_threads"] = "1"
    assert run_task(Line, [*words, "2", "--resume", "auto"], preset="smoke") == 1
    assert "OPENBLAS_NUM_THREADS=2" in capsys.readouterr().err
    assert run_task(Line, [*words, "2", "--resume", "anyway"], preset="smoke") == 0
    out, err = capsys.readouterr()
    assert line in out and "blas_threads was 2 up to update 5" in err
    assert run_task(Line, [*words, "2", "--resume", "auto", "--json"], preset="smoke") == 0
    [result] = json.loads(capsys.readouterr().out)["results"]
    assert result["changes"] == ["blas_threads was 2 up to update 5, and is 1 since"]


@pytest.mark.parametrize("asked", [["--markdown"], ["--by", "seed"], ["--html", "page.html"], ["--json"]])
def test_every_report_tells(asked, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    start = {"event": "start", "dataset": {"name": "made digits", "provenance": "synthetic"},
             "changes": [{"update": 5, "key": "blas_threads", "was": "2", "now": "1"}]}
    folder = tmp_path / "r" / "ln"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"task": "mnist", "variant": "ln", "precision": "float32",
                                                    "config": {"batch_size": 8, "seed": 0}}))
    evaluation = {"event": "evaluation", "update": 9, "epoch": 1, "test_nll": 1.0, "wall_s": 1.0}
    (folder / "log.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in (start, evaluation)))
    assert main(["report", "r", *asked]) == 0
    page = (tmp_path / "page.html").read_text() if "--html" in asked else ""
    assert "blas_threads was 2 up to update 5, and is 1 since" in page or "blas_threads was 2" in capsys.readouterr().out


@pytest.mark.skipif(openblas.threads() is None, reason="NumPy has no OpenBLAS")
def test_the_number_of_threads_is_read_from_the_library(numpy_backend):
    before, change = openblas.threads(), openblas._function("set_num_threads")
    try:
        change(1)
        assert openblas.threads() == 1 and numpy_backend.info()["blas_threads"] == "1"
    finally:
        change(before)
    assert openblas.threads() == before >= 1
