"""The ranks of one machine end together with the process that started them. The ranks here only sleep."""

import signal
import subprocess
import sys

import pytest
from conftest import PATIENCE
from processes import wait_until_gone

from duoln.distributed.launching import Children

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="ranks run under Linux and macOS")

RANK = f"""#!{sys.executable}
import os, sys, time
from duoln.distributed.launching import end_with_launcher
assert sys.argv[1:] == ["-P", "-m", "duoln", "a", "word"] and sys.stdin.read() == ""
end_with_launcher()
open(os.environ["READY"] + os.environ["DUOLN_RANK"], "w").close()
time.sleep(600)
"""

LAUNCHER = """
import os, sys, time
from pathlib import Path
from duoln.distributed.launching import Children

sys.executable, folder = sys.argv[1], Path(sys.argv[2])
os.environ["READY"] = str(folder / "ready")
with Children() as children, children.receive_signals():
    children.start(["a", "word"], [folder / "heard0", folder / "heard1"])
    while not all((folder / f"ready{k}").exists() for k in range(2)):
        time.sleep(0.01)
    print(*[child.pid for child in children.ranks], flush=True)
    dead = children.wait()
print("first to end:", dead)
"""


@pytest.fixture
def launcher(tmp_path, monkeypatch):
    """A process that has started two ranks, and their numbers."""
    rank = tmp_path / "rank"
    rank.write_text(RANK)
    rank.chmod(0o700)
    process = subprocess.Popen([sys.executable, "-c", LAUNCHER, str(rank), str(tmp_path)], stdout=subprocess.PIPE,
                               text=True, start_new_session=True)
    yield process, [int(pid) for pid in process.stdout.readline().split()]
    process.kill()
    process.communicate()


def test_a_rank_that_is_killed_is_told_where_sigchld_is_ignored(monkeypatch, tmp_path):
    """The system then forgets how a child ended."""
    rank = tmp_path / "rank"
    rank.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(600)\n")
    rank.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(rank))
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with Children() as children:
            children.start(["a", "word"], [tmp_path / "0", tmp_path / "1"])
            children.ranks[1].kill()
            assert children.wait() == 1 and children.ranks[1].returncode == -signal.SIGKILL
            children.ranks[0].kill()
        assert signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGCHLD, before)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_reaches_rank_0_and_all_end(number, launcher):
    process, ranks = launcher
    assert len(ranks) == 2
    process.send_signal(number)
    assert process.communicate(timeout=PATIENCE)[0] == "first to end: 0\n" and wait_until_gone(ranks)


@pytest.mark.long
def test_a_launcher_that_is_killed_leaves_no_rank(launcher):
    process, ranks = launcher
    process.kill()
    assert len(ranks) == 2 and wait_until_gone(ranks)


def test_a_signal_that_was_ignored_stays_ignored():
    """As `nohup` does with SIGHUP."""
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)}
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Children() as children, children.receive_signals():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) != before[signal.SIGTERM]
    finally:
        signal.signal(signal.SIGHUP, before[signal.SIGHUP])
    assert signal.getsignal(signal.SIGTERM) == before[signal.SIGTERM]


def test_the_secret_is_in_no_command_line_and_new_for_every_run(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, env, **how: started.append((command, env)) or Ended())
    for _ in range(2):
        with Children() as children:
            children.start(["run"], [tmp_path / "0", tmp_path / "1"])
    secrets = [env["DUOLN_RANK_TOKEN"] for _, env in started]
    assert secrets[0] == secrets[1] != secrets[2] == secrets[3] and len(secrets[0]) == 64
    assert not any(secrets[0] in word for command, _ in started for word in command)
    assert [env["DUOLN_RANK"] for _, env in started] == ["0", "1"] * 2
    assert ["DUOLN_RANK_LISTENER" in env for _, env in started] == [True, False] * 2


class Ended:
    """A process that has ended."""

    def wait(self, seconds=None):
        return 0

    def poll(self):
        return 0
