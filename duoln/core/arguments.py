"""The checks of arguments that are not tensors: integers, numbers, switches, names and functions.

Each check returns the argument as a plain Python value, so that a NumPy scalar may replace a Python number. Its error
begins with the operator: `[split] parts: expected an integer, found 2.0 (float)`.
"""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, MappingView, Sequence, Set
from dataclasses import dataclass, is_dataclass
from functools import lru_cache
from typing import Annotated, Any, NamedTuple

import numpy as np

from duoln.errors import DtypeError, ShapeError, UsageError

INT32 = np.iinfo(np.int32)
LARGEST = int(INT32.max)
"""The largest size of an axis on every backend."""


WORDS = {"ln": "layer", "bn": "batch", "cuda": "cupy", "gpu": "cupy", "mps": "mlx", "metal": "mlx", "cpu": "numpy",
         "half": "float16", "fp16": "float16", "bf16": "bfloat16", "bfloat16": "bf16", "float": "float32",
         "double": "float64", "int": "int32", "long": "int32"}
"""Other libraries' names of norms, backends and dtypes, with ours."""
_FUNCTIONS = "elu", "gelu", "leaky_relu", "sigmoid", "silu", "softmax", "softplus"
"""The activations that no other operator computes."""


class Interval(NamedTuple):
    """The numbers that an argument may be: in words, and as a condition in Python, whose `{0}` is the number."""

    words: str
    test: str

    def holds(self, number: float) -> bool:
        """True if the number is in the interval."""
        return bool(_condition(self.test)(number))


@lru_cache(maxsize=64)
def _condition(test: str) -> Callable[[float], bool]:
    condition: Callable[[float], bool] = eval(f"lambda x: {test.format('x')}", {"inf": math.inf})
    return condition


NOT_NAN = Interval("a number", "{0} == {0}")
FINITE = Interval("a finite number", "-inf < {0} < inf")
AT_LEAST_0 = Interval("a finite number of at least 0", "0 <= {0} < inf")
ABOVE_0 = Interval("a finite number above 0", "0 < {0} < inf")
EPSILON = Interval("a finite number of at least 1e-30", "1e-30 <= {0} < inf")
"""An epsilon that keeps 0 / 0 from being computed, also times an optimizer's factors; in float32 1e-50 is 0."""
BELOW_1 = Interval("a number in [0, 1)", "0 <= {0} < 1")


@dataclass(frozen=True)
class Whole:
    """The integers that an argument may be."""

    low: int = -LARGEST
    high: int = LARGEST


Finite = Annotated[float, FINITE]
AtLeast0 = Annotated[float, AT_LEAST_0]
Above0 = Annotated[float, ABOVE_0]
Below1 = Annotated[float, BELOW_1]
Integer = Annotated[int, Whole()]
AtLeast1 = Annotated[int, Whole(1)]
"""Annotations of an operator's attributes; a call checks them."""


def described(value: Any) -> str:
    """A value in a few words: its text, which is cut where it is long, and its class."""
    kind = type(value)
    if value is None:
        return "None"
    if isinstance(value, int) and value.bit_length() > 128:  # Python refuses to write the longest ones
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, bool | int | float | complex | str | np.generic):
        text = repr(value)
        return f"{text if len(text) <= 40 else text[:37] + '...'} ({kind.__name__})"
    return kind_name(kind)


def kind_name(kind: type) -> str:
    """The name of a class, with the library that defines it, as a user writes it."""
    library = kind.__module__.partition(".")[0]
    return kind.__qualname__ if library == "builtins" else f"{library}.{kind.__qualname__}"


def name_of(function: Any) -> str:
    """The name of a function, or its text where it has none."""
    return str(getattr(function, "__name__", None) or repr(function))


def how_to_wrap(value: Any) -> str:
    """The end of an error about a value that should be a tensor: the way to make one of it."""
    if isinstance(value, np.ndarray):
        return ("wrap a constant with duoln.tensor(x), and parameters, as a module's weights(self, rng) and "
                "model.init(seed) make them, with duoln.to_tensors(params)")
    if value is None:
        return "leave it out, or give a tensor in its place"
    if callable(value) and callable(getattr(value, "init", None)):  # a module
        return "its parameters are params = duoln.init(model, 0)"
    if is_dataclass(value):
        return "a tree is made of dicts, lists and tuples: give vars(x), or a NamedTuple"
    if type(value) is dict:
        return "give its tensors one by one; duoln.tree.leaves(x) lists them"
    if remedy := how_to_unpack(value):
        return remedy
    if kind_name(type(value)) == "torch.Tensor":
        return "duoln.tensor(x.detach().cpu().numpy()) takes its values"
    return "wrap it with duoln.tensor(x)"


def how_to_unpack(value: Any) -> str | None:
    """The words for making a dict of a mapping, or a list of an iterator, a view or a set; None for another value."""
    if isinstance(value, Mapping):
        return "give dict(x)"
    return "give list(x)" if isinstance(value, Iterator | MappingView | Set) else None


