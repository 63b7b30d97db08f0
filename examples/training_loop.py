"""A plain training loop: a layer-normalised network, a loss, an optimizer, and nothing hidden between them.

    python -m duoln.examples.training_loop

The digits are synthetic. The step is a pure function of trees of tensors, so the same code runs on NumPy, CuPy and
MLX, and `duoln.compile` may trace it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import duoln
from duoln import Tensor, nn, ops, optim
from duoln.data import Batches
from duoln.data.digits import make_digits

MODEL = nn.Sequential(nn.Linear(784, 128), nn.LayerNorm(128, activation="relu"), nn.Linear(128, 10))
OPTIMIZER = optim.Adam(learning_rate=1e-3, donate=True)


def loss(params: Any, x: Tensor, labels: Tensor) -> Tensor:
    """The mean cross-entropy of a batch, in nats."""
    return ops.mean(ops.softmax_cross_entropy(MODEL(params, x), labels))


def train_step(params: Any, slots: Any, batch: dict[str, Tensor]) -> tuple[Any, Any, Tensor]:
    """One update: new parameters, new slots of the optimizer, and the loss before the update."""
    value, gradients = duoln.value_and_grad(loss)(params, batch["x"], batch["label"])
    return *OPTIMIZER.update(params, gradients, slots), value


def digits(count: int, split: str) -> dict[str, np.ndarray]:
    """Images as rows of 784 values in [0, 1], and their labels."""
    images, labels = make_digits(count, 0, split)
    return {"x": images.reshape(count, 784).astype(np.float32) / 255, "label": labels.astype(np.int32)}


def main(updates: int = 300) -> float:
    """Train for some updates; the share of wrong answers on digits that were not trained on."""
    backend = duoln.backend()  # the GPU, if there is one
    batches, test = Batches(digits(5000, "train"), 100, seed=0), duoln.to_tensors(digits(1000, "test"), backend)
    params = duoln.init(MODEL, 0, backend)
    slots = OPTIMIZER.init(params)
    step = duoln.compile(train_step)
    for number in range(updates):
        params, slots, value = step(params, slots, duoln.to_tensors(batches(number), backend))
        if number % 100 == 0:
            print(f"update {number}: loss {value.item():.3f}")
    wrong = ops.argmax(MODEL(params, test["x"]), axis=-1) != test["label"]
    error = wrong.astype("float32").mean().item()
    print(f"test error {error:.1%}")
    result: float = error
    return result


if __name__ == "__main__":
    main()
