"""Pure functions and norms of duoln inside PyTorch: gradients, PyTorch's rules for what is saved, memory, threads, processes; over the
stand-in for CuPy, and within torch.compile's graphs.
"""

import sys
import threading
import weakref

import pytest

from duoln import ops
from duoln.errors import DtypeError, GradientError, ShapeError, UsageError
from duoln.testing import check_error

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peers

import stand_in_capture
from torch._dynamo.testing import CompileCounterWithBackend
from torch.fx.experimental.proxy_tensor import make_fx

from duoln.bridge import torch as bridge
from duoln.bridge.torch import arrays, function


def _doubles(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


affine = bridge.differentiable(lambda x, w, b: ops.layer_norm(x @ w, None, b))

LAYOUTS = {"contiguous": lambda: _doubles(4, 3), "transposed": lambda: _doubles(3, 4).T, "strided": lambda: _doubles(8, 6)[::2, ::2],
           "one row": lambda: _doubles(1, 3), "no row": lambda: _doubles(0, 3)}


@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS)
def test_gradcheck_in_every_layout(make):
    assert torch.autograd.gradcheck(affine, (make(), _doubles(3, 5), _doubles(5)))


def test_a_broadcast_argument():
    x, w, b = _doubles(1, 3), _doubles(3, 5), _doubles(5)
    affine(x.expand(4, 3), w, b).square().sum().backward()
    torch.testing.assert_close(x.grad, 4 * torch.autograd.grad(affine(x, w, b).square().sum(), x)[0])


@pytest.mark.parametrize("reverse", [ops.flip, lambda x: x[:, ::-1], lambda x: ops.split(x[::-1], 2, axis=1)[1]])
def test_results_and_gradients_that_are_reversed(reverse):
    x = _doubles(3, 4)
    assert torch.autograd.gradcheck(bridge.differentiable(lambda x: reverse(x * x)), (x,))
    assert torch.autograd.gradcheck(bridge.differentiable(lambda x: ops.square(reverse(reverse(x * 2.0)))), (_doubles(3, 8),))


def test_trees_other_values_and_what_needs_no_gradient():
    @bridge.differentiable
    def pick(params, ids, *, power):
        return {"y": ops.take(params["w"], ids, axis=0) ** power, "n": 3, "ids": ids}

    w, ids = _doubles(4, 3), torch.tensor([0, 2], dtype=torch.int32)
    result = pick({"w": w}, ids, power=2.0)
    assert result["n"] == 3 and result["ids"].tolist() == [0, 2] and not result["ids"].requires_grad
    result["y"].sum().backward()
    torch.testing.assert_close(w.grad[0], 2 * w.detach()[0])
    assert not w.grad[1].any()
    frozen = _doubles(4, 3).detach()
    assert not pick({"w": frozen}, ids, power=2.0)["y"].requires_grad
    with torch.no_grad():
        assert not pick({"w": w}, ids, power=2.0)["y"].requires_grad


def test_memory_is_shared_and_results_are_not_the_arguments():
    seen = []
    look = bridge.differentiable(lambda x: [seen.append(x.data.ctypes.data), x][1])
    x = torch.randn(3, 4)
    y = look(x)
    assert seen == [x.data_ptr()] and y.data_ptr() != x.data_ptr()
    y.zero_()
    assert x.abs().min() > 0


def test_what_was_changed_in_place_is_an_error_as_in_pytorch():
    x, w, b = _doubles(4, 3), _doubles(3, 5), _doubles(5)
    y = affine(x, w, b)
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    layer = bridge.LSTM(3, 4)
    y, _ = layer(torch.randn(2, 1, 3))
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("kind", ["LayerNorm", "RMSNorm"])
def test_a_norm_lets_its_result_be_changed_in_place(kind):
    """The gradient of a norm reads its arguments alone."""
    layer, x = getattr(bridge, kind)(5), torch.randn(4, 5, requires_grad=True)
    torch.relu(layer(x)).sum().backward()
    expected, x.grad = x.grad, None
    torch.relu_(layer(x)).sum().backward()
    assert torch.equal(x.grad, expected)


