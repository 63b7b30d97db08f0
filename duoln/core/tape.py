"""The tape: what happened during one call, walked backwards once, then dropped.

`value_and_grad` makes a tape for the call, gives each parameter a place on it, and every op that meets a
tensor with a place adds a record. First order only: rules work on native arrays and record nothing
themselves, so fused gradients stay first-class and a gradient inside a gradient is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

from duoln import tree
from duoln.backends.protocol import FLOATS, Array, Backend
from duoln.core.arguments import check_flag, check_function, described
from duoln.core.tensor import Tensor
from duoln.errors import DtypeError, GradientError, ShapeError

if TYPE_CHECKING:
    from duoln.core.op import Rule

_recording: ContextVar[bool] = ContextVar("duoln_recording", default=False)


class Node(NamedTuple):
    """A tensor's place on a tape."""

    tape: Tape
    place: int


class Record(NamedTuple):
    """One op that ran: its rule, what the rule saved, and the places of its inputs and outputs."""

    rule: Rule
    saved: Any
    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]
    is_tuple: bool


class Tape:
    """The records of one call."""

    __slots__ = ("closed", "records", "uses")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.uses: list[int] = []
        self.closed = False

    def new_place(self) -> Node:
        """A new place, for a parameter or an output."""
        self.uses.append(0)
        return Node(self, len(self.uses) - 1)

    def backward(self, backend: Backend, seeds: dict[int, Array], keep: bool = False) -> list[Array | None]:
        """The gradient at every place, from the gradients of some outputs.

        Frees the records as it goes, unless `keep`: then the tape can be walked again.
        """
        gradients: list[Array | None] = [None] * len(self.uses)
        pools: dict[int, dict[tuple[Rule, int], list[tuple[Any, Any]]]] = {}

        def accumulate(index: int, gradient: Array | None) -> None:
            if gradient is not None:
                before = gradients[index]
                gradients[index] = gradient if before is None else before + gradient

        def flush(index: int) -> None:
            for (rule, argument), uses in pools.pop(index, {}).items():
                accumulate(index, rule.pooled[argument](backend, uses))

        for index, seed in seeds.items():
            accumulate(index, seed)
        for position in reversed(range(len(self.records))):
            rule, saved, inputs, outputs, is_tuple = self.records[position]
            if not keep:
                self.records.pop()
            for index in outputs:
                flush(index)
            gouts = tuple(gradients[index] for index in outputs)
            for index in outputs:
                gradients[index] = None  # nothing later in the walk reads it
            if all(g is None for g in gouts):
                continue
            gout = gouts if is_tuple else gouts[0]
            # A weight used at T steps costs one product over all T, not T products.
            pooled = {i: index for i, index in enumerate(inputs)
                      if index is not None and i in rule.pooled and self.uses[index] > 1}
            for argument, index in pooled.items():
                pools.setdefault(index, {}).setdefault((rule, argument), []).append((saved, gout))
            needs = tuple(index is not None and i not in pooled for i, index in enumerate(inputs))
            if any(needs):
                assert rule.vjp is not None
                for target, need, gradient in zip(inputs, needs, rule.vjp(backend, saved, gout, needs), strict=True):
                    if need and target is not None:
                        accumulate(target, gradient)
        for index in list(pools):
            flush(index)
        return gradients


def tape_of(args: Sequence[Any]) -> Tape | None:
    """The open tape that any of the tensors is on."""
    tape: Tape | None = None
    for arg in args:
        if isinstance(arg, Tensor) and arg.node is not None and not arg.node.tape.closed:
            tape = arg.node.tape
    return tape


def record(tape: Tape, rule: Rule, args: Sequence[Any], out: Any, saved: Any, backend: Backend) -> Any:
    """Put one op that ran on the tape; the outputs as tensors with places."""
    inputs = tuple(
        a.node.place if isinstance(a, Tensor) and a.node is not None and not a.node.tape.closed else None
        for a in args
    )
    for index in inputs:
        if index is not None:
            tape.uses[index] += 1
    outs = out if isinstance(out, tuple) else (out,)
    nodes = [tape.new_place() for _ in outs]
    tape.records.append(Record(rule, saved, inputs, tuple(n.place for n in nodes), isinstance(out, tuple)))
    tensors = tuple(Tensor(o, backend, node) for o, node in zip(outs, nodes, strict=True))
    return tensors if isinstance(out, tuple) else tensors[0]


