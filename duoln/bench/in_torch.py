"""PyTorch's side of the rows of `duoln bench`: with its own layouts, its fused AdamW, and loops as users write them.

A form of a recurrent layer is "loop" (each time step from its inputs), "hoisted" (the products of all inputs before the
loop), "plain" (PyTorch's own layer, without norms) or "bridge" (the LSTM of `duoln.bridge.torch`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec
from typing import Any

import numpy as np

from duoln.bench import machine
from duoln.bench.clock import DeviceSeconds, Work, agreement_norms
from duoln.bench.row import RATE, TOKENS, WEIGHT_DECAY, Call, Functions, Row, listed
from duoln.errors import UsageError
from duoln.kernels.registry import timed

Step = Callable[[Any, list[Any]], list[Any]]
"""A time step: the next states from the input's side and the states."""


def prepare(row: Row, asked: Mapping[str, Any]) -> Work:
    """The work of a row: by `torch.compile` for the peer "torch-compile"."""
    import torch

    from duoln import runtime

    # Both libraries of a comparison compute in float32: by default cuDNN's layers would round products to TF32.
    torch.backends.cudnn.allow_tf32 = False
    device = device_for(runtime.choose(asked["backend"])[0].name)
    made = row.arrays()
    machine.begin_peak()
    copies = [[torch.tensor(_to_torch_layout(name, array), device=device) for name, array in made.items()]
              for _ in range(row.copies(made))]
    functions, by_compiler = _Forms(torch, asked).functions(), asked["peer"] == "torch-compile" and "form" not in asked
    calls = [_call(torch, row, functions, tensors, by_compiler) for tensors in copies]

    def wait(results: Sequence[Any]) -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    calls[0]()
    results = (_call(torch, row._replace(passes="forward"), functions, copies[0], False)
               if row.passes == "tokens" else calls[0])()
    described = {**facts(device), "peak_bytes": machine.peak()}  # without the figures
    names = ["", *row.names] if row.passes in ("gradient", "step", "update") else [""] * len(results)
    host = [_to_torch_layout(name, t.detach().cpu().numpy(), back=True) for name, t in zip(names, results, strict=False)
            if t is not None]
    return Work(lambda k: calls[k % len(calls)](), agreement_norms(host), described, wait, keeps=len(calls),
                capture=lambda run: graph_seconds(run) if device == "cuda" else None)


def _to_torch_layout(name: str, array: np.ndarray, back: bool = False) -> np.ndarray:
    """An array in PyTorch's layout: weights (out, in) and images (batch, channels, height, width); or back from it."""
    if array.dtype.kind == "i":
        return array.astype(np.int64)
    if name.startswith("image"):
        array = np.moveaxis(array, *((1, -1) if back else (-1, 1)))
    elif name.startswith("w") and array.ndim == 4:
        array = array.transpose((2, 3, 1, 0) if back else (3, 2, 0, 1))
    elif name.startswith("w"):
        array = array.T
    return np.ascontiguousarray(array)


def _call(torch: Any, row: Row, functions: Functions, tensors: list[Any], by_compiler: bool) -> Call:
    tracks = row.passes not in ("forward", "tokens")
    params = [tensor.requires_grad_(tracks) for tensor in tensors[:row.params]]

    def function(*tensors: Any) -> Any:
        return row.formula(functions, *tensors)

    if by_compiler:
        torch.compiler.reset()  # PyTorch stops compiling a function after eight forms
        function = compiled(function)

    def forward() -> list[Any]:
        with torch.no_grad():
            return listed(function(*tensors))

    def tokens() -> list[Any]:
        last, *states = tensors[row.params:]
        with torch.no_grad():
            for _ in range(TOKENS):
                logits, *states = function(*params, last, *states)
                last = torch.multinomial(torch.softmax(logits, dim=-1), 1)
                last.item()  # as characters are written
        return states

    def gradient() -> list[Any]:
        value = function(*tensors)
        return [value, *_gradients(torch, [value], params, functions.own, None)]

    def backward() -> list[Any]:
        gouts = [tensor for name, tensor in zip(row.names, tensors, strict=True) if name.startswith("gout")]
        results = listed(function(*tensors))
        return [*results, *_gradients(torch, results, params, functions.own, gouts)]

    if row.passes in ("step", "update"):
        return _step(torch, row, function, tensors, params, functions.own, functions.makes_layers)
    calls: dict[str, Call] = {"forward": forward, "tokens": tokens, "gradient": gradient, "backward": backward}
    return calls[row.passes]


def _gradients(torch: Any, results: list[Any], params: list[Any], own: list[Any], gouts: list[Any] | None) -> Any:
    """The gradients of parameters, and of those that a layer of PyTorch has besides, which are left out."""
    return torch.autograd.grad(results, [*params, *own], gouts, allow_unused=bool(own))[:len(params)]


