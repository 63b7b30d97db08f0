"""Every experiment trains alike on NumPy and on MLX; `tests/test_promises.py` is about their start and batches."""

from typing import NamedTuple

import numpy as np
import pytest
from conftest import get_backend

from duoln.tasks import make_config
from duoln.tasks.registry import find_task
from duoln.training.trainer import Trainer


class Small(NamedTuple):
    """How an experiment is trained here, so that MLX traces it in seconds."""

    variants: tuple[str, ...]
    settings: dict[str, object]
    steps: int = 3
    rtol: float = 1e-4
    metric: str = ""
    """What is compared after the last update, to ten times as much."""
    marks: tuple[pytest.MarkDecorator, ...] = (pytest.mark.long,)


_READER = {"width": 5, "hidden": 4, "batch_size": 6, "evaluate_questions": 12, "table": 500, "pad_multiple": 16, "tied": False, "dropout": "paper"}
_LAS = {"batch_size": 4, "listener_hidden": 3, "speller_hidden": 4, "attention": 3, "mels": 3, "buckets": 1, "beam": 2, "longest": 4}
SMALL = {
    "attentive_reader": Small(("none", "bn-everywhere", "ln"), _READER, metric="test_nll"),
    "convnet": Small(("bn", "ln"), {"channels": 2, "batch_size": 6, "dataset": "mnist"}, metric="test_nll"),
    "draw": Small(("none", "wn", "ln"), {"glimpses": 2, "hidden": 12, "latent": 3, "batch_size": 6, "rows": 60}, 4, 1e-5, "test_bound"),
    "handwriting": Small(("none", "ln"), {"length": 12}),
    "las": Small(("both", "encoder-over-time"), {**_LAS, "pyramids": 1}, 2, 1e-5, "dev_nll"),
    # After twenty steps the losses of one seed differed by 2.5e-5: Adam moves a weight whose gradient is only rounding, too.
    "mnist": Small(("none", "ln", "bn", "bn-hidden"), {"hidden": 200, "batch_size": 20}, 10, 1e-5, marks=()),
    "order_embeddings": Small(("ln", "sym"), {"joint_size": 8, "word_size": 4, "batch_size": 4}),
    "skip_thoughts": Small(("ln",), {"judge": "none", "longest": 6, "hidden": 6, "batch_size": 8}, marks=(pytest.mark.minutes,)),
    "transformer": Small(("pre", "post", "rms", "none"), {"blocks": 1, "width": 8, "batch_size": 4}, 4)}


@pytest.mark.few
@pytest.mark.parametrize(("name", "variant"), [pytest.param(name, variant, marks=small.marks) for name, small in SMALL.items() for variant in small.variants])
def test_equal_training_on_numpy_and_mlx(name, variant, monkeypatch):
    monkeypatch.setattr("duoln.plugins.convnet.data.MADE", {"train": 60, "test": 20})
    monkeypatch.setattr("duoln.plugins.las.spoken.COUNTS", {"train": 6, "dev": 3, "test": 3})
    task, small, near = find_task(name), SMALL[name], []
    for backend in ("numpy", "mlx"):
        cfg = make_config(task, variant, "smoke", small.settings)
        trainer = Trainer(task, variant, cfg, task.data(cfg), get_backend(backend))
        losses = [trainer.advance() for _ in range(small.steps)]
        near.append((losses, [trainer.evaluate()[small.metric]] if small.metric else []))
    np.testing.assert_allclose(near[1][0], near[0][0], rtol=small.rtol)
    np.testing.assert_allclose(near[1][1], near[0][1], rtol=10 * small.rtol)
