"""Every default that the bridges and `load_pytorch` share with the other library is that of the installed one."""

import inspect

import pytest

from duoln import nn

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peers

from duoln.bridge import torch as bridge

RECURRENT = {"LSTM", "GRU", "RNN"}
OTHERS = {("RMSNorm", "eps"): "torch.nn's depends on the dtype", ("GRUCell", "bias"): "one bias", ("LSTMCell", "bias"): "one bias",
          ("RNNCell", "bias"): "one bias"}
"""Defaults of `duoln.nn` that are others on purpose, as its pages say."""


def _defaults(kind):
    return {name: p.default for name, p in inspect.signature(kind.__init__).parameters.items() if p.default is not p.empty}


def _shared(ours, theirs):
    """The names with a default in both, and both defaults."""
    ours, theirs = _defaults(ours), _defaults(theirs)
    return {name: (ours[name], theirs[name]) for name in ours.keys() & theirs.keys()}


@pytest.mark.parametrize("name", sorted(set(bridge.__all__) & set(dir(torch.nn))))
def test_of_the_bridge(name):
    ours, theirs = getattr(bridge, name), torch.nn.modules.rnn.RNNBase if name in RECURRENT else getattr(torch.nn, name)
    if name == "RNN":
        ours = bridge.LSTM  # which takes the arguments that RNN hands on
    if ours.__init__ is not theirs.__init__ and name in RECURRENT:
        assert _defaults(theirs).keys() <= _defaults(ours).keys()
    assert all(a == b for a, b in _shared(ours, theirs).values())


def test_of_mlx():
    mlx, ours = pytest.importorskip("mlx.nn"), pytest.importorskip("duoln.bridge.mlx")
    for name in set(ours.__all__) & set(dir(mlx)):
        shared = _shared(getattr(ours, name), getattr(mlx, name))
        assert shared and all(a == b for a, b in shared.values()), name


def test_of_the_layers_that_load_pytorch_reads():
    names = [name for name in nn.__all__ if inspect.isclass(getattr(nn, name)) and hasattr(torch.nn, name) and name != "Module"]
    assert len(names) > 20
    others = {(name, key) for name in names for key, (a, b) in _shared(getattr(nn, name), getattr(torch.nn, name)).items() if a != b}
    assert others == OTHERS.keys()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm"])
def test_values_where_epsilon_counts(name, dtype):
    """Values so small that an epsilon of another dtype gives another result."""
    ours, theirs = (getattr(package, name)(8, dtype=dtype) for package in (bridge, torch.nn))
    for scale in (1e-2, 1e-4, 1e-7):
        x = (torch.randn(4, 8, generator=torch.Generator().manual_seed(0)) * scale).to(dtype)
        torch.testing.assert_close(ours(x), theirs(x), rtol=2e-2 if dtype in (torch.bfloat16, torch.float16) else 1e-5, atol=1e-6)
    assert ours(x).dtype is dtype
