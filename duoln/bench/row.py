"""A row of `duoln bench`: a piece of work that every side does, by a formula that is said once for all libraries.

A formula takes a library's `Functions` and the arrays. Names say what an array is: "w" begins a weight (in, out) or
(height, width, in, out), "b" a bias, "gain" values around 1, "image" values (batch, height, width, channels); "labels"
are classes, "zero" is 0, and "y_share" is in [0, 1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from duoln.errors import UsageError
from duoln.randomness import Stream

Formula = Callable[..., Any]
Shape = tuple[int, ...]
Call = Callable[[], Sequence[Any]]
"""Computes the results of a row: values, or a loss and the gradients or new parameters."""
Passes = Literal["forward", "backward", "gradient", "step", "update", "tokens"]
"""The formula; also its gradients, for those of its results, or of a number; an update by AdamW; that alone, of given
gradients; sampled tokens, each of which is the next input."""
RECORDED = {"backward": "forward+backward", "gradient": "forward+backward", "update": "step", "tokens": "forward"}
"""The passes in a record, where they have another name there."""
TOKENS = 50
RATE, WEIGHT_DECAY, CLIP = 1e-3, 0.01, 1.0
"""The settings of AdamW, and the largest norm of gradients."""
CACHE_BYTES = 128 << 20
"""More than any last-level cache of a core or GPU: H100 50 MiB, B200 126 MiB, Apple's Ultra 96 MiB, one
EPYC core complex 32 or 96 MiB. Cold inputs rotate through more than twice this."""


class PeerSide(NamedTuple):
    """A side beside ours: its name, in what its request differs, and whether its figures must agree with ours."""

    name: str
    asked: Mapping[str, Any] = {}
    checked: bool = True


class Row(NamedTuple):
    """A piece of work that is timed."""

    op: str
    """The name in a record."""
    shape: Shape
    passes: Passes = "forward"
    shapes: Mapping[str, Shape] = {}
    """The shapes of the arrays, by name."""
    formula: Formula = lambda of, *arrays: None
    params: int = 0
    """The first so many arrays are parameters: their gradients are computed."""
    compiled: bool = False
    """True if ours is timed by `duoln.compile`; steps always are."""
    clip: float | None = None
    """The largest norm of an update's gradients."""
    settings: Mapping[str, Any] = {}
    """In a record, what else decides the work."""
    cache: str = "running"
    rule: str = ""
    """The operator whose rule a record names, and which must agree with its composed rule."""
    moved: int | None = None
    """The least bytes that are read and written."""
    flops: int | None = None
    given: Mapping[str, np.ndarray] = {}
    """Arrays in the place of drawn ones."""
    peers: Mapping[str, Sequence[PeerSide]] = {}
    """The sides of a peer, if it has not one of its name."""
    rounds: int | None = None
    """The most turns, of one run each, where a run takes seconds."""
    form: str = ""
    """The form of ours: "cells" for a recurrent layer by the operator of a time step."""
    own: str = ""
    """The module of `duoln.bench` whose `prepare(row, asked)` makes the work of a row without a formula."""

    @property
    def name(self) -> str:
        """The row in words."""
        settings = "".join(f", {key}={value}" for key, value in self.settings.items())
        passes = RECORDED.get(self.passes, self.passes)
        return f"{self.op} {passes} {'x'.join(map(str, self.shape))}{settings}, {self.cache}"

    @property
    def names(self) -> list[str]:
        """The names of the arrays."""
        return [*self.shapes, *self.given]

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays, the same on every side."""
        return {**{name: self._drawn(name, shape) for name, shape in self.shapes.items()}, **self.given}

    def copies(self, arrays: Mapping[str, np.ndarray]) -> int:
        """The number of copies of the arrays that take turns, so that no cache holds cold ones."""
        size = sum(array.nbytes for array in arrays.values())
        return 2 * CACHE_BYTES // size + 2 if self.cache == "cold" else 1

    def sides(self, peers: Sequence[str]) -> list[PeerSide]:
        """The sides of these peers."""
        return [side for peer in peers for side in self.peers.get(peer, [PeerSide(peer, {"peer": peer})])]

    def _drawn(self, name: str, shape: Shape) -> np.ndarray:
        stream = Stream(0, "bench").child(name)
        if name.startswith("labels"):
            classes = next(sizes[0] for key, sizes in reversed(list(self.shapes.items())) if key.startswith("b"))
            return stream.integers(classes, shape).astype(np.int32)
        if name.startswith("zero"):
            return np.zeros(shape, np.float32)
        if name == "y_share":
            return stream.uniform(shape).astype(np.float32)
        if name.startswith("gain"):
            return (1 + 0.1 * stream.gaussian(shape)).astype(np.float32)
        scale = np.prod(shape[:-1]) ** -0.5 if name.startswith("w") else 1.0
        return (scale * stream.gaussian(shape)).astype(np.float32)


class Functions:
    """The functions of a library by duoln's names: those that are given, else of that name in one of its modules."""

    def __init__(self, *modules: Any, **given: Any) -> None:
        self._modules = modules
        self.__dict__.update(given)

    def __getattr__(self, name: str) -> Any:
        function = next((getattr(module, name) for module in self._modules if hasattr(module, name)), None)
        if function is None:
            raise UsageError(f"[bench] {self._modules[0].__name__} has no {name}")
        setattr(self, name, function)
        return function


def listed(results: Any) -> list[Any]:
    """The results of a formula as a list."""
    return list(results) if isinstance(results, list | tuple) else [results]
