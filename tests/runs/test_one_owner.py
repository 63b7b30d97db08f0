"""A run folder belongs to one process: whatever becomes of its lock file, and where it is moved or removed."""

import multiprocessing
import shutil
import subprocess
import sys

import pytest
from small_runs import At, fit_into, line_trainer

from duoln.errors import CheckpointError
from duoln.runs.folder import RunFolder
from duoln.runs.log import read_log
from duoln.runs.settings import Command, read_command, write_command
from duoln.testing import check_error


def test_a_removed_lock_file_lets_nobody_in(numpy_backend, tmp_path):
    first = RunFolder(tmp_path, numpy_backend)
    (tmp_path / "lock").unlink()
    check_error(CheckpointError, lambda: RunFolder(tmp_path, numpy_backend), str(tmp_path), "another process")
    first.close()
    RunFolder(tmp_path, numpy_backend).close()


@pytest.mark.parametrize("change", ["moved", "removed", "replaced"])
def test_a_folder_that_goes_during_a_run_is_not_made_anew(change, numpy_backend, tmp_path):
    run = tmp_path / "run"

    def go():
        shutil.move(run, tmp_path / "moved") if change != "removed" else shutil.rmtree(run)
        if change == "replaced":
            RunFolder(run, numpy_backend).close()

    check_error(CheckpointError, lambda: fit_into(line_trainer(numpy_backend), run, numpy_backend, [At(7, go)]),
                str(run), f"found {'another file' if change == 'replaced' else 'none'}", "moved or removed during the run")
    assert run.exists() == (change == "replaced") and not (run / "checkpoints").exists()
    if change != "removed":
        assert [e["status"] for e in read_log(tmp_path / "moved") if e["event"] == "end"] == ["failed"]


def _write_often(folder, barrier):
    barrier.wait()
    for _ in range(30):
        write_command(folder, Command(["ln"], None, {"text": "x" * 5000}, [], None, "mnist", "now"))


def test_several_processes_write_one_file(tmp_path):
    """Each write is whole, and none fails because of another."""
    spawn = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    barrier = spawn.Barrier(3)
    writers = [spawn.Process(target=_write_often, args=(tmp_path / "ln", barrier)) for _ in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert read_command(tmp_path / "ln").settings == {"text": "x" * 5000}
    assert [path.name for path in (tmp_path / "ln").iterdir()] == ["command.json"]


def test_a_file_that_another_process_writes_is_not_removed(numpy_backend, tmp_path):
    kept, left = (tmp_path / f"config.json.0000000{k}.part" for k in (1, 2))
    left.write_text("{")
    code = ("import fcntl, os, sys; d = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY); fcntl.flock(d, fcntl.LOCK_EX); "
            "print(1, flush=True); sys.stdin.read()")
    with subprocess.Popen([sys.executable, "-c", code, str(kept)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        writer.stdout.readline()
        folder = RunFolder(tmp_path, numpy_backend)
        folder.close()
        assert kept.exists() and not left.exists() and [str(left) in line for line in folder.mended] == [True]
        writer.stdin.close()
