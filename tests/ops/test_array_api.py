"""The page of the operators is true: names, the arguments of the array API standard, what expressions give, `help()` and its `Shape:`."""

import importlib
import inspect
import math
import re
from pathlib import Path

import numpy as np
import pytest

import duoln
from duoln import ops
from duoln.core import Tensor
from duoln.core.op import Op
from duoln.core.pytorch_names import OF_OPS
from duoln.errors import DtypeError, UsageError
from duoln.testing import check_error

STANDARD = [
    "arange", "asarray", "empty", "empty_like", "eye", "from_dlpack", "full", "full_like", "linspace", "meshgrid", "ones",
    "ones_like", "tril", "triu", "zeros", "zeros_like", "astype", "can_cast", "finfo", "iinfo", "isdtype", "result_type",
    "__array_namespace_info__", "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "bitwise_invert", "ceil", "conj", "cos",
    "cosh", "exp", "expm1", "floor", "imag", "isfinite", "isinf", "isnan", "log", "log10", "log1p", "log2", "logical_not",
    "negative", "positive", "real", "reciprocal", "round", "sign", "signbit", "sin", "sinh", "sqrt", "square", "tan", "tanh",
    "trunc", "add", "atan2", "bitwise_and", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "copysign",
    "divide", "equal", "floor_divide", "greater", "greater_equal", "hypot", "less", "less_equal", "logaddexp", "logical_and",
    "logical_or", "logical_xor", "maximum", "minimum", "multiply", "nextafter", "not_equal", "pow", "remainder", "subtract", "clip",
    "take", "take_along_axis", "matmul", "matrix_transpose", "tensordot", "vecdot", "broadcast_arrays", "broadcast_to", "concat",
    "expand_dims", "flip", "moveaxis", "permute_dims", "repeat", "reshape", "roll", "squeeze", "stack", "tile", "unstack", "argmax",
    "argmin", "count_nonzero", "nonzero", "searchsorted", "where", "unique_all", "unique_counts", "unique_inverse", "unique_values",
    "argsort", "sort", "cumulative_prod", "cumulative_sum", "max", "mean", "min", "all", "any", "prod", "sum", "std", "var", "diff",
    "linalg.cholesky", "linalg.cross", "linalg.det", "linalg.diagonal", "linalg.eigh", "linalg.eigvalsh", "linalg.inv",
    "linalg.matrix_norm", "linalg.matrix_power", "linalg.matrix_rank", "linalg.outer", "linalg.pinv", "linalg.qr", "linalg.slogdet",
    "linalg.solve", "linalg.svd", "linalg.svdvals", "linalg.trace", "linalg.vector_norm", "fft.fft", "fft.fftfreq", "fft.fftn",
    "fft.fftshift", "fft.hfft", "fft.ifft", "fft.ifftn", "fft.ifftshift", "fft.ihfft", "fft.irfft", "fft.irfftn", "fft.rfft",
    "fft.rfftfreq", "fft.rfftn"]
"""The functions of the array API standard, 2024.12, with its extensions."""
PAGE = (Path(duoln.__file__).parent / "docs" / "operators.md").read_text(encoding="utf-8")


