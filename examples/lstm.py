"""An LSTM on sequences of different lengths: which of two rules made a sequence, with and without layer norm.

    python -m duoln.examples.lstm

Sequences are time-major, (time, batch, features). Where the mask is False a sequence has ended: its state is copied, so
the last state is that of its own last time step.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import duoln
from duoln import Stream, Tensor, nn, ops, optim
from duoln.data import Batch
from duoln.extend import Backend


class Classifier(nn.Module):
    """An LSTM whose last state is classified."""

    def __init__(self, norm: Any, hidden: int = 32) -> None:
        self.lstm = nn.LSTM(1, hidden, norm=norm, return_sequences=False)
        self.out = nn.Linear(hidden, 2)

    def __call__(self, params: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
        last, _ = self.lstm(params["lstm"], x, mask=mask)
        return self.out(params["out"], last)


def make_batch(update: int, batch: int = 64, longest: int = 30) -> Batch:
    """Noisy sines, half of them with a frequency that rises; lengths from 10 to 30. The same for the same number."""
    rng = Stream(0, "sines", update)
    lengths = 10 + (rng.uniform((batch,)) * (longest - 9)).astype(np.int32)
    label = (rng.child("label").uniform((batch,)) < 0.5).astype(np.int32)
    time = np.arange(longest, dtype=np.float32)[:, None]
    phase = 0.5 * time + 0.02 * label * time ** 2
    x = np.sin(phase) + 0.3 * rng.child("noise").gaussian((longest, batch))
    mask = np.arange(longest)[:, None] < lengths
    return {"x": (x * mask).astype(np.float32)[..., None], "mask": mask, "label": label}


def train(norm: Any, backend: Backend, updates: int) -> float:
    """Train one variant; the share of wrong answers on batches that were not trained on."""
    model, optimizer = Classifier(norm), optim.Adam(learning_rate=3e-3, clip=optim.clip_global_norm(1.0))
    params = duoln.init(model, 0, backend)
    slots = optimizer.init(params)

    def loss(params: Any, batch: dict[str, Tensor]) -> Tensor:
        return ops.softmax_cross_entropy(model(params, batch["x"], batch["mask"]), batch["label"]).mean()

    for number in range(updates):
        batch = duoln.to_tensors(make_batch(number), backend)
        value, gradients = duoln.value_and_grad(loss)(params, batch)
        params, slots = optimizer.update(params, gradients, slots)
        if number % 50 == 0:
            print(f"norm {norm}, update {number}: loss {value.item():.3f}")
    wrong = []
    for number in range(updates, updates + 5):
        batch = duoln.to_tensors(make_batch(number), backend)
        answer = ops.argmax(model(params, batch["x"], batch["mask"]), axis=-1)
        wrong.append(np.mean(answer != batch["label"]))
    return float(np.mean(wrong))


def main(updates: int = 150) -> dict[str, float]:
    """Train both variants; their shares of wrong answers."""
    backend = duoln.backend()
    errors = {norm: train(norm, backend, updates) for norm in ("none", "layer")}
    for norm, error in errors.items():
        print(f"norm {norm}: error {error:.1%}")
    return errors


if __name__ == "__main__":
    main()
