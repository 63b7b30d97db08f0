"""The clock `wall_slope`, one for every vendor: host wall time per launch, from the slope over chained launches.

A run queues k launches one after the other and waits once at the end; another does 2k. A sample is

    (t(2k) - t(k)) / k

so that what a run costs once (the wait, an empty queue) drops out, on a library that computes at once, on a queue
and on a lazy one alike. CUDA could time itself and MLX could not; a clock that both have is the only one whose
figures stand beside each other. A backend that can time its own device may offer `device_seconds(run)`: call `run`,
return when the device is done, and give the device's own seconds. Those are reported beside, never instead.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from math import ceil
from typing import NamedTuple, Protocol

from duoln.errors import DuolnError

NAME = "wall_slope"
SAMPLE_SECONDS = 0.02
"""A run of k launches lasts at least this long: a scheduler's time slice no longer decides the figure."""
MOST_LAUNCHES = 999
"""Of k: lazy graphs of tens of thousands of kernels slow down by themselves."""

_GROWTH = 8
_MARGIN = 1.2
_TRIES = 20

Now = Callable[[], float]
DeviceSeconds = Callable[[Callable[[], None]], float]


class Chain(Protocol):
    """Launches that the clock can repeat."""

    warmups: int
    """Launches after which every buffer has been used."""
    most: int
    """How many launches may wait for the device at once."""
    device_seconds: DeviceSeconds | None

    def launch(self, count: int) -> None:
        """Queue `count` launches, one after the other."""

    def wait(self) -> None:
        """Return when everything queued is computed."""


class Reading(NamedTuple):
    """Seconds of one run: by the host's clock, and by the device's own where it has one."""

    wall: float
    device: float | None


class Samples(NamedTuple):
    """What timing a chain gave."""

    launches: int
    """k."""
    warmups: int
    """Launches before the first sample."""
    seconds: list[float]
    """Per launch, one figure a turn."""
    device_seconds: list[float] | None
    repeated: int
    """Samples taken again because the longer run was not the longer one: something else ran meanwhile."""


def read(chain: Chain, count: int, now: Now = time.perf_counter) -> Reading:
    """Time one run of `count` launches and one wait."""
    device: float | None = None
    started = now()
    if chain.device_seconds is None:
        chain.launch(count)
    else:
        device = chain.device_seconds(lambda: chain.launch(count))
    chain.wait()
    return Reading(now() - started, device)


def choose_launches(chain: Chain, now: Now = time.perf_counter) -> tuple[int, int]:
    """k, the least whose run lasts SAMPLE_SECONDS or the most that memory allows; and how many launches that took."""
    most = max(min(MOST_LAUNCHES, chain.most // 2), 1)
    read(chain, chain.warmups, now)  # compiles, allocates, starts threads
    k, made = 1, chain.warmups
    while True:
        seconds = read(chain, k, now).wall
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
        self._repeated = 0

    def take(self) -> None:
        """Take one sample.

        Raises:
            DuolnError: twice the launches never took longer; nothing can be timed on this machine now.
        """
        k = self.launches
        read(self._chain, max(k // 4, 1), self._now)  # the caches and threads of whoever ran before are not ours
        for _ in range(_TRIES):
            once, twice = read(self._chain, k, self._now), read(self._chain, 2 * k, self._now)
            if twice.wall > once.wall:
                self._seconds.append((twice.wall - once.wall) / k)
                if once.device is not None and twice.device is not None:
                    self._device.append((twice.device - once.device) / k)
                return
            self._repeated += 1
        raise DuolnError(f"[bench] {2 * k} launches took no longer than {k}, {_TRIES} times in a row: the machine is "
                         "too busy to time anything")

    @property
    def samples(self) -> Samples:
        """What has been taken."""
        return Samples(self.launches, self.warmups, list(self._seconds), list(self._device) or None, self._repeated)


def take_turns(clocks: Sequence[SlopeClock], rounds: int) -> None:
    """`rounds` samples of each clock, turn by turn: the machine's moods meet all of them."""
    for _ in range(rounds):
        for clock in clocks:
            clock.take()


def deviation(samples: Sequence[float]) -> float:
    """The median absolute deviation from the median."""
    middle = statistics.median(samples)
    return statistics.median(abs(s - middle) for s in samples)
