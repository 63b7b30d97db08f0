"""A table of wrong calls written by hand, checked row by row."""

from collections.abc import Callable
from typing import Any

from duoln.errors import DuolnError

Row = tuple[str, type[DuolnError], Callable[[], Any]]


def unnamed(rows: list[Row]) -> list[str]:
    """What is wrong with the rows' errors: each begins with its name, is of its class and says what was found."""
    faults = []
    for position, (name, kind, call) in enumerate(rows):
        try:
            call()
            faults.append(f"row {position}, [{name}]: no error")
        except DuolnError as error:
            text = str(error)
            if type(error) is not kind or not text.startswith(f"[{name}]") or "expected" not in text or "found" not in text:
                faults.append(f"row {position}, [{name}] {kind.__name__}: {type(error).__name__}: {text}")
        except Exception as error:  # the table is there to catch errors from inside
            faults.append(f"row {position}, [{name}]: from inside, {type(error).__name__}: {error}")
    return faults
