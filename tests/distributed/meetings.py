"""Ranks that meet in threads of one process, and groups of such threads."""

import socket
import threading
import types

from conftest import PATIENCE

import duoln.backends.numpy
from duoln.distributed.meeting import Meeting, meet
from duoln.distributed.rank_info import RankInfo

TOKEN = b"the secret of one run of the tests"


def free_port(host="127.0.0.1"):
    with socket.create_server((host, 0)) as s:
        return s.getsockname()[1]


def rank_infos(size, token=TOKEN, host="127.0.0.1"):
    """The info of each rank, with a socket that listens already."""
    listener = socket.create_server((host, 0), backlog=size + 16)
    port = listener.getsockname()[1]
    return [RankInfo(k, size, host, port, token, listener=listener.detach() if k == 0 else None) for k in range(size)]


def close(results):
    """Close every meeting among the results of `meet_all`."""
    for result in results:
        if isinstance(result, Meeting):
            result.close()


def in_threads(*works):
    """The results, or exceptions, of functions that run side by side."""
    results = [None] * len(works)

    def run(k):
        try:
            results[k] = works[k]()
        except Exception as error:
            results[k] = error

    threads = [threading.Thread(target=run, args=(k,), daemon=True) for k in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    return results


def meet_all(where, tell=lambda sentence: None, seconds=30.0, library="mlx"):
    """`meet` for each of the rank_infos, side by side."""
    return in_threads(*(lambda p=p: meet(p, library, tell, seconds) for p in where))


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
