"""duoln inside PyTorch: pure functions with gradients, and layers as `torch.nn.Module`.

    from duoln.bridge.torch import LSTM                 # in the place of torch.nn.LSTM
    self.lstm = LSTM(400, 400, num_layers=2, norm="layer")

Arrays are shared: on the CPU with NumPy, on CUDA with CuPy, on PyTorch's stream and from its allocator. A backward pass
is of first order.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duoln.bridge.torch.function import differentiable
    from duoln.bridge.torch.norms import AddLayerNorm, AddRMSNorm, LayerNorm, RMSNorm
    from duoln.bridge.torch.recurrent import GRU, LSTM, RNN

_MODULES = {"differentiable": "function",
            **dict.fromkeys(("AddLayerNorm", "AddRMSNorm", "LayerNorm", "RMSNorm"), "norms"),
            **dict.fromkeys(("GRU", "LSTM", "RNN"), "recurrent")}
"""The module of each name. PyTorch is loaded with the first of them."""

__all__ = ["GRU", "LSTM", "RNN", "AddLayerNorm", "AddRMSNorm", "LayerNorm", "RMSNorm", "differentiable"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}", name=name)
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
