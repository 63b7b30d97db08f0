"""`duoln run --ranks N` over MLX's ring: it trains as one process does, and all ranks end together."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from conftest import NAMES, PATIENCE
from running import FEW, STEPS, Started, losses, run, run_here, states, without_pictures

from duoln.cli import main
from duoln.distributed.rank_info import LAUNCHERS

needs_ring = pytest.mark.skipif(sys.platform == "win32", reason="MLX's ring runs under Linux and macOS")


@pytest.mark.long
@needs_ring
@pytest.mark.parametrize(("task", "variant", "settings", "ranks"), [
    pytest.param("handwriting", "ln", ("--set", "lines=24", "--set", "length=8", "--set", "text_length=5"), 2, marks=pytest.mark.long), ("mnist", "none", ("--set", "rows=600", "--batch-size", "150", "--set", "dropout=0.4"), 3)])
def test_ranks_train_as_one_process_does(task, variant, settings, ranks, tmp_path, backend="mlx"):
    words = (task, "--variant", variant, *settings)
    (tmp_path / "numpy.py").write_text("raise SystemExit('a file of the working folder was run')")
    told = run(*words, "--ranks", str(ranks), "--out", str(tmp_path / "more"), "--json", backend=backend, cwd=tmp_path,
               stdin=subprocess.DEVNULL)
    run_here(*words, "--out", str(tmp_path / "one"), backend=backend)
    more, one = (losses(tmp_path / name / variant) for name in ("more", "one"))
    assert len(more) == len(one) > 2
    np.testing.assert_allclose(more, one, rtol=1e-5)
    assert json.loads(told.stdout)["backend"] == backend  # one answer, not one a rank
    assert f"{ranks} on {backend}, each with 1/{ranks} of every batch" in told.stderr


def test_ranks_on_gpus_train_as_one_process_does(tmp_path):
    if "cupy" not in NAMES:
        pytest.skip("needs NVIDIA GPUs: DUOLN_TEST_BACKENDS=cupy")
    import cupy

    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two NVIDIA GPUs")
    test_ranks_train_as_one_process_does("mnist", "ln", ("--set", "rows=600", "--batch-size", "100"), 2, tmp_path, "cupy")


@pytest.mark.long
@needs_ring
def test_a_variant_that_cannot_be_shared_ends_every_rank(tmp_path):
    done = run("mnist", "--variant", "bn", "--set", "rows=200", "--ranks", "2", "--out", str(tmp_path / "run"), check=2)
    assert done.stderr.count("2 ranks cannot share this variant's batches") == 1


@pytest.mark.parametrize(("words", "message"), [
    (("--ranks", "0"), "expected --ranks between 1 and 64, found 0"),
    (("--ranks", "2", "--debug-nans"), "--debug-nans wants one process"),
    (("--ranks", "2", "--backend", "numpy"), "found numpy: it has no engine"),
    (("--ranks", "auto"), "--ranks auto: expected the variables of a launcher"),
    (("--ranks", "slurm"), "expected a number in SLURM_PROCID, found nothing")])
def test_ranks_that_cannot_be_are_usage_errors(words, message, tmp_path, capsys, monkeypatch):
    for names in LAUNCHERS.values():
        for name in names:
            monkeypatch.delenv(name, raising=False)
    assert main(["run", "mnist", "--preset", "smoke", "--out", str(tmp_path), "--backend", "mlx", *words]) == 2
    assert message in capsys.readouterr().err


LONG = ("--epochs", "100000")


@pytest.mark.long
@needs_ring
def test_a_rank_that_dies_ends_the_others_and_the_run_goes_on_from_its_checkpoint(tmp_path):
    started = Started(tmp_path, *LONG)
    started.wait_for_step(20)
    first, second = started.ranks()
    os.kill(second, signal.SIGKILL)
    stderr = started.process.communicate(timeout=PATIENCE)[1]
    assert started.process.returncode == 1
    assert "rank 1 was killed by SIGKILL; the other ranks were ended" in stderr and "--resume auto" in stderr
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    step = states(tmp_path / "ln").update
    assert step >= STEPS
    epochs = step // STEPS + 1
    run(*FEW, "--ranks", "2", "--out", str(tmp_path), "--resume", "auto", "--epochs", str(epochs),
        env=without_pictures())
    assert states(tmp_path / "ln").update == epochs * STEPS


@pytest.mark.long
@needs_ring
def test_ctrl_c_stops_every_rank_at_one_step_and_going_on_equals_not_stopping(tmp_path, capsys):
    started = Started(tmp_path / "stopped", *LONG)
    started.wait_for_step(17)
    started.process.send_signal(signal.SIGINT)
    stderr = started.process.communicate(timeout=PATIENCE)[1]
    assert started.process.returncode == 130 and "go on with" in stderr and "--resume auto --out" in stderr, stderr
    stopped = states(tmp_path / "stopped" / "ln").update
    epochs = str(stopped // STEPS + 1)
    for folder in ("stopped", "whole"):
        run(*FEW, "--ranks", "2", "--out", str(tmp_path / folder), "--epochs", epochs,
            *(["--resume", "auto"] if folder == "stopped" else []), env=without_pictures())
    mine, whole = (states(tmp_path / folder / "ln") for folder in ("stopped", "whole"))
    assert mine.update == whole.update > stopped - STEPS
    assert main(["run", *FEW, "--preset", "smoke", "--backend", "mlx", "--out", str(tmp_path / "whole"), "--resume", "auto"]) != 0
    assert "expected ranks 2, found 1" in capsys.readouterr().err  # another number of ranks has other bits
    for name, array in whole.arrays.items():
        np.testing.assert_array_equal(mine.arrays[name], array, err_msg=name)
