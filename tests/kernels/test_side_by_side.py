"""Tasks side by side: the settings of the process, and errors in a thread."""

import sys
import threading
import time

import numpy as np
import pytest

from duoln.kernels import host


@pytest.fixture
def three_workers(monkeypatch):
    monkeypatch.setenv("DUOLN_THREADS", "3")
    for cached in (host.workers, host._pool):
        cached.cache_clear()
    yield
    for cached in (host.workers, host._pool):
        cached.cache_clear()


def test_two_callers_at_once_leave_the_settings_as_they_were(three_workers):
    """Each brings back the settings that it read: the second must not read those that the first has set."""
    get, interval = host.openblas._function("get_num_threads"), sys.getswitchinterval()
    before, first_is_in = get(), threading.Event()
    first = threading.Thread(target=host.side_by_side, args=([lambda: first_is_in.set() or time.sleep(0.1), int],))
    second = threading.Thread(target=host.side_by_side, args=([lambda: time.sleep(0.3), int],))
    first.start()
    first_is_in.wait()
    second.start()
    for caller in (first, second):
        caller.join()
    assert (get(), sys.getswitchinterval()) == (before, interval)


def test_errors_and_settings_reach_every_thread(three_workers):
    def fail():
        raise ValueError("here")

    interval = sys.getswitchinterval()
    with pytest.raises(ValueError, match="here"):
        host.side_by_side([lambda: 0, fail])
    assert sys.getswitchinterval() == interval
    with np.errstate(over="raise"), pytest.raises(FloatingPointError):
        host.side_by_side([lambda: 0, lambda: np.full(1, 1e38, np.float32) * np.float32(10)])
