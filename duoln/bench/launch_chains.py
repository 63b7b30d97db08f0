"""Launches in a row for the clock: which buffers each takes, what it takes of the one before, how long results live.

Cold inputs rotate, and so do the results: as many stay alive as there are inputs, so that a result is not written
over the one before, which is still in cache. A lazy library computes only what is still wanted, so there all results
live until the wait, and memory bounds the number of launches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.bench.clock import MOST_LAUNCHES, DeviceSeconds
from duoln.bench.subjects import LEAST_COLD_BYTES, Shape, Subject, buffer_count, buffers
from duoln.core import Tensor

LAZY = ("mlx",)
"""Libraries that compute at the wait, and may run kernels side by side that do not depend on each other."""
HELD_BYTES = 2 << 30
"""Memory that the results of one run may take on a lazy library."""


def cache_for(shape: Shape, cold: bool) -> str:
    """The state of the cache that a shape of this size is timed in: tiny ones are always warm."""
    return "cold" if cold and 4 * shape[0] * shape[1] >= LEAST_COLD_BYTES else "warm"


class Rotation:
    """Goes round through a number of buffers, and keeps its place from one run to the next."""

    def __init__(self, count: int, cold: bool) -> None:
        self._count, self._cold, self._next = count, cold, 0

    def next(self) -> tuple[int, int]:
        """The buffer to read x from, and the one, half a turn ahead, for the gradient."""
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
        host, places = buffers(inputs["x"], count)
        whole = backend.asarray(host)
        self._pool = [Tensor(whole[place], backend) for place in places]
        self._tensors = {name: Tensor(backend.asarray(a), backend) for name, a in inputs.items() if name != "x"}
        backend.wait([t.data for t in (*self._pool, *self._tensors.values())])
        self._subject, self._backend, self._backward = subject, backend, backward
        self._rotation = Rotation(count, cold)
        self._gout_rotates = inputs["gout"].shape == shape
        self._lazy = backend.name in LAZY
        self._link = subject.link if self._lazy else None  # an eager queue keeps its order by itself
        self._results: deque[dict[str, Array]] = deque(maxlen=None if self._lazy else count if cold else 1)
        self.warmups = count if cold and not self._lazy else 1
        self.most = 2 * MOST_LAUNCHES
        if self._lazy:
            self.most = max(HELD_BYTES // ((2 if backward else 1) * 4 * shape[0] * shape[1]), 1)
        self.device_seconds: DeviceSeconds | None = getattr(backend, "device_seconds", None)

    def launch(self, count: int) -> None:
        """Queue `count` launches, one after the other."""
        tensors = dict(self._tensors)
        for _ in range(count):
            mine, ahead = self._rotation.next()
            arguments = {"x": self._pool[mine], **tensors}
            gout = self._pool[ahead] if self._gout_rotates else tensors["gout"]
            result = self._subject.run(arguments, gout.data if self._backward else None)
            self._results.append(result)
            if self._link is not None:
                tensors[self._link] = Tensor(result["x" if self._backward else "value"][0], self._backend)

    def wait(self) -> None:
        """Return when everything queued is computed."""
        if self._lazy:
            self._backend.wait([a for result in self._results for a in result.values()])
            self._results.clear()
        else:
            self._backend.wait(list(self._results[-1].values()))

