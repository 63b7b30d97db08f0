"""Adam, and Adam with decoupled weight decay, by the operator `adam_update`."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Literal

from duoln import ops, tree
from duoln.core import Tensor
from duoln.core.arguments import AT_LEAST_0, BELOW_1, EPSILON, check_function, check_number
from duoln.core.donation import compiled_step, unshared_tensor
from duoln.ops.update import adam_rates, adam_update, check_correction
from duoln.optim.clipping import Params, ScaleByNorm, global_norm
from duoln.optim.optimizer import Decays, Optimizer, decaying, slot


@dataclass(frozen=True, kw_only=True)
class Adam(Optimizer):
    """Adam (Kingma and Ba 2015, algorithm 1).

        >>> optimizer = optim.Adam(learning_rate=0.1, clip=optim.clip_global_norm(1.0))
        >>> params = {"w": duoln.tensor([1.0])}
        >>> slots = optimizer.init(params)
        >>> gradients = {"w": duoln.tensor([2.0])}
        >>> params, slots = optimizer.update(params, gradients, slots)
        >>> round(params["w"].item(), 3)
        0.9

    `bias_correction="kiros2015"` is the correction in the code of the paper's order-embedding and skip-thoughts
    experiments: it divides by 1 - 0.1^t and 1 - 0.001^t and does not correct epsilon, so that early updates are up to
    6.6 times larger than Adam's. It needs betas above 0.

    The slots m and v hold the moments divided by 1 - beta1 and 1 - beta2. A gradient beyond 1e19, whose square float32
    does not hold, stops its parameter for good; a clip by the norm prevents that.

    Attributes:
        learning_rate: a number, or a function of the update such as `optim.cosine(...)`; `rate_at` gives its values.
        clip: a function applied to the gradients first, such as `optim.clip_global_norm(1.0)`, or None.
        donate: let `update` overwrite its parameters and slots, see `Optimizer`.
        beta1, beta2: the shares of the moments that stay, in [0, 1).
        eps: a number added to the root of the second moment.
        bias_correction: "standard" or "kiros2015".
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    bias_correction: Literal["standard", "kiros2015"] = "standard"

    def __post_init__(self) -> None:
        super().__post_init__()
        kind = type(self).__name__
        check_number(kind, "eps", self.eps, EPSILON)
        for name, beta in (("beta1", self.beta1), ("beta2", self.beta2)):
            check_number(kind, name, beta, BELOW_1)
        check_correction(kind, self.beta1, self.beta2, self.bias_correction)

    def start(self, params: Params) -> dict[str, Any]:
        return {"m": tree.map(ops.zeros_like, params), "v": tree.map(ops.zeros_like, params)}

    def apply(self, params: Params, gradients: Params, slots: dict[str, Any], rate: Tensor,
              ) -> tuple[Params, dict[str, Any]]:
        return self._scaled_update(params, gradients, slots, rate, None)[:2]

    @property
    def _gives_norm(self) -> bool:
        return self.clip is None or isinstance(self.clip, ScaleByNorm)

    def _clipped_update(self, params: Params, gradients: Params, slots: dict[str, Any], rate: Tensor,
                        ) -> tuple[Params, dict[str, Any], Any]:
        if self.clip is None:
            # The pass over the gradients that updates the parameters adds up their squares too.
            return self._scaled_update(params, gradients, slots, rate, None)
        if not isinstance(self.clip, ScaleByNorm):
            return super()._clipped_update(params, gradients, slots, rate)
        norm = global_norm(gradients)
        return (*self._scaled_update(params, gradients, slots, rate, self.clip.scale_of(norm))[:2], norm)

    def _scaled_update(self, params: Params, gradients: Params, slots: dict[str, Any], rate: Tensor,
                       scale: Tensor | None) -> tuple[Params, dict[str, Any], Tensor]:
        kind = type(self).__name__
        scaled, eps, update = adam_rates(rate, slot(kind, slots, "update"), beta1=self.beta1, beta2=self.beta2,
                                         eps=self.eps, bias_correction=self.bias_correction)
        rows = tree.zipped(params, gradients, slot(kind, slots, "m"), slot(kind, slots, "v"))
        if self.donate and compiled_step.get() is None:
            rows = [(unshared_tensor(p), g, unshared_tensor(m), unshared_tensor(v)) for p, g, m, v in rows]
        updated: dict[int, tuple[Tensor, ...]] = {}
        norms = []
        groups = self._groups(params, rate)
        for keep, group in groups:
            columns = zip(*(rows[k] for k in group), strict=True)
            *new, norm = adam_update(scaled, eps, scale, keep, *itertools.chain.from_iterable(columns),
                                         beta1=self.beta1, beta2=self.beta2,
                                         # An earlier group must not overwrite what a later one may read.
                                         donate=self.donate and group is groups[-1][1])
            n = len(group)
            updated.update(zip(group, zip(new[:n], new[n:2 * n], new[2 * n:], strict=True), strict=True))
            norms.append(norm)
        parts = [tree.unflatten(params, [updated[k][role] for k in range(len(rows))]) for role in range(3)]
        norm = norms[0] if len(norms) == 1 else ops.global_norm(*norms)
        return parts[0], {"m": parts[1], "v": parts[2], "update": update}, norm

    def _groups(self, params: Params, rate: Tensor) -> list[tuple[Tensor | None, list[int]]]:
        """Groups of parameters that are updated together: a factor of the parameters, None for 1, and their indices."""
        return [(None, list(range(len(tree.leaves(params)))))]


@dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2): p <- p - rate weight_decay p first.

        optimizer = optim.AdamW(optim.cosine(1e-3, updates), weight_decay=0.1, decays=lambda path, p: p.ndim > 1)

    Attributes:
        learning_rate, clip, donate, beta1, beta2, eps, bias_correction: as of `Adam`.
        weight_decay: the decay of the parameters, at least 0; each update multiplies it by the learning rate.
        decays: `decays(path, parameter)` says which parameters decay, such as weights alone; all of them if None. The
            path is that of `tree.items`, "hidden.weight". Statistics of a population never do.
    """

    weight_decay: float = 0.01
    decays: Decays | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("AdamW", "weight_decay", self.weight_decay, AT_LEAST_0)
        if self.decays is not None:
            check_function("AdamW", "decays", self.decays)

    def _groups(self, params: Params, rate: Tensor) -> list[tuple[Tensor | None, list[int]]]:
        chosen = decaying(params, self.decays)
        groups = [(keep, [k for k, decays in enumerate(chosen) if decays is wanted])
                  for keep, wanted in ((None, False), (1.0 - rate * self.weight_decay, True))]
        return [(keep, group) for keep, group in groups if group]
