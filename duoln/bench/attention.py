"""`duoln bench attention`: scaled dot-product attention over shapes, beside PyTorch's own and the one written out.

A run is forward, or forward and the gradients of queries, keys and values, in float32, causal or not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from duoln.bench.records import Work, source_hash
from duoln.bench.turns import Entry, with_allocators
from duoln.bench.wide import work_of
from duoln.bench.wide_rows import Row
from duoln.kernels.attention import cases
from duoln.kernels.attention.cases import Shape

PEERS = ("torch",)
NAMES = ("query", "key", "value")


def prepare(asked: dict[str, Any]) -> Work:
    """The work of one side: our operator, PyTorch's, or softmax(q @ k^T) @ v in PyTorch, with the whole scores."""
    from duoln.runtime import choose

    shape, causal, backend = Shape(*asked["shape"]), asked["causal"], choose(asked["backend"])[0]
    row, arrays = row_of(shape, causal, asked["backward"], asked.get("form") == "written out"), arrays_for(shape)
    work = work_of(row, arrays, asked["peer"], backend)
    return work if asked["peer"] else work._replace(facts={**work.facts, "rule": _rule(arrays, causal, backend)})


def arrays_for(shape: Shape) -> dict[str, np.ndarray]:
    """The same inputs for every side: queries, keys, values, what each result counts in the loss, and the keys of the
    future.
    """
    rng, sizes = np.random.default_rng(0), (shape.batch, shape.heads, shape.steps, shape.width)
    return {**{name: rng.standard_normal(sizes).astype(np.float32) for name in (*NAMES, "share")},
            "future": np.triu(np.ones((shape.steps, shape.steps), bool), 1)}


def row_of(shape: Shape, causal: bool, backward: bool, written_out: bool) -> Row:
    """Attention as a row that `duoln.bench.wide` prepares, by the operator of a library or in PyTorch's words."""
    def attention(of: Any, query: Any, key: Any, value: Any, future: Any) -> Any:
        if not written_out:
            return of.attention(query, key, value, causal=causal)
        scores = query @ key.transpose(-1, -2) * shape.width ** -0.5
        return of.softmax(scores.masked_fill(future, float("-inf")) if causal else scores, -1) @ value

    def loss(of: Any, query: Any, key: Any, value: Any, share: Any, future: Any) -> Any:
        out = attention(of, query, key, value, future)
        return of.sum(out * share) if backward else out

    return Row("attention", {}, loss, "gradient" if backward else "forward", 3 if backward else 0)


def _rule(arrays: dict[str, np.ndarray], causal: bool, backend: Any) -> str:
    """The name of the rule that runs our operator."""
    import duoln

    given = [duoln.tensor(arrays[name], backend) for name in NAMES]
    scale = arrays["query"].shape[-1] ** -0.5
    return duoln.ops.scaled_dot_product_attention.explain(*given, causal=causal, scale=scale)[-1][0]


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
