"""The cases of rows of a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from duoln.kernels.registry import STORED, Arrays, Case, floats

_NET = ((7, 3, (20,)), (3, 5, (200,)))
_MORE = ((50, 333, (4000,)), (3, 300_001, (5,)), (10_007, 65, (4000,)))


def cases() -> Iterator[Case]:
    """Words, width of a row and the shape of the indices."""
    for words, width, taken in (*_NET, (1, 1, (1,)), (50, 300, (4, 9)), (9, 33, (2, 2, 2))):
        yield _take(words, width, taken)._replace(net=(words, width, taken) in _NET)
    for words, width, taken in ((5, 3, (4,)), (3, 1, (2, 3)), (1, 4, (3,)), (6, 2, (1, 2))):
        yield _take(words, width, taken)._replace(layouts=True)
    for words, width, taken in _MORE:
        yield _take(words, width, taken).on_gpu()
    for stored in STORED:
        for words, width, taken in (*_NET, (50, 300, (4, 9)), *_MORE):
            yield _take(words, width, taken).on_gpu(stored, net=(words, width, taken) in _NET)


def _take(words: int, width: int, taken: Sequence[int]) -> Case:
    def arrays() -> Arrays:
        rng = np.random.default_rng([words, width])
        indices = rng.integers(0, words, taken).astype(np.int32)
        return floats(rng, words, width), indices

    return Case("take", f"{prod(taken)} of {words} x {width}", arrays, {"axis": 0}, prod(taken), (words, width))
