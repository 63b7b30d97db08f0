"""Our side of the rows of `duoln bench`. Steps update by AdamW and are compiled, as guides write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import duoln
from duoln import Tensor, ops, optim, runtime
from duoln.backends.protocol import Array, Backend
from duoln.bench import machine
from duoln.bench.clock import MOST_CALLS, Work, agreement_norms
from duoln.bench.row import RATE, TOKENS, WEIGHT_DECAY, Call, Functions, Row, listed
from duoln.core import Op, Rule, composed_only, each_rule
from duoln.core.gradient import pullback
from duoln.errors import DuolnError
from duoln.kernels import device_limits
from duoln.kernels.registry import operator
from duoln.ops.recurrent.variants import norm_shapes
from duoln.randomness import Stream
from duoln.tasks.registry import package_of

_RESULT_BYTES = 2 << 30
"""Memory that the results of one run may take on a lazy library, which keeps them until the wait."""
_SAFETY = 64.0


def prepare(row: Row, asked: Mapping[str, Any]) -> Work:
    """Our work of a row.

    Raises:
        DuolnError: a rule computes something else than the composed one.
    """
    backend = runtime.choose(asked["backend"])[0]
    if "rule" in asked:
        _prefer(row.rule, backend, asked["rule"])
    made = row.arrays()
    if asked.get("form") == "products":
        return _products(backend, made, row.passes == "gradient")
    functions = Functions(_OURS, recurrent=_by_steps) if row.form == "cells" else _OURS
    machine.begin_peak()
    copies = [[duoln.tensor(array.copy(), backend) for array in made.values()] for _ in range(row.copies(made))]
    calls = [_call(row, functions, values) for values in copies]
    facts: dict[str, Any] = {"backend": machine.backend_facts(backend)}

    def note(op: Op[..., Any], rule: Rule) -> Rule:
        if op.name == row.rule:
            facts["rule"] = rule.name
            facts.update({} if op.is_own else {"package": package_of(op.__module__)})
        return rule

    with each_rule(note):
        calls[0]()
    # A later call than the first is checked; every side draws other tokens.
    results = (_call(row._replace(passes="forward"), functions, copies[0]) if row.passes == "tokens" else calls[0])()
    backend.wait([t.data for t in results])
    facts["peak_bytes"] = machine.peak()  # without the figures
    size = sum(t.data.nbytes for t in results)
    host = [t.numpy() for t in results]
    if row.cache != "running" and facts.get("rule", "composed") != "composed":
        _check(row, functions, copies[0], host, facts["rule"])
    capture = getattr(backend, "device_seconds", lambda run: None)
    return Work(lambda k: calls[k % len(calls)](), agreement_norms(host), facts, lambda results: backend.wait(
        [t.data for t in results]), keeps=None if backend.lazy else len(calls),
        most=max(min(MOST_CALLS, _RESULT_BYTES // max(size, 1)), 1) if backend.lazy else MOST_CALLS, capture=capture)


def _check(row: Row, functions: Functions, values: list[Tensor], ours: Sequence[np.ndarray], rule: str) -> None:
    """Compare with the composed rule: what computes something else is not timed."""
    with composed_only():
        expected = [t.numpy() for t in _call(row, functions, values)()]
    allowed = _SAFETY * np.finfo(np.float32).eps * np.sqrt(max(row.shape))
    for k, (mine, exact) in enumerate(zip(ours, expected, strict=True)):
        off = float(np.max(np.abs(mine - exact)) / max(float(np.max(np.abs(exact))), 1e-30))
        if not off <= allowed:
            raise DuolnError(f"[bench] {row.name}, rule '{rule}': result {k} is {off:.2g} of its largest off the "
                             f"composed rule (allowed {allowed:.2g}); what computes something else is not timed")


def _products(backend: Backend, made: Mapping[str, np.ndarray], backward: bool) -> Work:
    """Only the matrix products of a layer, for each time step one of the state and one of its gradient. No rule can be
    faster.
    """
    steps, batch, n_in = made["x"].shape
    width = made["w_h"].shape[1]
    x, h, w_x, w_h = (backend.asarray(made[name]) for name in ("x", "h", "w_x", "w_h"))
    x, w_back = backend.reshape(x, (steps * batch, n_in)), backend.asarray(np.ascontiguousarray(made["w_h"].T))
    d, d_all = backend.ones((batch, width)), backend.ones((steps * batch, width))
    states = backend.ones((steps * batch, h.shape[1]))

    def call(k: int) -> list[Array]:
        results = [backend.matmul(x, w_x), *(backend.matmul(h, w_h) for _ in range(steps))]
        if backward:
            results += [backend.matmul(d, w_back) for _ in range(steps)]
            results += [backend.matmul(backend.permute_dims(left, (1, 0)), d_all) for left in (states, x)]
            results.append(backend.matmul(d_all, backend.permute_dims(w_x, (1, 0))))
        return results

    return Work(call, [], {"backend": machine.backend_facts(backend)}, backend.wait, keeps=None if backend.lazy else 1)


def _prefer(name: str, backend: Backend, rule: str) -> None:
    """From now on this process tries one rule of an operator before the others."""
    op = operator(name)
    op.add(next(each for each in op.rules(backend.name) if each.name == rule), backend=backend.name)


def _call(row: Row, functions: Functions, values: list[Tensor]) -> Call:
    params, others = values[:row.params], values[row.params:]

    def function(params: list[Tensor], *others: Tensor) -> Any:
        return row.formula(functions, *params, *others)

    if row.passes in ("step", "update"):
        return _step(row, function, params, others)
    run: Callable[..., Any] = duoln.value_and_grad(function) if row.passes == "gradient" else function
    if row.compiled:
        run = duoln.compile(run)
    gouts = [t.data for name, t in zip(row.names, values, strict=True) if name.startswith("gout")]
    rng = Stream(0, "sample")

    def forward() -> list[Tensor]:
        return listed(run(params, *others))

    def backward() -> list[Tensor]:
        out, back, tape = pullback(lambda params: function(params, *others), params)
        try:
            return [*listed(out), *(Tensor(array, params[0].backend) for array in back(gouts))]
        finally:
            tape.closed = True

    def gradient() -> list[Tensor]:
        value, gradients = run(params, *others)
        return [value, *gradients]

    def tokens() -> list[Tensor]:
        last, *states = others
        for _ in range(TOKENS):
            logits, *states = run(params, last, *states)
            drawn = rng.categorical(logits=logits.numpy()).reshape(1, 1)
            last = duoln.tensor(drawn, logits.backend, dtype="int32")
        return states

    calls: dict[str, Call] = {"forward": forward, "backward": backward, "gradient": gradient, "tokens": tokens}
    return calls[row.passes]


def _step(row: Row, loss: Callable[..., Tensor], params: list[Tensor], others: list[Tensor]) -> Call:
    given = row.passes == "update"
    clip = None if row.clip is None else optim.clip_global_norm(row.clip)
    optimizer = optim.AdamW(RATE, weight_decay=WEIGHT_DECAY, clip=clip)

    @duoln.compile
    def train_step(params: list[Tensor], slots: Any, *others: Any) -> Any:
        value, gradients = (others[1], others[0]) if given else duoln.value_and_grad(loss)(params, *others)
        params, slots = optimizer.update(params, gradients, slots)
        return params, slots, value

    slots = optimizer.init(params)
    inputs = [[2.0 * param for param in params], duoln.tensor(np.float32(RATE), params[0].backend)] if given else others

    def call() -> list[Tensor]:
        nonlocal params, slots
        params, slots, value = train_step(params, slots, *inputs)
        return [value, *params]

    return call


# Functions --------------------------------------------------------------------------------------------

def _mean(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *arrays: ops.mean(loss(*arrays))


def _timed(name: str, values: Sequence[Tensor | None], attrs: Mapping[str, Any]) -> Any:
    return operator(name)(*values, **attrs)


def _cell_arguments(cell: str, norm: str, arrays: Mapping[str, Tensor]) -> dict[str, Any]:
    """The arguments of a cell's operators."""
    norms = norm_shapes(cell, norm, 1)
    return {**{name: value for name, value in arrays.items() if name not in norms}, "norm": norm,
            "norms": {name: arrays[name] for name in norms}}


