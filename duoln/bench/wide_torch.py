"""The peer of `duoln bench wide`: the same rows in PyTorch, with its own layouts and its fused AdamW."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from duoln.bench import machine
from duoln.bench.operators_torch import compiled, device_for, facts
from duoln.bench.records import Work
from duoln.bench.wide import CLIP, RATE, WEIGHT_DECAY, Call, work
from duoln.bench.wide_rows import Functions, Row


def prepare(row: Row, arrays: Mapping[str, np.ndarray], peer: str, backend: str) -> Work:
    """The work of a row, by `torch.compile` for the peer "torch-compile", beside a backend of ours."""
    import torch

    device = device_for(backend)
    names = list(arrays)

    def host(results: Sequence[Any]) -> list[np.ndarray]:
        own = ["", *names] if row.params else [""] * len(results)
        return [_turned(name, t.detach().cpu().numpy(), back=True) for name, t in zip(own, results, strict=False)]

    def wait(results: Sequence[Any]) -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    machine.begin_peak()
    tensors = [torch.tensor(_turned(name, array), device=device) for name, array in arrays.items()]
    return work(_call(torch, row, tensors, peer == "torch-compile"), row.calls, host, wait, facts(device))


def _turned(name: str, array: np.ndarray, back: bool = False) -> np.ndarray:
    """An array in PyTorch's layout: weights (out, in) and images (batch, channels, height, width); or back from it."""
    if name == "labels":
        return array.astype(np.int64)
    if name.startswith("image"):
        array = np.moveaxis(array, *((1, -1) if back else (-1, 1)))
    elif name.startswith("w") and array.ndim == 4:
        array = array.transpose((2, 3, 1, 0) if back else (3, 2, 0, 1))
    elif name.startswith("w"):
        array = array.T
    return np.ascontiguousarray(array)


def _functions(torch: Any) -> Functions:
    of = torch.nn.functional

    def layer_norm(x: Any, gain: Any, bias: Any) -> Any:
        return of.layer_norm(x, gain.shape, gain, bias)

    def add_layer_norm(x: Any, residual: Any, gain: Any, bias: Any) -> tuple[Any, Any]:
        total = x + residual
        return layer_norm(total, gain, bias), total

    return Functions(
        torch, of, linear=of.linear, conv2d=of.conv2d, max=torch.amax, cumulative_sum=torch.cumsum, split=torch.chunk,
        permute_dims=torch.permute, layer_norm=layer_norm, add_layer_norm=add_layer_norm, huber=of.huber_loss,
        softmax_cross_entropy=of.cross_entropy, bce_with_logits=of.binary_cross_entropy_with_logits,
        linear_cross_entropy=lambda x, w, b, labels: of.cross_entropy(of.linear(x, w, b), labels),
        group_norm=lambda x, gain, bias, groups: of.group_norm(x, groups, gain, bias), squared_error=of.mse_loss,
        instance_norm=lambda x, gain, bias: of.instance_norm(x, weight=gain, bias=bias),
        attention=lambda q, k, v, causal: of.scaled_dot_product_attention(q, k, v, is_causal=causal))


def _call(torch: Any, row: Row, tensors: list[Any], by_compiler: bool) -> Call:
    functions = _functions(torch)
    params = [tensor.requires_grad_() for tensor in tensors[:row.params]]

    def function(*tensors: Any) -> Any:
        return row.formula(functions, *tensors)

    if by_compiler:
        torch.compiler.reset()  # PyTorch stops compiling a function after eight forms
        function = compiled(function)
    if row.passes == "forward":
        def forward() -> list[Any]:
            with torch.no_grad():
                results = function(*tensors)
            return results if isinstance(results, list) else [results]

        return forward
    if row.passes == "gradient":
        def gradient() -> list[Any]:
            value = function(*tensors)
            return [value, *torch.autograd.grad(value, params)]

        return gradient
    optimizer = torch.optim.AdamW(params, RATE, weight_decay=WEIGHT_DECAY, fused=True)
    if row.passes == "update":
        return _update(torch, optimizer, params)

    def step() -> list[Any]:
        optimizer.zero_grad()
        value = function(*tensors)
        value.backward()
        optimizer.step()
        return [value, *params]

    return step


def _update(torch: Any, optimizer: Any, params: list[Any]) -> Call:
    for param in params:
        param.grad = 2 * param.detach()
    rate = torch.tensor(RATE)

    def update() -> list[Any]:
        torch.nn.utils.clip_grad_norm_(params, CLIP)
        optimizer.step()
        return [rate, *params]

    return update