def check_integer(name: str, role: str, value: Any, low: int = -LARGEST, high: int = LARGEST) -> int:
    """An integer of any library, as a Python integer.

    Raises:
        DtypeError: it is not an integer; a bool does not count as one.
        ShapeError: it is not in low .. high.
    """
    if type(value) is not int:
        if isinstance(value, bool | np.bool_):
            raise DtypeError(f"[{name}] {role}: expected an integer, found {described(value)}")
        try:
            value = operator.index(value)
        except TypeError:
            raise DtypeError(f"[{name}] {role}: expected an integer, found {described(value)}") from None
    if not low <= value <= high:
        bounds = f"of at least {low}" if value < low else f"of at most {high}"
        actual = value if value.bit_length() < 64 else described(value)
        raise ShapeError(f"[{name}] {role}: expected an integer {bounds}, found {actual}")
    count: int = value
    return count


def check_integers_in(name: str, role: str, values: Any, low: int = -LARGEST, high: int = LARGEST,
                      ) -> tuple[int, ...]:
    """A tuple or list of integers, as a tuple of Python integers. It raises the errors of `check_integer`."""
    if not isinstance(values, tuple | list):
        raise DtypeError(f"[{name}] {role}: expected a tuple of integers, found {described(values)}")
    return tuple([check_integer(name, role, value, low, high) for value in values])


MOST_AXES = 32
"""The largest number of axes that NumPy, CuPy and MLX all support. MLX may end the process at more."""


def check_axes(name: str, count: int) -> None:
    """Raises ShapeError for more axes than the array libraries support."""
    if count > MOST_AXES:
        raise ShapeError(f"[{name}] expected at most {MOST_AXES} axes, found {count}")


def check_number(name: str, role: str, value: Any, among: Interval = FINITE) -> float:
    """A number of any library, as a Python number.

    Raises:
        DtypeError: it is not a number; a bool does not count as one.
        UsageError: it is not in the interval.
    """
    if type(value) is not float:
        if isinstance(value, np.integer | np.floating):
            value = value.item()
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise DtypeError(f"[{name}] {role}: expected {among.words}, found {described(value)}")
        if isinstance(value, int) and abs(value) > 1 << 1023:
            raise UsageError(f"[{name}] {role}: expected {among.words} within float64, found an integer beyond it")
    if not among.holds(value):
        raise UsageError(f"[{name}] {role}: expected {among.words}, found {value}")
    number: float = value
    return number


def check_flag(name: str, role: str, value: Any) -> bool:
    """True or False. Raises DtypeError for anything else, numbers included."""
    if value is True or value is False:
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    raise DtypeError(f"[{name}] {role}: expected True or False, found {described(value)}")


def check_choice(name: str, role: str, value: Any, choices: Sequence[str | None]) -> Any:
    """One of a few names. Raises UsageError for another name, DtypeError for a value that is not a name."""
    if (value is None or isinstance(value, str)) and value in choices:
        return value
    quoted = [repr(c) for c in choices]
    text = " or ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)
    if isinstance(value, str):
        follows = None in choices and value in _FUNCTIONS
        advice = f"; ops.{value} follows the layer" if follows else did_you_mean(value, choices)
        raise UsageError(f"[{name}] expected {role} {text}, found {value!r:.40}{advice}")
    raise DtypeError(f"[{name}] expected {role} {text}, found {described(value)}")


def did_you_mean(name: Any, names: Iterable[Any]) -> str:
    """The end of an error about an unknown name: it proposes our word for it, or the nearest known name, if any."""
    near = nearest(name, names)
    return f"; did you mean {near!r}?" if near else ""


def nearest(name: Any, names: Iterable[Any]) -> str | None:
    """Our word for a name, or the known name that is nearest to it, if any."""
    if not isinstance(name, str):
        return None
    known = [each for each in names if isinstance(each, str)]
    word = WORDS.get(name.lower().partition(":")[0])  # cuda:0 is the first GPU
    if word in known:
        return word
    cutoff = 0.6 if len(name) > 2 else 0.5  # of two letters one may be wrong
    return next(iter(difflib.get_close_matches(name.lower(), known, n=1, cutoff=cutoff)), None)


def dtype_name(dtype: Any) -> Any:
    """The name of one of NumPy's dtypes or types, or of Python's `float`, `int` and `bool`; else what was given."""
    if isinstance(dtype, np.dtype) or (isinstance(dtype, type) and issubclass(dtype, np.generic | float | int)):
        return np.dtype(dtype).name
    return dtype


def check_function(name: str, role: str, value: Any) -> Any:
    """Something that can be called. Raises DtypeError for anything else."""
    if not callable(value):
        raise DtypeError(f"[{name}] {role}: expected a function, found {described(value)}")
    return value
