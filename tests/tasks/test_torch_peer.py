"""What the PyTorch peers share: copies of our arrays, the batch's integers, and the order of a training step."""

import numpy as np
import pytest

from duoln.tasks import Config, torch_peer

pytestmark = pytest.mark.peers


@pytest.fixture
def torch():
    import torch

    return torch


def test_a_parameter_is_a_copy(torch):
    ours = np.ones((3, 1), np.float32)
    for theirs in (torch_peer.parameter(torch, ours), torch_peer.linear(torch, ours).weight,
                   torch_peer.embedding(torch, ours).weight):
        assert theirs.requires_grad and theirs.is_contiguous()
        with torch.no_grad():
            theirs.fill_(5)
    assert (ours == 1).all()


def test_a_linear_layer_multiplies_as_ours(torch, rng):
    x, weight, bias = (rng.integers(-9, 9, shape).astype(np.float32) for shape in ((2, 3), (3, 4), (4,)))
    layers = torch_peer.linear(torch, weight), torch_peer.linear(torch, weight, bias)
    plain, shifted = (layer(torch.from_numpy(x)).detach().numpy() for layer in layers)
    assert layers[0].bias is None
    np.testing.assert_array_equal(plain, x @ weight)
    np.testing.assert_array_equal(shifted, x @ weight + bias)


def test_a_norm_of_a_part_has_that_part_of_gain_and_bias(torch):
    cell = {"gain_h": np.arange(6, dtype=np.float32), "bias_h": np.arange(6, 12, dtype=np.float32)}
    norm = torch_peer.cell_norm(torch, cell, "h", slice(4, None))
    assert norm.eps == 1e-5 and norm.weight.tolist() == [4, 5] and norm.bias.tolist() == [10, 11]
    assert isinstance(torch_peer.cell_norm(torch, cell, "x"), torch.nn.Identity)


def test_a_step_updates_after_the_hook_and_starts_from_no_gradient(torch):
    """With x = 2, 2, 0 the gradients are 2, 2, 0; the hook doubles them, and the rate is 1/2, 1, 3/2."""
    weight, seen = torch_peer.parameter(torch, np.zeros(1, np.float32)), []
    optimizer = torch.optim.SGD([weight], lr=0.0)

    def before_update(done):
        seen.append((done, weight.grad.item()))
        weight.grad *= 2
        optimizer.param_groups[0]["lr"] = (done + 1) / 2

    step, facts = torch_peer.training_step(torch, optimizer, lambda batch: (weight * batch["x"]).sum(), before_update)
    losses = [step({"x": np.array([x], np.float32)}) for x in (2, 2, 0)]
    assert losses == [0, -4, 0] and seen == [(0, 2), (1, 2), (2, 0)] and weight.item() == -6
    assert facts["library"] == f"torch {torch.__version__}" and int(facts["threads"]) >= 1


def test_integers_of_a_batch_are_indices_and_the_rest_stays(torch):
    dtypes, weight = {}, torch_peer.parameter(torch, np.zeros(1, np.float32))

    def loss_of(batch):
        dtypes.update({name: values.dtype for name, values in batch.items()})
        return weight.sum()

    step, _ = torch_peer.training_step(torch, torch.optim.SGD([weight]), loss_of)
    step({"label": np.zeros(2, np.int32), "x": np.zeros(2, np.float32), "mask": np.zeros(2, bool)})
    assert dtypes == {"label": torch.int64, "x": torch.float32, "mask": torch.bool}


@pytest.mark.parametrize("fused", [False, True])
def test_adam_is_pytorch_s_own_at_the_task_s_rate(torch, fused):
    [group] = torch_peer.adam(torch, torch.nn.Linear(2, 1), Config(learning_rate=0.25), fused, 1e-6).param_groups
    assert (group["lr"], group["eps"], group["betas"], bool(group["fused"])) == (0.25, 1e-6, (0.9, 0.999), fused)
