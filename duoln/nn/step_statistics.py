"""Recurrent batch norm by the statistics of a population, which belong to the time steps of a sequence.

A sequence's first time step is the first that the walk finds real, at whichever place padding lets it stand: so the
backward direction of a padded sequence begins with the same statistics as that of the sequence alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from duoln import ops
from duoln.core import Tensor, stop_gradient

Norms = Mapping[str, Tensor]
Run = Callable[..., tuple[Tensor, ...]]
"""`run(norms_at, tell)`: the walk over a sequence, see `ops.recurrent.sequences.walk`."""


def gather_statistics(run: Run, norms: Norms, mask: Tensor | None, reverse: bool,
             ) -> tuple[tuple[Tensor, ...], dict[str, np.ndarray]]:
    """The results of the walk by the statistics of the batch, and these statistics by name, (time steps, width).

    The statistics of a time step are the mean, over the rows that have it, of those that normalised them.
    """
    of_walk: list[dict[str, np.ndarray]] = []
    names = _normalised(norms)

    def tell(x_gates: Tensor, h_proj: Tensor, new: tuple[Tensor, ...]) -> None:
        arrays, of_step = {"x": x_gates, "h": h_proj, "c": new[-1]}, dict[str, np.ndarray]()
        for name in names:
            _, mean, variance = map(stop_gradient, ops.batch_norm(arrays[name], unbiased=True))
            of_step |= {f"mean_{name}": mean.numpy(), f"variance_{name}": variance.numpy()}
        of_walk.append(of_step)

    result = run(lambda k: norms, tell)
    stacked = {key: np.stack([each[key] for each in of_walk]) for key in (of_walk[0] if of_walk else ())}
    if mask is not None and stacked:
        shares = _shares(mask.numpy()[::-1] if reverse else mask.numpy())
        seen = shares.any(axis=0)
        stacked = {key: shares[:, seen] @ array[seen] for key, array in stacked.items()} if len(shares) else {}
    return result, stacked


def _shares(real: np.ndarray) -> np.ndarray:
    """The share of each time step of the walk in each time step of the sequences, from the rows (T, B) real in it."""
    own = np.cumsum(real, axis=0) - 1
    counts = [(real & (own == k)).sum(axis=1) for k in range(own.max(initial=-1) + 1)]
    return np.array([count / count.sum() for count in counts]).reshape(-1, len(real))


def norms_by(statistics: Norms, norms: Norms, mask: Tensor | None, reverse: bool) -> Callable[[int], Norms]:
    """`norms_at` for the walk: the norms' parameters with the statistics of each row's time step.

    A time step after the last that has statistics takes those of the last.
    """
    steps = min(map(len, statistics.values()))
    if mask is None or not len(mask):
        return lambda k: {**norms, **{key: a[min(k, steps - 1)] for key, a in statistics.items()}}
    real = ops.flip(mask, axis=0) if reverse else mask
    counts = ops.cumulative_sum(real.astype("float32"), axis=0) - real.astype("float32")
    places = ops.clip(counts, max=steps - 1.0).astype("int32")
    return lambda k: {**norms, **{key: ops.take(a, places[k], axis=0) for key, a in statistics.items()}}


def statistic_names(norms: Norms) -> list[str]:
    """The names of the statistics, in the order of the parameters."""
    return [f"{kind}_{name}" for name in _normalised(norms) for kind in ("mean", "variance")]


def _normalised(norms: Norms) -> list[str]:
    return [name.removeprefix("gain_") for name in norms if name.startswith("gain_")]
