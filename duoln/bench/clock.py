"""The clock of every side: the wall time of a call, from runs of so many that the one wait at their end costs nothing.

This is the same for a library that computes at once, for one that queues, and for a lazy one. CUDA can time itself and
MLX cannot; figures can be compared only if the same clock measured them. Where a library captures calls as a graph, the
device times a graph of a run's calls by its own clock, too. That is the time of the device alone, because a graph runs
no Python. It is reported beside the host's time and never replaces it.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from math import ceil
from typing import Any, NamedTuple

import numpy as np

RUN_SECONDS = 0.02
"""A run lasts at least this long, so that its wait and a scheduler's time slice change the figure little."""
MOST_CALLS = 999
"""The most calls of a run: a lazy library becomes slower with graphs of tens of thousands of kernels."""
_GROWTH, _MARGIN = 8, 1.2
_CHECKED_VALUES = 1 << 22
"""The most values of an array that are checked."""

DeviceSeconds = Callable[[], float]
"""Launches a graph and waits for it; the seconds that the device needed."""


class Work(NamedTuple):
    """The work of one side."""

    call: Callable[[int], Sequence[Any]]
    """Makes the call of a number, or queues it; the result are its arrays."""
    checks: list[float]
    """Figures that every side must agree on."""
    facts: dict[str, Any]
    wait: Callable[[Sequence[Any]], Any] = lambda results: None
    """Waits until these arrays are computed."""
    first: int = 0
    """The number of the first call that is timed."""
    keeps: int | None = 1
    """The calls whose results are kept: with cold inputs as many as there are copies of these, because a new result in
    the memory of the last one would be written into the cache. None where a library computes only what is kept."""
    most: int = MOST_CALLS
    """The most calls of a run."""
    parts: int = 1
    """Seconds are of one of so many equal parts of a call."""
    capture: Callable[[Callable[[], None]], DeviceSeconds | None] = lambda run: None
    """Captures what a function queues as a graph; None if the library has no graphs. What cannot be captured raises."""
    is_training: bool = False
    """True if the checks are losses of updates, whose rounding grows."""


class Timer:
    """Times runs of one side's work."""

    def __init__(self, work: Work, now: Callable[[], float] = time.perf_counter) -> None:
        self._work, self._now, self._next = work, now, work.first
        self._kept: deque[Sequence[Any]] = deque(maxlen=work.keeps)
        self.calls = work.keeps or 1
        self.run()  # compiles, starts threads, allocates all results that are kept
        self.calls = self._chosen()
        self.warmups = self._next - work.first
        self._kept.clear()  # PyTorch keeps a stream of gradients while a result is alive, and cannot capture then
        try:
            capture = work.capture(self._queue)
            self.device_seconds = capture and (lambda: capture() / self.calls / work.parts)
            self.no_graph = None
        except Exception as error:  # a library may raise anything; then the host's clock remains
            self.device_seconds, self.no_graph = None, f"{type(error).__name__}: {error}"
        self._kept.clear()  # the memory of a graph's results is the graph's

    def run(self) -> float:
        """The seconds of one call, from a run."""
        started = self._now()
        self._queue()
        self._work.wait([array for results in self._kept for array in results])
        self._lasted = self._now() - started
        if self._kept.maxlen is None:
            self._kept.clear()
        return self._lasted / self.calls / self._work.parts

    def warm(self, seconds: float, longest: float) -> None:
        """Make runs for so many seconds, unless a run takes so long that it needs none before it."""
        until = self._now() + seconds
        while self._lasted < longest and self._now() < until:
            self.run()

    def _queue(self) -> None:
        for _ in range(self.calls):
            self._kept.append(self._work.call(self._next))
            self._next += 1

    def _chosen(self) -> int:
        """The least number of calls that last long enough, or the most that there may be."""
        self.calls = 1
        while True:
            self.run()
            if self._lasted >= RUN_SECONDS or self.calls >= self._work.most:
                return self.calls
            wanted = ceil(self.calls * _MARGIN * RUN_SECONDS / self._lasted) if self._lasted else self.calls * _GROWTH
            self.calls = min(max(wanted, self.calls + 1), self.calls * _GROWTH, self._work.most)


def agreement_norms(results: Iterable[np.ndarray]) -> list[float]:
    """Figures on which all sides must agree: norms of each array, of what is positive in it, and of its values
    weighted by their place, because a norm alone knows neither sign nor order. Of a large array every so-manyth value.
    """
    made: list[float] = []
    for result in results:
        flat = result.ravel()[::result.size // _CHECKED_VALUES | 1].astype(np.float64)
        made += [float(np.linalg.norm(part)) for part in
                 (flat, np.maximum(flat, 0.0), flat * np.linspace(0.5, 1.0, flat.size))]
    return made


def events(samples: Sequence[float], no_graph: str | None) -> dict[str, Any]:
    """The keys of a case that the device's own seconds give, or the reason why there are none."""
    if no_graph is not None:
        return {"no_event_seconds": no_graph}
    return {"event_seconds": statistics.median(samples), "event_samples": list(samples)} if samples else {}
