"""Optimizers for parts of a model, with one clip over all its gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from duoln import tree
from duoln.core import Tensor
from duoln.core.arguments import check_function, described
from duoln.core.pytorch_names import hinted
from duoln.errors import DtypeError, ShapeError, UsageError
from duoln.optim.clipping import Clip, Params, global_norm
from duoln.optim.optimizer import Optimizer

_REST = "rest"


@dataclass(frozen=True)
class Groups:
    """An optimizer for each of some branches of the parameters, and one for the rest; it is used as they are.

        optimizer = optim.Groups({"head": optim.Adam(1e-2)}, rest=optim.AdamW(1e-4), clip=optim.clip_global_norm(1.0))

    The slots are those of the optimizers, by the names of the branches and "rest". Each optimizer has a rate of its
    own: `rate_at` gives a dict of them, and `rate=` takes one.

    Attributes:
        groups: optimizers by the paths of their branches, as `tree.items` writes them: "head", "encoder.0".
        rest: that of all other parameters; None leaves them as they are.
        clip: a function applied to all gradients together, before those of the optimizers.

    Raises:
        DtypeError: a value is no optimizer. UsageError: there are no groups, one is in another, or has the name "rest".
    """

    groups: Mapping[str, Optimizer]
    rest: Optimizer | None
    clip: Clip | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.groups, Mapping) or not self.groups:
            raise UsageError(f"[Groups] groups: expected optimizers by the names of branches, found "
                             f"{described(self.groups)}")
        for name, optimizer in self._optimizers().items():
            if not isinstance(optimizer, Optimizer):
                raise DtypeError(f"[Groups] {name!r}: expected an optimizer, found {described(optimizer)}")
        if self.clip is not None:
            check_function("Groups", "clip", self.clip)
        for name in self.groups:
            around = next((branch for branch in self.groups if name.startswith(f"{branch}.")), None)
            if name == _REST or around:
                raise UsageError(f"[Groups] expected groups apart from each other and from {_REST!r}, found {name!r}"
                                 f"{f' in {around!r}' if around else ''}")

    @property
    def donate(self) -> bool:
        """True if each of the optimizers may overwrite what it updates."""
        return all(each.donate for each in self._optimizers().values())

    def rate_at(self, update: int) -> dict[str, float]:
        """The learning rates of an update, by its number from 0, see `Optimizer.rate_at`."""
        return {name: each.rate_at(update) for name, each in self._optimizers().items()}

    @hinted
    def init(self, params: Params) -> dict[str, Any]:
        """The initial slots of each optimizer.

        Raises:
            ShapeError: a group has no parameters. The rest as `Optimizer.init`.
        """
        parts = self._parts(params)
        for name in self.groups:
            if not tree.leaves(parts[name]):
                raise ShapeError(f"[Groups] expected parameters at {name!r}, found "
                                 f"{', '.join(path for path, _ in tree.items(params)) or 'none'}")
        return {name: each.init(parts[name]) for name, each in self._optimizers().items()}

    @hinted
    def update(self, params: Params, gradients: Params, slots: dict[str, Any], rate: Mapping[str, Any] | None = None,
               ) -> tuple[Params, dict[str, Any]]:
        """New parameters and slots; `rate` has other rates than those of the optimizers, by their names.

        Raises:
            ShapeError: gradients or slots have another form than the parameters. UsageError: a rate is of no group.
            The rest as `Optimizer.update`.
        """
        tree.zipped(params, gradients)  # refuses gradients of another form
        if self.clip:
            gradients = self.clip(gradients)
        optimizers, rates = self._optimizers(), {} if rate is None else rate
        if not isinstance(slots, dict) or slots.keys() != optimizers.keys() or not isinstance(rates, Mapping):
            raise ShapeError(f"[Groups] expected slots, and rates if they are given, of {', '.join(optimizers)}, found "
                             f"{described(slots)} and {described(rate)}")
        if unknown := sorted(rates.keys() - optimizers.keys()):
            raise UsageError(f"[Groups] rate: expected names of {', '.join(optimizers)}, found {unknown[0]!r}")
        parts, of_gradients = self._parts(params), self._parts(gradients)
        changed = {}
        for name, each in optimizers.items():
            parts[name], changed[name] = each.update(parts[name], of_gradients[name], slots[name], rates.get(name))
        return tree.combine(*parts.values()), changed

    @hinted
    def update_with_norm(self, params: Params, gradients: Params, slots: dict[str, Any],
                         rate: Mapping[str, Any] | None = None) -> tuple[Params, dict[str, Any], Tensor]:
        """As `update`, with the common norm of all gradients before they are clipped.

        Raises:
            UsageError: there are no gradients. The rest as `update`.
        """
        norm = global_norm(gradients)
        return (*self.update(params, gradients, slots, rate), norm)

    def _optimizers(self) -> dict[str, Optimizer]:
        return {**self.groups, **({} if self.rest is None else {_REST: self.rest})}

    def _parts(self, whole: Params) -> dict[str, Params]:
        """The branches of the groups, and what is in none, with None in the places of all other leaves."""
        parts = {}
        for name in self.groups:
            def is_in(path: str, leaf: Any, branch: str = f"{name}.") -> bool:
                return f"{path}.".startswith(branch)

            parts[name], whole = tree.partition(whole, is_in)
        return {**parts, _REST: whole}
