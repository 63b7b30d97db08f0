"""Shared parts of the CUDA rules that walk through all time steps in one launch, by clusters of blocks.

Forward takes a product, the statistics of its rows and of those of the recurrent weights (where there are norms of the
gates), and the walk; the gradient takes the walk, sums over the batch, and three products.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import cupy

from duoln.backends.protocol import Array, Backend
from duoln.kernels import launch
from duoln.kernels.recurrent import cuda
from duoln.kernels.recurrent.cluster_plan import CLUSTERS, THREADS, ClusterPlan, Device, plan
from duoln.kernels.recurrent.plan import plan as plan_of_rows
from duoln.ops.recurrent.variants import CELLS
from duoln.system import clusters

_DIRECTIONS = ("forward", "backward")
_SWITCH = "DUOLN_WALK"
"""0: no walks; say: one that waits in vain prints for what (see cluster.cuh)."""
_PARTS = {"lstm": 1, "gru": 2, "rnn": 1}
"""Norms of the gates of one source."""
_statistics = launch.Kernel(
    "recurrent/row_statistics.cu", "row_statistics", "x_proj: float32[3], w_h: float32[2], bias: float32[1]?, "
    "x_stats: float32[3], w_stats: float32[3], rows: int32, hidden: int32, eps: float32")
_probe = launch.Kernel("device_limits/memory.cu", "device_nothing", "count: int32")


def device() -> Device:
    """The current device, as plans ask for it."""
    return _device_of(launch.current_device())


@cache
def _device_of(number: int) -> Device:
    properties = launch.properties()
    assumed = Device.of(properties["major"], properties["multiProcessorCount"], properties["sharedMemPerBlockOptin"])
    if not any(assumed.active):
        return assumed
    try:
        fitting = tuple(_active(n, assumed.shared) if assumed.clusters(n) else 0 for n in CLUSTERS)
    except Exception as error:  # of the compiler, of CuPy or of the driver: the steps run without it
        return Device.of(0, 0, assumed.shared)._replace(without=f"the driver does not say which clusters fit: {error}")
    return assumed._replace(active=fitting)


def _active(blocks: int, shared: int) -> int:
    """Of a kernel that leaves a multiprocessor no room for a second block, as walks do."""
    return clusters.most_active(_probe.ready({}, shared, blocks).kernel.ptr, blocks, THREADS, shared)


def supports(cell: str, of_steps: Callable[..., str | None]) -> Callable[..., str | None]:
    """The condition of a cell's walk: that of the rule by steps, and that the weights fit the device's clusters."""

    def reason(be: Backend, x: Array, h: Array, *arrays: Array | None, norm: str = "layer", **attrs: Any) -> str | None:
        if os.environ.get(_SWITCH) == "0":
            return f"{_SWITCH} is 0"
        refused = of_steps(be, x, h, *arrays, norm=norm, **attrs)
        if refused is not None:
            return refused
        if be.dtype(x) != "float32":
            return f"the kernel is for float32, not {be.dtype(x)}"
        here, (batch, hidden) = device(), h.shape
        if not any(here.active):
            return here.without
        if any(plan(cell, norm, direction, hidden, batch, here) is None for direction in _DIRECTIONS):
            return f"the weights of {hidden} units do not fit the multiprocessors of a cluster"
        return None

    return reason


class ClusterWalk:
    """A cell's kernel for all time steps in one direction."""

    def __init__(self, cell: str, direction: str, signature: str) -> None:
        file = "walk.cu" if direction == "forward" else "walk_backward.cu"
        self._cell, self._direction = cell, direction
        self._kernel = launch.Kernel(f"{cell}/{file}", f"{cell}_walk_{direction}", signature)

    def __call__(self, norm: str, hidden: int, batch: int, arguments: Sequence[Any], norms: Mapping[str, int]) -> None:
        """Launch with these arguments and the macros of the norms."""
        p = plan(self._cell, norm, self._direction, hidden, batch, device())
        assert isinstance(p, ClusterPlan), "supports() has asked"
        macros = p.macros(**norms, **({"SAY_WAITS": 1} if os.environ.get(_SWITCH) == "say" else {}))
        self._kernel.bind((p.grid(batch),), (THREADS,), arguments, macros, p.shared, cluster=p.cluster)()


def statistics(cell: str, x_proj: Array, w_h: Array, bias: Array | None, eps: float, x_stats: Array) -> Array:
    """Writes the statistics of the rows of x_proj, after `bias` is added to it in place; gives those of w_h's rows.

    Args:
        cell: "lstm", "gru" or "rnn".
        x_proj: (T, B, gates * H).
        w_h: (H, gates * H), contiguous.
        bias: (gates * H), or None.
        eps: added to the variance.
        x_stats: room for mean, residual and rstd: (norms, T * B, 3).
    """
    hidden = len(w_h)
    rows, p = x_stats.shape[1], plan_of_rows(hidden)
    w_stats = cupy.empty((_PARTS[cell], hidden, 3), dtype=x_proj.dtype)
    grid, block = p.launch(rows + hidden)
    _statistics(grid, block, (x_proj, w_h, bias, x_stats, w_stats, rows, hidden, eps),
                p.macros(CELL_GATES=CELLS[cell].gates))
    return w_stats


def limit(walk: cuda.Walk) -> float:
    """The bound on the gradients of states; infinite for none."""
    return float("inf") if walk.limit is None else walk.limit


def of_parameters(sums: Array, lengths: Mapping[str, int]) -> dict[str, Array]:
    """Gradients by name, from what each row of the batch gave, (B, kinds, H), and the number of kinds of each."""
    total = launch.sum_columns(sums.reshape(len(sums), -1))[0].reshape(sums.shape[1:])
    gradients, first = {}, 0
    for name, kinds in lengths.items():
        gradients[name] = total[first:first + kinds].reshape(-1)
        first += kinds
    return gradients
