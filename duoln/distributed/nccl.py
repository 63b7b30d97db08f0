"""NVIDIA's NCCL through CuPy: one GPU a rank. Not yet run on several GPUs; its tests run over a stand-in.

`cupyx.distributed` would give NCCL's id to any process that asks. Here the meeting gives it to the ranks only, and NCCL
refuses a process without it.
"""

from __future__ import annotations

from typing import Any

import cupy as cp
from cupy.cuda import nccl

from duoln.distributed.meeting import Meeting
from duoln.errors import RankError


class Nccl:
    """A group over `cupy.cuda.nccl`. NCCL adds in one order for one size, number of ranks and wiring."""

    def __init__(self, communicator: Any, rank: int, size: int) -> None:
        self._communicator = communicator
        self.rank, self.size = rank, size
        self._dtypes = {"float32": nccl.NCCL_FLOAT32, "float64": nccl.NCCL_FLOAT64, "int32": nccl.NCCL_INT32}

    def all_sum(self, x: Any) -> Any:
        x = cp.ascontiguousarray(x)
        total = cp.empty_like(x)
        stream = cp.cuda.get_current_stream()
        try:
            self._communicator.allReduce(x.data.ptr, total.data.ptr, x.size, self._dtypes[x.dtype.name], nccl.NCCL_SUM,
                                         stream.ptr)
            stream.synchronize()  # only this call shows that a rank has ended
        except RuntimeError as error:
            raise RankError(f"[ranks] rank {self.rank} lost another rank: {error}") from error
        return total

    def leave(self) -> None:
        self._communicator.destroy()


def join(meeting: Meeting) -> Nccl:
    """The engine of `duoln.distributed.joining.connect`. Rank 0 makes NCCL's id, and the meeting sends it to all."""
    if not nccl.available:
        raise RankError("[ranks] the engine nccl of cupy cannot be loaded: NCCL is not installed; "
                        "pip install nvidia-nccl-cu12")
    ids = meeting.gather(list(nccl.get_unique_id()) if meeting.rank == 0 else None)
    try:
        return Nccl(nccl.NcclCommunicator(meeting.size, tuple(ids[0]), meeting.rank), meeting.rank, meeting.size)
    except RuntimeError as error:
        raise RankError(f"[ranks] rank {meeting.rank} of {meeting.size} cannot reach the others: {error}; NCCL wants "
                        "one GPU a rank") from error
