"""The base class of the optimizers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, Self, TypeVar

from duoln import ops, tree
from duoln.core import Tensor
from duoln.core.arguments import AT_LEAST_0, check_flag, check_function, check_integer, check_number, described
from duoln.core.donation import compiled_step, mark_donated
from duoln.core.pytorch_names import OF_OPTIMIZERS, hinted, how_to_name, name_missing, present_names
from duoln.core.spec import check_float, check_tensors
from duoln.errors import CompileError, DtypeError, ShapeError
from duoln.nn.module import Module
from duoln.nn.population import is_statistic
from duoln.ops.common import check_not_16_bits
from duoln.ops.update import counted, listed_rate
from duoln.optim.clipping import Clip, Params, global_norm
from duoln.optim.schedules import Schedule, length_of, rates_of

R = TypeVar("R")
Decays = Callable[[str, Tensor], bool]
"""`decays(path, parameter)` says whether a parameter decays; the path is that of `tree.items`, "hidden.weight"."""


@dataclass(frozen=True)
class Optimizer:
    """The base class: it has a learning rate, which is a number or a function of the update, and may clip gradients.

    An optimizer of one's own overrides `apply`, and `start` if it has slots:

        class Lion(optim.Optimizer):                    # Chen et al. 2023, algorithm 2
            def start(self, params):
                return {"m": tree.map(ops.zeros_like, params)}

            def apply(self, params, gradients, slots, rate):
                step = tree.map(lambda m, g: ops.sign(0.9 * m + 0.1 * g), slots["m"], gradients)
                m = tree.map(lambda m, g: 0.99 * m + 0.01 * g, slots["m"], gradients)
                return tree.map(lambda p, s: p - rate * s, params, step), {"m": m}

    With `donate`, `update` may overwrite its parameters and slots, which saves time and memory. This is safe in a loop
    that goes on with what `update` returned. Who reads one of the old tensors gets a UsageError;
    `copy.deepcopy(params)` before the update keeps their values.
    A slice of a parameter keeps its values by itself, and so does any other array that shares memory with one; on CuPy
    it holds those after the update.

    Parameters and gradients of 16 bits are refused: a step is often smaller than half a unit in their last place, and
    would be lost. Keep them in float32, and round a copy inside the gradient, see `nn.in_16_bits`.

    Attributes:
        learning_rate: a number, or a function of the update such as `optim.cosine(...)`; `rate_at` gives its values.
        clip: a function applied to the gradients first, such as `optim.clip_global_norm(1.0)`, or None.
        donate: let `update` overwrite its parameters and slots.
    """

    learning_rate: float | Schedule
    _: KW_ONLY
    clip: Clip | None = None
    donate: bool = False

    def __new__(cls, /, *args: Any, **settings: Any) -> Self:
        for given in (*args[:1], settings.get("learning_rate")):
            if isinstance(given, Module | dict | list | tuple):  # a module is a function, too
                raise DtypeError(f"[{cls.__name__}] learning_rate: expected a number or a function of the update, "
                                 f"found {described(given)}; parameters go to init(params) and update(params, ...): "
                                 f"optimizer = optim.{cls.__name__}(1e-3), slots = optimizer.init(params)")
        names = [f.name for f in fields(cls)]
        for name in settings.keys() - set(names):
            raise TypeError(f"{cls.__name__}() got an unexpected keyword argument {name!r}{how_to_name(name, names)}")
        return super().__new__(cls)

    def __dir__(self) -> list[str]:
        return present_names(self, super().__dir__())

    def __post_init__(self) -> None:
        kind = type(self).__name__
        if not callable(self.learning_rate):
            check_number(kind, "learning_rate", self.learning_rate, AT_LEAST_0)
        if isinstance(self.clip, int | float):
            raise DtypeError(f"[{kind}] clip: expected a function of the gradients, found {described(self.clip)}; "
                             f"optim.clip_global_norm({self.clip!r:.20}) is one, as clip_each_norm and clip_value are")
        if self.clip is not None:
            check_function(kind, "clip", self.clip)
        check_flag(kind, "donate", self.donate)

    def rate_at(self, update: int) -> float:
        """The learning rate of an update, by its number, from 0.

        Raises:
            DtypeError: the number is not an integer, or the rate is not a number. ShapeError: the number is below 0.
            UsageError: the rate is below 0.
            CompileError: within a compiled step, which would keep the rate of its first calls.
        """
        if compiled_step.get() is not None:
            raise CompileError("[rate_at] expected a call outside of the compiled step, found one within it, which "
                               "would keep the rate of its first calls; update(params, gradients, slots) has the rate "
                               "of its update")
        update = check_integer("optim", "update", update, 0)
        rate = self.learning_rate(update) if callable(self.learning_rate) else self.learning_rate
        return float(check_number("optim", f"the learning rate at update {update}", rate, AT_LEAST_0))

    @hinted
    def init(self, params: Params) -> dict[str, Any]:
        """The initial slots: those of `start`, and "update", the number of updates made.

        Raises:
            DtypeError: a leaf is not a tensor, or has 16 bits.
        """
        leaves = self._checked_leaves(params)
        slots = self.start(params)
        return {**slots, "update": ops.zeros((), leaves[0].backend, "int32")} if leaves else slots

    def start(self, params: Params) -> dict[str, Any]:
        """The slots before the first update, such as moments of zeros; by default there are none."""
        return {}

    def apply(self, params: Params, gradients: Params, slots: dict[str, Any], rate: Tensor,
              ) -> tuple[Params, dict[str, Any]]:
        """New parameters and slots, from gradients that are clipped and a rate that is a 0-d tensor."""
        raise TypeError(f"{type(self).__name__} does not define apply(params, gradients, slots, rate)")

    @hinted
    def update(self, params: Params, gradients: Params, slots: dict[str, Any], rate: Tensor | float | None = None,
               ) -> tuple[Params, dict[str, Any]]:
        """New parameters and slots, by the learning rate of the update that `slots` count, or by another `rate`.

        A compiled step has the rates of all schedules of `duoln.optim`; of another function, `optim.schedule` makes
        one of them.

        Raises:
            ShapeError: gradients or slots have another form than the parameters, or the rate has axes.
            DtypeError: a leaf is not a tensor or has 16 bits, or the rate is not a number.
            UsageError: the rate is below 0.
            CompileError: the rate is another function's, and the step is compiled.
        """
        return self._update(params, gradients, slots, rate)[:2]

    @hinted
    def update_with_norm(self, params: Params, gradients: Params, slots: dict[str, Any],
                         rate: Tensor | float | None = None) -> tuple[Params, dict[str, Any], Tensor]:
        """As `update`, with the common norm of all gradients before they are clipped.

        Raises:
            UsageError: there are no gradients. The rest as `update`.
        """
        # Before the update, because that may overwrite its arguments.
        norm = None if self._gives_norm and tree.leaves(params) else global_norm(gradients)
        new, changed, of_update = self._update(params, gradients, slots, rate)
        return new, changed, of_update if norm is None else norm

    @property
    def _gives_norm(self) -> bool:
        """True if `_clipped_update` computes the norm of the gradients."""
        return False

    def _update(self, params: Params, gradients: Params, slots: dict[str, Any], rate: Tensor | float | None,
                ) -> tuple[Params, dict[str, Any], Any]:
        """New parameters and slots after all checks, and the norm of the gradients where it was computed."""
        checked = self._checked(params, gradients, slots, rate)
        if checked is None:
            return params, slots, None
        new, changed, norm = self._clipped_update(params, gradients, slots, checked)
        if "update" not in changed:
            changed = {**changed, "update": counted(slots["update"])}
        return self._mark_donated(params, slots, (new, changed, norm))

    def _rate_of(self, slots: dict[str, Any], like: Tensor) -> Tensor:
        """The learning rate of the update that the slots count."""
        update = slot(type(self).__name__, slots, "update")
        if not callable(self.learning_rate):
            return ops.full((), float(self.learning_rate), like.backend, like.dtype)
        if length_of(self.learning_rate) is not None:
            where: Any = like.backend
            return listed_rate(rates_of(self.learning_rate, where, like.dtype), update)
        if compiled_step.get() is not None:
            raise CompileError(f"[{type(self).__name__}] learning_rate: expected a number or a schedule of duoln.optim "
                               "within a compiled step, found another function, whose first rates the step would keep; "
                               "optim.schedule(function, updates) makes a schedule of it")
        return ops.full((), self.rate_at(update.item()), like.backend, like.dtype)

    def _checked(self, params: Params, gradients: Params, slots: dict[str, Any], rate: Tensor | float | None,
                 ) -> Tensor | None:
        """The rate as a tensor, after the checks of `update`; None if there are no parameters."""
        name = type(self).__name__
        leaves = self._checked_leaves(params)
        of_gradients = tree.leaves(gradients)
        check_tensors(name, *leaves, *of_gradients)
        check_not_16_bits(name, "gradients", *of_gradients)
        if rate is not None and not isinstance(rate, Tensor):
            if callable(rate):
                raise DtypeError(f"[{name}] rate: expected a number or a 0-d tensor, found {described(rate)}; a "
                                 f"schedule is the optimizer's own: optim.{name}(schedule)")
            check_number(name, "rate", rate, AT_LEAST_0)
        if not leaves:
            tree.zipped(params, gradients)  # refuses gradients of another form
            return None
        if not isinstance(slots, dict):
            raise DtypeError(f"[{name}] slots: expected a dict, found {described(slots)}")
        if rate is None:
            return self._rate_of(slots, leaves[0])
        slot(name, slots, "update")
        if not isinstance(rate, Tensor):
            rate = ops.full((), float(rate), leaves[0].backend, leaves[0].dtype)
        check_tensors(name, rate, *leaves)
        if rate.dtype != leaves[0].dtype:
            raise DtypeError(f"[{name}] rate: expected {leaves[0].dtype}, as the parameters are, found {rate.dtype}")
        if rate.shape != ():
            raise ShapeError(f"[{name}] rate: expected a number or a 0-d tensor, found shape {rate.shape}")
        return rate

    def _checked_leaves(self, params: Params) -> list[Tensor]:
        """The parameters as a list. Raises DtypeError unless all are tensors of float32, or all of float64."""
        leaves = tree.leaves(params)
        check_float(type(self).__name__, *leaves)
        check_not_16_bits(type(self).__name__, "parameters", *leaves)
        return leaves

    def _mark_donated(self, params: Params, slots: dict[str, Any], result: R) -> R:
        """The result. With `donate`, nobody reads the tensors any more that the update was given and did not return."""
        if self.donate:
            returned = {id(x) for x in tree.leaves(result)}
            mark_donated([x for x in tree.leaves((params, slots)) if id(x) not in returned])
        return result

    def _clipped_update(self, params: Params, gradients: Params, slots: dict[str, Any], rate: Tensor,
                        ) -> tuple[Params, dict[str, Any], Tensor | None]:
        """New parameters and slots from gradients that are not clipped yet, and their norm where it was computed."""
        return (*self.apply(params, self.clip(gradients) if self.clip else gradients, slots, rate), None)


name_missing(Optimizer, OF_OPTIMIZERS)


def slot(name: str, slots: dict[str, Any], key: str) -> Any:
    """A slot. The error for a missing slot names the optimizer and the slot."""
    if key not in slots:
        raise ShapeError(f"[{name}] slots: expected '{key}', found {', '.join(map(str, slots)) or 'none'}; "
                         "it is update(params, gradients, slots)")
    return slots[key]


def decaying(params: Params, decays: Decays | None) -> list[bool]:
    """For each parameter whether its weight decays: a population's statistics never do."""
    return [not is_statistic(path) and (decays is None or bool(decays(path, p))) for path, p in tree.items(params)]
