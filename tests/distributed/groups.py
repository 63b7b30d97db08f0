"""A group of threads of one process, as an engine would give each of them."""

import threading
import types

from conftest import PATIENCE
from meetings import in_threads

import duoln.backends.numpy


class Together:
    """A group of threads of one process, as an engine would give each of them. On NumPy: MLX keeps a stream a thread."""

    def __init__(self, size):
        self.size, self.parts, self.gate = size, [None] * size, threading.Barrier(size, timeout=PATIENCE)

    def member(self, rank):
        def all_sum(x):
            self.parts[rank] = x
            self.gate.wait()
            total = sum(self.parts[1:], self.parts[0])
            self.gate.wait()
            return total

        return types.SimpleNamespace(rank=rank, size=self.size, all_sum=all_sum, leave=lambda: None)


def together(size, work):
    """`work(group, backend)` in `size` threads, each with a NumPy backend of its own; their results by rank."""
    meeting = Together(size)
    return in_threads(*(lambda rank=rank: work(meeting.member(rank), duoln.backends.numpy.create()) for rank in range(size)))
