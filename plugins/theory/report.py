"""The report of an analysis, and the statements of which some reports are made."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from duoln.backends.protocol import Backend
from duoln.cli.rows_table import RowsTable
from duoln.core import Tensor
from duoln.errors import BackendError

EXACT = 1e-9
"""A relative error of at most this size is rounding."""
SHORT = 0.3
"""Largest allowed ratio of the errors of step/10 and step in eq. 8; a third-order remainder gives 0.1."""
WRONG = 0.01
"""A relative error of at least this size is more than rounding."""
TITLES = {"batch": "batch norm", "weight": "weight norm", "layer": "layer norm", "none": "plain"}
_PERCENT = 0.005
"""Errors of at least this size are shown in percent, smaller ones in powers of ten."""


class Report(NamedTuple):
    """The figures of an analysis."""

    summary: str
    agrees: bool | None
    """False if a measurement is not as it is known to be; None if nothing is known."""
    content: Mapping[str, Any]
    """The figures, as an object of JSON."""
    table: RowsTable
    lines: Sequence[str]
    """The lines below the table."""


class Statement(NamedTuple):
    """A statement, whether it is known to hold, and the relative error that was measured.

    Some of the paper's equations are exact, and some are not as they are printed. Both kinds are checked, so that an
    error of the paper and an error of ours are noticed.
    """

    where: str
    text: str
    holds: bool
    error: float
    limit: float = EXACT

    @property
    def agrees(self) -> bool:
        """True if the measurement confirms it."""
        return self.error <= self.limit if self.holds else self.error >= WRONG


def of_statements(title: str, summary: str, statements: Sequence[Statement]) -> Report:
    """The report of statements: a row for each."""
    rows = [(s.where, s.text, error_text(s.error),
             ("holds" if s.holds else "does not hold") if s.agrees else "UNEXPECTED") for s in statements]
    bad = [k for k, s in enumerate(statements) if not s.agrees]
    return Report(summary, not bad, {"statements": [{**s._asdict(), "agrees": s.agrees} for s in statements]},
                  RowsTable(title, ("where", "statement", "error", ""), rows, bad, (0, 2, 3)), [summary])


def error_text(value: float) -> str:
    """A relative error as text."""
    if not math.isfinite(value) or 0 < value < _PERCENT:
        return power(value)
    return f"{value:.0%}" if value else "0"


def power(value: float) -> str:
    """A value as text in powers of ten."""
    return f"{value:.0e}" if math.isfinite(value) else "overflow"


def most(errors: Iterable[float]) -> float:
    """The greatest value, or NaN if there is one; Python's `max` could ignore a NaN."""
    return float(np.max(list(errors)))


def relative(actual: np.ndarray, exact: np.ndarray) -> float:
    """The distance of two arrays by the length of the second."""
    return float(np.linalg.norm(actual - exact) / np.linalg.norm(exact))


def check_float64(measure: str, backend: Backend) -> None:
    """Raises BackendError for a backend without float64."""
    if "float64" not in backend.dtypes:
        raise BackendError(f"[{measure}] expected a backend with float64, found {backend.name} on {backend.device}")


def tensor(array: np.ndarray, backend: Backend, dtype: str = "float64") -> Tensor:
    """An array as a tensor."""
    return Tensor(backend.asarray(array, dtype), backend)


def precision(backend: Backend) -> str:
    """The dtype of what is measured as networks are: float32, and float64 on NumPy."""
    return "float64" if backend.name == "numpy" else "float32"
