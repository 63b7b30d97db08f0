"""The peer of `duoln bench wide`: the same rows in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from duoln.bench import wide
from duoln.bench.operators_torch import compiled, device_for, facts
from duoln.bench.records import Work

if TYPE_CHECKING:
    from duoln.bench.wide import Call, Row


def prepare(row: Row, arrays: Mapping[str, np.ndarray], peer: str, backend: str) -> Work:
    """The work of a row, by `torch.compile` for the peer "torch-compile", beside a backend of ours."""
    import torch

    device = device_for(backend)

    def wait(results: Any) -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    return wide.work(_call(torch, row, arrays, device, peer == "torch-compile"), row.calls,
                     lambda t: t.detach().cpu().numpy(), wait, facts(device))


def _call(torch: Any, row: Row, arrays: Mapping[str, np.ndarray], device: str, by_compiler: bool) -> Call:
    of = torch.nn.functional
    functions = wide.Functions(torch, of, max=torch.amax, cumulative_sum=torch.cumsum,
                               bce_with_logits=of.binary_cross_entropy_with_logits)
    tensors = [torch.tensor(array, device=device) for array in arrays.values()]
    wanted = [tensor.requires_grad_() for tensor in tensors[:row.wanted]]

    def function(*tensors: Any) -> Any:
        return row.formula(functions, *tensors)

    call = compiled(function) if by_compiler else function
    if not wanted:
        def forward() -> list[Any]:
            with torch.no_grad():
                return [call(*tensors)]

        return forward

    def gradient() -> list[Any]:
        value = call(*tensors)
        return [value, *torch.autograd.grad(value, wanted)]

    return gradient
