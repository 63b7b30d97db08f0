"""A worker that hangs or ends is told from one that answers, with what it did."""

import os
import sys
import time

import pytest
from conftest import PATIENCE

from duoln.system.worker import Worker, WorkerLostError

SERVING = """
import os, signal, sys, time
from duoln.system.worker import serve

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
