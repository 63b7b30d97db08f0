"""`duoln bench language-model`: a two-layer LN-LSTM on characters, an update and a sampled token, beside PyTorch.

An update is the gradient of one piece of text, clipped, and AdamW. A token is a character that is drawn from the
model's output, and the step that feeds it back; a run draws `TOKENS` of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import duoln
from duoln import Tensor, nn, ops, optim, tree
from duoln.bench import machine
from duoln.bench.records import Work
from duoln.bench.turns import KEEP_MEMORY, Entry
from duoln.randomness import Stream

PEERS = ("torch",)
SUBJECTS = ("update", "token")
TOKENS = 50
UPDATE = "an update"
"""The words for that subject in a record."""
CHECKED = 3
RATE, WEIGHT_DECAY, CLIP = 1e-3, 0.01, 1.0


class Sizes(NamedTuple):
    """Time steps of a piece of text, texts side by side, hidden units of each layer, different characters."""

    steps: int = 64
    batch: int = 16
    width: int = 128
    symbols: int = 96


class LanguageModel(nn.Module):
    """Characters to logits of the next ones, and the last states."""

    def __init__(self, symbols: int, width: int) -> None:
        self.table = nn.Embedding(symbols, width)
        self.lstm = nn.LSTM(width, width, norm="layer", layers=2)
        self.out = nn.Linear(width, symbols)

    def __call__(self, params: nn.Params, ids: Tensor, states: Any = None) -> tuple[Tensor, Any]:
        """Logits (time, batch, symbols) and the states, of ids (time, batch)."""
        h, states = self.lstm(params["lstm"], self.table(params["table"], ids), states)
        return self.out(params["out"], h), states


class OfCells(LanguageModel):
    """The same model by calls of its cells, for a single time step."""

    def __call__(self, params: nn.Params, ids: Tensor, states: Any = None) -> tuple[Tensor, Any]:
        """Logits (batch, symbols) and the states, of ids (1, batch)."""
        h, after = self.table(params["table"], ids[0]), []
        for (name, cell), state in zip(self.lstm.cells.items(), states, strict=True):
            after.append(cell(params["lstm"][name], h, state))
            h = after[-1][0]
        return self.out(params["out"], h), after


def text_of(sizes: Sizes) -> np.ndarray:
    """Characters (steps + 1, batch) that every side reads."""
    return Stream(0, "language-model").integers(sizes.symbols, (sizes.steps + 1, sizes.batch)).astype(np.int32)


def start_of(sizes: Sizes) -> nn.Params:
    """The first parameters of every side."""
    return LanguageModel(sizes.symbols, sizes.width).init(0)


def prepare(asked: dict[str, Any]) -> Work:
    """Our side's work as `form` says: "eager", "compiled", or a token by compiled "cells"."""
    from duoln import runtime

    sizes = Sizes(*asked["sizes"])
    backend = runtime.choose(asked["backend"])[0]
    machine.begin_peak()
    work = _update if asked["subject"] == "update" else _token
    return work(sizes, duoln.to_tensors(start_of(sizes), backend), asked["form"])


def _update(sizes: Sizes, params: nn.Params, form: str) -> Work:
    backend = tree.leaves(params)[0].backend
    model, ids = LanguageModel(sizes.symbols, sizes.width), duoln.tensor(text_of(sizes), backend)
    optimizer = optim.AdamW(RATE, weight_decay=WEIGHT_DECAY, clip=optim.clip_global_norm(CLIP))
    first = model.lstm.first_states(params["lstm"], sizes.batch)

    def loss(params: nn.Params, states: Any, ids: Tensor) -> tuple[Tensor, Any]:
        logits, states = model(params, ids[:-1], states)
        return ops.softmax_cross_entropy(logits, ids[1:]).mean(), states

    def step(params: nn.Params, slots: Any, states: Any, ids: Tensor) -> Any:
        (value, states), gradients = duoln.value_and_grad(loss, has_aux=True)(params, states, ids)
        params, slots = optimizer.update(params, gradients, slots)
        return params, slots, states, value

    step = duoln.compile(step) if form == "compiled" else step
    state = (params, optimizer.init(params), first)

    def run(k: int) -> float:
        nonlocal state
        *state, value = step(*state, ids)
        backend.wait([t.data for t in tree.leaves(state)])
        return float(value.item())

    return Work(run, [run(k) for k in range(CHECKED)], {"backend": machine.backend_facts(backend)}, CHECKED, CHECKED)


def _token(sizes: Sizes, params: nn.Params, form: str) -> Work:
    backend = tree.leaves(params)[0].backend
    kind = OfCells if form == "cells" else LanguageModel
    model, rng = kind(sizes.symbols, sizes.width), Stream(0, "sample")
    step = model if form == "eager" else duoln.compile(model)
    first = model.lstm.first_states(params["lstm"], 1)

    def run(k: int) -> None:
        states, last = first, np.zeros((1, 1), np.int64)
        for _ in range(TOKENS):
            logits, states = step(params, duoln.tensor(last, backend, dtype="int32"), states)
            last = rng.categorical(logits=logits).reshape(1, 1)

    states, norms = first, []
    for character in text_of(sizes)[:CHECKED, :1]:
        logits, states = step(params, duoln.tensor(character[None], backend), states)
        norms.append(float(np.linalg.norm(logits.numpy().astype(np.float64))))
    return Work(run, norms, {"backend": machine.backend_facts(backend)}, 1)


def entries(subject: str, sizes: Sizes, backend: str | None, peers: list[str]) -> list[Entry]:
    """The sides of a comparison: ours by `duoln.compile` and without, and in PyTorch the layer of `duoln.bridge.torch`,
    a loop over LN-LSTM cells, and `nn.LSTM`, which has no norm.
    """
    asked = {"kind": "language-model", "subject": subject, "sizes": list(sizes), "backend": backend, "peer": None}
    rows = [Entry("duoln, compiled", {**asked, "form": "compiled"}), Entry("duoln", {**asked, "form": "eager"})]
    if "torch" in peers:
        of_torch = {**asked, "peer": "torch"}
        rows += [Entry("torch, LSTM of duoln.bridge", {**of_torch, "form": "bridge"}, KEEP_MEMORY),
                 Entry("torch, LN-LSTM by cells", {**of_torch, "form": "cells"}, KEEP_MEMORY),
                 Entry("torch.nn.LSTM, no norm", {**of_torch, "form": "plain"}, KEEP_MEMORY, checked=False)]
    return rows