def test_gradients_and_results_have_memory_of_their_own():
    """PyTorch adds to gradients, and clips them, in place; a rule of duoln may return one array for several arguments."""
    x, y = _doubles(4, 3), _doubles(4, 3)
    twice = bridge.differentiable(lambda x, y: [ops.exp(x + y)] * 2)
    a, b = twice(x, y)
    (a.sum() + b.sum()).backward()
    pointers = [t.data_ptr() for t in (a, b, x.grad, y.grad)]
    assert len(set(pointers)) == 4
    layer, value = bridge.LSTM(3, 4, norm="layer"), torch.randn(5, 2, 3)
    for _ in range(2):
        layer(value)[0].square().sum().backward()
    sums = [p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    layer(value)[0].square().sum().backward()
    for once, p in zip(sums, layer.parameters(), strict=True):
        torch.testing.assert_close(once, 2 * p.grad)


def test_a_graph_is_read_twice_only_if_it_is_kept():
    x = _doubles(4, 3)
    y = affine(x, _doubles(3, 5), _doubles(5)).square().sum()
    y.backward(retain_graph=True)
    first, x.grad = x.grad, None
    y.backward()
    assert torch.equal(first, x.grad)
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


SECOND = {"LSTM": lambda: bridge.LSTM(6, 6, norm="layer"), "GRU": lambda: bridge.GRU(6, 6), "RNN": lambda: bridge.RNN(6, 6),
          "LayerNorm": lambda: bridge.LayerNorm(6), "RMSNorm": lambda: bridge.RMSNorm(6), "function": lambda: bridge.differentiable(ops.tanh)}


@pytest.mark.parametrize("way", ["of x", "behind a layer", "of weights", "frozen", "backward"])
@pytest.mark.parametrize("name", SECOND)
@pytest.mark.filterwarnings("ignore:Using backward.* with create_graph=True")
def test_a_second_gradient_is_a_named_error(name, way):
    """Also where nothing that comes into the backward pass needs a gradient: a gradient penalty."""
    layer, x, before = SECOND[name](), torch.randn(4, 3, 6, requires_grad=way != "of weights"), torch.nn.Linear(6, 6)
    if way == "frozen" and isinstance(layer, torch.nn.Module):
        layer.requires_grad_(False)
    y = layer(before(x) if way in ("behind a layer", "of weights") else x)
    y = y if isinstance(y, torch.Tensor) else y[0]
    if way == "backward":
        y.sum().backward(create_graph=True)
        g = x.grad
    else:
        [g] = torch.autograd.grad(y.sum(), before.weight if way == "of weights" else x, create_graph=True)
    check_error(GradientError, lambda: (y.mean() + g.square().sum()).backward(), "[differentiable]", "first order", "PyTorch's own")
    x.grad = None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch's own module of forward mode
@pytest.mark.parametrize("name", SECOND)
def test_forward_mode_is_a_named_error(name):
    """Also where no gradient of the reverse mode is needed."""
    layer, x = SECOND[name](), torch.randn(4, 3, 6)
    if isinstance(layer, torch.nn.Module):
        layer.requires_grad_(False)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        check_error(GradientError, lambda: layer(dual), "[bridge]", "forward", "PyTorch's own")
        layer(x)


HOOKS = {"save_on_cpu": torch.autograd.graph.save_on_cpu,
         "copies": lambda: torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda x: x),
         "rounds": lambda: torch.autograd.graph.saved_tensors_hooks(torch.zeros_like, lambda x: x),
         "keeps bytes": lambda: torch.autograd.graph.saved_tensors_hooks(lambda x: x.detach().numpy().copy(), torch.from_numpy)}


@pytest.mark.parametrize("hooks", HOOKS.values(), ids=HOOKS)
def test_hooks_on_saved_tensors_change_nothing(hooks):
    """A call keeps what its own gradient needs; other calls of the same kind do not get into its place."""
    layers, x = [bridge.LSTM(3, 4, norm="layer"), bridge.LayerNorm(4), bridge.LayerNorm(4)], torch.randn(5, 2, 3, requires_grad=True)
    torch.nn.init.normal_(layers[1].weight)

    def run():
        y = layers[2](layers[1](layers[0](x)[0]))
        return torch.autograd.grad(y, [x, *layers[0].parameters(), *layers[1].parameters()], torch.linspace(-1, 2, 40).view(5, 2, 4))

    expected = run()
    with hooks():
        results = run()
        y = layers[0](x)[0]
        y.mul_(2)
        with pytest.raises((RuntimeError, GradientError), match="modified by an inplace operation"):
            y.sum().backward()
    for a, b in zip(results, expected, strict=True):
        assert torch.equal(a, b)


