"""The common part of tasks on MNIST. `tests/plugins/test_mnist.py` reads its files, damaged ones too."""

import numpy as np
import pytest

from duoln.data.digits import make_digits
from duoln.data.idx import write_idx
from duoln.tasks import digits


def test_the_last_training_digits_are_held_out(tmp_path):
    given = {role: make_digits(count, 0, role) for role, count in (("train", 30), ("t10k", 20))}
    (tmp_path / "mnist").mkdir()
    for role, arrays in given.items():
        for array, name in zip(arrays, ("images-idx3", "labels-idx1"), strict=True):
            write_idx(tmp_path / "mnist" / f"{role}-{name}-ubyte.gz", array)
    dataset, sets, why = digits.read_digits("t", "mnist", 20, tmp_path, 7)
    assert (dataset, why) == (("MNIST", "original"), "")
    for name, (images, labels) in {"train": (a[:20] for a in given["train"]), "valid": (a[-7:] for a in given["train"]),
                                   "test": given["t10k"]}.items():
        assert np.array_equal(sets[name]["label"], labels) and np.allclose(sets[name]["x"] * 255, images.reshape(-1, 784))


def test_synthetic_digits_of_the_three_sets_differ(monkeypatch):
    monkeypatch.setattr(digits, "MADE_TEST", 30)
    dataset, sets, why = digits.read_digits("t", "made", 30, None, 7)
    assert dataset == ("made digits", "synthetic") and "source=made" in why
    assert len({split["x"].tobytes() for split in sets.values()}) == 3


def test_figures_are_computed_in_float64():
    split = {"x": np.zeros((2500, 784), np.float32), "label": (np.arange(2500) % 10).astype(np.int32)}
    logits, counts = np.full((1000, 10), -20.0, np.float32), []

    def predict(batch):
        counts.append(len(batch["x"]))
        out = logits[:len(batch["x"])].copy()
        out[:, 0] = 0.0
        return out

    figures = digits.nll_and_error(predict, split, 1000)
    right, wrong = np.log1p(9 * np.exp(-20.0)), 20 + np.log1p(9 * np.exp(-20.0))
    assert figures["error"] == 0.9 and counts == [1000, 1000, 500]
    assert figures["nll"] == pytest.approx(0.1 * right + 0.9 * wrong, rel=1e-12)
    perfect = {"x": split["x"][:1000], "label": np.zeros(1000, np.int32)}
    assert digits.nll_and_error(predict, perfect, 1000)["nll"] == pytest.approx(right, rel=1e-6)  # 1.9e-8: below float32's noise
