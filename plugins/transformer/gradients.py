"""The gradients of each block before the first update: what a warm-up is for (Xiong et al. 2020, sections 3.3 and 3.4).

The expected norm of the gradient of a block's second matrix is large in the last blocks of a model whose norms come
after the sums, however many blocks it has, and small in one whose norms stand within.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from duoln import ops, tensor, to_tensors, value_and_grad
from duoln.data import Batch
from duoln.errors import UsageError
from duoln.nn import Params
from duoln.pictures.drawing import figure
from duoln.plugins.transformer.model import CharacterTransformer
from duoln.tasks import Findings, Trained, option

Batches = Callable[[int], Batch]
PICTURE = "gradients.png"


@dataclass(frozen=True)
class Options:
    """The options of `duoln evaluate transformer`."""

    batches: int = option(4, "training batches over which the norms of gradients are averaged")


def start_of(trained: Trained) -> Params:
    """The parameters with which a run began."""
    start: Params = to_tensors(trained.model.init(trained.config.seed), trained.params["output"]["weight"].backend)
    return start


def norms(model: CharacterTransformer, params: Params, batches: Batches, count: int) -> np.ndarray:
    """The norms of the gradients of the blocks' second matrices (`out` of the two layers), averaged over batches.

    Shape:
        -> (blocks,).

    Raises:
        UsageError: a number of batches below 1.
    """
    if count < 1:
        raise UsageError(f"[transformer] batches: expected at least 1, found {count}")
    gradient = value_and_grad(lambda p, x, y: ops.mean(model.nats(p, x, y)))
    backend = params["output"]["weight"].backend
    rows = []
    for k in range(count):
        _, slopes = gradient(params, *(tensor(batches(k)[name], backend) for name in ("x", "y")))
        rows.append([np.linalg.norm(block["out"]["weight"].numpy()) for block in slopes["blocks"].values()])
    average: np.ndarray = np.array(rows, np.float64).mean(axis=0)
    return average


def findings(trained: Trained, batches: Batches, options: Options) -> Findings:
    """The norms at the start of a run and where it stands now, block by block."""
    assert isinstance(trained.model, CharacterTransformer)
    first, now = (norms(trained.model, params, batches, options.batches)
                  for params in (start_of(trained), trained.params))
    rows = [(f"{k}", f"{a:.4f}", f"{b:.4f}") for k, (a, b) in enumerate(zip(first, now, strict=True), 1)]
    return Findings("Norms of the gradients of each block's second matrix",
                    ("block", "before the first update", f"after {trained.update} updates"), rows,
                    [f"variant {trained.variant}; mean of {options.batches} training batches; the source's figure 3"],
                    {"start": first.tolist(), "now": now.tolist()})


def pictures(runs: Mapping[str, tuple[Trained, Batches]], folder: Path) -> list[Path]:
    """The norms before the first update, a line for each model."""
    with figure(folder / PICTURE) as (_, [[axes]]):
        for label, (trained, batches) in runs.items():
            assert isinstance(trained.model, CharacterTransformer)
            first = norms(trained.model, start_of(trained), batches, 1)
            axes.plot(np.arange(1, len(first) + 1), first, marker="o", label=label)
        axes.set(xlabel="block", ylabel="norm of the gradient before the first update", yscale="log")
        axes.legend()
    return [folder / PICTURE]
