"""MNIST from the user's folder, the cache or a mirror; otherwise synthetic digits."""

from __future__ import annotations

from pathlib import Path

from duoln.data import Batches
from duoln.tasks import Splits
from duoln.tasks.digits import Source, read_digits

_VALID = 5_000


def splits(source: Source, batch_size: int, seed: int, rows: int | None, root: Path | None) -> Splits:
    """55,000 training digits, the 10,000 test digits; or synthetic ones.

    Raises:
        as `read_digits`.
    """
    dataset, sets, why = read_digits("mnist", source, rows, root, _VALID)
    batches = Batches(sets["train"], batch_size, seed, within={"label": (0, 10)})
    return Splits(dataset, batches, batches.steps_per_epoch, {name: sets[name] for name in ("train", "test")},
                  remarks=(why,))
