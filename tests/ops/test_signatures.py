"""`help()` shows the arguments that an operator takes; its `Shape:` has those and the axes that the declaration has."""

import importlib
import inspect
import re

import pytest

import duoln
from duoln import ops
from duoln.core.op import Op
from duoln.errors import MixedBackendError
from duoln.testing import check_error

MODULES = [ops, *(importlib.import_module(f"duoln.plugins.{name}.ops") for name in ("draw", "handwriting", "order_embeddings"))]
OPERATORS = {name: op for module in MODULES for name, op in vars(module).items()
             if isinstance(op, Op) and op.spec and "Shape:" in op.__doc__}


@pytest.mark.parametrize("name", [*ops.__all__, *ops.WITHIN])
def test_signatures_name_every_argument(name):
    function = getattr(ops, name)
    signature = inspect.signature(function)
    assert not any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values()), signature
    assert all(p.annotation is not p.empty for p in signature.parameters.values()) and function.__name__ == name
    assert signature.return_annotation is not signature.empty and inspect.getdoc(function)


@pytest.mark.parametrize("name", ["logical_and", "logical_or"])
def test_logical_operators_take_one_backend(name, numpy_backend):
    from conftest import get_backend

    x, y = (duoln.tensor([True, False], be) for be in (numpy_backend, get_backend("mlx")))
    check_error(MixedBackendError, lambda: getattr(ops, name)(x, y), f"[{name}]", "numpy", "mlx")


def test_an_unknown_operator_is_named_with_the_nearest():
    with pytest.raises(AttributeError, match="'layernorm'; did you mean 'layer_norm'"):
        _ = ops.layernorm


def described(doc):
    """The axes of each argument, in the words of a docstring: `x and y (B, width) -> ...`, or `y like x`."""
    text = " ".join(doc.partition("Shape:")[2].partition("\n\n")[0].partition("->")[0].split())
    axes = {}
    for names, words in re.findall(r"(\w+(?:(?:, | and )\w+)*)(?: int32| bool)? \(([^()]*)\)", text):
        for name in re.split(r", | and ", names):
            axes.setdefault(name, [word.strip() for word in words.split(",") if word.strip()])
    for name, like in re.findall(r"(\w+) like (\w+)", text):
        axes[name] = axes[like]
    return axes


@pytest.mark.parametrize("name", OPERATORS)
def test_shape_has_the_arguments_and_axes_of_the_declaration(name):
    operator = OPERATORS[name]
    axes, words = described(operator.__doc__), {}
    for each in operator.spec.inputs:
        if each.axes is None:
            continue
        assert len(axes[each.name]) == len(each.axes), each
        for axis, word in zip(each.axes, axes[each.name], strict=True):
            assert (word == "...") == (axis[0] == "*")
            assert words.setdefault(axis, word) == word, f"one axis, two names: {axis}"
    names = [word for word in words.values() if word != "..."]
    assert len(set(names)) == len(names), f"two axes, one name: {words}"


@pytest.mark.long
def test_operators_of_several_arrays_say_their_shapes():
    several = {name for module in MODULES for name, op in vars(module).items()
               if isinstance(op, Op) and op.spec and sum(each.axes is not None for each in op.spec.inputs) > 1}
    assert several - OPERATORS.keys() == {"rnn", "lstm", "gru"}  # their module says them for all
