"""Signals that stop a run: a checkpoint, the right exit code, a second one at once, and no traceback of an import."""

import os
import signal
import subprocess
import sys

import pytest
from conftest import TOOLS
from small_runs import At, Line, fit_into, line_trainer, state_bits

from duoln.cli.run import run_task
from duoln.errors import Interrupted
from duoln.runs import checkpoint
from duoln.system.stopping import STOPPING, is_own_command

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


def _send(number):
    return lambda: os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_saves_and_stops(number, numpy_backend, tmp_path):
    before = {n: signal.getsignal(n) for n in STOPPING}
    with pytest.raises(Interrupted, match=r"after update 7; checkpoint .*cut") as caught:
        fit_into(line_trainer(numpy_backend), tmp_path / "cut", numpy_backend, [At(7, _send(number))])
    assert caught.value.exit_code == CODES[number] and {n: signal.getsignal(n) for n in STOPPING} == before
    assert checkpoint.newest(tmp_path / "cut" / "checkpoints")[0].update == 7
    resumed, whole = line_trainer(numpy_backend), line_trainer(numpy_backend)
    fit_into(resumed, tmp_path / "cut", numpy_backend, resume=True)
    fit_into(whole, tmp_path / "whole", numpy_backend)
    assert state_bits(resumed) == state_bits(whole)


@pytest.mark.parametrize("number", STOPPING)
def test_the_exit_code_of_a_command(number, tmp_path, capsys):
    class Stopping(Line):
        def metrics(self, predict, split):
            os.kill(os.getpid(), number)
            return super().metrics(predict, split)

    assert run_task(Stopping, ["--out", str(tmp_path / "r"), "--backend", "numpy"], preset="smoke") == CODES[number]
    err = " ".join(capsys.readouterr().err.split())
    assert "stopped after update 5; checkpoint " in err and f"--backend numpy --resume auto --out {tmp_path / 'r'}" in err


def test_an_ignored_hangup_stays_ignored(numpy_backend, tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert fit_into(line_trainer(numpy_backend), tmp_path, numpy_backend, [At(3, _send(signal.SIGHUP))])["updates"] == 15
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("numbers", [(signal.SIGINT, signal.SIGTERM, signal.SIGHUP), (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)])
def test_signals_of_several_kinds_are_one_request(numbers, numpy_backend, tmp_path):
    """As a closing terminal and a scheduler send them; the first names the exit code."""
    def send():
        for number in numbers:
            os.kill(os.getpid(), number)

    with pytest.raises(Interrupted, match="after update 7") as caught:
        fit_into(line_trainer(numpy_backend), tmp_path / "cut", numpy_backend, [At(7, send)])
    assert caught.value.exit_code == CODES[numbers[0]]
    assert checkpoint.newest(tmp_path / "cut" / "checkpoints")[0].update == 7


@pytest.mark.long
@pytest.mark.few
@pytest.mark.parametrize(("first", "second", "code"), [("SIGTERM", "SIGTERM", -15), ("SIGHUP", "SIGHUP", -1), ("SIGINT", "SIGINT", 130)])
def test_a_second_signal_ends_at_once(first, second, code, tmp_path):
    program = f"""
import os, signal, sys
from pathlib import Path
from duoln import runtime
from duoln.cli.guard import run_to_exit_code
from small_runs import At, fit_into, line_trainer
be = runtime.backend("numpy")
def both():
    os.kill(os.getpid(), signal.{first})
    os.kill(os.getpid(), signal.{second})
    print("not at once", flush=True)
sys.exit(run_to_exit_code(lambda: fit_into(line_trainer(be), Path({str(tmp_path / "r")!r}), be, [At(3, both)])))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False,
                          cwd=TOOLS)
    assert done.returncode == code and "not at once" not in done.stdout and "Traceback" not in done.stderr, done.stderr


# Ctrl-C while modules are imported ------------------------------------------------------------------------

_INTERRUPTING = """
import importlib.abc, os, signal, sys
class Interrupting(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == os.environ.get("INTERRUPTED_IMPORT"):
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
"""
_COMMANDS = {"python -m duoln": ["-m", "duoln", "list"], "duoln": ["duoln", "list"],
             "python -m duoln.examples.mnist": ["-m", "duoln.examples.mnist", "--out", "r"]}


@pytest.mark.few
@pytest.mark.parametrize(("command", "module"), [
    ("python -m duoln", "duoln.cli"), ("python -m duoln", "duoln.__main__"), ("python -m duoln", "rich"),
    ("python -m duoln", "duoln.plugins.mnist"), ("duoln", "duoln.cli"), ("duoln", "numpy"),
    ("python -m duoln.examples.mnist", "duoln.examples"), ("python -m duoln.examples.mnist", "numpy"),
    ("python -m duoln.examples.mnist", "duoln.training.trainer")])
def test_ctrl_c_during_an_import_is_quiet(command, module, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(_INTERRUPTING)
    (tmp_path / "duoln").write_text("import sys\nfrom duoln.cli import main\nsys.exit(main())\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run([sys.executable, *_COMMANDS[command]], capture_output=True, text=True, check=False, cwd=tmp_path,
                          env={**os.environ, "PYTHONPATH": path, "INTERRUPTED_IMPORT": module, "DUOLN_OFFLINE": "1"})
    assert done.returncode == 130 and done.stdout == "" and "Traceback" not in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) <= 3 and "Error" not in done.stderr, done.stderr


@pytest.mark.parametrize(("argv0", "words", "own"), [
    ("-m", ["python", "-m", "duoln"], True), ("-m", ["python", "-X", "dev", "-m", "duoln.examples.mnist"], True),
    ("-m", ["python", "-m", "duolnx"], False), ("-m", ["python", "-m", "pytest"], False), ("-m", ["python"], False),
    ("/usr/bin/duoln", ["python", "/usr/bin/duoln"], True), ("train.py", ["python", "train.py"], False),
    ("", ["python"], False)])
def test_which_processes_are_commands_of_ours(argv0, words, own):
    assert is_own_command(argv0, words) is own


def test_a_program_that_imports_duoln_keeps_its_ctrl_c(tmp_path):
    code = "import signal, duoln, duoln.cli; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "True\n"
