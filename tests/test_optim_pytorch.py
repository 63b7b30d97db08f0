"""200 updates beside PyTorch's: AdamW, its schedules, dropout with the same masks, and the moving average."""

import numpy as np
import pytest

import duoln
from duoln import nn, ops, optim

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peers
UPDATES, BATCH, SIZES = 200, 16, (6, 12, 3)
DTYPES = {"float32": (torch.float32, 2e-3), "float16": (torch.float16, 3e-2), "bfloat16": (torch.bfloat16, 2e-1)}


def schedules():
    def theirs(optimizer):
        several = torch.optim.lr_scheduler
        return several.SequentialLR(optimizer, [several.LinearLR(optimizer, 1 / 21, total_iters=20), several.CosineAnnealingLR(optimizer, 180, 1e-4)], [20])

    return optim.linear_warmup(20, optim.cosine(1e-2, 180, end=1e-4)), theirs


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_network_with_dropout(dtype, compiled, be, rng):
    if dtype not in be.dtypes:
        pytest.skip("the backend lacks it")
    rate_of, scheduler_of = schedules()
    model = nn.Sequential(nn.Linear(SIZES[0], SIZES[1]), nn.Tanh(), nn.Dropout(0.3), nn.Linear(SIZES[1], SIZES[2]))
    start = model.init(0)
    theirs = {f"{k}.{name}": torch.nn.Parameter(torch.from_numpy(array.copy())) for k in ("0", "3") for name, array in start[k].items()}
    peer = torch.optim.AdamW(theirs.values(), lr=1e-2, weight_decay=0.1)
    scheduler = scheduler_of(peer)
    optimizer, dropout = optim.AdamW(rate_of, weight_decay=0.1), nn.DropoutMasks(model, 0)
    params = duoln.to_tensors(start, be)
    slots, ema = optimizer.init(params), optim.MovingAverage(0.95)
    average, their_average = ema.init(params), {name: p.detach().clone() for name, p in theirs.items()}

    def step(params, slots, masks, x, label, rate):
        def loss(p):
            stored = nn.with_masks(duoln.tree.map(lambda leaf: leaf.astype(dtype), p), masks)
            return ops.softmax_cross_entropy(model(stored, x.astype(dtype)).astype("float32"), label).mean()

        value, gradients = duoln.value_and_grad(loss)(params)
        return (*optimizer.update(params, gradients, slots, rate), value)

    step = duoln.compile(step) if compiled else step
    kind, tolerance = DTYPES[dtype]
    for update in range(UPDATES):
        x = rng.standard_normal((BATCH, SIZES[0])).astype(np.float32)
        label = np.argmax(x[:, :3] + x[:, 3:], 1).astype(np.int32)
        tensors = duoln.to_tensors((x, label), be)
        masks = dropout(update, params, tensors[0].astype(dtype))
        rate = optimizer.rate_at(update)
        assert rate == pytest.approx(scheduler.get_last_lr()[0], rel=1e-5)
        params, slots, _ = step(params, slots, masks, *tensors, duoln.tensor(np.float32(rate), be))
        average = ema.update(average, params)

        tx, mask = torch.from_numpy(x).to(kind), torch.from_numpy(masks["2"].astype("float32").numpy()).to(kind)
        stored = {name: p.to(kind) for name, p in theirs.items()}
        hidden = torch.tanh(tx @ stored["0.weight"] + stored["0.bias"]) * mask
        loss = torch.nn.functional.cross_entropy((hidden @ stored["3.weight"] + stored["3.bias"]).float(), torch.from_numpy(label).long())
        peer.zero_grad()
        loss.backward()
        peer.step()
        scheduler.step()
        with torch.no_grad():
            for name, p in theirs.items():
                their_average[name].lerp_(p, 0.05)
    for k in ("0", "3"):
        for name, array in params[k].items():
            np.testing.assert_allclose(array.numpy(), theirs[f"{k}.{name}"].detach().numpy(), rtol=tolerance, atol=tolerance)
            np.testing.assert_allclose(average[k][name].numpy(), their_average[f"{k}.{name}"].numpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", ["ReLU", "Tanh", "Sigmoid", "Softplus", "SiLU", "GELU", "ELU", "LeakyReLU", "Flatten", "Identity", "Softmax", "LogSoftmax"])
def test_activations(kind, be, rng):
    x = rng.standard_normal((5, 4, 3)).astype(np.float32)
    options = {"dim": -1} if "Softmax" in kind else {}
    t = torch.from_numpy(x).requires_grad_()
    expected = getattr(torch.nn, kind)(**options)(t)
    expected.square().sum().backward()
    layer = getattr(nn, kind)()
    assert layer.init(0) == {}
    _, gradient = duoln.value_and_grad(lambda x: (ops.sum(ops.square(layer({}, x)))))(duoln.tensor(x, be))
    np.testing.assert_allclose(layer({}, duoln.tensor(x, be)).numpy(), expected.detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient.numpy(), t.grad.numpy(), rtol=1e-4, atol=1e-5)


def test_weights_alone_decay(be, rng):
    """As PyTorch's groups of parameters have it."""
    start = {"w": rng.standard_normal((4, 3)).astype(np.float32), "b": rng.standard_normal(3).astype(np.float32), "v": rng.standard_normal((2, 2)).astype(np.float32)}
    theirs = {name: torch.nn.Parameter(torch.from_numpy(array.copy())) for name, array in start.items()}
    peer = torch.optim.AdamW([{"params": [theirs["w"], theirs["v"]]}, {"params": [theirs["b"]], "weight_decay": 0.0}], lr=0.01, weight_decay=0.3)
    optimizer = optim.AdamW(0.01, weight_decay=0.3, decays=lambda path, p: p.ndim > 1, clip=optim.clip_global_norm(1.0))
    params = duoln.to_tensors(start, be)
    slots = optimizer.init(params)
    for _ in range(20):
        gradients = {name: rng.standard_normal(array.shape).astype(np.float32) for name, array in start.items()}
        for name, p in theirs.items():
            p.grad = torch.from_numpy(gradients[name].copy())
        norm = torch.nn.utils.clip_grad_norm_(theirs.values(), 1.0)
        peer.step()
        params, slots, ours = optimizer.update_with_norm(params, duoln.to_tensors(gradients, be), slots, 0.01)
        assert ours.item() == pytest.approx(norm.item(), rel=1e-5)
    for name, p in theirs.items():
        np.testing.assert_allclose(params[name].numpy(), p.detach().numpy(), rtol=1e-4, atol=1e-5)
    unclipped = optim.AdamW(0.01, weight_decay=0.3, decays=lambda path, p: p.ndim > 1)
    norm = unclipped.update_with_norm(params, duoln.to_tensors(gradients, be), unclipped.init(params), 0.01)[2]
    assert norm.item() == pytest.approx(np.sqrt(sum((g ** 2).sum() for g in gradients.values())), rel=1e-5), "of both groups together"
