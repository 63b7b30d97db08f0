"""pytest again and again, each time in a fork of a process that has imported everything but duoln: that is the quickest.

Reads a JSON object a line, {"words": what pytest is told, "limit": seconds}; answers one, {"code", "output"}; the code is
null where the limit was reached.
"""

import contextlib
import importlib
import json
import os
import select
import signal
import sys
import tempfile
import time

import pytest

# Without these the tests import them. No plug-in of pytest is loaded: pytest complains of those that were imported before.
HEAVY = ("numpy", "numpy.testing", "hypothesis", "hypothesis.strategies", "mlx.core", "torch", "safetensors.numpy", "pooch", "pluggy", "rich.console", "rich.live",
         "rich.table", "matplotlib.pyplot", "sklearn.linear_model", "scipy.stats")


def _child(words, output):
    os.setsid()
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    code = 3
    try:
        code = int(pytest.main(words))
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def run(words, limit):
    """The exit code of pytest in a fork, None after `limit` seconds, and what it printed."""
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            _child(words, output)
        until, code = time.monotonic() + limit, None
        handle = os.pidfd_open(child)
        if select.select([handle], [], [], max(until - time.monotonic(), 0))[0]:
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.close(handle)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # also what a test has left behind
        if code is None:
            os.waitpid(child, 0)
        output.seek(0)
        return code, output.read().decode(errors="replace")


def main():
    """Answer until there are no more lines."""
    for name in HEAVY:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    for line in sys.stdin:
        asked = json.loads(line)
        code, output = run(asked["words"], asked["limit"])
        print(json.dumps({"code": code, "output": output[-20_000:]}), flush=True)


if __name__ == "__main__":
    main()
