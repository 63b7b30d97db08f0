"""Processes that a test has started, or that those have started."""

import subprocess
import time

from conftest import PATIENCE


def alive(pid):
    """Whether a process runs or sleeps; one that has ended, and whose end nobody has read yet, does not."""
    listed = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return listed.stdout.strip()[:1] not in ("", "Z")


def wait_until_gone(pids):
    """Whether all of these processes end in time; the system may end one some moments after its signal."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and any(alive(pid) for pid in pids):
        time.sleep(0.05)
    return not any(alive(pid) for pid in pids)
