"""duoln inside PyTorch: pure functions with gradients, and layers as `torch.nn.Module`.

    from duoln.bridge.torch import LSTM                 # in the place of torch.nn.LSTM
    self.lstm = LSTM(400, 400, num_layers=2, norm="layer")

Arrays are shared: on the CPU with NumPy, on CUDA with CuPy, on PyTorch's stream and from its allocator. A backward pass
is of first order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duoln.core.public_names import only_public

if TYPE_CHECKING:
    from duoln.bridge.torch.function import differentiable
    from duoln.bridge.torch.layers import AddLayerNorm, AddRMSNorm, LayerNorm, RMSNorm
    from duoln.bridge.torch.recurrent import GRU, LSTM, RNN

__all__ = ["GRU", "LSTM", "RNN", "AddLayerNorm", "AddRMSNorm", "LayerNorm", "RMSNorm", "differentiable"]
# PyTorch is loaded with the first of them.
only_public(globals(), lazy={name: f"{__name__}.{module}:{name}" for module, names in {
    "function": ["differentiable"], "layers": ["AddLayerNorm", "AddRMSNorm", "LayerNorm", "RMSNorm"],
    "recurrent": ["GRU", "LSTM", "RNN"]}.items() for name in names})
