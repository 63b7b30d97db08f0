"""The rules of a device and their cases, from the registry."""

from conftest import GPU, get_backend

from duoln import ops
from duoln.kernels.registry import every_case, every_rule

_BACKENDS = {"cuda": GPU, "metal": "mlx"}


def rules(device):
    """Pairs of an operator's name and a rule, of "cuda" or "metal"."""
    return [(op.name, rule) for op, rule in every_rule(get_backend(_BACKENDS[device])) if rule.name.startswith(device)]


def cases(device):
    """The cases of the operators that have a rule of "cuda" or "metal"."""
    names = {name for name, _ in rules(device)}
    return [case for case in every_case() if case.op in names and not case.cpu]


def stored(op, backend):
    """The number of arrays of an operator that a rule takes in 16 bits."""
    return next(len(rule.stored) for rule in getattr(ops, op).rules(backend) if rule.stored)
