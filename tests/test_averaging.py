"""Gradients of several batches for one update: those of all their entries as one batch."""

import numpy as np
import pytest

import duoln
from duoln import nn, ops, optim, tree
from duoln.errors import DtypeError, MixedBackendError, ShapeError, UsageError
from duoln.testing import check_error

IGNORED = -1


def _batches(be, rng, dtype="float32"):
    """Sequences of 6, 1 and 0 labels that count, and one of 3."""
    batches = []
    for counted in (6, 1, 0, 3):
        labels = rng.integers(0, 4, (2, 3)).astype(np.int32)
        labels.reshape(-1)[counted:] = IGNORED
        batches.append({"x": rng.standard_normal((2, 3, 5)).astype(dtype), "labels": labels})
    whole = {name: np.concatenate([b[name] for b in batches]) for name in ("x", "labels")}
    return [duoln.to_tensors(b, be) for b in batches], duoln.to_tensors(whole, be)


def _kept(batch):
    return ops.sum(batch["labels"] != IGNORED)


def _model():
    return nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 4))


def _loss(params, masks, batch):
    logits = _model()(nn.with_masks(params, masks), batch["x"])
    losses = ops.softmax_cross_entropy(logits, batch["labels"], ignore_index=IGNORED)
    return ops.sum(losses) / ops.maximum(_kept(batch).astype(losses.dtype), 1.0)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_the_mean_is_the_gradient_of_all_batches_as_one(be, rng, compiled):
    """Padding differs from batch to batch, so a mean of the batches' means is another gradient; with masks, and two updates."""
    wrap = duoln.compile if compiled else lambda f: f
    accumulate, optimizer = optim.Accumulate(), optim.Adam(0.1, donate=True)
    batches, whole = _batches(be, rng)
    params = duoln.to_tensors(_model().init(0), be)
    dropout = nn.DropoutMasks(_model(), seed=0)

    @wrap
    def add(sums, params, masks, batch):
        return accumulate.add(sums, duoln.value_and_grad(_loss)(params, masks, batch)[1], _kept(batch))

    @wrap
    def update(params, slots, sums, rate):
        return *optimizer.update(params, accumulate.mean(sums), slots, rate), accumulate.mean(sums)

    slots, rate = optimizer.init(params), duoln.tensor(0.1, be)
    for k in range(2):
        sums, used = accumulate.init(params), []
        for j, batch in enumerate(batches):
            used.append(dropout(k * len(batches) + j, params, batch["x"]))
            sums = add(sums, params, used[-1], batch)
        masks = tree.map(lambda *parts: ops.concat(*parts, axis=0), *used)
        expected = duoln.value_and_grad(_loss)(params, masks, whole)[1]
        slots_of_whole = tree.map(lambda x: x * 1.0 if x.dtype == "float32" else x + 0, slots)
        whole_params, _ = optim.Adam(0.1).update(tree.map(lambda x: x * 1.0, params), expected, slots_of_whole, 0.1)
        params, slots, gradients = update(params, slots, sums, rate)
        for a, b in zip(tree.leaves((gradients, params)), tree.leaves((expected, whole_params)), strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=2e-4, atol=2e-6)
        assert slots["update"].item() == k + 1


def test_batches_of_one_size_need_no_weights(be):
    accumulate, params = optim.Accumulate(), {"w": duoln.tensor([0.0, 0.0], be)}
    sums = accumulate.init(params)
    assert accumulate.mean(sums)["w"].tolist() == [0, 0]
    for gradient in ([1.0, 8.0], [3.0, 0.0]):
        sums = accumulate.add(sums, {"w": duoln.tensor(gradient, be)})
    assert accumulate.mean(sums)["w"].tolist() == [2, 4]
    sums = accumulate.add(sums, {"w": duoln.tensor([10.0, 10.0], be)}, 2)
    assert accumulate.mean(sums)["w"].tolist() == [6, 7]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_sums_keep_their_digits(dtype, numpy_backend):
    """In 16 bits 4096 + 1 would be 4096."""
    accumulate, params = optim.Accumulate(), {"w": duoln.tensor([0.0], numpy_backend, dtype)}
    sums = accumulate.init(params)
    for gradient in [4096.0] + [1.0] * 8:
        sums = accumulate.add(sums, {"w": duoln.tensor([gradient], numpy_backend, dtype)}, duoln.tensor(1, numpy_backend))
    mean = accumulate.mean(sums)["w"]
    assert mean.dtype == ("float64" if dtype == "float64" else "float32") and mean.item() == pytest.approx(4104 / 9)


def test_what_cannot_be_accumulated(numpy_backend):
    accumulate, params = optim.Accumulate(), {"w": duoln.tensor([1.0], numpy_backend)}
    sums = accumulate.init(params)
    check_error(DtypeError, lambda: accumulate.init({}), "[Accumulate]", "found none")
    check_error(DtypeError, lambda: accumulate.init({"w": np.ones(3)}), "[Accumulate]")
    check_error(ShapeError, lambda: accumulate.add(params, params), "[Accumulate] sums", "init")
    check_error(ShapeError, lambda: accumulate.mean(params["w"]), "[Accumulate] sums", "init")
    check_error(ShapeError, lambda: accumulate.add(sums, {"v": params["w"]}), "v")
    check_error(ShapeError, lambda: accumulate.add(sums, params, params["w"]), "[Accumulate] weight", "(1,)")
    check_error(UsageError, lambda: accumulate.add(sums, params, -1), "[Accumulate] weight")
    check_error(DtypeError, lambda: accumulate.add(sums, {"w": np.ones(1, np.float32)}), "[Accumulate]")
    check_error(MixedBackendError, lambda: accumulate.add(sums, duoln.to_tensors({"w": np.ones(1, np.float32)}, "mlx")), "numpy and mlx")
