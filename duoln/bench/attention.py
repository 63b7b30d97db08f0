"""`duoln bench attention`: scaled dot-product attention over shapes, beside PyTorch's own and the one written out.

A run is forward, or forward and the gradients of queries, keys and values, in float32, causal or not.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from duoln.bench import machine
from duoln.bench.records import Work, source_hash
from duoln.bench.recurrent import checks
from duoln.bench.turns import Entry, with_allocators
from duoln.kernels.attention import cases
from duoln.kernels.attention.cases import Shape

PEERS = ("torch",)
NAMES = ("query", "key", "value")


def arrays_for(shape: Shape) -> dict[str, np.ndarray]:
    """The same inputs for every side: queries, keys, values, and the weights of the results in the loss."""
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape_of(shape)).astype(np.float32) for name in (*NAMES, "weights")}


def shape_of(shape: Shape) -> tuple[int, int, int, int]:
    """(batch, heads, steps, width)."""
    return shape.batch, shape.heads, shape.steps, shape.width


def prepare(asked: dict[str, Any]) -> Work:
    """The work of one side: our operator, PyTorch's, or softmax(q @ k^T) @ v in PyTorch, with the whole scores."""
    shape, backward, causal = Shape(*asked["shape"]), asked["backward"], asked["causal"]
    from duoln.runtime import choose

    backend = choose(asked["backend"])[0]
    arrays = arrays_for(shape)
    if asked["peer"] is None:
        machine.begin_peak()
        return _ours(backend.name, arrays, causal, backward)
    import_module(asked["peer"])  # its libraries are no part of the peak
    from duoln.bench import attention_torch
    from duoln.bench.operators_torch import device_for, wait_after

    machine.begin_peak()
    device = device_for(backend.name)
    queue, out, gradients, facts = attention_torch.build(asked["form"], arrays, causal, backward, device)
    return Work(lambda k: wait_after(queue, device), checks(out, gradients), facts, warmups=2)


def _ours(backend_name: str, arrays: dict[str, np.ndarray], causal: bool, backward: bool) -> Work:
    import duoln
    from duoln import ops, tree

    backend = duoln.backend(backend_name)
    weights = duoln.tensor(arrays["weights"], backend)
    given = [duoln.tensor(arrays[name], backend) for name in NAMES]

    def forward(p: list[Any]) -> Any:
        query, key, value = p
        return ops.scaled_dot_product_attention(query, key, value, causal=causal)

    gradient = duoln.value_and_grad(lambda p: ops.sum(forward(p) * weights))

    def run(k: int) -> None:
        backend.wait([t.data for t in tree.leaves(gradient(given) if backward else forward(given))])

    gradients = dict(zip(NAMES, (g.numpy() for g in gradient(given)[1]), strict=True)) if backward else {}
    (query, key, value), scale = given, arrays["query"].shape[-1] ** -0.5
    verdicts = ops.scaled_dot_product_attention.explain(query, key, value, causal=causal, scale=scale)
    facts = {"backend": machine.backend_facts(backend), "rule": verdicts[-1][0]}
    return Work(run, checks(forward(given).numpy(), gradients), facts, warmups=2)


def source_of(rule: str | None) -> str | None:
    """The hash of the source files of the fused rules; None for the composed rule."""
    return None if rule in (None, "composed") else source_hash(Path(cases.__file__).parents[1], ["attention"])


def entries(shape: Shape, causal: bool, backward: bool, backend: str | None, peers: list[str]) -> list[Entry]:
    """The sides of a comparison."""
    asked = {"kind": "attention", "shape": list(shape), "causal": causal, "backward": backward, "backend": backend,
             "peer": None}
    rows = [Entry("duoln", asked)]
    if "torch" in peers:
        rows += with_allocators("torch", {**asked, "peer": "torch", "form": "own"})
        rows.append(with_allocators("torch, written out", {**asked, "peer": "torch", "form": "written out"})[0])
    return rows
