"""MLX's ring over TCP: each rank talks to the next one only.

MLX accepts the first connection to a rank's port, so `duoln.distributed.joining` checks the ranks through the ring
before it sends data.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator

import mlx.core as mx

from duoln.distributed.meeting import Meeting
from duoln.errors import RankError
from duoln.system.filesystem import temporary_folder


class Ring:
    """A group over `mx.distributed`.

    Each part of an array is added up on one rank, in the ring's order, and then sent to all. So every rank has the same
    bits, and a group of the same size gives the same bits each time.
    """

    def __init__(self, group: mx.distributed.Group) -> None:
        self._group = group
        self.rank, self.size = group.rank(), group.size()

    def all_sum(self, x: mx.array) -> mx.array:
        try:
            total = mx.distributed.all_sum(x, group=self._group)
            mx.eval(total)  # only this call shows that a rank has ended
        except RuntimeError as error:
            raise RankError(f"[ranks] rank {self.rank} lost another rank: {error}") from error
        return total

    def leave(self) -> None:
        """Nothing to do: the sockets close with the process."""


def mlx_launch_group() -> Ring | None:
    """The group of MLX's own launcher, `mlx.launch`; None for a process that it has not started."""
    if "MLX_RANK" not in os.environ:
        return None
    group = mx.distributed.init()
    return Ring(group) if group.size() > 1 else None


def join(meeting: Meeting) -> Ring:
    """The engine of `duoln.distributed.joining.connect`."""
    with temporary_folder() as folder, _reserved_port(meeting.host) as port:
        addresses = meeting.gather(f"{meeting.host}:{port}")
        hosts = folder / "hosts.json"
        hosts.write_text(json.dumps([[address] for address in addresses]), encoding="utf-8")
        os.environ["MLX_HOSTFILE"], os.environ["MLX_RANK"] = str(hosts), str(meeting.rank)
        try:
            return Ring(mx.distributed.init(strict=True, backend="ring"))
        except RuntimeError as error:
            raise RankError(f"[ranks] rank {meeting.rank} at {addresses[meeting.rank]} cannot reach the others: "
                            f"{error}") from error
        finally:
            del os.environ["MLX_HOSTFILE"], os.environ["MLX_RANK"]


@contextlib.contextmanager
def _reserved_port(host: str) -> Iterator[int]:
    """A free port that no other user can take. MLX opens the same port by SO_REUSEPORT; this process does not listen on
    it.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind((host, 0))
        yield reserved.getsockname()[1]
