"""The bound of a trained model on all images, as the paper reports it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from duoln import to_tensors
from duoln.data import Batch
from duoln.plugins.draw import data
from duoln.tasks import Findings, Trained

PARTS = ("bound", "reconstruction", "divergence")


@dataclass(frozen=True)
class Options:
    """`duoln evaluate draw` has no options."""


def findings(trained: Trained, say: Callable[[str], None]) -> Findings:
    """The bound, what the pixels cost and the divergence, in nats: means over all images of valid and of test, with the
    standard error over images. The latent variables have the noise of the evaluations during training.

    Raises:
        DataError: the images are not available or damaged.
    """
    splits = data.splits(replace(trained.config, evaluate_images=None), None)
    rows, figures = [], dict[str, float]()
    for name in ("valid", "test"):
        say(f"evaluating: {name}, {len(splits.evaluation[name]['x']):,} images")
        nats = of_images(trained, splits.evaluation[name])
        by_part = dict(zip(PARTS, (nats.sum(axis=1), *nats.T), strict=True))
        figures |= {f"{name}_{part}": float(values.mean()) for part, values in by_part.items()}
        figures[f"{name}_error"] = float(by_part["bound"].std(ddof=1) / sqrt(len(nats)))
        rows.append((name, *(f"{figures[f'{name}_{part}']:.2f}" for part in PARTS), f"{figures[f'{name}_error']:.2f}"))
    return Findings("Bound of the negative log-likelihood, nats", ("set", *PARTS, "standard error"), rows,
                    [f"{splits.dataset.label}; variant {trained.variant} after {trained.update:,} updates; latent "
                     "variables drawn once for each image"], figures)


def of_images(trained: Trained, split: Batch) -> np.ndarray:
    """The cross-entropy of each image's pixels and the divergence of its latent variables: float64 (images, 2)."""
    backend = trained.params["look"]["bias"].backend
    return np.concatenate([trained.model(trained.params, to_tensors(batch, backend)).numpy()
                           for batch in data.evaluation_batches(split)]).astype(np.float64)
