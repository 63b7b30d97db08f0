"""The bound of a trained model on all images, as the paper reports it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from duoln import to_tensors
from duoln.data import Batch
from duoln.errors import UsageError
from duoln.plugins.draw import data
from duoln.tasks import Findings, Trained, option

PARTS = ("bound", "reconstruction", "divergence")


@dataclass(frozen=True)
class Options:
    """The options of `duoln evaluate draw`."""

    draws: int = option(1, "how many times the latent variables of each image are drawn")


def findings(trained: Trained, options: Options, say: Callable[[str], None]) -> Findings:
    """The bound, what the pixels cost and the divergence, in nats: means over all images of valid and of test, with the
    standard error over images.

    Raises:
        UsageError: a number of draws below 1. DataError: the images are not available or damaged.
    """
    if options.draws < 1:
        raise UsageError(f"[draw] draws: expected at least 1, found {options.draws}")
    splits = data.splits(replace(trained.config, evaluate_images=None), None)
    rows, figures = [], dict[str, float]()
    for name in ("valid", "test"):
        say(f"evaluating: {name}, {len(splits.evaluation[name]['x']):,} images")
        nats = np.mean([of_images(trained, splits.evaluation[name], draw) for draw in range(options.draws)], axis=0)
        by_part = dict(zip(PARTS, (nats.sum(axis=1), *nats.T), strict=True))
        figures |= {f"{name}_{part}": float(values.mean()) for part, values in by_part.items()}
        figures[f"{name}_error"] = float(by_part["bound"].std(ddof=1) / sqrt(len(nats)))
        rows.append((name, *(f"{figures[f'{name}_{part}']:.2f}" for part in PARTS), f"{figures[f'{name}_error']:.2f}"))
    return Findings("Bound of the negative log-likelihood, nats", ("set", *PARTS, "standard error"), rows,
                    [f"{splits.dataset.label}; variant {trained.variant} after {trained.update:,} updates; latent "
                     f"variables drawn {options.draws} time{'s' * (options.draws > 1)} for each image"], figures)


def of_images(trained: Trained, split: Batch, draw: int) -> np.ndarray:
    """The cross-entropy of each image's pixels and the divergence of its latent variables: float64 (images, 2).

    Draw 0 has the noise of the evaluations during training.
    """
    seed, glimpses, latent = (int(v) for v in split["noise_of"])
    drawn = {**split, "noise_of": np.array([seed + draw, glimpses, latent], np.int64)}
    backend = trained.params["look"]["bias"].backend
    return np.concatenate([trained.model(trained.params, to_tensors(batch, backend)).numpy()
                           for batch in data.evaluation_batches(drawn)]).astype(np.float64)
