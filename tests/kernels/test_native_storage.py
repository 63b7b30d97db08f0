"""Where compiled kernels are kept: once for each text, for their user alone; what is damaged or planted is not loaded."""

import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from contextlib import nullcontext

import numpy as np
import pytest
from compiled import (
    COMPILED,
    FEW,
    PROGRAM,
    environment,
    libraries,
    make_compiler,
    remembering_compiler,
    run,
    values,
    without_package,
)
from conftest import PATIENCE
from processes import wait_until_gone

from duoln.kernels import native
from duoln.kernels.native import building, loading, storage, toolchain
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
    lambda p: p.with_suffix(".json").write_text('{"source": 1}'), lambda p: p.with_suffix(".json").chmod(0o666)],
    ids=["empty", "cut short", "text", "writable by others", "no record", "a list for a record", "half a record",
         "a record that others can write"])
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


@pytest.mark.long
def test_a_planted_link_is_not_loaded(cache, tmp_path):
    folder, first = cache
    (tmp_path / "native").mkdir(mode=0o700)
    for path in libraries(folder):
        (tmp_path / "native" / path.name).symlink_to("/dev/null")
    done = run(tmp_path)
    assert COMPILED in done.stdout and values(done) == values(first)
    assert all(path.is_file() and not path.is_symlink() for path in libraries(tmp_path))


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


def test_no_core_waits_while_another_compiler_works(tmp_path, monkeypatch):
    """Three kernels, two cores, one compiler that waits for the two others: in order, it would wait for ever."""
    (tmp_path / "c++").write_text(f"""#!/bin/sh
case "$*" in
*long.cpp*) while [ $(cat {tmp_path}/short* 2>/dev/null | wc -l) -lt 2 ]; do sleep 0.05; done ;;
*) echo done > {tmp_path}/short-$$ ;;
esac
exit 1
""")
    (tmp_path / "c++").chmod(0o755)
    monkeypatch.setattr(building.host, "workers", lambda: 2)
    monkeypatch.setattr(building, "_SECONDS", PATIENCE)
    monkeypatch.setattr(building.source, "text", lambda file: "long" * 9 if "long" in file else "short")
    monkeypatch.setattr(storage, "folder", lambda: tmp_path)
    units = [Unit(file, "float32") for file in ("a/a.cpp", "b/b.cpp", "c/long.cpp")]
    assert sorted(building.build(building.longest_first(units), toolchain.Compiler((str(tmp_path / "c++"),), "1.0"))) == units


def test_a_compiler_that_hangs_is_ended(tmp_path, monkeypatch):
    make_compiler(tmp_path / "c++", tmp_path / "log", "exec sleep 100000")
    monkeypatch.setattr(building, "_SECONDS", 0.2)
    monkeypatch.setattr(storage, "folder", lambda: tmp_path)
    [log] = building.build([Unit("adam/adam.cpp", "float32")], toolchain.Compiler((str(tmp_path / "c++"),), "1.0")).values()
    assert "stopped after 0 s" in log and not list(tmp_path.glob("building-*"))


@pytest.mark.long
@pytest.mark.parametrize("cause", ["its time is over", "Ctrl-C"])
def test_no_program_of_a_compiler_stays_behind(cause, tmp_path, monkeypatch):
    make_compiler(tmp_path / "c++", tmp_path / "log", f"sleep 100000 & echo $! > {tmp_path}/part; touch $TMPDIR/left; wait")
    monkeypatch.setattr(storage, "folder", lambda: tmp_path)

    def until_it_has_a_part(seconds):
        if (tmp_path / "part").exists() and (tmp_path / "part").read_text().endswith("\n"):
            if cause == "Ctrl-C":
                raise KeyboardInterrupt
            monkeypatch.setattr(building, "_SECONDS", 0.0)

    monkeypatch.setattr(building, "_SECONDS", PATIENCE if cause == "Ctrl-C" else 2.0)
    monkeypatch.setattr(building.time, "sleep", until_it_has_a_part)
    with pytest.raises(KeyboardInterrupt) if cause == "Ctrl-C" else nullcontext():
        building.build([Unit("adam/adam.cpp", "float32")], toolchain.Compiler((str(tmp_path / "c++"),), "1.0"))
    monkeypatch.undo()  # waiting sleeps, too
    assert wait_until_gone([(tmp_path / "part").read_text().strip()]) and not list(tmp_path.glob("building-*"))


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
    with building._alone(folder):
        inside.set()
        forked.wait()
