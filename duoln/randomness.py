"""Random numbers, made on the host from a counter, so that they are equal on every vendor and in every run.

A stream is named by (seed, name, epoch, step), and goes on from a position. Its bits come from Philox, whose integers
are exact arithmetic, and become floats by exact scaling, so no library version or device changes them.
"""

from __future__ import annotations

import hashlib
from math import factorial, inf, prod
from typing import Any

import numpy as np

from duoln.core import Tensor
from duoln.core.arguments import Interval, check_axes, check_integer, check_integers_in, check_number, described
from duoln.core.donation import compiled_step
from duoln.core.pytorch_names import OF_STREAMS, name_missing
from duoln.errors import CallError, CompileError, DtypeError, MemoryExhaustedError, ShapeError, UsageError
from duoln.system import limits

Shape = tuple[int, ...]

_BLOCK = 4
"""The number of values in a block of Philox."""
_TOGETHER = 1 << 12
"""Threads get multiples of this count, so NumPy's vectors begin at the same values for any number of threads."""
_WORTH_THREADS, _PAIRS_WORTH_THREADS = 1 << 17, 1 << 15
"""Uniform numbers, and pairs of Gaussian ones, below which a second thread costs more than it saves."""
_SCALED = 1 << 32
"""Up to this bound integers are uniform numbers times it: no probability is wrong by more than 2^-21 of itself."""
LARGEST_SEED = (1 << 64) - 1
_LARGEST_COUNT = 1 << 62
_ROOM_ALWAYS = 1 << 24
"""Up to this count, numbers are drawn without a look at the free memory."""
_BYTES = 20
"""The most bytes of a number: the two of a pair, its value, and the float32 of an initial weight."""
_SHARE = Interval("a number in [0, 1]", "0 <= {0} <= 1")
_SUM_WITHIN = 0.01
"""The largest distance from 1 of a sum of probabilities, which may be rounded to 16 bits."""
_LOG2_E, _LN2_HIGH, _LN2_LOW = 1.4426950408889634, 0.6931471803691238, 1.9082149292705877e-10
"""1 / ln(2); ln(2) as a number of 32 bits, whose products with exponents are exact, and the rest of it."""
_EXP_TERMS = tuple(np.array(1.0 / factorial(k)) for k in range(13, -1, -1))  # an array is added faster than a number
_LEAST_EXPONENT = -708.0
"""Below it e^x is no normal float64, and counts as 0."""


