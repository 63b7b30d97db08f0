"""Work that threads share, also where the system gives fewer of them than were asked for."""

import threading

import numpy as np
import pytest

from duoln.randomness import Stream
from duoln.system import cores


@pytest.fixture(params=[0, 1, 2])
def few_threads(request, monkeypatch):
    """As under `ulimit -u`: so many threads begin, and no more."""
    begin, begun = threading.Thread.start, []

    def start(self):
        if len(begun) == request.param:
            raise RuntimeError("can't start new thread")
        begun.append(self)
        begin(self)

    monkeypatch.setattr(cores, "workers", lambda: 4)
    monkeypatch.setattr(threading.Thread, "start", start)
    return begun


def test_those_that_there_are_do_the_work(few_threads):
    taken = np.zeros(1000, np.int64)

    def work(first, last):
        taken[first:last] += 1

    cores.in_threads(1000, 10, work)
    assert (taken == 1).all()


def test_a_stream_draws_the_same_numbers(few_threads, monkeypatch):
    drawn = [Stream(0, "x").uniform((1 << 18,)), Stream(0, "x").gaussian((1 << 17,))]
    monkeypatch.setattr(cores, "workers", lambda: 1)
    assert drawn[0].tobytes() == Stream(0, "x").uniform((1 << 18,)).tobytes()
    assert drawn[1].tobytes() == Stream(0, "x").gaussian((1 << 17,)).tobytes()


def test_what_a_part_raises_is_raised_when_all_have_ended(few_threads):
    def work(first, last):
        if first <= 500 < last:
            raise ValueError("part of 500")

    with pytest.raises(ValueError, match="part of 500"):
        cores.in_threads(1000, 10, work)
    assert not any(thread.is_alive() for thread in few_threads)
