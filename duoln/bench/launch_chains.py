"""Chains of launches for the clock: which buffers each launch reads, and how long each result is kept.

Cold inputs rotate through several buffers. As many results are kept as there are buffers, because a new result in the
memory of the last one would be written into the cache. A lazy library computes only results that are kept, so all of
them are kept until the wait, and memory limits the number of launches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.bench.clock import MOST_LAUNCHES, DeviceSeconds
from duoln.bench.subjects import LEAST_COLD_BYTES, Subject, buffer_count, buffers
from duoln.core import Tensor
from duoln.kernels.registry import Shape

LAZY = ("mlx",)
"""Libraries that compute when they are waited for. They may run independent kernels at the same time."""
RESULT_BYTES = 2 << 30
"""Memory that the results of one run may take on a lazy library."""


def cache_for(shape: Shape, cold: bool) -> str:
    """"cold" or "warm", as inputs of this shape are timed; tiny inputs are always warm."""
    return "cold" if cold and 4 * shape[0] * shape[1] >= LEAST_COLD_BYTES else "warm"


class Rotation:
    """Numbers of buffers in a circle. The next run continues where the last one ended."""

    def __init__(self, count: int, cold: bool) -> None:
        self._count, self._cold, self._next = count, cold, 0

    def next(self) -> tuple[int, int]:
        """The number of the buffer for x, and that of the buffer for the gradient, half a circle ahead."""
        k = self._next
        if self._cold:
            self._next = (k + 1) % self._count
        return k, (k + self._count // 2) % self._count


class DuolnChain:
    """Launches of one of our operators on one backend."""

    def __init__(self, subject: Subject, backend: Backend, inputs: Mapping[str, np.ndarray], cache: str,
                 backward: bool) -> None:
        shape = inputs["x"].shape
        cold = cache == "cold"
        count = buffer_count((shape[0], shape[1]), cold)
        self._pools: dict[str, list[Tensor]] = {}
        for name in subject.rows_arguments():
            host, places = buffers(inputs[name], count)
            whole = backend.asarray(host)
            self._pools[name] = [Tensor(whole[place], backend) for place in places]
        self._tensors = {name: Tensor(backend.asarray(a), backend) for name, a in inputs.items()
                         if name not in self._pools}
        backend.wait([t.data for pool in (*self._pools.values(), self._tensors.values()) for t in pool])
        self._subject, self._backend, self._backward = subject, backend, backward
        self._rotation = Rotation(count, cold)
        self._gout_rotates = inputs["gout"].shape == shape
        self._lazy = backend.name in LAZY
        self._link = subject.link if self._lazy else None  # an eager library runs launches in order
        self._results: deque[dict[str, Array]] = deque(maxlen=None if self._lazy else count if cold else 1)
        self.warmups = count if cold and not self._lazy else 1
        self.most = 2 * MOST_LAUNCHES
        if self._lazy:
            self.most = max(RESULT_BYTES // ((2 if backward else 1) * 4 * shape[0] * shape[1]), 1)

    def launch(self, count: int) -> None:
        """Queue `count` launches, one after the other."""
        tensors = dict(self._tensors)
        for _ in range(count):
            mine, ahead = self._rotation.next()
            arguments = {**{name: pool[mine] for name, pool in self._pools.items()}, **tensors}
            gout = self._pools["x"][ahead] if self._gout_rotates else tensors["gout"]
            result = self._subject.run(arguments, gout.data if self._backward else None)
            self._results.append(result)
            if self._link is not None:
                tensors[self._link] = Tensor(result["x" if self._backward else "value"][0], self._backend)

    def wait(self) -> None:
        """Wait until every queued launch is computed."""
        if self._lazy:
            self._backend.wait([a for result in self._results for a in result.values()])
            self._results.clear()
        else:
            self._backend.wait(list(self._results[-1].values()))

    def capture(self, count: int) -> DeviceSeconds | None:
        """A graph of `count` launches, whose results are in memory of its own."""
        device_seconds = getattr(self._backend, "device_seconds", None)
        if device_seconds is None:
            return None
        seconds: DeviceSeconds = device_seconds(lambda: self.launch(count))
        self._results.clear()  # the memory of the graph's results is the graph's
        return seconds

