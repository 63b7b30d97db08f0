"""`duoln bench rnn`: recurrent layers over cells, variants and shapes, beside PyTorch.

A run is forward, or forward and the gradients of everything (input, states, weights, norms), in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from duoln.bench import machine
from duoln.bench.clock import DeviceSeconds
from duoln.bench.records import Work, of_row, source_hash
from duoln.bench.turns import Entry, with_allocators
from duoln.kernels.recurrent import cases
from duoln.kernels.recurrent.cases import Shape
from duoln.ops.recurrent.variants import CELLS, has_bias, norm_shapes

PEERS = ("torch",)
PRODUCTS = "products"

KERNELS = Path(cases.__file__).parents[1]


def arrays_for(cell: str, norm: str, shape: Shape) -> dict[str, np.ndarray]:
    """The same inputs for every side."""
    rng = np.random.default_rng(0)
    t, b, n, h = shape
    width = CELLS[cell].gates * h
    sizes: dict[str, tuple[int, ...]] = {"x": (t, b, n), "h": (b, h)}
    if cell == "lstm":
        sizes["c"] = (b, h)
    sizes |= {"w_x": (n, width), "w_h": (h, width)}
    if has_bias(cell, norm):
        sizes["bias"] = (width,)
    sizes |= {"weights": (t, b, h), **norm_shapes(cell, norm, h)}
    scales = {"w_x": n ** -0.5, "w_h": h ** -0.5, "bias": 0.1}
    made = {k: (scales.get(k, 1.0) * rng.standard_normal(s)).astype(np.float32) for k, s in sizes.items()}
    return made | {k: 1 + 0.1 * made[k] for k in made if k.startswith("gain")}


def checks(out: np.ndarray, gradients: dict[str, np.ndarray]) -> list[float]:
    """Norms of the output and of each gradient; all sides must agree on them."""
    return [float(np.linalg.norm(a.astype(np.float64))) for a in (out, *(gradients[k] for k in sorted(gradients)))]


def prepare(asked: dict[str, Any]) -> Work:
    """The work of one side: our layer, only the matrix products of our layer, or PyTorch's layer."""
    cell, norm, backward = asked["cell"], asked["norm"], asked["backward"]
    from duoln.runtime import choose

    arrays = arrays_for(cell, norm, Shape(*asked["shape"]))
    backend = choose(asked["backend"])[0]
    if asked["peer"] not in (None, PRODUCTS):
        import_module(asked["peer"])
    machine.begin_peak()
    if asked["peer"] == PRODUCTS:
        return _products(asked["backend"], arrays, backward)
    if asked["peer"] is None:
        if asked.get("rule"):
            _prefer(cell, backend.name, asked["rule"])
        return _ours(cell, norm, backward, asked["backend"], arrays)
    from duoln.bench import recurrent_torch
    from duoln.bench.operators_torch import device_for, graph_seconds, wait_after

    device = device_for(backend.name)
    queue, out, gradients, facts = recurrent_torch.build(cell, norm, asked["form"], arrays, backward, device)
    return Work(lambda k: wait_after(queue, device), checks(out, gradients), facts, warmups=2,
                capture=lambda: graph_seconds(queue) if device == "cuda" else None)


def _prefer(cell: str, backend: str, name: str) -> None:
    """From now on this process tries one rule of a cell before the others."""
    from duoln import ops

    op = getattr(ops, cell)
    op.add(next(rule for rule in op.rules(backend) if rule.name == name), backend=backend)


def _products(backend_name: str | None, arrays: Mapping[str, np.ndarray], backward: bool) -> Work:
    """Only the matrix products of a run, for each time step one of the state and one of its gradient. No rule can be
    faster.
    """
    from duoln import runtime

    backend = runtime.backend(backend_name)
    steps, batch, n_in = arrays["x"].shape
    width = arrays["w_h"].shape[1]
    x, h, w_x, w_h = (backend.asarray(arrays[k]) for k in ("x", "h", "w_x", "w_h"))
    x, w_back = backend.reshape(x, (steps * batch, n_in)), backend.asarray(np.ascontiguousarray(arrays["w_h"].T))
    d, d_all = backend.ones((batch, width)), backend.ones((steps * batch, width))
    states = backend.ones((steps * batch, h.shape[1]))

    def run(k: int) -> None:
        results = [backend.matmul(x, w_x)]
        results += [backend.matmul(h, w_h) for _ in range(steps)]
        if backward:
            results += [backend.matmul(d, w_back) for _ in range(steps)]
            results += [backend.matmul(backend.permute_dims(left, (1, 0)), d_all) for left in (states, x)]
            results.append(backend.matmul(d_all, backend.permute_dims(w_x, (1, 0))))
        backend.wait(results)

    return Work(run, [], {"backend": machine.backend_facts(backend)}, warmups=1)


