"""A rule: how an op is computed on native arrays, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from duoln.backends.protocol import Array, Backend
from duoln.core.arguments import check_function, described
from duoln.errors import DtypeError

Forward = Callable[..., tuple[Any, Any]]
Vjp = Callable[..., Sequence[Array | None]]


@dataclass(frozen=True, eq=False)
class Rule:
    """How an op is computed: a value and its vector-Jacobian product, on native arrays.

    Attributes:
        forward: `forward(backend, *arrays, **attrs) -> (out, saved)`; `out` is an array or a tuple of them.
        vjp: `vjp(backend, saved, gout, needs) -> gradients`, one per array argument, None where `needs` is
            False. `gout` is a tuple if `out` is one, with None for outputs that nothing used. `vjp` is None for
            an op without a derivative.
        supports: `supports(backend, *arrays, **attrs)`: None, or the reason why this rule cannot run.
        pooled: for argument i, `pooled[i](backend, [(saved, gout), ...]) -> gradient` of an argument that
            was used many times: one large product instead of many small ones.
        remark: `remark(backend)`: the note that `duoln doctor --ops` prints about this rule on this machine.

    A rule never writes into its inputs, `saved` or `gout`.
    """

    name: str
    forward: Forward
    vjp: Vjp | None = None
    supports: Callable[..., str | None] | None = None
    pooled: Mapping[int, Callable[..., Array]] = field(default_factory=dict)
    remark: Callable[[Backend], str] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise DtypeError(f"[Rule] name: expected a text, found {described(self.name)}")
        check_function("Rule", "forward", self.forward)
        for role, function in (("vjp", self.vjp), ("supports", self.supports), ("remark", self.remark)):
            if function is not None:
                check_function("Rule", role, function)
