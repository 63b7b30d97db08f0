"""Wrong calls, generated: every operator with every bad kind of every argument."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from misuse.calls import Call, as_tensor, floats, run

from duoln.core import Tensor
from duoln.errors import DuolnError

HUGE = 2 ** 60

NO_INTEGERS: dict[str, Any] = {"None": None, "text": "a", "array": np.ones(2, np.float32), "float": 2.0, "list": [1], "dict": {},
                               "bool": True, "complex": 1j, "float scalar": np.float64(1.0)}
NO_NUMBERS: dict[str, Any] = {"None": None, "text": "a", "array": np.ones(2, np.float32), "list": [1.0], "complex": 1j,
                              "nan": float("nan"), "bool": True}
BAD: dict[str, dict[str, Any]] = {
    "axis": {**NO_INTEGERS, "too large": 7, "too small": -7, "huge": HUGE, "tuple": (0,)},
    "optional integer": {**{k: v for k, v in NO_INTEGERS.items() if k != "None"}, "huge": HUGE},
    "optional index": {**{k: v for k, v in NO_INTEGERS.items() if k != "None"}, "too large": 7, "too small": -1},
    "optional axis": {**{k: v for k, v in NO_INTEGERS.items() if k != "None"}, "too large": 7, "too small": -7, "tuple": (0,)},
    "some axes": {**{k: v for k, v in NO_INTEGERS.items() if k != "list"}, "too large": 7, "twice": (1, 1), "none in it": (0, None)},
    "moved axes": {**{k: v for k, v in NO_INTEGERS.items() if k not in ("None", "list")}, "too large": 7, "too small": -7, "none in it": (0, None),
                   "float in it": (0.0,)},
    "last axis": {**NO_INTEGERS, "too small": -7, "not below 0": 0, "tuple": (0,)},
    "meeting axes": {**NO_INTEGERS, "too many": 3, "negative": -1, "one tuple": ((1,),), "no pair": (1, 0), "sizes": ((0,), (0,)), "twice": ((1, 1), (0, 0)),
                     "too large": ((7,), (0,))},
    "integer": {**NO_INTEGERS, "huge": HUGE},
    "shifts": {**{k: v for k, v in NO_INTEGERS.items() if k != "list"}, "huge": HUGE, "two": (1, 2), "float in it": (1.0,)},
    "counts": {**{k: v for k, v in NO_INTEGERS.items() if k != "list"}, "integer": 2, "negative": (-1, 1), "float in it": (2.0, 1), "none in it": (None,),
               "huge": (HUGE, HUGE)},
    "parts": {**{k: v for k, v in NO_INTEGERS.items()}, "zero": 0, "negative": -1, "fraction": 2.5, "huge": HUGE, "too little": (1, 2), "below 0": (-1, 5),
              "float in it": (2.0, 2.0)},
    "new axis": {**NO_INTEGERS, "too large": 7, "too small": -7, "huge": HUGE},
    "axes": {**{k: v for k, v in NO_INTEGERS.items() if k not in ("None", "list")}, "too large": 7, "too small": -7, "twice": (0, 0),
             "none in it": (0, None), "float in it": (0.0,)},
    "order": {**NO_INTEGERS, "integer": 1, "one": (0,), "twice": (0, 0), "float in it": (0.0, 1.0), "too large": (0, 2)},
    "count": {**NO_INTEGERS, "zero": 0, "negative": -1, "fraction": 2.5, "huge": HUGE},
    "optional count": {**{k: v for k, v in NO_INTEGERS.items() if k != "None"}, "zero": 0, "negative": -1, "fraction": 2.5},
    "width": {**NO_INTEGERS, "negative": -1, "fraction": 0.5, "huge": HUGE},
    "flag": {"None": None, "text": "no", "number": 2, "float": 0.0, "array": np.ones(2, bool), "list": []},
    "choice": {"None": None, "text": "elsewhere", "number": 1, "array": np.ones(2, np.float32), "list": ["tanh"], "dict": {}},
    "optional choice": {"text": "gelu", "number": 1, "array": np.ones(2, np.float32), "list": ["relu"], "bool": False},
    "dtype": {"None": None, "text": "int64", "number": 1, "list": ["float32"], "half": "half", "array": np.ones(2, np.float32)},
    "number": {**NO_NUMBERS},
    "bound": {**NO_NUMBERS},
    "optional bound": {k: v for k, v in NO_NUMBERS.items() if k != "None"},
    "positive": {**NO_NUMBERS, "negative": -1.0, "infinite": float("inf")},
    "optional positive": {**{k: v for k, v in NO_NUMBERS.items() if k != "None"}, "negative": -1.0, "infinite": float("inf")},
    "share": {**NO_NUMBERS, "negative": -0.1, "one": 1.0, "infinite": float("inf")},
    "shape": {**{k: v for k, v in NO_INTEGERS.items() if k != "list"}, "integer": 6, "floats": (2.0, 6.0), "none in it": (None, 6),
              "text in it": ("2", 6), "too small": -2, "negative": (-2, -6), "other size": (5, 5), "two open": (-1, -1),
              "huge": (HUGE, HUGE), "fraction": (2.5, 6)},
    "pair of counts": {**NO_INTEGERS, "zero": 0, "negative": -1, "fraction": 2.5, "huge": HUGE, "three": (1, 1, 1), "zero in it": (1, 0), "float in it": (1.0, 1)},
    "optional pair of counts": {**{k: v for k, v in NO_INTEGERS.items() if k != "None"}, "zero": 0, "negative": -1, "three": (1, 1, 1), "zero in it": (1, 0)},
    "count of groups": {**NO_INTEGERS, "zero": 0, "negative": -1, "huge": HUGE, "too many": 5, "pair": (1, 1)},
    "padding": {**NO_INTEGERS, "negative": -1, "fraction": 0.5, "huge": HUGE, "another word": "valid", "three": (1, 1, 1), "negative in it": (1, -1)},
    "padding of time": {**NO_INTEGERS, "negative": -1, "fraction": 0.5, "huge": HUGE, "another word": "valid", "pair": (1, 1)},
    "pool padding": {**NO_INTEGERS, "negative": -1, "fraction": 0.5, "huge": HUGE, "too wide": 2},
    "widths": {**NO_INTEGERS, "integer": 1, "one pair": ((1, 1),), "single": (1, 1), "negative": ((-1, 0), (0, 0)),
               "float in it": ((1.0, 0), (0, 0)), "three": ((1, 1, 1), (0, 0, 0)), "none in it": ((None, 0), (0, 0)),
               "huge": ((HUGE, 0), (0, 0)), "beyond memory": ((2 ** 30, 0), (2 ** 30, 0))},
    "key": {"text": "a", "float": 1.0, "array": np.array([0]), "list": [0], "bool": True, "dict": {}, "too large": 3, "too small": -4,
            "too many": (0, 0, 0), "two dots": (..., ...), "float slice": slice(0.5, 2), "text slice": slice("a", None),
            "step 0": slice(None, None, 0), "step None": slice(None, None, 1.0), "array slice": slice(np.arange(2), None),
            "huge": HUGE, "complex": 1j, "bool scalar": np.True_},
    "norms": {"None": None, "text": "a", "list": [1], "empty": {}, "array": np.ones(3, np.float32), "number": 3.0,
              "wrong": {"gain": floats(3)}},
}

NO_TENSORS: dict[str, Any] = {"None": None, "text": "a", "array": np.ones((3, 4), np.float32), "list": [1.0, 2.0], "object": object(),
                              "complex": 1j, "float": 2.5, "integer": 1, "bool": True, "scalar": np.float32(1.0), "dict": {}}
_NUMBERS = ("float", "integer", "scalar")
ROLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    # which of NO_TENSORS are right after all, and the dtypes that are wrong
    "float": ((), ("int32", "bool")), "fixed": ((), ("int32", "bool")), "optional": (("None",), ("int32", "bool")),
    "absent": (("None",), ()), "any": ((), ()), "fixed any": ((), ()), **dict.fromkeys(("bool", "fixed bool"), ((), ("int32", "float32"))), "paired bool": (("bool",), ("int32", "float32")),
    **dict.fromkeys(("optional bool", "broadcast bool"), (("None",), ("int32", "float32"))), "ids": ((), ("float32", "bool")), "labels": ((), ("float32", "bool")),
    "fixed integer": ((), ("float32", "bool")),
    "joined": ((), ("int32", "bool")), "paired": (_NUMBERS, ("int32", "bool")), "compared": (_NUMBERS, ("int32", "bool")),
}
RANKED = ("fixed", "fixed integer", "fixed any", "optional", "optional bool", "fixed bool", "labels")
"""Roles in which a tensor of another rank is wrong."""

BAD["optional weights"] = {**{k: v for k, v in NO_TENSORS.items() if k != "None"}}

Misuse = tuple[str, Callable[[], Any]]


def of_tensors(call: Call, be: Any, elsewhere: Any) -> Iterator[Misuse]:
    """Each tensor is left out, or replaced by a value that is no tensor, or by a tensor of another dtype, rank or
    backend.
    """
    right = [as_tensor(a, be) for a, _ in call.tensors]

    def replaced(position: int, value: Any) -> Callable[[], Any]:
        return lambda: run(call, be, [*right[:position], value, *right[position + 1:]])

    for i, (array, role) in enumerate(call.tensors):
        allowed, dtypes = ROLES[role]
        for kind, value in NO_TENSORS.items():
            if kind not in allowed:
                yield f"tensor {i}: {kind}", replaced(i, value)
        if array is None:
            yield f"tensor {i}: present", replaced(i, as_tensor(floats(3), be))
            continue
        for dtype in dtypes:
            yield f"tensor {i}: {dtype}", replaced(i, as_tensor(np.asarray(array).astype(dtype), be))
        if len(right) > 1:
            yield f"tensor {i}: another backend", replaced(i, as_tensor(array, elsewhere))
        if role in RANKED:
            yield f"tensor {i}: a rank more", replaced(i, as_tensor(np.asarray(array)[None, None, None], be))
            if np.ndim(array):
                yield f"tensor {i}: a rank less", replaced(i, as_tensor(np.asarray(array)[0], be))
        for _, k in [each for each in call.bound_axes() if each[0] == i]:
            yield f"tensor {i}: a size more at axis {k}", replaced(i, as_tensor(np.take(array, [*range(np.shape(array)[k]), 0], k), be))
        if role in ("ids", "labels") and call.name != "one_hot" and be.name == "numpy":
            yield f"tensor {i}: out of range", replaced(i, as_tensor(np.asarray(array) + 9, be))
    others = [a for a, _ in call.tensors[1:] if a is not None and a.dtype == np.float32]
    if others and be.dtype(right[0].data) == "float32" and "float64" in be.dtypes:
        yield "float64 beside float32", lambda: run(call, be, [as_tensor(call.tensors[0][0].astype(np.float64), be), *right[1:]])


def of_attributes(call: Call, be: Any) -> Iterator[Misuse]:
    """Each attribute is replaced by values of all wrong kinds, among them a tensor."""
    for key, (right, kind) in call.attrs.items():
        bad = {**BAD[kind], "tensor": as_tensor(floats(2), be)}
        if kind == "norms":
            bad |= {f"{word} {name}": {**right, name: wrong} for name, value in right.items() for word, wrong in (
                ("integers as", value.astype(np.int32)), ("a size more of", np.append(value, value[:1])), ("None as", None))}
        for label, value in bad.items():
            yield f"{key}: {label}", lambda key=key, value=value: run(call, be, **{key: value})


def outcome(name: str, call: Callable[[], Any], kind: type[DuolnError] | None = None) -> str:
    """"" for an error, of this kind if one is given, that begins with the name and says what it expected and found; else what happened."""
    try:
        read(call())
    except DuolnError as error:
        text = str(error)
        if not text.startswith(f"[{name}]") or kind not in (None, type(error)):
            return f"another error: {type(error).__name__}: {text}"
        if not ("expected" in text and "found" in text) and " has " not in text:
            return f"an error that does not say what was expected and found: {text}"
        return ""
    except BaseException as error:  # this test looks for errors without a name
        return f"{type(error).__name__} from inside: {error!s:.100}"
    return "no error"


def read(result: Any) -> None:
    """Wait for the values of a result."""
    for tensor in result if isinstance(result, tuple) else (result,):
        if isinstance(tensor, Tensor):
            tensor.numpy()


def unnamed_misuses(call: Call, be: Any, elsewhere: Any) -> dict[str, str]:
    """What each wrong form of a call gave where it was no error that names the operator."""
    wrong = [*of_tensors(call, be, elsewhere), *of_attributes(call, be)]
    assert len(wrong) >= len(call.tensors) * 5
    return {label: text for label, misuse in wrong if (text := outcome(call.name, misuse))}


Row = tuple[str, type[DuolnError], Callable[[], Any]]
"""A wrong call that is written by hand, with the name and the kind of its error."""


def unnamed(rows: list[Row]) -> dict[str, str]:
    """What each of these calls gave where it was no such error."""
    return {f"row {k}, [{name}]": text for k, (name, kind, call) in enumerate(rows) if (text := outcome(name, call, kind))}