def _ours(cell: str, norm: str, backward: bool, backend_name: str | None, arrays: dict[str, np.ndarray]) -> Work:
    import duoln
    from duoln import ops, tree

    backend = duoln.backend(backend_name)
    weights = duoln.tensor(arrays["weights"], backend)
    params = {k: duoln.tensor(v, backend) for k, v in arrays.items() if k != "weights"}
    names = list(norm_shapes(cell, norm, 1))

    def forward(p: dict[str, Any]) -> Any:
        given = {k: v for k, v in p.items() if k not in names}
        return getattr(ops, cell)(**given, norms={k: p[k] for k in names}, norm=norm)[0]

    gradient = duoln.value_and_grad(lambda p: ops.sum(forward(p) * weights))

    def queue() -> Any:
        return gradient(params) if backward else forward(params)

    def run(k: int) -> None:
        backend.wait([t.data for t in tree.leaves(queue())])

    def capture() -> DeviceSeconds | None:
        device_seconds: Callable[..., DeviceSeconds] | None = getattr(backend, "device_seconds", None)
        return None if device_seconds is None else device_seconds(queue)

    gradients = {k: g.numpy() for k, g in gradient(params)[1].items()} if backward else {}
    facts = {"backend": machine.backend_facts(backend), "rule": rule_of(cell, norm, params)}
    return Work(run, checks(forward(params).numpy(), gradients), facts, warmups=2 if backward else 1, capture=capture)


def rule_of(cell: str, norm: str, params: Mapping[str, Any]) -> str:
    """The name of the rule that runs a layer with these tensors."""
    from duoln import ops

    states = [params[name] for name in ("h", "c") if name in params]
    norms = {name: params[name] for name in norm_shapes(cell, norm, 1)}
    attributes = {"norm": norm, "eps": 1e-5, "reverse": False}
    verdicts = getattr(ops, cell).explain(params["x"], *states, params["w_x"], params["w_h"], params.get("bias"),
                                          None, norms, **attributes)
    name: str = verdicts[-1][0]
    return name


def source_of(cell: str, rule: str | None) -> str | None:
    """The hash of the source files of a cell's fused rules and of the files that they share; None for the composed
    rule.
    """
    return None if rule in (None, "composed") else source_hash(KERNELS, [f"recurrent/{cell}", "recurrent"])


def case_of(cell: str, norm: str, shape: Shape, backward: bool, row: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a case in a record, from a row of `turns.time_in_turns`."""
    rule = row["facts"].get("rule")
    return {"op": f"{cell} {norm}", "passes": "forward+backward" if backward else "forward", "shape": shape,
            "moved": None if backward else cases.least_bytes(cell, shape), "flops": cases.flops(cell, shape, backward),
            "rule": rule, "source": source_of(cell, rule), **of_row(row)}


def entries(cell: str, norm: str, shape: Shape, backward: bool, backend: str | None, peers: list[str]) -> list[Entry]:
    """The sides of a comparison: our layer, our matrix products alone, and PyTorch's loop, loop with hoisted inputs,
    and plain layer.
    """
    asked = {"kind": "rnn", "cell": cell, "norm": norm, "shape": list(shape), "backward": backward,
             "backend": backend, "peer": None}
    rows = [Entry("duoln", asked), Entry("our products alone", {**asked, "peer": PRODUCTS}, checked=False)]
    if "torch" in peers and norm == "recurrent-bias":
        rows += with_allocators("torch.nn.GRU", {**asked, "peer": "torch", "form": "plain"})
    if "torch" in peers and cell == "lstm" and norm in ("layer-per-gate", "batch"):
        rows += with_allocators("torch loop", {**asked, "peer": "torch", "form": "loop"})
    if "torch" in peers and norm in ("layer", "none"):
        if cell == "lstm":
            rows.append(with_allocators("duoln in torch", {**asked, "peer": "torch", "form": "bridge"})[0])
        rows += with_allocators("torch loop", {**asked, "peer": "torch", "form": "loop"})
        rows.append(with_allocators("torch loop, hoisted", {**asked, "peer": "torch", "form": "hoisted"})[0])
        rows.append(with_allocators(f"torch.nn.{cell.upper()}, no norm",
                                    {**asked, "peer": "torch", "form": "plain"}, checked=False)[0])
    return rows
