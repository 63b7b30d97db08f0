"""Everything that authors of operators and rules need. An operator has a composed rule and may have faster ones.

    from duoln import extend
    import numpy as np

    @extend.op("x: real[*shape] -> like x")
    def softsign(x: extend.Tensor) -> extend.Tensor:
        '''x / (1 + |x|) of each value.'''

    def forward(be, x):                                     # arrays of the backend `be`, whichever it is
        size = 1.0 + be.abs(x)
        return x / size, size                               # the value, and what the gradient needs

    def vjp(be, size, gout, needs):                         # a gradient for each array argument
        return (gout / (size * size),)

    softsign.add(extend.Rule("composed", forward, vjp))     # or: softsign.add(extend.derived(function of tensors))

    def fast_forward(be, x):                                # only for NumPy arrays, on all cores
        size = np.abs(x, out=extend.host.empty_like(x))
        size += 1.0
        return x / size, size

    fast = extend.Rule("in place", fast_forward, vjp, lambda be, x: None if x.size else "there are no values")
    softsign.add(fast, backend="numpy")                     # tried first

An operator with kernels is `duoln.examples.own_operator`, and what `duoln new-task NAME --operator` writes: a `Launch`
for each entry, of which `fused` makes the rule of each device that has a text, and `register`.

The declaration says what the arrays are: kinds are `real`, `int32`, `bool` and `any`, an axis that two arrays name has
one size, `*rows` is any number of axes, `?` allows None. `duoln.core.spec` has the whole language. A call checks the
arrays, and then runs a rule.

An attribute, such as a slope, is an argument after a star; its annotation says what it may be: `Finite`, `Above0`,
`Integer`, `bool`, or a `Literal` of names. A call checks it, and gives it to every `forward` and `supports` by
name, and to a `vjp` that names it after a star too:

    @extend.op("x: real[*shape] -> like x")
    def leaky(x: extend.Tensor, *, slope: extend.Finite = 0.1) -> extend.Tensor:
        '''x, and slope * x below 0.'''

    def forward(be, x, slope):
        positive = x > 0
        return be.where(positive, x, x * slope), positive

    def vjp(be, positive, gout, needs, *, slope):
        return (be.where(positive, gout, gout * slope),)

An operator with further conditions has a body. `leaky.check(x)` there checks the arrays by the declaration, and
`return leaky.apply(x, slope=slope)` ends it.

Tensors of float16 and bfloat16 store values; arithmetic is float32. Nothing has to be written for them: a rule gets
float32 arrays, and the declaration says how a result is stored: `like x` in the dtype of x, `real[*rows]` in float32,
as a sum or a loss. Gradients are rounded to the dtypes of their arrays. A fast rule for arrays as they are stored names
them, `Rule(..., stored=(0,))`, and `check_rule(..., dtype="bfloat16")` checks it.

`supports`, the last argument of the fast rule, returns the reason why the rule cannot run; the operator then runs the
composed rule. No rule writes into its inputs or `gout`, and a second gradient from the same saved values has the same
bits. `check_op` compares an operator with a NumPy formula and its gradient with central differences
(`attrs={"slope": 0.1}` goes to both); `check_rule` compares a fast rule with the composed one.

Contents:

* `Op`, `op`, `Rule`, `derived`, `Tensor`; the types `Array`, `Backend`; the dtypes `FLOATS`;
* annotations of attributes: `Finite`, `AtLeast0`, `Above0`, `Below1`, `Integer`, `AtLeast1`, or `Annotated` with an
  `Interval` of numbers or the integers of a `Whole`;
* for a body, beside `NAME.check`: `check_room`;
* `host`: arrays that start on a cache line, and the number of threads, for rules on NumPy arrays;
* `Launch`: a call of an entry of a C++, CUDA or Metal text, declared in the language of `op`; `stored` arrays may have
  16 bits on a GPU. It is compiled at its first use. Give the text's whole path without its ending. The text writes
  `ENTRY(name) {`; the prototype is printed from the declaration. A C++ text includes `common.h`, whose `T` is float or
  double, `index_t` a size, whose `in_parts(count, threads, work)` calls `work(first, last)` on each thread, and whose
  `guarded` turns a lack of memory into a MemoryError; no other exception may leave it. `rows.h` walks along rows in
  vectors. `common.cuh` and `common.metal.h` sum over a block. A plan for GPUs gives a `Layout`. The gradient of a
  parameter of a row is `d_gain: sum[width]`: the text writes a row of parts for each block, `Layout(parts=blocks)` on a
  GPU and on a CPU one for each `Launch(block=)` rows, and the launch adds them up. `duoln.core.spec` has the language,
  `duoln.kernels.launch.declared` the order of an entry's parameters;
* `fused`: adds the rule of two launches on each device that has a text;
* `register`: tells `duoln selftest`, `doctor` and `bench ops` of an operator, its `Case`s, which `case` makes of
  shapes, and a `Timed`: shapes, what is read and written, and a peer's function;
* `native`: `refusal` says why there is no library of a text for a dtype, for `supports`; `threads_for` how many threads
  to use;
* `cuda` and `metal`, loaded on first use: what launches on these devices share, such as `cuda.sum_columns`.

`duoln.testing` has the checks: `check_kernel` proves texts without the hardware.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from duoln import runtime
from duoln.backends.protocol import FLOATS, Array, Backend
from duoln.core import Op, Rule, Tensor, derived, op
from duoln.core.arguments import (
    Above0,
    AtLeast0,
    AtLeast1,
    Below1,
    Finite,
    Integer,
    Interval,
    Whole,
    check_function,
    described,
)
from duoln.core.public_names import only_public
from duoln.errors import DtypeError
from duoln.kernels import host, native
from duoln.kernels.launch import Launch, fused as rule_of_launches
from duoln.kernels.launch.declared import Layout
from duoln.kernels.registry import Case, Timed, case, register
from duoln.ops.common import check_room

if TYPE_CHECKING:
    from duoln.kernels.launch import (
        cuda as cuda,  # noqa: PLC0414 (it is offered, and not in __all__)
        metal as metal,  # noqa: PLC0414
    )

__all__ = [
    "FLOATS", "Above0", "Array", "AtLeast0", "AtLeast1", "Backend", "Below1", "Case", "Finite", "Integer", "Interval",
    "Launch", "Layout", "Op", "Rule", "Tensor", "Timed", "Whole", "case", "check_room", "derived", "fused", "host",
    "native", "op", "register",
]


def fused(op: Op[Any, Any], forward: Callable[..., Any], vjp: Callable[..., Any] | None, first: Launch,
          supports: Callable[..., str | None] | None = None, **options: Any) -> None:
    """Add the rule of these passes to an operator, on each device that has a text of `first`.

    Args:
        op: the operator.
        forward: `forward(be, *arrays, **attrs)`, see `Rule`; `LAUNCH[be.name](...)` launches on the device of the call.
        vjp: the rule's.
        first: the launch of the forward pass; its first arguments are those of the operator. Its declaration says
            which arrays the rule takes in 16 bits: those that are `stored`, on a GPU.
        supports: None, or the reason why the rule cannot run; by default that there are no values, that the dtype is
            another, or that no compiler is here.
        options: of `Rule`.

    Raises:
        DtypeError: an argument is of another kind.
    """
    for role, given, kind in (("op", op, Op), ("first", first, Launch)):
        if not isinstance(given, kind):
            raise DtypeError(f"[fused] {role}: expected an extend.{kind.__name__}, found {described(given)}")
    check_function("fused", "forward", forward)
    runtime.when_used(rule_of_launches(op, forward, vjp, first, supports, **options))


# They import CuPy and MLX, so only a rule that uses them loads them, and `dir` is without them.
only_public(globals(), lazy={name: f"duoln.kernels.launch.{name}:" for name in ("cuda", "metal")})
