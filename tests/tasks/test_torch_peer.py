"""What the PyTorch peers share: copies of our arrays, the batch's integers, and the order of a training step."""

import numpy as np
import pytest

from duoln import optim
from duoln.tasks import torch_peer

pytestmark = pytest.mark.peers


@pytest.fixture
def torch():
    import torch

    return torch


def test_a_parameter_is_a_copy(torch):
    ours = np.ones((3, 1), np.float32)
    net = torch_peer.layers(torch, {"a": ours, "b": {"weight": ours}, "c": {"table": ours}})
    for theirs in net.parameters():
        assert theirs.requires_grad and theirs.is_contiguous()
        with torch.no_grad():
            theirs.fill_(5)
    assert (ours == 1).all() and [name for name, _ in net.named_parameters()] == ["a", "b.weight", "c.weight"]


def test_a_linear_layer_multiplies_as_ours(torch, rng):
    x, weight, bias = (rng.integers(-9, 9, shape).astype(np.float32) for shape in ((2, 3), (3, 4), (4,)))
    layers = torch_peer.linear(torch, weight), torch_peer.linear(torch, weight, bias)
    plain, shifted = (layer(torch.from_numpy(x)).detach().numpy() for layer in layers)
    assert layers[0].bias is None
    np.testing.assert_array_equal(plain, x @ weight)
    np.testing.assert_array_equal(shifted, x @ weight + bias)


def test_norms_have_our_gain_and_bias(torch):
    gain, bias = np.arange(2, dtype=np.float32), np.arange(6, 8, dtype=np.float32)
    norm, rms = (torch_peer.layers(torch, params) for params in ({"gain": gain, "bias": bias}, {"gain": gain}))
    assert norm.eps == rms.eps == 1e-5 and norm.weight.tolist() == rms.weight.tolist() == [0, 1] and norm.bias.tolist() == [6, 7]


@pytest.mark.parametrize(("clip", "bounded"), [(None, [2, 2, 0]), (optim.clip_value(0.5), [0.5, 0.5, 0]), (optim.clip_global_norm(1.0), [1, 1, 0])])
def test_a_step_bounds_the_gradients_and_starts_from_none(torch, clip, bounded):
    """With x = 2, 2, 0 the gradients are 2, 2, 0, and Adam with betas of 0 makes steps of the rate, 1/2, 1, 3/2."""
    model, seen = torch_peer.layers(torch, {"w": np.zeros(1, np.float32)}), []
    optimizer = optim.Adam(lambda update: (update + 1) / 2, beta1=0.0, beta2=0.0, clip=clip)
    step, facts = torch_peer.training_step(torch, model, optimizer, lambda batch: (model.w * batch["x"]).sum())
    losses = [(step({"x": np.array([x], np.float32)}), seen.append(model.w.grad.item()))[0] for x in (2, 2, 0)]
    np.testing.assert_allclose(seen, bounded, rtol=1e-5)
    np.testing.assert_allclose([*losses, model.w.item()], [0, -1, 0, -1.5], rtol=1e-5)
    assert facts["library"] == f"torch {torch.__version__}" and int(facts["threads"]) >= 1


def test_integers_of_a_batch_are_indices_and_the_rest_stays(torch):
    dtypes, model = {}, torch_peer.layers(torch, {"w": np.zeros(1, np.float32)})

    def loss_of(batch):
        dtypes.update({name: values.dtype for name, values in batch.items()})
        return model.w.sum()

    step, _ = torch_peer.training_step(torch, model, optim.Adam(0.1), loss_of, fused=True)
    step({"label": np.zeros(2, np.int32), "x": np.zeros(2, np.float32), "mask": np.zeros(2, bool)})
    assert dtypes == {"label": torch.int64, "x": torch.float32, "mask": torch.bool}
