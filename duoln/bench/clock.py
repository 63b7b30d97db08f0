"""The clock `wall_slope`, one for every vendor: host wall time per launch, from the slope over chained launches.

One run queues k launches and waits once at the end; a second run does the same with 2k. A sample is (t(2k) - t(k)) / k,
so the costs that each run has once (the wait, an empty queue) cancel. This is true for a library that computes at once,
for one that queues, and for a lazy one. CUDA can time itself and MLX cannot. Figures can be compared only if the same
clock measured them, so this clock uses no timer of the device. Where a library captures launches as a graph, the device
times a graph of k launches by its own clock. This is the time of the device alone, because a graph runs no Python. It
is reported in addition to the host's time and never replaces it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from math import ceil
from typing import Any, NamedTuple, Protocol

from duoln.errors import DuolnError

NAME = "wall_slope"
SAMPLE_SECONDS = 0.02
"""A run of k launches lasts at least this long, so that a scheduler's time slice changes the figure little."""
MOST_LAUNCHES = 999
"""The largest k: a lazy library becomes slower with graphs of tens of thousands of kernels."""

_GROWTH = 8
_MARGIN = 1.2
_TRIES = 20

Now = Callable[[], float]
DeviceSeconds = Callable[[], float]
"""Launches a graph and waits for it; the seconds that the device needed."""


class Chain(Protocol):
    """A sequence of launches that the clock can repeat."""

    warmups: int
    """Launches after which every buffer has been used."""
    most: int
    """The largest number of launches that may wait for the device at once."""

    def launch(self, count: int) -> None:
        """Queue `count` launches, one after the other."""

    def wait(self) -> None:
        """Wait until every queued launch is computed."""

    def capture(self, count: int) -> DeviceSeconds | None:
        """A graph of `count` launches; None if the library has no graphs. What cannot be captured raises."""


class Samples(NamedTuple):
    """The samples of one chain."""

    launches: int
    """k."""
    warmups: int
    """Launches before the first sample."""
    seconds: list[float]
    """Seconds per launch, one sample for each turn."""
    device_seconds: list[float] | None
    """The device's own seconds per launch, one sample for each turn; None without a graph."""
    no_graph: str | None
    """The reason why the launches cannot be captured; None if they are, or if the library has no graphs."""
    repeated: int
    """The number of repeated samples: another program ran, and 2k launches took no longer than k."""


def read(chain: Chain, count: int, now: Now = time.perf_counter) -> float:
    """The seconds of one run of `count` launches and one wait."""
    started = now()
    chain.launch(count)
    chain.wait()
    return now() - started


def choose_launches(chain: Chain, now: Now = time.perf_counter) -> tuple[int, int]:
    """The k of the samples, and how many launches it took to find it. It is the least k whose run lasts SAMPLE_SECONDS,
    or the most that memory allows.
    """
    most = max(min(MOST_LAUNCHES, chain.most // 2), 1)
    read(chain, chain.warmups, now)  # compiles, allocates, starts threads
    k, made = 1, chain.warmups
    while True:
        seconds = read(chain, k, now)
        made += k
        if seconds >= SAMPLE_SECONDS or k == most:
            return k, made
        wanted = ceil(k * _MARGIN * SAMPLE_SECONDS / seconds) if seconds > 0 else k * _GROWTH
        k = min(max(wanted, k + 1), k * _GROWTH, most)


class SlopeClock:
    """Takes samples of one chain, so that several chains can take turns."""

    def __init__(self, chain: Chain, now: Now = time.perf_counter) -> None:
        self._chain, self._now = chain, now
        self.launches, self.warmups = choose_launches(chain, now)
        self._seconds: list[float] = []
        self._device: list[float] = []
        self._device_seconds, self._no_graph = captured(lambda: chain.capture(self.launches))
        self._repeated = 0

    def take(self) -> None:
        """Take one sample.

        Raises:
            DuolnError: 2k launches never took longer than k; the machine is too busy to time anything.
        """
        k = self.launches
        read(self._chain, max(k // 4, 1), self._now)  # the chain that ran before has left its own data in the caches
        for _ in range(_TRIES):
            once, twice = read(self._chain, k, self._now), read(self._chain, 2 * k, self._now)
            if twice > once:
                self._seconds.append((twice - once) / k)
                break
            self._repeated += 1
        else:
            raise DuolnError(f"[bench] {2 * k} launches took no longer than {k}, {_TRIES} times in a row: the machine "
                             "is too busy to time anything")
        if self._device_seconds is not None:
            self._device.append(self._device_seconds() / k)

    @property
    def samples(self) -> Samples:
        """The samples so far."""
        return Samples(self.launches, self.warmups, list(self._seconds), list(self._device) or None, self._no_graph,
                       self._repeated)


def take_turns(clocks: Sequence[SlopeClock], rounds: int) -> None:
    """Take `rounds` samples of each clock, in turns, so that a change of the machine's speed affects all clocks."""
    for _ in range(rounds):
        for clock in clocks:
            clock.take()


def captured(capture: Callable[[], DeviceSeconds | None]) -> tuple[DeviceSeconds | None, str | None]:
    """A capture's result, or the reason why it failed: a library may raise anything; then the host's clock remains."""
    try:
        return capture(), None
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"


def events(samples: Sequence[float] | None, no_graph: str | None) -> dict[str, Any]:
    """The keys of a case that the device's own seconds give, or the reason why there are none."""
    if no_graph is not None:
        return {"no_event_seconds": no_graph}
    return {"event_seconds": statistics.median(samples), "event_samples": list(samples)} if samples else {}


def deviation(samples: Sequence[float]) -> float:
    """The median absolute deviation from the median."""
    middle = statistics.median(samples)
    return statistics.median(abs(s - middle) for s in samples)
