"""A run does not go on with another number of BLAS threads, or other BLAS kernels, unnoticed."""

import os
import signal

import pytest
from small_runs import At, Line, fit_into, line_trainer, state_bits

from duoln import runtime, tree
from duoln.cli.run import run_task
from duoln.errors import CheckpointError
from duoln.runs import checkpoint
from duoln.runs.folder import RunFolder
from duoln.runs.log import read_log
from duoln.system import openblas
from duoln.system.stopping import Interrupted
from duoln.testing import check_error
from duoln.training.loop import fit


@pytest.fixture
def machine(numpy_backend, monkeypatch):
    """What the backend says of the machine, to be changed."""
    facts = {**numpy_backend.info(), "blas_threads": "2", "blas_core": "Haswell"}
    monkeypatch.setattr(numpy_backend, "info", lambda: dict(facts))
    monkeypatch.setattr(runtime, "choose", lambda name: (numpy_backend, "for a test"))
    return facts


def _stop_at_7(path, backend):
    with pytest.raises(Interrupted):
        fit_into(line_trainer(backend), path, backend, [At(7, lambda: os.kill(os.getpid(), signal.SIGINT))])


def test_the_log_and_every_checkpoint_tell(machine, numpy_backend, tmp_path):
    _stop_at_7(tmp_path, numpy_backend)
    [start] = [e for e in read_log(tmp_path) if e["event"] == "start"]
    assert (start["backend"]["blas_threads"], start["backend"]["blas_core"]) == ("2", "Haswell")
    for path in checkpoint.list_steps(tmp_path / "checkpoints"):
        assert checkpoint.load(path).notes["arithmetic"] == {
            "backend": "numpy", "blas_threads": "2", "blas_core": "Haswell"}


@pytest.mark.parametrize(("key", "value", "words"), [
    ("blas_threads", "64", ["expected blas_threads 2, found 64", "Set OPENBLAS_NUM_THREADS=2"]),
    ("blas_core", "SkylakeX", ["expected blas_core Haswell, found SkylakeX", "Set OPENBLAS_CORETYPE=Haswell"])])
def test_another_arithmetic_is_refused(key, value, words, machine, numpy_backend, tmp_path):
    _stop_at_7(tmp_path, numpy_backend)
    machine[key] = value
    check_error(CheckpointError, lambda: fit_into(line_trainer(numpy_backend), tmp_path, numpy_backend, resume=True), *words,
                "--resume anyway", "step-000000007")
    assert checkpoint.newest(tmp_path / "checkpoints")[0].step == 7
    folder, resumed = RunFolder(tmp_path, numpy_backend), line_trainer(numpy_backend)
    assert fit(resumed, folder, resume=True, same_bits=False)["steps"] == 15
    assert [e["backend"][key] for e in read_log(tmp_path) if e["event"] == "start"][-1] == value


def test_the_command_line(machine, tmp_path, capsys):
    words = ["--out", str(tmp_path / "r"), "--epochs"]
    assert run_task(Line, [*words, "1"], preset="smoke") == 0
    machine["blas_threads"] = "1"
    assert run_task(Line, [*words, "2", "--resume", "auto"], preset="smoke") == 1
    assert "OPENBLAS_NUM_THREADS=2" in capsys.readouterr().err
    assert run_task(Line, [*words, "2", "--resume", "anyway"], preset="smoke") == 0


def test_a_checkpoint_that_does_not_tell_is_taken(machine, numpy_backend, tmp_path):
    """Those of earlier versions, and of a library that is not OpenBLAS."""
    whole, earlier, resumed = (line_trainer(numpy_backend) for _ in range(3))
    for _ in range(4):
        earlier.advance()
    checkpoint.save(tmp_path / "checkpoints", 4, tree.map(lambda t: t.numpy(), earlier.state), {
        "task": "line", "variant": "plain", "config": vars(earlier.cfg)})
    fit_into(resumed, tmp_path, numpy_backend, resume=True)
    while whole.step < whole.last_step:
        whole.advance()
    assert state_bits(resumed) == state_bits(whole)


@pytest.mark.skipif(openblas.threads() is None, reason="NumPy has no OpenBLAS")
def test_the_number_of_threads_is_read_from_the_library(numpy_backend):
    before, change = openblas.threads(), openblas._function("set_num_threads")
    try:
        change(1)
        assert openblas.threads() == 1 and numpy_backend.info()["blas_threads"] == "1"
    finally:
        change(before)
    assert openblas.threads() == before >= 1
