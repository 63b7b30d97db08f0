"""The recurrent operators on CUDA in one launch for all time steps, for sizes whose recurrent weights fit a cluster of
blocks.

Forward takes a product, the statistics of its rows and of those of the recurrent weights (where there are norms of the
gates), and the walk; the gradient takes the walk, sums over the batch, and three products. Kept for the gradient is
what the rule by steps keeps (`cuda_steps`); with norms of the gates, h_proj is that of the centred weights.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from math import inf
from typing import Any

import cupy

from duoln.backends.protocol import Array, Backend
from duoln.kernels.launch import cuda as launch
from duoln.kernels.recurrent import cuda
from duoln.kernels.recurrent.cells import Supports
from duoln.kernels.recurrent.cluster_plan import CLUSTERS, THREADS, Device, plan
from duoln.kernels.recurrent.cuda_steps import Saved
from duoln.kernels.recurrent.launches import CLUSTER_WALKS, STATISTICS, SWITCH
from duoln.system import clusters

_DIRECTIONS = ("forward", "backward")
_probe = launch.Kernel("device_limits/memory.cu", "device_nothing")


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
    """The number of active clusters of a kernel that leaves a multiprocessor no room for a second block, like walks."""
    return clusters.max_active_clusters(_probe.ready({}, shared, blocks).kernel.ptr, blocks, THREADS, shared)


def supports(cell: str, of_steps: Supports) -> Supports:
    """The condition of a cell's walk: that of the rule by steps, and that the weights fit the device's clusters."""

    def refusal(be: Backend, x: Array, h: Array, *arrays: Array | None, norm: str = "layer",
                **attrs: Any) -> str | None:
        if os.environ.get(SWITCH) == "0":
            return f"{SWITCH} is 0"
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

    return refusal


def forward(problem: cuda.Problem, be: Backend, states: tuple[Array, ...],
            eps: float) -> tuple[tuple[Array, ...], Saved]:
    """All hidden states (T, B, H) and the last states (B, H), and what the gradient needs."""
    if not problem.w_h.flags.c_contiguous:
        problem = problem._replace(w_h=cupy.ascontiguousarray(problem.w_h))
    h, *cells = states
    walk, variant, is_normed = problem.walk, problem.variant, problem.variant.normed.gates
    time_steps, batch, _ = walk.x.shape
    is_in_proj = not variant.kernel_adds_bias and not is_normed
    x_proj = cuda.projection(be, walk.x, problem.w_x, problem.bias if is_in_proj else None)
    hs = cuda.states(h, time_steps)
    c = cuda.states(cells[0], time_steps) if cells else None
    h_proj = x_proj if variant.keeps_sum else cupy.empty_like(x_proj)
    stats = cupy.empty((variant.norm_count, time_steps * batch, 3), dtype=x_proj.dtype)
    of_x = variant.parts if is_normed else 0
    x_stats = cupy.empty((of_x, time_steps * batch, 3), dtype=x_proj.dtype) if variant.keeps_sum else stats[:of_x]
    w_stats = _row_statistics(problem, x_proj, eps, x_stats) if is_normed else None
    saved = Saved(problem, x_proj, h_proj, hs, hs, c, stats, w_stats)
    CLUSTER_WALKS[variant.cell, variant.norm, "forward"].bind(saved.arguments(x_stats=x_stats, eps=eps))()
    last = [] if c is None else [c[-1].copy()]
    return (walk.in_time(hs[1:]), hs[-1].copy(), *last), saved


def vjp(be: Backend, saved: Saved, gouts: tuple[Array | None, ...], needs: Sequence[bool]) -> list[Array | None]:
    """The gradients of all arguments of a sequence operator, from those of its results."""
    problem, walk, variant = saved.problem, saved.problem.walk, saved.problem.variant
    batch, hidden = saved.h.shape[1:]
    d_hs = None if gouts[0] is None else walk.in_time(gouts[0])
    d_states = [cuda.gradient_buffer(d, saved.h[0]) for d in gouts[1:]]
    d_x_proj = cupy.empty_like(saved.x_proj)
    d_h_proj = cupy.empty_like(d_x_proj) if variant.is_apart else d_x_proj
    gates = variant.row_gradients
    sums = cupy.empty((batch, sum(gates.values()), hidden), dtype=d_x_proj.dtype) if gates else None
    CLUSTER_WALKS[variant.cell, variant.norm, "backward"].bind(saved.arguments(
        d_hs=d_hs, dh=d_states[0], dc=d_states[-1], d_x_proj=d_x_proj, d_h_proj=d_h_proj if variant.is_apart else None,
        d_parameters=sums, limit=inf if walk.limit is None else walk.limit))()
    gradients = {} if sums is None else _parameter_gradients(sums, gates)
    if variant.kernel_adds_bias:
        gradients["bias_x"] = gradients["bias_h"] = gradients["bias"]
    return [cuda.input_gradient(d_x_proj, problem.w_x, walk) if needs[0] else None, *d_states,
            cuda.weight_gradient(walk.x, d_x_proj), cuda.weight_gradient(saved.h[:-1], d_h_proj),
            cuda.bias_gradient(problem, gradients, d_x_proj), None, *[gradients[name] for name in problem.norms]]


def _row_statistics(problem: cuda.Problem, x_proj: Array, eps: float, x_stats: Array) -> Array:
    """Write mean, residual and rstd of the rows of x_proj, after the inner bias is added to it in place.

    Shape:
        x_proj (T, B, gates * H), x_stats (norms, T * B, 3) -> the same of the rows of w_h, (norms, H, 3).
    """
    hidden, variant = problem.w_h.shape[0], problem.variant
    w_stats = cupy.empty((variant.parts, hidden, 3), dtype=x_proj.dtype)
    STATISTICS[variant.gates]["cupy"](x_proj, problem.w_h, problem.bias if variant.has_inner_bias else None, x_stats,
                                      w_stats, eps)
    return w_stats


def _parameter_gradients(sums: Array, gates: Mapping[str, int]) -> dict[str, Array]:
    """Gradients by name, from those of each row of the batch, (B, gates, H), and the gates of each parameter."""
    total = launch.sum_columns(sums.reshape(len(sums), -1))[0].reshape(sums.shape[1:])
    gradients, first = {}, 0
    for name, count in gates.items():
        gradients[name] = total[first:first + count].reshape(-1)
        first += count
    return gradients
