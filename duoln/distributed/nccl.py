"""NVIDIA's NCCL through CuPy: one GPU a member. Not yet run on GPUs; its tests run over a stand-in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cupy as cp
from cupyx.distributed import init_process_group

from duoln.errors import RankError


class Nccl:
    """A group over `cupyx.distributed`. NCCL adds in one order for one size, number of members and wiring."""

    def __init__(self, communicator: Any, rank: int, size: int) -> None:
        self._communicator = communicator
        self.rank, self.size = rank, size

    def all_sum(self, x: Any) -> Any:
        x = cp.ascontiguousarray(x)
        total = cp.empty_like(x)
        try:
            self._communicator.all_reduce(x, total, "sum")
            cp.cuda.get_current_stream().synchronize()  # a member that is gone shows only here
        except RuntimeError as error:
            raise RankError(f"[ranks] rank {self.rank} lost another rank: {error}") from error
        return total

    def leave(self) -> None:
        self._communicator.stop()


def join(rank: int, addresses: Sequence[str]) -> Nccl:
    """See `duoln.distributed.group.join`. The members meet at the first one's address."""
    host, _, port = addresses[0].rpartition(":")
    size = len(addresses)
    try:
        return Nccl(init_process_group(size, rank, backend="nccl", host=host, port=int(port)), rank, size)
    except (RuntimeError, OSError) as error:
        raise RankError(f"[ranks] rank {rank} of {size} cannot reach the others through {addresses[0]}: "
                        f"{error}; NCCL wants one GPU a rank") from error