WRONG = {"int64": (lambda: bridge.differentiable(ops.square)(torch.ones(2, dtype=torch.int64)), DtypeError, "torch.int64", "x.int()"),
         "complex": (lambda: bridge.differentiable(ops.square)(torch.ones(2, dtype=torch.complex64)), DtypeError, "torch.complex64"),
         "sparse": (lambda: bridge.differentiable(ops.square)(torch.eye(2).to_sparse()), DtypeError, "x.to_dense()"),
         "meta": (lambda: bridge.LayerNorm(2)(torch.ones(2, device="meta")), DtypeError, "meta", "cpu or cuda"),
         "NumPy's": (lambda: bridge.LayerNorm(2)(torch.ones(3, 2).numpy()), DtypeError, "torch.Tensor", "ndarray"),
         "traced": (lambda: torch.jit.trace(bridge.LayerNorm(2), torch.ones(3, 2)), UsageError, "tracing", "state_dict"),
         "traced by fx": (lambda: make_fx(bridge.LSTM(2, 3))(torch.ones(4, 1, 2)), UsageError, "tracing", "state_dict"),
         "scripted": (lambda: torch.jit.script(bridge.differentiable(ops.tanh)), UsageError, "torch.jit.script"),
         "a width": (lambda: bridge.LayerNorm(4)(torch.ones(2, 5)), ShapeError, "[LayerNorm]", "(4,)", "(2, 5)"),
         "axes": (lambda: bridge.AddLayerNorm((2, 3))(torch.ones(2, 3), torch.ones(2, 3)), ShapeError, "one axis", "(2, 3)")}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")  # of torch.jit.trace itself
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_wrong_calls(wrong):
    call, kind, *words = wrong
    check_error(kind, call, *words)


NORMS = {"LayerNorm": ((6,), {}), "of two axes": ((5, 6), {}), "without a bias": ((6,), {"bias": False}), "without parameters": ((6,), {"elementwise_affine": False}),
         "RMSNorm": ((6,), {}), "RMSNorm with eps": ((6,), {"eps": 1e-3})}


