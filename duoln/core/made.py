"""Functions that a public function makes. They pickle and copy as the call that made them; Python's closures do not."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class Made:
    """A function, and the call `maker(*args)` that made it."""

    def __init__(self, function: Callable[..., Any], maker: Callable[..., Any], args: tuple[Any, ...]) -> None:
        functools.update_wrapper(self, function)
        self._function, self._made_by = function, (maker, args)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._made_by

    def __repr__(self) -> str:
        return f"<function {self._function.__name__}>"
