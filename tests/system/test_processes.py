"""The processes that duoln starts execute nothing that lies in the working folder by chance."""

import ast
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import PATIENCE

import duoln
from duoln.system import processes
from duoln.system.processes import Worker, WorkerLostError

ROOT = Path(duoln.__file__).resolve().parents[1]
PLANTED = ("numpy", "duoln", "json", "sitecustomize", "usercustomize", "rich", "mlx", "encodings")


@pytest.fixture
def trapped(tmp_path, monkeypatch):
    """A working folder with modules that leave a mark where they are executed."""
    folder = tmp_path / "trap"
    folder.mkdir()
    for name in PLANTED:
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'a').write({name!r})\n"
                                           "raise SystemExit('the file in the working folder was executed')\n")
    monkeypatch.chdir(folder)
    return folder


def _marks(tmp_path):
    return (tmp_path / "mark").read_text() if (tmp_path / "mark").exists() else ""


@pytest.mark.long
def test_a_child_does_not_execute_files_of_the_working_folder(trapped, tmp_path):
    done = subprocess.run(processes.command("duoln.bench.timed_process", "{}"), env=processes.environment(), check=False,
                          capture_output=True, text=True)
    assert _marks(tmp_path) == "" and "KeyError: 'peer'" in done.stderr  # our module ran, as far as it can


HERE = Path("/some/here")


@pytest.mark.parametrize(("path", "kept"), [
    (["/some/here", "/lib"], ["/lib"]), (["", "/lib"], ["/lib"]), (["/bin", "/lib"], ["/bin", "/lib"]),
    (["/some/here", "/some/here", "/lib"], ["/some/here", "/lib"]),
    (["/bin", "", "/lib"], ["/bin", "/some/here", "/lib"]), (["/bin", "/some/here"], ["/bin", "/some/here"]), ([], [])])
def test_the_working_folder_stays_only_where_the_user_put_it(path, kept):
    assert processes.module_path(path, HERE) == kept


def test_an_uninstalled_checkout_stays():
    assert processes.module_path([str(ROOT), "/lib"], ROOT) == [str(ROOT), "/lib"]


def test_what_is_asked_for_is_in_the_environment(monkeypatch):
    monkeypatch.setenv("KEPT", "1")
    made = processes.environment({"ADDED": "2"})
    assert (made["KEPT"], made["ADDED"]) == ("1", "2") and "ADDED" not in os.environ


@pytest.mark.long
def test_every_python_of_ours_is_started_here():
    users = []
    for top in ("duoln", "kernels", "plugins", "examples"):
        for file in sorted((ROOT / top).rglob("*.py")):
            if any(isinstance(node, ast.Attribute) and node.attr == "executable"
                   for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))):
                users.append(file.relative_to(ROOT).as_posix())
    assert users == ["duoln/system/processes.py"]


# A worker that hangs or ends is told from one that answers, with what it did -------------------------

SERVING = """
import os, signal, sys, time
from duoln.system.processes import serve

def answer(request, doing):
    if "doing" in request: doing(request["doing"])
    print("what a library prints")
    exec(request.get("run", ""))
    return request.get("back")

serve(lambda: answer)
"""


@pytest.fixture
def worker():
    made = Worker([sys.executable, "-c", SERVING])
    made.ready(PATIENCE)
    yield made
    made.end()


def test_answers(worker):
    for value in (1, None, {"a": [1.5]}, "text"):
        assert worker.ask({"back": value}, PATIENCE) == value


def test_one_that_hangs_is_ended_and_says_what_it_did(worker):
    with pytest.raises(WorkerLostError, match="hung: no answer in 1 s") as lost:
        worker.ask({"doing": "a case", "run": "time.sleep(3600)"}, 1)
    assert lost.value.doing == "a case"
    assert not _runs(worker._process.pid)


def _runs(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(("run", "words"), [
    ("os.kill(os.getpid(), signal.SIGSEGV)", "signal SIGSEGV"), ("os._exit(3)", "exit code 3"),
    ("raise RuntimeError('an illegal address')", "RuntimeError: an illegal address")])
def test_how_it_ended(worker, run, words):
    with pytest.raises(WorkerLostError, match=words) as lost:
        worker.ask({"doing": "a case", "run": run}, PATIENCE)
    assert lost.value.doing == "a case"


def test_one_that_does_not_start():
    worker = Worker([sys.executable, "-c", "raise SystemExit('no device')"])
    with pytest.raises(WorkerLostError, match="no device") as lost:
        worker.ready(PATIENCE)
    assert lost.value.doing == "to start"


def test_it_ends_when_its_caller_is_gone_even_if_it_hangs(worker):
    worker._process.stdin.write('{"run": "time.sleep(3600)"}\n')
    worker._process.stdin.close()
    until = time.monotonic() + PATIENCE
    while worker._process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    assert worker._process.poll() == 0