@pytest.mark.parametrize("name", NORMS)
def test_norms_as_torch(name):
    (shape, options), kind = NORMS[name], "RMSNorm" if "RMS" in name else "LayerNorm"
    theirs, ours = (getattr(package, kind)(shape, **options).double() for package in (torch.nn, bridge))
    ours.load_state_dict(theirs.state_dict())
    x = _doubles(3, 5, 6)
    for layer in (theirs, ours):
        layer.result = [y := layer(x), *torch.autograd.grad((y ** 3).sum(), [x, *layer.parameters()])]
    for a, b in zip(theirs.result, ours.result, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", ["LayerNorm", "RMSNorm"])
def test_norms_of_a_sum(kind):
    norm, of_sum = getattr(bridge, kind)(6).double(), getattr(bridge, f"Add{kind}")(6).double()
    x, residual = _doubles(4, 6), _doubles(4, 6)
    y, total = of_sum(x, residual)
    torch.testing.assert_close(y, norm(x + residual))
    assert torch.equal(total, x + residual)
    assert torch.autograd.gradcheck(of_sum, (x, residual))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits_and_autocast(dtype):
    x = torch.randn(4, 6)
    y = bridge.LayerNorm(6).to(dtype)(x.to(dtype))
    assert y.dtype is dtype
    torch.testing.assert_close(y.float(), torch.nn.functional.layer_norm(x.to(dtype).float(), (6,)), rtol=1e-2, atol=1e-2)
    layer = bridge.LSTM(6, 8, norm="layer")
    with torch.autocast("cpu", dtype):
        h, _ = layer(torch.nn.Linear(6, 6)(x)[None])
    assert h.dtype is torch.float32
    h.sum().backward()
    assert layer.weight_hh_l0.grad.dtype is torch.float32


def test_what_is_kept_goes_with_the_backward_pass():
    y = affine(x := _doubles(4, 3), _doubles(3, 5), _doubles(5))
    kept = weakref.ref(y.grad_fn.back)
    y.sum().backward(retain_graph=True)
    assert kept() is not None
    y.sum().backward()
    assert kept() is None and x.grad is not None


def test_threads():
    layer, expected = bridge.LSTM(3, 8, norm="layer", dtype=torch.float64), []
    inputs = [_doubles(5, 2, 3) for _ in range(8)]

    def gradient(x):
        return torch.autograd.grad(layer(x)[0].square().sum(), x)[0]

    expected, results = [gradient(x) for x in inputs], {}

    def work(k):
        for _ in range(5):
            results[k] = gradient(inputs[k])

    started = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    assert all(torch.equal(results[k], expected[k]) for k in range(8))


class Normed(torch.utils.data.Dataset):
    """Rows that a worker normalises."""

    def __init__(self):
        self.norm = bridge.LayerNorm(4)

    def __len__(self):
        return 6

    def __getitem__(self, k):
        with torch.no_grad():
            return self.norm(torch.full((4,), float(k)) + torch.arange(4.0))


def test_in_a_worker_of_a_dataloader():
    data = Normed()
    data[0]  # the parent has used it when the workers are forked
    rows = torch.cat(list(torch.utils.data.DataLoader(data, batch_size=3, num_workers=2)))
    torch.testing.assert_close(rows, torch.stack([data[k] for k in range(6)]))


def test_pytorchs_threads_are_paused_and_start_again(monkeypatch):
    """They would spin beside those of a kernel that takes long. Where OpenMP cannot be asked, nothing is done."""
    monkeypatch.setattr(function.limits, "workers", lambda: 2)
    assert (function._pause.__wrapped__() is not None) == (sys.platform == "linux")
    monkeypatch.setattr(function.limits, "workers", lambda: 1)
    assert function._pause.__wrapped__() is None
    x = torch.ones(1 << 17)
    for _ in range(3):
        assert torch.exp(x).sum().item() == pytest.approx(x.numel() * 2.718281828, rel=1e-4)
        function.pause_threads()


@pytest.fixture
def on_gpu(gpu, monkeypatch):
    """Tensors on the CPU in the place of CUDA's. What waits for the device, or copies between it and the host, fails."""
    def refused(what):
        raise AssertionError(f"{what} in a call")

    monkeypatch.setattr(function, "backend_for", lambda device: gpu)
    monkeypatch.setattr(stand_in_capture, "refuse", refused)
    monkeypatch.setattr(stand_in_capture.Stream, "synchronize", lambda stream: refused("a wait"))
    return gpu


def test_memory_is_shared_both_ways(on_gpu):
    x, seen = torch.randn(3, 4), []

    def look(x):
        seen.append(x.data.data.ptr)
        seen.append(x * 2.0)
        return seen[1]

    y = bridge.differentiable(look)(x)
    assert seen[0] == x.data_ptr() and seen[1].data.data.ptr == y.data_ptr()
    torch.testing.assert_close(y, 2 * x)


@pytest.mark.parametrize(("make", "shape"), [(lambda: bridge.LayerNorm(64), (5, 64)), (lambda: bridge.LSTM(8, 16, norm="layer"), (4, 2, 8)),
                                             (lambda: bridge.GRU(8, 16), (4, 2, 8))], ids=["LayerNorm", "LSTM", "GRU"])
def test_a_call_and_its_gradient_wait_for_nothing(make, shape, on_gpu, numpy_backend, monkeypatch):
    layer, x, results = make(), torch.randn(shape, requires_grad=True), []
    for be in (on_gpu, numpy_backend):
        monkeypatch.setattr(function, "backend_for", lambda device, be=be: be)
        y = layer(x)
        y = y if isinstance(y, torch.Tensor) else y[0]
        results.append([y, *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_cuda_device_is_cupys():
    assert arrays._BACKENDS == {"cpu": "numpy", "cuda": "cupy"}


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