def _step(torch: Any, row: Row, function: Callable[..., Any], tensors: list[Any], params: list[Any], own: list[Any],
          makes_layers: bool) -> Call:
    if row.passes == "update":
        for param in params:
            param.grad = 2 * param.detach()
    elif makes_layers:
        with torch.no_grad():
            function(*tensors)
    optimizer = torch.optim.AdamW([*params, *own], RATE, weight_decay=WEIGHT_DECAY, fused=True)
    rate = torch.tensor(RATE)

    def step() -> list[Any]:
        value = rate
        if row.passes == "step":
            optimizer.zero_grad()
            value = function(*tensors)
            value.backward()
        if row.clip is not None:
            torch.nn.utils.clip_grad_norm_([*params, *own], row.clip)
        optimizer.step()
        return [value, *params]

    return step


# Functions --------------------------------------------------------------------------------------------

class _Forms:
    """The functions of PyTorch in the forms that a request asks for."""

    def __init__(self, torch: Any, asked: Mapping[str, Any]) -> None:
        self._torch, self._form = torch, asked.get("form", "hoisted")
        self._compiles = asked["peer"] == "torch-compile"
        self._layers: dict[int, Any] = {}
        self._own: list[Any] = []

    def functions(self) -> Functions:
        """By duoln's names; `own` are the parameters of PyTorch's layers, which a call makes."""
        torch, of = self._torch, self._torch.nn.functional

        def layer_norm(x: Any, gain: Any, bias: Any) -> Any:
            return of.layer_norm(x, gain.shape, gain, bias)

        def add_layer_norm(x: Any, residual: Any, gain: Any, bias: Any) -> tuple[Any, Any]:
            total = x + residual
            return layer_norm(total, gain, bias), total

        return Functions(
            torch, of, linear=of.linear, conv2d=of.conv2d, max=torch.amax, cumulative_sum=torch.cumsum,
            split=torch.chunk, permute_dims=torch.permute, layer_norm=layer_norm, add_layer_norm=add_layer_norm,
            huber=of.huber_loss, embedding=lambda table, ids: of.embedding(ids, table), attention=self._attention,
            softmax_cross_entropy=of.cross_entropy, bce_with_logits=of.binary_cross_entropy_with_logits,
            linear_cross_entropy=lambda x, w, b, labels: of.cross_entropy(of.linear(x, w, b), labels),
            group_norm=lambda x, gain, bias, groups: of.group_norm(x, groups, gain, bias), squared_error=of.mse_loss,
            instance_norm=lambda x, gain, bias: of.instance_norm(x, weight=gain, bias=bias), timed=self._timed,
            recurrent=self._recurrent, own=self._own, makes_layers=self._form == "plain")

    def _timed(self, name: str, values: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        peer = timed()[name].peer
        if peer is None:
            raise UsageError(f"[bench] PyTorch has no peer of {name}")
        return peer(self._torch, *values, **attrs)

    def _attention(self, query: Any, key: Any, value: Any, causal: bool) -> Any:
        of = self._torch.nn.functional
        if self._form != "written out":
            return of.scaled_dot_product_attention(query, key, value, is_causal=causal)
        scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
        if causal:
            steps = query.shape[-2]
            if steps not in self._layers:
                ones = self._torch.ones(steps, steps, dtype=self._torch.bool, device=query.device)
                self._layers[steps] = ones.triu(1)
            scores = scores.masked_fill(self._layers[steps], float("-inf"))
        return of.softmax(scores, -1) @ value

    def _recurrent(self, cell: str, norm: str, p: Mapping[str, Any]) -> tuple[Any, list[Any]]:
        states, key = [p[name] for name in ("h", "c") if name in p], id(p["w_x"])
        if key not in self._layers:
            make: Any = {"plain": self._plain, "bridge": self._bridge}.get(self._form, self._loop)
            self._layers[key] = make(cell, norm, p)
        layer = self._layers[key]
        if self._form in ("plain", "bridge"):
            given = tuple(state[None] for state in states)
            out, last = layer(p["x"], given if cell == "lstm" else given[0])
            return out, [state[0] for state in (last if cell == "lstm" else [last])]
        side, step = layer
        whole, outs = None if self._form == "loop" else side(p["x"]), []
        for t in range(p["x"].shape[0]):
            states = step(side(p["x"][t]) if whole is None else [part[t] for part in whole], states)
            outs.append(states[0])
        return self._torch.stack(outs), states

    def _loop(self, cell: str, norm: str, p: Mapping[str, Any]) -> tuple[Callable[[Any], list[Any]], Step]:
        side, step = _cell(self._torch, cell, norm, p)
        return side, compiled(step) if self._compiles else step

    def _plain(self, cell: str, norm: str, p: Mapping[str, Any]) -> Any:
        layer = getattr(self._torch.nn, cell.upper())(p["x"].shape[2], p["w_h"].shape[1], device=p["x"].device)
        self._own += layer.parameters()
        return layer

    def _bridge(self, cell: str, norm: str, p: Mapping[str, Any]) -> Any:
        """The layer of the bridge, with these tensors as its parameters."""
        from duoln.bridge.torch import LSTM

        layer = LSTM(p["x"].shape[2], p["w_h"].shape[1], bias="one", norm=norm, device=p["x"].device)
        places = {"w_x": (layer, "weight_ih_l0"), "w_h": (layer, "weight_hh_l0"), "bias": (layer, "bias_ih_l0")}
        places |= {f"{ours}_{side}": (getattr(layer, f"layernorm_{name}_l0"), theirs)
                   for side, name in (("x", "i"), ("h", "h"), ("c", "c"))
                   for ours, theirs in (("gain", "weight"), ("bias", "bias")) if f"gain_{side}" in p}
        for name, (module, theirs) in places.items():
            del module._parameters[theirs]
            setattr(module, theirs, p[name])
        return layer


def _cell(torch: Any, cell: str, norm: str, p: Mapping[str, Any]) -> tuple[Callable[[Any], list[Any]], Step]:
    """The input's side of a cell, and its time step, as users write them with the functions of PyTorch."""
    linear, layer_norm = torch.nn.functional.linear, torch.nn.functional.layer_norm
    hidden = p["w_h"].shape[1]

    def normed(a: Any, side: str, part: slice = slice(None)) -> Any:
        if norm == "none":
            return a[..., part]
        gain = p[f"gain_{side}"][part]
        if norm == "batch":
            return torch.nn.functional.batch_norm(a, None, None, gain, p.get(f"bias_{side}"), training=True)
        return layer_norm(a[..., part], gain.shape, gain, p[f"bias_{side}"][part])

    def lstm_side(x: Any) -> list[Any]:
        product = linear(x, p["w_x"])
        return [product if norm == "layer-per-gate" else normed(product, "x") + p["bias"]]

    def lstm_step(side: list[Any], states: list[Any]) -> list[Any]:
        product = linear(states[0], p["w_h"])
        if norm == "layer-per-gate":
            gates = layer_norm((side[0] + product).unflatten(-1, (4, hidden)), (hidden,))
            i, f, g, o = (gates * p["gain_h"].view(4, hidden) + p["bias_h"].view(4, hidden)).unbind(-2)
            c = normed(torch.sigmoid(f) * states[1] + torch.sigmoid(i) * torch.tanh(g), "c")
            return [torch.sigmoid(o) * torch.tanh(c), c]
        i, f, g, o = (side[0] + normed(product, "h")).chunk(4, dim=-1)
        c = torch.sigmoid(f) * states[1] + torch.sigmoid(i) * torch.tanh(g)
        return [torch.sigmoid(o) * torch.tanh(normed(c, "c")), c]

    first, last = slice(0, 2 * hidden), slice(2 * hidden, None)

    def gru_side(x: Any) -> list[Any]:
        product = linear(x, p["w_x"], p["bias"] if norm == "none" else None)
        return [normed(product, "x", first), normed(product, "x", last)]

    def gru_step(side: list[Any], states: list[Any]) -> list[Any]:
        product = linear(states[0], p["w_h"])
        z, r = torch.sigmoid(side[0] + normed(product, "h", first)).chunk(2, dim=-1)
        new = torch.tanh(side[1] + r * normed(product, "h", last))
        return [(1 - z) * states[0] + z * new]

    return (lstm_side, lstm_step) if cell == "lstm" else (gru_side, gru_step)


# The library ------------------------------------------------------------------------------------------

def check_installed() -> None:
    """Raises UsageError if PyTorch is not installed; it is not loaded."""
    if find_spec("torch") is None:
        raise UsageError('[bench] --peer needs PyTorch, which is not installed; pip install ".[peers]" or torch')


def device_for(backend: str) -> str:
    """The device of PyTorch beside a backend of ours: CUDA beside CuPy if it can, else the CPU."""
    import torch

    return "cuda" if backend == "cupy" and torch.cuda.is_available() else "cpu"


def default_device(device: str) -> AbstractContextManager[Any]:
    """The context in which PyTorch creates tensors on `device`. PyTorch's global default is left alone."""
    import torch

    context: AbstractContextManager[Any] = torch.device(device)
    return context


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function by `torch.compile`, which compiles when it is first called."""
    import torch

    result: Callable[..., Any] = torch.compile(function)
    return result


def facts(device: str) -> dict[str, Any]:
    """The library and its device."""
    import torch

    described = {"library": f"torch {torch.__version__}", "device": device}
    return described | ({"threads": str(torch.get_num_threads())} if device == "cpu" else {})


def graph_seconds(run: Callable[[], None]) -> DeviceSeconds:
    """Capture what `run` queues; as `device_seconds` of our backend."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def seconds() -> float:
        graph.replay()
        first.record()
        graph.replay()
        last.record()
        last.synchronize()
        milliseconds: float = first.elapsed_time(last)
        return milliseconds / 1e3

    return seconds
