"""`help()` shows the arguments that an operator takes."""

import inspect

import pytest

import duoln
from duoln import ops
from duoln.errors import MixedBackendError
from duoln.testing import check_error


@pytest.mark.parametrize("name", ops.__all__)
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
