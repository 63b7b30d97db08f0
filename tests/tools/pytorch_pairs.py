"""A recurrent layer of PyTorch and ours with the same parameters, which are trained beside one another."""

import numpy as np

import duoln
from duoln import ops, optim

RATE = 1e-2


def fill(module, seed=0):
    """A module with parameters and statistics of which every value counts, as it is after training."""
    import torch

    torch.manual_seed(seed)
    with torch.no_grad():
        for value in module.state_dict().values():
            if value.is_floating_point():
                value.copy_(torch.rand_like(value) - 0.4 if value.ndim > 1 else torch.rand_like(value) + 0.1)
    return module.eval()


class Pair:
    """A layer of PyTorch and one of ours with the same parameters, in float64, and 50 updates of Adam of both."""

    def __init__(self, theirs, ours, folder, frozen=()):
        import torch
        from safetensors.torch import save_file

        torch.set_num_threads(1)  # these arrays are small
        self.theirs, self.ours, self.folder = theirs.double(), ours, folder
        for name, parameter in self.theirs.named_parameters():
            if name.startswith(frozen or "no name"):
                parameter.requires_grad_(False).zero_()
        rng = np.random.default_rng(0)
        self.x = rng.standard_normal((7, 4, ours.n_in))
        self.goal = rng.standard_normal((7, 4, ours.n_hidden * len(ours.directions)))
        save_file(self.theirs.state_dict(), folder / "theirs")
        self.params = duoln.load_pytorch(folder / "theirs", ours, "numpy")
        self.x_there, self.goal_there = torch.from_numpy(self.x), torch.from_numpy(self.goal)

    def train(self, make_theirs=None, optimizer=None):
        """The losses of 50 updates, ours and theirs; by plain Adam if nothing is given."""
        import torch

        trained, optimizer = [p for p in self.theirs.parameters() if p.requires_grad], optimizer or optim.Adam(RATE)
        theirs = make_theirs(trained) if make_theirs else torch.optim.Adam(trained, lr=RATE)
        slots, losses = optimizer.init(self.params), []
        x, goal = duoln.tensor(self.x, "numpy"), duoln.tensor(self.goal, "numpy")

        def loss(params):
            return ops.mean(ops.square(self.ours(params, x)[0] - goal))

        for _ in range(50):
            theirs.zero_grad()
            out = self.theirs(self.x_there)
            value_there = (((out[0] if isinstance(out, tuple) else out) - self.goal_there) ** 2).mean()
            value_there.backward()
            theirs.step()
            value, gradients = duoln.value_and_grad(loss)(self.params)
            self.params, slots = optimizer.update(self.params, gradients, slots, duoln.tensor(np.float64(RATE), "numpy"))
            losses.append((value.item(), value_there.item()))
        assert losses[-1][1] < 0.9 * losses[0][1]
        return losses

    def difference(self):
        """The greatest difference of any parameter, in PyTorch's layout."""
        from safetensors.numpy import load_file

        duoln.save_pytorch(self.folder / "ours", self.ours, self.params)
        ours, theirs = load_file(self.folder / "ours"), self.theirs.state_dict()
        assert set(ours) == set(theirs) and all(array.dtype == np.float64 for array in ours.values())
        return max(np.abs(array - theirs[name].numpy()).max() for name, array in ours.items())