def rows(head):
    """The cells of the table with this head, row by row."""
    [table] = re.findall(rf"^{re.escape(head)}\n\|[ |-]+\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table.splitlines()]


def quoted(cell):
    return re.findall(r"`([^`]+)`", cell)


OPERATORS = [name for _, names in rows("| subject | operators |") for name in quoted(names)]
SAME = [name for name in STANDARD if name.rpartition(".")[2] in OPERATORS]
MADE_OF_NOTHING = ("arange", "eye", "full", "linspace", "ones", "zeros")
EXPRESSIONS = {name: quoted(expression)[0].replace("\\|", "|") for names, expression in rows("| function | expression |") for name in quoted(names)}
_ABSENT = [name for _, names in rows("| reason | functions |") for name in quoted(names)]
ABSENT = [name for name in STANDARD if name not in SAME and name not in EXPRESSIONS
          and (name in _ABSENT or f"{name.partition('.')[0]}.*" in _ABSENT)]


def test_each_operator_stands_once():
    assert sorted(OPERATORS) == sorted(ops.__all__)


@pytest.mark.parametrize("name", [*EXPRESSIONS, *ABSENT])
def test_a_name_that_is_not_there_gets_the_answer_of_the_page(name):
    """In one place, and not the nearest name; what the host does has a line of its own."""
    last = name.rpartition(".")[2] if name in EXPRESSIONS else name.partition(".")[0]  # of linalg.det, linalg
    if last.startswith("__"):
        return
    with pytest.raises(AttributeError, match=f"has no attribute '{last}'; in duoln: ") as told:
        getattr(ops, last)
    if name in EXPRESSIONS and last not in OF_OPS:
        assert str(told.value).endswith(f"in duoln: `{EXPRESSIONS[name]}`")


def test_each_function_of_the_standard_stands_once():
    assert sorted([*SAME, *EXPRESSIONS, *ABSENT]) == sorted(STANDARD)
    assert [name for name in _ABSENT if not name.endswith(".*") and name not in ABSENT] == []


X, Y = np.random.default_rng(0).uniform(0.5, 2, (2, 3, 4)).astype(np.float32), np.random.default_rng(1).uniform(0.5, 2, (3, 4)).astype(np.float32)
B = X > 1
MADE = {"arange": [((5,), {}), ((2, 9, 3), {}), ((5,), {"stop": 0, "step": -2}), ((0,), {"dtype": "float32"}), ((-1,), {}), ((1, 3), {"dtype": "float32"})],
        "eye": [((3,), {}), ((2, 4), {"k": 1, "dtype": "int32"}), ((0,), {"dtype": "bool"})],
        "full": [(((2, 3), 1.5), {}), ((2, 2.5), {}), (([1, 2], np.int64(3)), {"dtype": "int32"})],
        "linspace": [((0.0, 1.0, 5), {}), ((0.0, 1.0), {"num": 4, "endpoint": False}), ((2.0, -1, 3), {"endpoint": False}), ((0, 1, 0), {})],
        "ones": [((4,), {}), (((2, 3),), {}), (((),), {})], "zeros": [((4,), {"dtype": "int32"}), (((2, 0),), {})]}


def of_numpy(name):
    return getattr(np.linalg, name.removeprefix("linalg.")) if name.startswith("linalg.") else getattr(np, name)


def tensors(value, be):
    if isinstance(value, np.ndarray):
        return duoln.tensor(value.copy(), be)
    return type(value)(tensors(v, be) for v in value) if isinstance(value, list | tuple) else value


def check_same(result, expected):
    if isinstance(expected, list | tuple):
        assert type(result) is tuple and len(result) == len(expected)
        for mine, theirs in zip(result, expected, strict=True):
            check_same(mine, theirs)
        return
    expected = np.asarray(expected)
    assert isinstance(result, Tensor) and result.shape == expected.shape
    assert np.dtype(result.dtype).kind == expected.dtype.kind
    np.testing.assert_allclose(result.numpy(), expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("name", MADE)
def test_what_is_made_is_what_numpy_makes(name, be):
    for args, kwargs in MADE[name]:
        made = getattr(ops, name)(*args, **kwargs, backend=be)
        check_same(made, of_numpy(name)(*args, **kwargs))
        assert made.backend is be and made.dtype == kwargs.get("dtype", "int32" if name == "arange" else "float32")


def test_astype(be):
    check_same(ops.astype(duoln.tensor(X, be), "int32"), np.astype(X, np.int32))


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_expressions_give_what_numpy_gives(name, be):
    """Each stands for the function of these names: x and y, or a and b of bools, or s of a square matrix."""
    host = {"x": Y[:3, :3], "y": Y[:3, 1:], "a": B[0], "b": B[1], "s": Y[:3, :3], "array": [[1.0, 2.0]]}
    expected = {
        "asarray": lambda x, **_: np.asarray([[1.0, 2.0]], np.float32), "linalg.matrix_norm": lambda s, **_: np.linalg.norm(s),
        **{name: lambda a, b, f=name, **_: getattr(np, f)(a, b) for name in ("bitwise_and", "bitwise_or", "bitwise_xor", "logical_xor")},
        "bitwise_invert": lambda a, **_: ~a, "count_nonzero": lambda x, **_: np.asarray(np.count_nonzero(x), np.int32),
        "empty": lambda **_: np.zeros((2, 3)), "empty_like": lambda x, **_: np.zeros_like(x), "diff": lambda x, **_: np.diff(x, axis=0),
        "linalg.trace": lambda s, **_: np.trace(s), "linalg.diagonal": lambda s, **_: np.diagonal(s),
    }.get(name, lambda x, f=name, **_: getattr(np, f)(x))
    names = {key: tensors(value, be) for key, value in host.items()}
    result = eval(EXPRESSIONS[name], {"ops": ops, "duoln": duoln, "math": math, "backend": be, **names})
    check_same(result, expected(**host))


@pytest.mark.parametrize("name", MADE_OF_NOTHING)
def test_what_is_made_of_nothing_is_on_the_backend_that_is_chosen(name, be, monkeypatch):
    monkeypatch.setenv("DUOLN_BACKEND", "mlx")
    make, args = getattr(ops, name), {"full": ((2, 3), 1.5), "linspace": (0.0, 1.0, 3)}.get(name, (3,))
    assert make(*args).backend.name == "mlx" and make(*args, backend="numpy").backend.name == "numpy"
    assert make(*args, backend=be).backend is be
    assert list(inspect.signature(make).parameters)[-2:] == ["backend", "dtype"]
    check_error(DtypeError, lambda: make(*args, backend=2.5), f"[{name}] backend", "float")
    check_error(UsageError, lambda: make(*args, backend="gpu"), "gpu")


MODULES = [ops, *(importlib.import_module(f"duoln.plugins.{name}.ops") for name in ("draw", "handwriting", "order_embeddings"))]
DECLARED = {name: op for module in MODULES for name, op in vars(module).items()
             if isinstance(op, Op) and op.spec and "Shape:" in op.__doc__}


@pytest.mark.parametrize("name", [*ops.__all__, *ops.WITHIN])
def test_signatures_name_every_argument(name):
    function = getattr(ops, name)
    signature = inspect.signature(function)
    assert not any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values()), signature
    assert all(p.annotation is not p.empty for p in signature.parameters.values()) and function.__name__ == name
    assert signature.return_annotation is not signature.empty and inspect.getdoc(function)


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


@pytest.mark.parametrize("name", DECLARED)
def test_shape_has_the_arguments_and_axes_of_the_declaration(name):
    operator = DECLARED[name]
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
