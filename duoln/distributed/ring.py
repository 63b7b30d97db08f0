"""MLX's ring over TCP: each member talks to the next one only."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx

from duoln.errors import RankError


class Ring:
    """A group over `mx.distributed`.

    Each part of an array is added up in the ring's order, on one member, and then handed round: so every member has
    the same bits, and a group of one size always the same.
    """

    def __init__(self, group: mx.distributed.Group) -> None:
        self._group = group
        self.rank, self.size = group.rank(), group.size()

    def all_sum(self, x: mx.array) -> mx.array:
        try:
            total = mx.distributed.all_sum(x, group=self._group)
            mx.eval(total)  # a member that is gone shows only here
        except RuntimeError as error:
            raise RankError(f"[ranks] rank {self.rank} lost another rank: {error}") from error
        return total

    def leave(self) -> None:
        """Nothing to do: the sockets close with the process."""


def join(rank: int, addresses: Sequence[str]) -> Ring:
    """See `duoln.distributed.group.join`."""
    with tempfile.TemporaryDirectory() as folder:
        hosts = Path(folder) / "hosts.json"
        hosts.write_text(json.dumps([[address] for address in addresses]), encoding="utf-8")
        os.environ["MLX_HOSTFILE"], os.environ["MLX_RANK"] = str(hosts), str(rank)
        try:
            return Ring(mx.distributed.init(strict=True, backend="ring"))
        except RuntimeError as error:
            raise RankError(f"[ranks] rank {rank} at {addresses[rank]} cannot reach the others: {error}") from error
        finally:
            del os.environ["MLX_HOSTFILE"], os.environ["MLX_RANK"]
