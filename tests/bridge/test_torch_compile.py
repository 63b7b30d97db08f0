"""Layers of duoln within torch.compile's graphs, and what torch.export says of them."""

import pytest

from duoln import ops
from duoln.errors import UsageError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peers

from torch._dynamo.testing import CompileCounterWithBackend

from duoln.bridge import torch as bridge
from duoln.bridge.torch import function


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.norm = torch.nn.Embedding(20, 8), bridge.LayerNorm(32)
        self.lstm = bridge.LSTM(8, 16, num_layers=2, bidirectional=True, norm="layer")

    def forward(self, ids):
        y, _ = self.lstm(self.embedding(ids))
        return torch.relu(self.norm(y))


@pytest.fixture
def model():
    torch.manual_seed(0)
    torch._dynamo.reset()
    return Model()


def _gradients(model, run, ids):
    y = run(ids)
    return [y, *torch.autograd.grad(y.square().sum(), list(model.parameters()))]


def test_one_graph_with_the_same_values_and_gradients(model):
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for batch in (3, 3, 5):
        ids = torch.randint(20, (7, batch))
        for a, b in zip(_gradients(model, compiled, ids), _gradients(model, model, ids), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert not len(function._tickets)


@pytest.mark.parametrize("make", [lambda: bridge.LayerNorm(16), lambda: bridge.LSTM(16, 4, norm="layer", batch_first=True)], ids=["norm", "LSTM"])
def test_arguments_that_are_views(make):
    """The compiler is told the strides of what the operators return."""
    torch._dynamo.reset()
    layer, weight = make(), torch.randn(16, 16, requires_grad=True)

    def run(x):
        y = layer((x.transpose(0, 1).reshape(-1, 16) @ weight).view(7, 3, 16).transpose(0, 1))
        return y if isinstance(y, torch.Tensor) else y[0]

    x, results = torch.randn(3, 7, 16, requires_grad=True), []
    for each in (run, torch.compile(run, fullgraph=True, backend="aot_eager")):
        y = each(x)
        results.append([y, *torch.autograd.grad(y.square().sum(), [x, weight, *layer.parameters()])])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_dynamic_shapes():
    torch._dynamo.reset()
    layer, x = bridge.LayerNorm(16), torch.randn(3, 16)
    torch.testing.assert_close(torch.compile(layer, dynamic=True, fullgraph=True, backend="aot_eager")(x), layer(x))


def test_without_gradients_and_in_autocast(model):
    compiled, ids = torch.compile(model, fullgraph=True, backend="aot_eager"), torch.randint(20, (7, 3))
    with torch.no_grad():
        torch.testing.assert_close(compiled(ids), model(ids))
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(compiled(ids), model(ids))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # PyTorch's own, where a graph goes on
def test_a_function_breaks_the_graph_and_computes():
    cube = bridge.differentiable(lambda x: ops.square(x) * x)
    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    y = torch.compile(lambda x: torch.sin(cube(torch.cos(x))), backend="aot_eager")(x)
    torch.testing.assert_close(y, torch.sin(torch.cos(x) ** 3))
    assert torch.autograd.grad(y.sum(), x)[0].isfinite().all()


def test_the_operators_keep_pytorchs_rules():
    args = '["layer_norm", {"eps": 1e-5, "axis": [-1]}]', [torch.randn(3, 4, requires_grad=True), torch.randn(4, requires_grad=True)], [True, True]
    torch.library.opcheck(torch.ops.duoln.forward.default, args, test_utils=("test_schema", "test_autograd_registration", "test_faketensor"))


def test_export_is_refused_in_words(model):
    with pytest.raises(UsageError, match=r"torch\.export.*state_dict"):
        torch.export.export(model, (torch.randint(20, (7, 3)),))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit.script itself
@pytest.mark.parametrize("make", [Model, lambda: bridge.LSTM(3, 4), lambda: torch.nn.Sequential(bridge.RMSNorm(3))], ids=["model", "LSTM", "norm"])
def test_script_is_refused_in_words(make):
    with pytest.raises(UsageError, match=r"torch\.jit\.script.*state_dict"):
        torch.jit.script(make())


def test_lengths_share_a_graph(model):
    """One with the numbers of the first call, one with symbols in their place, one for a single time step."""
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    for k, length in enumerate((7, 9, 12, 5, 30, 8, 1, 11, 13, 21, 2, 40)):
        ids = torch.randint(20, (length, 3 + k % 3))
        torch.testing.assert_close(compiled(ids), model(ids))
    assert counter.frame_count <= 3


@pytest.mark.minutes
def test_the_compiler_of_pytorch(model):
    compiled, ids = torch.compile(model, fullgraph=True), torch.randint(20, (7, 3))
    for a, b in zip(_gradients(model, compiled, ids), _gradients(model, model, ids), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
