"""Where compiled kernels are kept: once for each text, for their user alone; what is damaged or planted is not loaded."""

import signal
import stat
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from compiled import (
    COMPILED,
    FEW,
    PROGRAM,
    environment,
    libraries,
    make_compiler,
    run,
    values,
)
from conftest import PATIENCE
from processes import wait_until_gone

from duoln.kernels import native
from duoln.kernels.native import building, storage, toolchain
from duoln.kernels.native.storage import Unit

pytestmark = pytest.mark.skipif(native.compiler() is None, reason="there is no C++ compiler")

FLOAT32 = np.dtype(np.float32)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache that one process has filled, and what that process printed."""
    folder = tmp_path_factory.mktemp("cache")
    done = run(folder)
    assert COMPILED in done.stdout
    return folder, done


def _copy(folder, to):
    (to / "native").mkdir(mode=0o700)
    for path in (folder / "native").iterdir():
        copied = to / "native" / path.name
        copied.write_bytes(path.read_bytes())
        copied.chmod(0o600)
    return libraries(to)


@pytest.mark.long
def test_a_kernel_is_compiled_once_for_the_user_alone(cache):
    folder, first = cache
    before = {path: path.stat().st_mtime_ns for path in libraries(folder)}
    again = run(folder)
    assert len(before) == 1 and values(again) == values(first)
    assert {path: path.stat().st_mtime_ns for path in libraries(folder)} == before
    assert stat.S_IMODE((folder / "native").stat().st_mode) == 0o700
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in before)
    assert not list((folder / "native").glob("building-*"))


@pytest.mark.long
def test_one_line_on_stderr_says_so_once(cache):
    _, first = cache
    [line] = first.stderr.splitlines()
    assert line.startswith("duoln: compiling norm in float32 for this CPU with ") and "compiling" not in first.stdout
    assert run(cache[0]).stderr == ""


def test_processes_that_start_together_compile_once(tmp_path):
    log = tmp_path / "log"
    compiler = make_compiler(tmp_path / "c++", log, 'exec c++ "$@"')
    started = [subprocess.Popen([sys.executable, "-c", FEW + PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True, env=environment(tmp_path, DUOLN_CXX=compiler)) for _ in range(4)]
    outputs = [process.communicate(timeout=PATIENCE) for process in started]
    assert len({out for out, _ in outputs}) == 1 and all(COMPILED in out for out, _ in outputs), outputs
    assert len(libraries(tmp_path)) == 1 and log.read_text() == "compiles\n"


@pytest.mark.parametrize("damage", [
    lambda p: p.write_bytes(b""), lambda p: p.write_bytes(p.read_bytes()[:4000]), lambda p: p.write_text("no library"),
    lambda p: p.chmod(0o666), lambda p: p.with_suffix(".json").unlink(), lambda p: p.with_suffix(".json").write_text("[1]"),
    lambda p: p.with_suffix(".json").write_text('{"source": 1}'), lambda p: p.with_suffix(".json").chmod(0o666),
    lambda p: p.with_suffix(".json").write_text("[" * 200_000), lambda p: (p.rename(f"{p}-"), p.symlink_to(f"{p}-")),
    lambda p: p.with_suffix(".json").write_text(p.with_suffix(".json").read_text().replace('"needs": [', '"needs": [1, '))],
    ids=["empty", "cut short", "text", "writable by others", "no record", "a list for a record", "half a record",
         "a record that others can write", "a deep record", "a link", "needs that are no names"])
def test_a_damaged_library_is_not_whole(cache, damage, tmp_path):
    [copied] = _copy(cache[0], tmp_path)
    assert storage.is_whole(copied)
    damage(copied)
    assert not storage.is_whole(copied)


@pytest.mark.long
def test_a_damaged_library_is_made_again(cache, tmp_path):
    folder, first = cache
    [copied] = _copy(folder, tmp_path)
    copied.write_bytes(copied.read_bytes()[:4000])
    done = run(tmp_path)
    assert COMPILED in done.stdout and values(done) == values(first), done.stdout + done.stderr
    assert "compiling norm" in done.stderr and run(tmp_path).stderr == ""


def test_root_may_own_a_library_and_another_user_may_not(cache, monkeypatch):
    [path] = libraries(cache[0])
    owner = path.stat().st_uid
    monkeypatch.setattr(toolchain, "ROOT", owner)
    monkeypatch.setattr(storage.os, "getuid", lambda: owner + 1)
    assert storage.is_whole(path)
    monkeypatch.setattr(toolchain, "ROOT", owner + 2)
    assert not storage.is_whole(path)


@pytest.mark.long
def test_what_a_killed_process_left_is_removed(cache, tmp_path):
    [copied] = _copy(cache[0], tmp_path)
    left = tmp_path / "native" / "building-left"
    left.mkdir()
    (left / "norm.cpp").write_text("half")
    copied.unlink()
    assert COMPILED in run(tmp_path).stdout and not left.exists()


def test_a_compiler_that_hangs_is_ended(tmp_path, monkeypatch):
    make_compiler(tmp_path / "c++", tmp_path / "log", "exec sleep 100000")
    monkeypatch.setattr(building, "_SECONDS", 0.2)
    monkeypatch.setattr(storage, "folder", lambda: tmp_path)
    [log] = building.build([Unit("adam/adam.cpp", "float32")], toolchain.Compiler((str(tmp_path / "c++"),), "1.0")).values()
    assert "stopped after 0 s" in log and not list(tmp_path.glob("building-*"))


def test_a_compiler_that_cannot_be_started(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "folder", lambda: tmp_path)
    unit = Unit("adam/adam.cpp", "float32")
    [log] = building.build([unit], toolchain.Compiler((str(tmp_path / "gone"),), "1.0")).values()
    assert f"{tmp_path / 'gone'} " in log and "No such file" in log


def test_a_process_that_was_forked_during_a_build_may_build(tmp_path):
    """The child has the parent's open file of the lock, and the thread that holds it is not there."""
    done = run(tmp_path, program="""
import os, threading
from pathlib import Path
from duoln.kernels.native import building
folder, inside, forked = Path(os.environ["DUOLN_CACHE"]), threading.Event(), threading.Event()
def hold():
    with building._lock_folder(folder):
        inside.set()
        forked.wait()
thread = threading.Thread(target=hold)
thread.start()
inside.wait()
child = os.fork()
if child == 0:
    with building._lock_folder(folder):
        os._exit(7)
forked.set()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""")
    assert done.stdout == "7\n", done.stderr


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_during_a_build_ends_the_compilers(number, tmp_path):
    compiler = make_compiler(tmp_path / "c++", tmp_path / "log", f"echo $$ > {tmp_path}/part; exec sleep 100000")
    started = subprocess.Popen([sys.executable, "-c", FEW + PROGRAM], stderr=subprocess.PIPE, text=True,
                               env=environment(tmp_path / "cache", DUOLN_CXX=compiler))
    end = time.monotonic() + PATIENCE
    while not (tmp_path / "part").exists() or not (tmp_path / "part").read_text().endswith("\n"):
        assert time.monotonic() < end and started.poll() is None
        time.sleep(0.01)
    started.send_signal(number)
    started.communicate(timeout=PATIENCE)
    assert started.returncode == -number
    assert wait_until_gone([int((tmp_path / "part").read_text())])
    assert not list((tmp_path / "cache" / "native").glob("building-*"))


def test_a_process_that_waits_for_one_that_compiles_says_so(tmp_path, capsys):
    with building._lock_folder(tmp_path):
        waiting = threading.Thread(target=lambda: building._lock_folder(tmp_path).__enter__())
        waiting.start()
        end = time.monotonic() + PATIENCE
        output = ""
        while "waiting" not in output and time.monotonic() < end:
            output += capsys.readouterr().err
            time.sleep(0.01)
    waiting.join(PATIENCE)
    assert f"duoln: waiting for a process that compiles into {tmp_path}\n" == output and not waiting.is_alive()
    assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == 0o600
