"""The threads of the compiled kernels: one team that sleeps between calls, with forks and several callers."""

import os
import platform
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from conftest import PATIENCE

from duoln import ops
from duoln.kernels import native

pytestmark = pytest.mark.skipif(native.compiler() is None, reason="there is no C++ compiler")

START = """
import os, sys, time
import numpy as np
from duoln import ops, runtime
from duoln.kernels import host
be = runtime.backend("numpy")
host.PARALLEL_BYTES, host.workers = 0, lambda: 3
x = np.random.default_rng(0).standard_normal((999, 64)).astype(np.float32)
labels = np.zeros(999, np.int32)
def norm():
    return ops.layer_norm.rules("numpy")[0].forward(be, x, None, None, eps=1e-5)[0].tobytes()
def loss():
    return ops.softmax_cross_entropy.rules("numpy")[0].forward(be, x, labels)[0].tobytes()
def others():
    return [thread for thread in os.listdir("/proc/self/task") if int(thread) != os.getpid()]
"""


def _run(program):
    return subprocess.run([sys.executable, "-c", START + program], capture_output=True, text=True, check=False,
                          timeout=PATIENCE, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})


TGKILL = {"x86_64": 234, "aarch64": 131}.get(platform.machine())
ONE_LIBRARY = pytest.mark.skipif(not (native.compiler() and "clang" not in native.compiler().version),
                                 reason="only g++ makes variables one")
PROGRAMS = {
    "all libraries share one team": ("before = len(others()); norm(); after = len(others()); loss(); print(before, after, len(others()))", "0 2 2", ""),
    "it sleeps between calls": (f"""
norm()
def state(thread):
    return open(f"/proc/self/task/{{thread}}/stat").read().rpartition(")")[2].split()[0]
end = time.monotonic() + {PATIENCE / 2}
while any(state(thread) != "S" for thread in others()) and time.monotonic() < end:
    time.sleep(0.01)
print([state(thread) for thread in others()])
""", "['S', 'S']", ""),
    "signals are left to Python": ("""
norm()
masks = [line.split()[1] for thread in others() for line in open(f"/proc/self/task/{thread}/status") if line.startswith("SigBlk")]
print(all(int(mask, 16) >> 1 & 1 for mask in masks), len(masks))  # SIGINT is number 2, bit 1
""", "True 2", ""),
    "a fault of a worker is told": (f"""
import ctypes, faulthandler, signal
faulthandler.enable()  # its handlers run on the thread that made the fault
norm()
ctypes.CDLL(None).syscall({TGKILL}, os.getpid(), int(others()[0]), int(signal.SIGSEGV))
time.sleep({PATIENCE})
""", "", "Fatal Python error: Segmentation fault"),
    "an interpreter that ends during calls ends": ("""
import threading
def forever():
    while True:
        norm()
for _ in range(2):
    threading.Thread(target=forever, daemon=True).start()
time.sleep(0.05)
""", "", ""),
}
ON_LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads are listed by Linux")
MARKS = {"all libraries share one team": [ON_LINUX, ONE_LIBRARY], "an interpreter that ends during calls ends": [],
         "a fault of a worker is told": [ON_LINUX, pytest.mark.skipif(TGKILL is None, reason="the number of tgkill is not known")]}


@pytest.mark.long
@pytest.mark.parametrize("what", [pytest.param(name, marks=MARKS.get(name, ON_LINUX)) for name in PROGRAMS])
def test_a_process(what):
    program, stdout, stderr = PROGRAMS[what]
    done = _run(program)
    assert done.stdout.strip() == stdout, done.stderr
    assert (done.returncode < 0 and stderr in done.stderr) if stderr else (done.returncode, done.stderr) == (0, ""), done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_has_a_team_of_its_own():
    done = _run("""
expected = norm(), loss()
for generation in range(3):  # a child of a child too
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        same = (norm(), loss()) == expected
        print("parent", generation, same, os.waitstatus_to_exitcode(status), flush=True)
        sys.exit(0 if same and os.waitstatus_to_exitcode(status) == 0 else 1)
    assert (norm(), loss()) == expected
    if os.path.isdir("/proc/self/task"):
        assert len(others()) == 2
""")
    assert done.returncode == 0 and done.stdout.count("True 0") == 3, done.stdout + done.stderr


def test_several_callers_at_once(numpy_backend, monkeypatch, rng):
    monkeypatch.setattr(native, "threads_for", lambda count_bytes: 3)
    rule = ops.layer_norm.rules("numpy")[0]
    inputs = [rng.standard_normal((301, 40)).astype(np.float32) for _ in range(4)]

    def norm(x):
        return rule.forward(numpy_backend, x, None, None, eps=1e-5)[0].tobytes()

    expected = [norm(x) for x in inputs]
    wrong = []

    def repeat(k):
        wrong.extend(k for _ in range(300) if norm(inputs[k]) != expected[k])

    callers = [threading.Thread(target=repeat, args=(k,)) for k in range(4)]
    for caller in callers:
        caller.start()
    end = time.monotonic() + PATIENCE
    for caller in callers:
        caller.join(max(end - time.monotonic(), 0))
    assert not any(caller.is_alive() for caller in callers) and not wrong
