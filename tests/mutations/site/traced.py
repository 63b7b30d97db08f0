"""Which functions of the copy this process calls."""

import atexit
import json
import os
import sys
import threading
from pathlib import Path

ROOT = os.environ["MUTATIONS_ROOT"] + os.sep
_called = set()


def _trace(frame, event, arg):
    _called.add(frame.f_code)


def start():
    """Trace calls from here on; a process that a test starts writes its calls at its end, under that test's name."""
    sys.settrace(_trace)
    threading.settrace(_trace)
    if test := os.environ.get("PYTEST_CURRENT_TEST"):
        atexit.register(lambda: write(test.rpartition(" (")[0], 0.0))


def clear():
    """Forget the calls so far."""
    _called.clear()
    sys.settrace(_trace)


def write(test, seconds):
    """Add a line with the calls since the last `clear`, each as the file and the first line of its function."""
    sys.settrace(None)
    calls = {}
    for code in tuple(_called):
        if code.co_filename.startswith(ROOT):
            calls.setdefault(code.co_filename.removeprefix(ROOT), []).append(code.co_firstlineno)
    with (Path(os.environ["MUTATIONS_RECORD"]) / f"{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps({"test": test, "seconds": seconds, "calls": calls}) + "\n")
