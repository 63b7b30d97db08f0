"""Einstein summation over any number of tensors, as products of pairs in the order that NumPy's planner proposes."""

from __future__ import annotations

import functools
import string
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from duoln.backends.protocol import Shape
from duoln.core import Tensor
from duoln.core.arguments import check_axes, described
from duoln.core.pytorch_names import hinted
from duoln.core.spec import check_float
from duoln.errors import DtypeError, ShapeError, UsageError
from duoln.ops.elementwise import multiply
from duoln.ops.index import getitem
from duoln.ops.linalg import matmul
from duoln.ops.reduce import sum
from duoln.ops.shape import permute_dims, reshape

Term = tuple[Tensor, str]
"""A tensor, and a letter for each of its axes."""


@hinted
def einsum(subscripts: str, *arrays: Tensor) -> Tensor:
    """Einstein summation: `einsum("bij,bjk->bik", x, y)` is a product of batches of matrices.

    Each tensor has one letter for each axis. Axes of one letter are multiplied together, and those whose letter is not
    behind the arrow are summed over. Without an arrow, the letters that occur once stand there, in the order of the
    alphabet. Dots, "...", stand for all further axes, which come first in a result that does not name them. A letter
    twice in one tensor is its diagonal. Axes of one letter have one size: a size of 1 is not repeated.

    The tensors are multiplied in pairs, by one matrix product each, in the order of `numpy.einsum_path`.

    Raises:
        DtypeError: the subscripts are no text, or the tensors are not floats of one dtype.
        UsageError: the subscripts are not of this form.
        ShapeError: they do not fit the tensors' axes, or the axes of one letter differ in size.
    """
    if not isinstance(subscripts, str):
        raise DtypeError(f"[einsum] subscripts: expected a text, found {described(subscripts)}")
    check_float("einsum", *arrays)
    inputs, output = _letters(subscripts, [x.shape for x in arrays])
    terms = [_diagonal(x, letters) for x, letters in zip(arrays, inputs, strict=True)]
    for places in _path(",".join(letters for _, letters in terms) + f"->{output}", tuple(x.shape for x, _ in terms)):
        chosen = [terms[i] for i in places]
        terms = [term for i, term in enumerate(terms) if i not in places]
        kept = {*output, *(letter for _, letters in terms for letter in letters)}
        result = chosen[0]
        for k, term in enumerate(chosen[1:], start=1):
            later = {letter for _, letters in chosen[k + 1:] for letter in letters}
            result = _product(result, term, kept | later)
        terms.append(result)
    x, letters = _summed(terms[0], set(output))
    return permute_dims(x, axes=tuple(letters.index(letter) for letter in output))


def _letters(subscripts: str, shapes: Sequence[Shape]) -> tuple[list[str], str]:
    """The letters of each tensor and of the result, with letters in the place of dots, after all checks."""
    text = subscripts.replace(" ", "")
    left, arrow, output = text.partition("->")
    inputs = left.split(",")
    for part in (*inputs, output):
        if part.replace("...", "", 1).strip(string.ascii_letters):
            raise UsageError(f"[einsum] expected letters, commas, one -> and one ... a term, found {subscripts!r:.60}")
    if len(inputs) != len(shapes) or not shapes:
        raise ShapeError(f"[einsum] expected {len(inputs)} tensors for {subscripts!r:.60}, found {len(shapes)}")
    free = [letter for letter in string.ascii_letters if letter not in text]
    most = 0
    for k, (part, shape) in enumerate(zip(inputs, shapes, strict=True)):
        dots = len(shape) - len(part.replace("...", ""))
        if dots < 0 or (dots and "..." not in part) or dots > len(free):
            raise ShapeError(f"[einsum] expected a tensor with the axes {part!r}, found shape {shape}")
        inputs[k], most = part.replace("...", "".join(free[:dots][::-1])), max(most, dots)
    further = "".join(free[:most][::-1])
    sizes: dict[str, int] = {}
    for part, shape in zip(inputs, shapes, strict=True):
        for letter, n in zip(part, shape, strict=True):
            if sizes.setdefault(letter, n) != n:
                raise ShapeError(f"[einsum] expected one size for all axes of a letter, found {sizes[letter]} and {n} "
                                 f"in {subscripts!r:.60}")
    check_axes("einsum", len(sizes))
    if not arrow:
        everything = "".join(inputs)
        output = further + "".join(sorted(a for a in sizes if everything.count(a) == 1 and a not in further))
    output = output.replace("...", further)
    if len({*output}) != len(output) or not {*output} <= sizes.keys():
        raise UsageError(f"[einsum] expected different letters of the tensors behind the arrow, "
                         f"found {subscripts!r:.60}")
    return inputs, output


@functools.lru_cache(maxsize=256)
def _path(expression: str, shapes: tuple[Shape, ...]) -> list[tuple[int, ...]]:
    """Which of the tensors that are left are multiplied at each step; what a step makes goes to the end."""
    if len(shapes) < 3:
        return [tuple(range(len(shapes)))]
    zeros = [np.broadcast_to(np.float32(0), shape) for shape in shapes]  # only their shapes are read
    _, *steps = np.einsum_path(expression, *zeros, optimize="greedy")[0]
    return [tuple(step) for step in steps]


def _diagonal(x: Tensor, letters: str) -> Term:
    """The tensor with one axis for each of its letters: axes of one letter become their diagonal."""
    for letter in sorted({a for a in letters if letters.count(a) > 1}):
        while letters.count(letter) > 1:
            first, second = letters.index(letter), letters.rindex(letter)
            rest = [i for i in range(x.ndim) if i not in (first, second)]
            n, before = x.shape[first], tuple(x.shape[i] for i in rest)
            x = reshape(permute_dims(x, axes=(*rest, first, second)), shape=(*before, n * n))
            x = getitem(x, key=(..., slice(None, None, n + 1)))
            letters = "".join(letters[i] for i in rest) + letter
    return x, letters


def _summed(term: Term, kept: set[Any]) -> Term:
    """The sum over the axes whose letters are not needed any more."""
    x, letters = term
    gone = tuple(i for i, letter in enumerate(letters) if letter not in kept)
    return (sum(x, axis=gone) if gone else x), "".join(letter for letter in letters if letter in kept)


def _product(left: Term, right: Term, kept: set[Any]) -> Term:
    """The product of two tensors, summed over the letters that are not needed any more."""
    (x, of_x), (y, of_y) = _summed(left, kept | {*right[1]}), _summed(right, kept | {*left[1]})
    both = [a for a in of_x if a in of_y]
    rows, columns = [a for a in of_x if a not in both], [a for a in of_y if a not in both]
    batch, summed = [a for a in both if a in kept], [a for a in both if a not in kept]
    sizes = {**dict(zip(of_x, x.shape, strict=True)), **dict(zip(of_y, y.shape, strict=True))}

    def arranged(t: Tensor, letters: str, middle: list[str], last: list[str]) -> Tensor:
        order = tuple(letters.index(a) for a in (*batch, *middle, *last))
        return reshape(permute_dims(t, axes=order), shape=(
            *(sizes[a] for a in batch), prod(sizes[a] for a in middle), prod(sizes[a] for a in last)))

    result = (matmul if summed else multiply)(arranged(x, of_x, rows, summed), arranged(y, of_y, summed, columns))
    letters = [*batch, *rows, *columns]
    return reshape(result, shape=tuple(sizes[a] for a in letters)), "".join(letters)
