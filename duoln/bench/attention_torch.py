"""The peers of `duoln bench attention`: PyTorch's own attention, and the one that holds the scores of all queries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from duoln.bench.recurrent_torch import Built, weighted


def build(form: str, arrays: Mapping[str, np.ndarray], causal: bool, backward: bool, device: str) -> Built:
    """A function that queues a run of the peer; its output and gradients; and facts about the library.

    Args:
        form: "own" for `scaled_dot_product_attention`, "written out" for softmax(q @ k^T) @ v.
        arrays: query, key, value and weights, (batch, heads, steps, width).
        causal: each query sees the keys up to its own alone.
        backward: also compute gradients of the sum of the outputs weighted by `arrays["weights"]`.
        device: "cpu" or "cuda".
    """
    import torch

    return weighted(partial(_own if form == "own" else _written_out, torch, causal=causal), arrays, backward, device)


def _own(torch: Any, p: Mapping[str, Any], causal: bool) -> Callable[[], Any]:
    attention = torch.nn.functional.scaled_dot_product_attention
    return lambda: attention(p["query"], p["key"], p["value"], is_causal=causal)


def _written_out(torch: Any, p: Mapping[str, Any], causal: bool) -> Callable[[], Any]:
    query, key, value = p["query"], p["key"], p["value"]
    hidden = torch.ones(query.shape[-2], query.shape[-2], dtype=torch.bool, device=query.device).triu(1)

    def forward() -> Any:
        scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
        return torch.softmax(scores.masked_fill(hidden, float("-inf")) if causal else scores, dim=-1) @ value

    return forward
