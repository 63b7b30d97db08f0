"""The cases of batch norm, group norm and instance norm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from duoln.kernels.norm.cases import epsilon
from duoln.kernels.registry import Case, drawn, sizes_text


def cases() -> Iterator[Case]:
    """One position and many, groups of one channel and of all, and more examples than parts of sums."""
    for shape, groups in (((1, 1, 1), 1), ((3, 6), 2), ((70, 8), 4), ((130, 96), 32), ((2, 33, 129), 3),
                          ((3, 7, 5, 24), 8), ((2, 40, 41, 16), 16), ((1, 300, 9, 12), 1), ((5, 2, 700), 7)):
        yield _norm(shape, groups)
    for few, groups in (((2, 3, 4), 2), ((3, 6), 3), ((1, 2, 3, 4), 1), ((2, 5, 1), 1)):
        yield _norm(few, groups)._replace(layouts=True)
    for shape in ((1, 1, 1), (3, 50, 7), (2, 40, 41, 16), (70, 3, 2)):
        yield _norm(shape)
    for few in ((2, 3, 2), (1, 4, 1), (2, 2, 2, 2)):
        yield _norm(few)._replace(layouts=True)
    yield from _channels()


def _norm(shape: Sequence[int], groups: int | None = None) -> Case:
    """A case of group norm; without groups, of instance norm."""
    size = prod(shape[1:]) // (groups or shape[-1])
    attrs = {"groups": groups or shape[-1], "eps": epsilon(size)}
    return Case("group_norm" if groups else "instance_norm", sizes_text(shape) + (f" in {groups}" if groups else ""),
                drawn(shape, shape[-1:], shape[-1:], seed=shape), attrs, max(size, prod(shape[:-1])))


def _channels() -> Iterator[Case]:
    for shape in ((3, 2, 1), (2, 5, 7, 3), (20, 8, 8, 16), (3, 40, 257), (40, 7, 9, 1)):
        yield _batch_norm(shape, False)
    for few in ((4, 3), (2, 3, 3, 2), (3, 1, 4), (2, 5, 1)):
        for unbiased in (False, True):
            yield _batch_norm(few, unbiased)._replace(layouts=True)


def _batch_norm(shape: Sequence[int], unbiased: bool) -> Case:
    row = shape[-1:]
    return Case("batch_norm", f"{shape}{', unbiased' * unbiased}", drawn(shape, row, row, seed=shape),
                {"eps": 1e-2, "unbiased": unbiased}, prod(shape))
