"""Batch norm by the statistics of a population, which layers report from training batches; recurrent batch norm has
those of each time step of a sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from duoln import ops, tree
from duoln.backends.protocol import STORAGE
from duoln.core import Tensor, stop_gradient
from duoln.core.arguments import described
from duoln.core.pytorch_names import hinted
from duoln.errors import CompileError, DtypeError, ShapeError, UsageError
from duoln.nn.module import STATISTICS, Module, Params, branch_at
from duoln.nn.observing import collect_reports

Norms = Mapping[str, Tensor]
Run = Callable[..., tuple[Tensor, ...]]
"""`run(norms_at, tell)`: the walk over a sequence, see `ops.recurrent.sequences.walk`."""


@hinted
def with_population(model: Module, params: Params, batches: Iterable[Any],
                    forward: Callable[[Params, Any], Any] | None = None) -> Params:
    """Parameters with which every batch norm of the model normalises by the statistics of a population.

    Runs the model over `batches` with batch statistics and adds to the parameters of each layer with batch norm the
    mean of the batch means and of the unbiased batch variances (Ioffe and Szegedy 2015, algorithm 2). Statistics that
    `params` has already are replaced. Returns `params` itself where the model has no batch norm.

    Recurrent batch norm has statistics of each time step, counted from a sequence's first (Cooijmans et al. 2017,
    section 3): those of a time step are the mean over the batches that have it, in each over the rows that have it, and
    a longer sequence goes on with the last ones. Backward, a sequence's first time step is the last that is no padding.
    Padding counts while they are gathered, as in training, and reaches nothing afterwards. A cell that is called for
    one time step alone does not know which it is, and is refused.

    Beside parameters of 16 bits the statistics are float32: float16 does not hold a variance of values beyond 256, and
    bfloat16 rounds a mean by up to a 500th of its size.

    The statistics have no gradient, and no optimizer changes them. `without_population` takes them out, such as of the
    parameters of another library's model, to train on with the statistics of each batch.

    Args:
        model: the model. A layer of it takes part if its attribute `gathers` is set.
        params: its parameters, as tensors.
        batches: the inputs of `forward`; together a few hundred rows or more.
        forward: `forward(params, batch)`; the model itself if None.

    Raises:
        ShapeError: a batch has one row and therefore no variance, or parameters are missing.
        UsageError: there are no batches, `forward` is compiled, or a recurrent cell with batch norm is called for one
            time step.
    """
    if not isinstance(model, Module):
        raise DtypeError(f"[with_population] model: expected a Module, found {described(model)}")
    if isinstance(batches, Tensor | dict):
        raise DtypeError(f"[with_population] batches: expected a list of inputs, found {described(batches)}; one alone "
                         "is [x], and forward=lambda params, batch: ... takes what the model does not")
    layers = {path: module for path, module in model.modules() if module.gathers}
    if not layers:
        return params
    if not tree.leaves(params):
        raise ShapeError("[with_population] expected the parameters of the model, found none")
    first = tree.leaves(params)[0]
    result: Params = tree.map(lambda x: x, params)
    with collect_reports("with_population", params, list(layers), first.backend) as (gathering, gathered):
        try:
            for batch in batches:
                (forward or model)(gathering, batch)
        except CompileError as error:
            raise UsageError("[with_population] forward: expected a function that is not compiled, because statistics "
                             "are read on the host, found duoln.compile's") from error
    for (path, module), of_batches in zip(layers.items(), gathered, strict=True):
        if not of_batches:
            raise UsageError(f"[with_population] {type(module).__name__} at '{path}' saw no batch; "
                             "expected at least one")
        own = branch_at("with_population", result, path)
        like = tree.leaves(own)[0]
        for key in of_batches[0]:
            mean = _mean([of_batch[key] for of_batch in of_batches])
            dtype = "float32" if like.dtype in STORAGE else like.dtype
            own[key] = Tensor(like.backend.asarray(mean, dtype), like.backend)
    return result


@hinted
def without_population(model: Module, params: Params) -> Params:
    """Parameters without the statistics that `with_population` adds, and `load_pytorch` reads."""
    result: Params = tree.map(lambda x: x, params)
    for path in (path for path, module in model.modules() if module.gathers):
        own = branch_at("without_population", result, path)
        for key in [key for key in own if is_statistic(key)]:
            del own[key]
    return result


def is_statistic(path: str) -> bool:
    """True if the path ends with the name of a population's statistic."""
    return path.rpartition(".")[2] in STATISTICS


def _mean(arrays: list[np.ndarray]) -> np.ndarray:
    """The mean over batches, in float64; each entry of the first axis over the batches that are long enough."""
    longest = max(arrays, key=len)
    total, count = np.zeros(longest.shape), np.zeros(len(longest))
    for array in arrays:
        total[:len(array)] += array
        count[:len(array)] += 1
    mean: np.ndarray = (total.T / count).T
    return mean


# Of the time steps of a sequence ------------------------------------------------------------------------
# A sequence's first time step is the first that the walk finds real, at whichever place padding lets it stand: so the
# backward direction of a padded sequence begins with the same statistics as that of the sequence alone.

def gather_statistics(run: Run, norms: Norms, mask: Tensor | None, reverse: bool,
             ) -> tuple[tuple[Tensor, ...], dict[str, np.ndarray]]:
    """The results of the walk by the statistics of the batch, and these statistics by name, (time steps, width).

    The statistics of a time step are the mean, over the rows that have it, of those that normalised them.
    """
    of_walk: list[dict[str, np.ndarray]] = []
    names = normalised(norms)

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


def normalised(norms: Norms) -> list[str]:
    """The names of what the norms normalise, "x", "h" and "c", in the order of the parameters."""
    return [name.removeprefix("gain_") for name in norms if name.startswith("gain_")]