thread = threading.Thread(target=hold)
thread.start()
inside.wait()
child = os.fork()
if child == 0:
    with building._alone(folder):
        os._exit(7)
forked.set()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""")
    assert done.stdout == "7\n", done.stderr


def test_a_child_that_outlives_the_process_that_compiled_holds_no_lock(tmp_path):
    done = run(tmp_path, program="""
import os, threading, time
from pathlib import Path
from duoln.kernels.native import building
inside = threading.Event()
def hold():
    with building._alone(Path(os.environ["DUOLN_CACHE"])):
        inside.set()
        time.sleep(1000)
threading.Thread(target=hold, daemon=True).start()
inside.wait()
child = os.fork()
if child == 0:
    os.closerange(0, 3)
    time.sleep(1000)
print(child, flush=True)
os._exit(0)
""")
    try:
        with (tmp_path / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.kill(int(done.stdout), signal.SIGKILL)


@pytest.mark.long
def test_another_folder_in_the_same_process_is_made_too(tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "_state", loading._State())
    monkeypatch.setattr(toolchain, "compiler", remembering_compiler)
    monkeypatch.setattr(toolchain, "FLAGS", tuple("-O0" if flag == "-O3" else flag for flag in toolchain.FLAGS))
    for name in ("a", "b"):
        monkeypatch.setenv("DUOLN_KERNELS", str(tmp_path / name))
        loading._state.libraries.clear()
        assert native.refusal("adam/adam.cpp", FLOAT32) is None and len(list((tmp_path / name).glob("*.so"))) == 1


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


@pytest.mark.long
def test_a_kernel_with_a_long_path(tmp_path, monkeypatch):
    """A plug-in may lie deep; the compiler's files do not get their names from its path."""
    monkeypatch.setattr(storage, "folder", lambda: tmp_path)
    deep = tmp_path / "/".join(["a" * 60] * 5) / "sum.cpp"
    deep.parent.mkdir(parents=True)
    deep.write_text('#include "common.h"\nextern "C" void NAMED(sum)(T* x) { *x += 1; }\n')
    assert building.build([Unit(str(deep), "float32")], remembering_compiler()) == {} and len(list(tmp_path.glob("*.so"))) == 1


@pytest.mark.long
@pytest.mark.parametrize("text", ["[" * 200_000, None], ids=["deep", "needs that are no names"])
def test_a_record_that_is_none(text, tmp_path):
    assert COMPILED in run(tmp_path).stdout
    [library] = libraries(tmp_path)
    record = library.with_suffix(".json")
    known = json.loads(record.read_text())
    record.write_text(text or json.dumps({**known, "march": "x86-64", "needs": [1, {}]}))
    assert "is no record of a library" in run(tmp_path, PATH="/nowhere", PYTHONPATH=without_package(tmp_path), DUOLN_CXX="").stdout
    assert COMPILED in run(tmp_path).stdout


def test_a_process_that_waits_for_one_that_compiles_says_so(tmp_path, capsys):
    with building._alone(tmp_path):
        waiting = threading.Thread(target=lambda: building._alone(tmp_path).__enter__())
        waiting.start()
        end = time.monotonic() + PATIENCE
        output = ""
        while "waiting" not in output and time.monotonic() < end:
            output += capsys.readouterr().err
            time.sleep(0.01)
    waiting.join(PATIENCE)
    assert f"duoln: waiting for a process that compiles into {tmp_path}\n" == output and not waiting.is_alive()
    assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == 0o600


def test_who_is_stopped_while_another_process_compiles_leaves_its_files(tmp_path):
    with building._alone(tmp_path):
        (tmp_path / "building-by-another").mkdir()
        plan = building.Plan(remembering_compiler(), "native", tmp_path, 0o600)
        with pytest.raises(InterruptedError):
            building._build([Unit("adam/adam.cpp", "float32")], plan, stopped=lambda: True)
    assert (tmp_path / "building-by-another").is_dir() and not list(tmp_path.glob("*.so"))