class Stream:
    """Random numbers that depend on the stream's name and on nothing else.

    Drawing advances the stream; two streams of one name draw the same numbers.

    Raises:
        DtypeError: the seed, epoch or step is no integer, or the name no text; a shape is no size or tuple of sizes.
        ShapeError: one of these numbers, or a size, is below 0, or the seed above 2^64 - 1.
        MemoryExhaustedError: more numbers are drawn than fit into the memory that this process may have.
        CompileError: a compiled step draws from a stream that was made outside of it.
    """

    def __init__(self, seed: int, name: str, epoch: int = 0, step: int = 0, position: int = 0) -> None:
        self.seed = check_integer("Stream", "seed", seed, 0, LARGEST_SEED)
        self.name = _check_name("Stream", name)
        self.epoch = check_integer("Stream", "epoch", epoch, 0, _LARGEST_COUNT)
        self.step = check_integer("Stream", "step", step, 0, _LARGEST_COUNT)
        digest = hashlib.sha256(f"{self.seed}/{self.name}/{self.epoch}/{self.step}".encode()).digest()
        self._bits = np.random.Philox(key=np.frombuffer(digest[:16], dtype="<u8"))
        blocks, rest = divmod(check_integer("Stream", "position", position, 0, _LARGEST_COUNT), _BLOCK)
        self._bits.advance(blocks)
        self._bits.random_raw(rest)
        self._is_of_step = compiled_step.get() is not None

    @property
    def position(self) -> int:
        """The count of 64-bit numbers drawn so far: `Stream(seed, name, epoch, step, position)` goes on after them."""
        state = self._bits.state
        counter = sum(int(word) << 64 * k for k, word in enumerate(state["state"]["counter"]))
        return counter * _BLOCK - (_BLOCK - int(state["buffer_pos"]))

    def child(self, name: str) -> Stream:
        """A separate stream for a part; its numbers do not depend on the draws of other parts, nor of this stream."""
        return Stream(self.seed, f"{self.name}.{_check_name('Stream.child', name)}", self.epoch, self.step)

    def uniform(self, shape: int | Shape, low: float = 0.0, high: float = 1.0) -> np.ndarray:
        """float64 values in [low, high), from 53 bits each; `low` where both are equal.

        Raises:
            DtypeError: a bound is no number. UsageError: it is not finite, or `high` is below `low`, or their
                difference is infinite.
        """
        unit = np.empty(_sizes("Stream.uniform", shape))
        low = check_number("Stream.uniform", "low", low)
        at_least_low = Interval(f"a number of at least low, {low}, and not further than float64 reaches",
                                f"0 <= float({{0}}) - {low!r} < inf")
        high = check_number("Stream.uniform", "high", high, at_least_low)
        self._fill(unit.reshape(-1))
        if (low, high) == (0.0, 1.0):
            return unit
        unit *= high - low
        unit += low
        # The sum may be rounded to `high`, which is no value of the interval.
        return np.minimum(unit, np.nextafter(float(high), low), out=unit)

    def gaussian(self, shape: int | Shape) -> np.ndarray:
        """float64 values of a standard Gaussian, by the transform of Box and Muller."""
        shape = _sizes("Stream.gaussian", shape)
        count = prod(shape)
        pairs = (count + 1) // 2
        u, v, both = self.uniform((pairs,)), self.uniform((pairs,)), np.empty((2, pairs))

        def transform(first: int, last: int) -> None:
            part = slice(first, last)
            radius, angle = np.sqrt(-2.0 * np.log1p(-u[part])), 2.0 * np.pi * v[part]
            for out, turned in zip(both, (np.cos(angle), np.sin(angle)), strict=True):
                np.multiply(radius, turned, out=out[part])

        if pairs < _PAIRS_WORTH_THREADS:
            transform(0, pairs)
        else:
            limits.in_threads(pairs, _TOGETHER, transform)
        return both.reshape(-1)[:count].reshape(shape)

    def integers(self, high: int, shape: int | Shape) -> np.ndarray:
        """int64 values in 0 .. high - 1, all equally likely.

        Above a bound of 2^32 a value comes from 64 bits, and bits that would make some values likelier are drawn again.

        Raises:
            DtypeError: `high` is no integer. ShapeError: it is not in 1 .. 2^63.
        """
        shape = _sizes("Stream.integers", shape)
        high = check_integer("Stream.integers", "high", high, 1, 1 << 63)
        if high <= _SCALED:
            array: np.ndarray = np.floor(self.uniform(shape, 0.0, high)).astype(np.int64)
            return array
        count, last = prod(shape), np.uint64((1 << 64) // high * high - 1)
        drawn = np.empty(0, np.uint64)
        while drawn.size < count:
            bits = self._raw(count - drawn.size)
            drawn = np.concatenate((drawn, bits[bits <= last]))
        return (drawn % np.uint64(high)).astype(np.int64).reshape(shape)

    def permutation(self, n: int) -> np.ndarray:
        """0 .. n - 1 in random order, int64. Raises ShapeError for an `n` below 0."""
        return np.argsort(self._raw(check_integer("Stream.permutation", "n", n, 0, _LARGEST_COUNT)), kind="stable")

    def keep_mask(self, shape: int | Shape, keep: float) -> np.ndarray:
        """float32 mask: 1 with probability `keep`, else 0. Raises UsageError for a `keep` that is not in [0, 1]."""
        keep = check_number("Stream.keep_mask", "keep", keep, _SHARE)
        return (self.uniform(_sizes("Stream.keep_mask", shape)) < keep).astype(np.float32)

    def categorical(self, *, logits: Any = None, probabilities: Any = None) -> np.ndarray:
        """int64 classes, one for each row, with the probabilities given, or with those of softmax(logits).

        One uniform number u in [0, 1) is drawn for each row, in order. The class is the first whose cumulative sum of
        probabilities, added in float64 from class 0, is above u times their total: one of probability 0 is never drawn.
        The exponentials of logits are computed by additions and products alone, so every platform draws the same.

            ids = stream.categorical(logits=model(params, x) / temperature)

        Args:
            logits, probabilities: one of the two, a tensor or an array of floats. A logit of -inf has probability 0.

        Shape:
            (..., classes) -> (...).

        Raises:
            CallError: both are given, or none. DtypeError: there are no floats. ShapeError: there are no classes.
            UsageError: a logit is NaN or inf, or all of a row are -inf; a probability is not in [0, 1], or those of a
                row do not add up to 1, plus or minus 0.01.
        """
        name = "Stream.categorical"
        if (logits is None) == (probabilities is None):
            raise CallError(f"[{name}] expected logits=x or probabilities=p, found "
                            f"{'none' if logits is None else 'both'}")
        if probabilities is None:
            weights = _relative(_rows(name, "logits", logits))
        else:
            weights = _probabilities(_rows(name, "probabilities", probabilities))
        sums = weights.cumsum(axis=-1)
        unit = np.empty((*sums.shape[:-1], 1))
        self._fill(unit.reshape(-1))
        unit *= sums[..., -1:]
        return np.asarray(np.add.reduce(sums <= unit, axis=-1, dtype=np.int64))

    def _fill(self, out: np.ndarray) -> None:
        """The next numbers of [0, 1), (bits >> 11) * 2^-53. Threads have copies of the counter, each at its place."""
        self._check_step()
        draw = np.random.Generator(self._bits).random
        if out.size < _WORTH_THREADS:
            draw(out=out)
            return
        rest = out[-self._bits.state["buffer_pos"] % _BLOCK:]
        draw(out=out[:out.size - rest.size])  # those of a block that was begun
        begin, size = self._bits.state, rest.size

        def fill(first: int, last: int) -> None:
            bits = np.random.Philox(0)
            bits.state = begin
            bits.advance(first // _BLOCK)
            np.random.Generator(bits).random(out=rest[first:last])
            if last == size:
                self._bits.state = bits.state

        limits.in_threads(size, _TOGETHER, fill)

    def _check_step(self) -> None:
        if compiled_step.get() is not None and not self._is_of_step:
            raise CompileError("[Stream] expected draws outside of the compiled step, found one within it, which would "
                               "repeat those of its first calls; give what is drawn as an argument")

    def _raw(self, n: int) -> np.ndarray:
        self._check_step()
        return np.asarray(self._bits.random_raw(n), dtype=np.uint64)


name_missing(Stream, OF_STREAMS)


def _rows(function: str, role: str, x: Any) -> np.ndarray:
    """Rows of classes as float64."""
    array = np.asarray(x.numpy() if isinstance(x, Tensor) else x)
    if array.dtype.kind != "f":
        raise DtypeError(f"[{function}] {role}: expected floats, found {described(x)} of {array.dtype}")
    if not array.ndim or not array.shape[-1]:
        raise ShapeError(f"[{function}] {role}: expected (..., classes) with at least one class, found {array.shape}")
    return array.astype(np.float64)


def _relative(logits: np.ndarray) -> np.ndarray:
    """Probabilities by that of each row's likeliest class."""
    largest = np.maximum.reduce(logits, axis=-1, keepdims=True)
    if not np.isfinite(largest).all():
        stray = largest[~np.isfinite(largest)][0]
        raise UsageError("[Stream.categorical] logits: expected at least one finite number in each row, and no NaN or "
                         f"inf, found a row {'of -inf alone' if stray == -inf else f'with {stray}'}")
    return _exp(logits - largest)


def _probabilities(given: np.ndarray) -> np.ndarray:
    if not ((given >= 0) & (given <= 1)).all():
        stray = given[~((given >= 0) & (given <= 1))][0]
        raise UsageError(f"[Stream.categorical] probabilities: expected numbers in [0, 1], found {stray}; "
                         "logits=x takes what goes into a softmax")
    totals = given.sum(axis=-1)
    if (abs(totals - 1) > _SUM_WITHIN).any():
        stray = totals[abs(totals - 1) > _SUM_WITHIN][0]
        raise UsageError(f"[Stream.categorical] probabilities: expected a sum of 1 over the last axis, found "
                         f"{stray:.6g}; p / p.sum(axis=-1, keepdims=True) has it")
    return given


def _exp(x: np.ndarray) -> np.ndarray:
    """e^x of float64 values up to 0, to 2e-16 of itself, by operations that IEEE 754 rounds in one way.

    x = n ln(2) + r, and e^r is its Taylor polynomial (Muller, Elementary Functions, section 11): libraries round their
    own exponentials differently.
    """
    small = x < _LEAST_EXPONENT
    x = np.where(small, 0.0, x)
    n = np.rint(x * _LOG2_E)
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    y = r * _EXP_TERMS[0]
    y += _EXP_TERMS[1]
    for term in _EXP_TERMS[2:]:
        np.multiply(y, r, y)
        np.add(y, term, y)
    return np.where(small, 0.0, np.ldexp(y, n.astype(np.int32)))


def _check_name(function: str, name: Any) -> str:
    if not isinstance(name, str):
        raise DtypeError(f"[{function}] name: expected a text, found {described(name)}")
    return name


def _sizes(function: str, shape: Any) -> Shape:
    sizes = shape if isinstance(shape, tuple | list) else (shape,)
    checked = check_integers_in(function, "shape", sizes, 0, _LARGEST_COUNT)
    check_axes(function, len(checked))
    count = prod(checked)
    if count > _ROOM_ALWAYS and _BYTES * count > (free := limits.free_memory()):
        raise MemoryExhaustedError(f"[{function}] expected numbers that fit the {free >> 20} MiB that are free, found "
                                   f"shape {checked}, which takes up to {_BYTES * count >> 20} MiB")
    return checked