def _recurrent(cell: str, norm: str, arrays: Mapping[str, Tensor]) -> tuple[Tensor, list[Tensor]]:
    out, *states = getattr(ops, cell)(**_cell_arguments(cell, norm, arrays))
    return out, states


def _by_steps(cell: str, norm: str, arrays: Mapping[str, Tensor]) -> tuple[Tensor, list[Tensor]]:
    """A single time step, by the operator of a step."""
    step = getattr(ops, f"{cell}_step")
    states = listed(step(**_cell_arguments(cell, norm, {**arrays, "x": arrays["x"][0]})))
    return states[0].reshape((1, *states[0].shape)), states


def streams() -> bool:
    """True if a copy is made by our own C++ with streaming stores; for NumPy's arrays."""
    return device_limits.streaming_refusal() is None


def _copy(x: Tensor) -> Tensor:
    """A plain copy: by our own C++ where it can be, else by the library, which joins two halves: `asarray` may return
    its argument.
    """
    half = (x.shape[0] + 1) // 2
    is_streamed = x.backend.name == "numpy" and streams()
    copied: Array = (device_limits.streaming_copy(x.data) if is_streamed else
                     x.backend.concat([x.data[:half], x.data[half:]]))
    return Tensor(copied, x.backend)


_OURS = Functions(ops, attention=ops.scaled_dot_product_attention, timed=_timed, recurrent=_recurrent, copy=_copy, **{
    loss.__name__: _mean(loss) for loss in (ops.huber, ops.squared_error, ops.bce_with_logits,
                                            ops.softmax_cross_entropy, ops.linear_cross_entropy)})
