"""The autograd core: what a tensor is, what an operator is, and how gradients are taken.

Read in this order: `rule`, `tape`, `tensor`, `op`, `storage`, `gradient`, `custom`, `donation`, `compiling`, `replay`,
`recording`, `program`, `watching`.
"""

from duoln.core.compiling import compile
from duoln.core.custom import custom_gradient, derived
from duoln.core.gradient import value_and_grad, vjp
from duoln.core.op import Op, composed_only, each_rule, op
from duoln.core.rule import Rule
from duoln.core.step.program import Factors
from duoln.core.tensor import Tensor, stop_gradient
from duoln.core.watching import watched

__all__ = ["Factors", "Op", "Rule", "Tensor", "compile", "composed_only", "custom_gradient", "derived", "each_rule",
           "op", "stop_gradient", "value_and_grad", "vjp", "watched"]
