"""Data parallel training in a loop of one's own: this process among the ranks, and the mean of their gradients."""

from __future__ import annotations

import os
import warnings
from typing import Any, NamedTuple

import numpy as np

from duoln import tree
from duoln.backends.protocol import Backend
from duoln.core import Tensor
from duoln.core.arguments import ABOVE_0, AT_LEAST_0, check_number, described
from duoln.core.donation import compiled_step
from duoln.core.pytorch_names import hinted
from duoln.distributed.joining import join_ranks
from duoln.distributed.launching import end_with_launcher
from duoln.distributed.rank_info import LAUNCHERS, find_rank
from duoln.distributed.ranks import Ranks
from duoln.errors import CompileError, DtypeError
from duoln.runtime import backend_of, tensor

_joined: dict[str, Ranks | None] = {}
"""The ranks of this process, by the backend that connects them; None for one process alone."""


class Place(NamedTuple):
    """The number of this process, from 0, and how many train together."""

    rank: int
    size: int


@hinted
def ranks(backend: Backend | str | None = None) -> Place:
    """This process among those that `mpirun`, Slurm, torchrun or `mlx.launch` has started; (0, 1) for one alone.

        rank, size = duoln.ranks(backend)
        batch = batches(update * size + rank)               # each rank takes other batches

    The first call meets the others, as `duoln help distributed` says.

    Raises:
        UsageError: the launcher's variables contradict each other, or no engine connects ranks of this backend.
        RankError: the others cannot be reached.
    """
    joined = _joined_ranks(backend_of("ranks", backend))
    return Place(0, 1) if joined is None else Place(joined.rank, joined.size)


@hinted
def average_gradients(gradients: Any, weight: float = 1.0) -> Any:
    """The mean of a tree of tensors over all ranks, sum(weight * gradient) / sum(weight), with the same bits on each.

    A rank whose loss is a mean over n entries has the weight n, as in `optim.Accumulate`: the mean is then the gradient
    of all batches as one. Call it between two compiled steps.

        value, gradients = gradients_of(params, batch)
        gradients = duoln.average_gradients(gradients, weight=len(batch["label"]))
        params, slots = update(params, gradients, slots)

    Raises:
        DtypeError: a leaf is not a tensor of floats, or the weight no number. UsageError: the weight is below 0, or
            that of all ranks is 0; the rest as `ranks`. CompileError: within a compiled step.
        RankError: another rank is gone.
    """
    if compiled_step.get() is not None:
        raise CompileError("[average_gradients] expected a call outside of the compiled step, found one within it; "
                           "compile the gradient and the update apart, and exchange between them")
    weight = check_number("average_gradients", "weight", weight, AT_LEAST_0)
    leaves = tree.leaves(gradients)
    for leaf in leaves:
        if not isinstance(leaf, Tensor) or leaf.dtype not in ("float32", "float64"):
            raise DtypeError(f"[average_gradients] expected tensors of float32 or float64, found {described(leaf)}")
    joined = _joined_ranks(leaves[0].backend) if leaves else None
    if joined is None:
        return gradients
    by = tensor(np.array(weight, leaves[0].dtype), leaves[0].backend)
    total, weights = joined.total((tree.map(lambda g: g * by.astype(g.dtype), gradients), by), weight)
    over = check_number("average_gradients", "the weight of all ranks", weights.item(), ABOVE_0)
    return tree.map(lambda g: g / over, total)


def _joined_ranks(where: Backend) -> Ranks | None:
    if where.name not in _joined:
        _joined[where.name] = _join(where)
    return _joined[where.name]


def _join(where: Backend) -> Ranks | None:
    if where.name == "mlx":
        from duoln.distributed.ring import mlx_launch_group

        if (group := mlx_launch_group()) is not None:
            return Ranks(group, where)
    if not any(names.rank in os.environ for names in LAUNCHERS.values()):
        return None
    end_with_launcher()
    info = find_rank("auto")
    return None if info is None else join_ranks(info, where, lambda told: warnings.warn(told, stacklevel=2))