def pullback(fn: Callable[..., Any], params: Any, *args: Any) -> tuple[Any, Callable[[list[Array | None]], Any], Tape]:
    """Run `fn(params, *args)` on a new tape.

    Returns `fn`'s result; a function that takes one native gradient per tensor of the result and gives the
    tree of gradients (native arrays) of the parameters; and the tape, which the caller closes.
    """
    if _recording.get():
        raise GradientError("[value_and_grad] a gradient inside a gradient is not supported: duoln is first "
                            "order only. Compute the inner gradient first, outside the function")
    tape = Tape()
    leaves: list[Tensor] = []

    def track(path: str, leaf: Any) -> Tensor:
        if not isinstance(leaf, Tensor):
            raise DtypeError(f"[value_and_grad] parameter '{path}': expected a duoln.Tensor, found "
                             f"{type(leaf).__name__}; make one with duoln.tensor(x) or duoln.to_tensors(tree)")
        if leaf.dtype not in FLOATS:
            raise DtypeError(f"[value_and_grad] parameter '{path}': expected a float dtype, found {leaf.dtype}")
        tracked = Tensor(leaf.data, leaf.backend, tape.new_place())
        leaves.append(tracked)
        return tracked

    tracked = tree.unflatten(params, [track(path, leaf) for path, leaf in tree.items(params)])
    token = _recording.set(True)
    try:
        result = fn(tracked, *args)
    finally:
        _recording.reset(token)

    def back(gouts: list[Array | None]) -> Any:
        seeds = {out.node.place: g for out, g in zip(tensors_of(result), gouts, strict=True)
                 if g is not None and out.node is not None and out.node.tape is tape}
        gradients = tape.backward(leaves[0].backend, seeds) if leaves else []
        return tree.unflatten(params, [
            leaf.backend.zeros(leaf.shape, leaf.dtype) if g is None else g
            for leaf, g in zip(leaves, gradients, strict=False)
        ])

    return result, back, tape


def tensors_of(result: Any) -> list[Tensor]:
    """The tensors in a tree, in order."""
    return [leaf for leaf in tree.leaves(result) if isinstance(leaf, Tensor)]


def value_and_grad(fn: Callable[..., Any], has_aux: bool = False) -> Callable[..., tuple[Any, Any]]:
    """A function that gives `fn`'s value and its gradient with respect to the first argument.

    `fn(params, *args)` returns a scalar tensor, or `(scalar, aux)` with `has_aux`. The result returns
    `(value, gradients)`, or `((value, aux), gradients)`; gradients have the form, shapes and dtypes of
    `params`. Parameters that the value does not depend on get zeros. Values that leave the call are off
    the tape.

    Raises:
        ShapeError: the value is not a scalar, or with `has_aux` the result is no pair.
        DtypeError: a parameter is not a float tensor.
        GradientError: called inside another gradient.
    """
    check_function("value_and_grad", "fn", fn)
    check_flag("value_and_grad", "has_aux", has_aux)

    def run(params: Any, *args: Any) -> tuple[Any, Any]:
        result, back, tape = pullback(lambda p: fn(p, *args), params)
        try:
            if has_aux and not (isinstance(result, tuple) and len(result) == 2):
                raise ShapeError(f"[value_and_grad] expected a pair (value, aux) of a function with has_aux, "
                                 f"found {described(result)}")
            value, aux = result if has_aux else (result, None)
            if not isinstance(value, Tensor) or value.shape != ():
                found = f"shape {value.shape}" if isinstance(value, Tensor) else type(value).__name__
                raise ShapeError(f"[value_and_grad] expected a scalar tensor as the value, found {found}")
            backend = value.backend
            tensors = tensors_of(result)
            seeds: list[Array | None] = [backend.ones((), value.dtype) if t is value else None for t in tensors]
            gradients = tree.map(lambda g: Tensor(g, backend), back(seeds))
        finally:
            tape.closed = True
            tape.records.clear()
        value = Tensor(value.data, backend)
        if not has_aux:
            return value, gradients
        return (value, tree.map(lambda x: Tensor(x.data, x.backend) if isinstance(x, Tensor) else x, aux)), gradients

    return run
