"""Ranks that a launcher has started, on one machine or several: each is one `duoln run --ranks auto`."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import PATIENCE
from meetings import free_port
from running import command, losses, run_here, without_pictures

from duoln.distributed.rank_info import LAUNCHERS

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="MLX's ring runs under Linux and macOS")

WORDS = ("mnist", "--variant", "ln", "--set", "rows=600", "--batch-size", "100")
SECRET = "a secret that every rank was given"


def start(*words, within=(), **told):
    """A rank with these variables, in a namespace if one is named, and with nothing to read."""
    mixed = {name for names in LAUNCHERS.values() for name in names} | {"MASTER_ADDR", "MASTER_PORT"}
    environment = {name: value for name, value in without_pictures().items() if name not in mixed}
    return subprocess.Popen([*within, *command(*WORDS, "--ranks", "auto", *words)], env={**environment, **told},
                            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def finish(processes):
    """The stderr of each process, after all have ended without error."""
    outputs = [process.communicate(timeout=PATIENCE)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), outputs
    return outputs


def check_losses(tmp_path):
    run_here(*WORDS, "--out", str(tmp_path / "one"))
    several, one = (losses(tmp_path / name / "ln") for name in ("several", "one"))
    assert len(several) == len(one) > 2
    np.testing.assert_allclose(several, one, rtol=1e-5)


def reach(address):
    """Connect as soon as a process listens."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(address, timeout=30)
        time.sleep(0.02)
    raise AssertionError(f"nobody listens at {address}")


@pytest.mark.long
def test_ranks_at_two_addresses_train_as_one_process_whoever_comes_first(tmp_path):
    """One is started as by Slurm, one as by Open MPI. Before the second one, a stranger connects and sends nonsense."""
    if sys.platform == "darwin":
        pytest.skip("macOS has one loopback address")
    address = ("127.0.0.2", free_port("127.0.0.2"))
    shared = {"DUOLN_RANK_MEETING": f"{address[0]}:{address[1]}", "DUOLN_RANK_TOKEN": SECRET}
    first = start("--out", str(tmp_path / "several"), SLURM_PROCID="0", SLURM_NTASKS="2", SLURM_LOCALID="0", **shared)
    with reach(address) as stranger:
        stranger.sendall(b"let me in " * 10)
        second = start(OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_LOCAL_RANK="0", **shared)
        outputs = finish([first, second])
    assert "ranks: refused a connection from 127.0.0.1:" in outputs[0] and "it does not know this run's token" in outputs[0]
    assert "this is rank 0 of 2; they meet at 127.0.0.2" in outputs[0] and "this is rank 1 of 2" in outputs[1]
    assert not any(SECRET in text for text in outputs)
    check_losses(tmp_path)


@pytest.mark.minutes
def test_a_rank_that_dies_ends_the_others_without_a_launcher(tmp_path):
    shared = {"DUOLN_RANK_MEETING": f"127.0.0.1:{free_port()}", "DUOLN_RANK_TOKEN": SECRET, "DUOLN_RANK_COUNT": "2"}
    first, second = (start("--epochs", "400", "--out", str(tmp_path), DUOLN_RANK=str(k), **shared) for k in range(2))
    log = tmp_path / "ln" / "log.jsonl"
    while first.poll() is None and not (log.exists() and '"update": 3,' in log.read_text()):
        time.sleep(0.02)
    second.send_signal(signal.SIGKILL)
    stderr = first.communicate(timeout=PATIENCE)[1]
    second.communicate()
    assert first.returncode == 1 and "rank 0 lost another rank" in stderr


@pytest.mark.minutes
def test_ranks_that_open_mpi_starts_train_as_one_process(tmp_path):
    if not shutil.which("mpirun"):
        pytest.skip("needs Open MPI's mpirun")
    environment = {**os.environ, "DUOLN_RANK_MEETING": f"127.0.0.1:{free_port()}", "DUOLN_RANK_TOKEN": SECRET}
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    subprocess.run(["mpirun", *root, "--oversubscribe", "-n", "2", *command(*WORDS, "--ranks", "auto", "--out",
                   str(tmp_path / "several"))], env=environment, check=True, capture_output=True, timeout=PATIENCE)
    check_losses(tmp_path)
