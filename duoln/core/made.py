"""Functions that a public function makes. They pickle and copy as the call that made them; Python's closures do not."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class Made:
    """A function, and the call `maker(*args)` that made it, of another function first."""

    def __init__(self, function: Callable[..., Any], maker: Callable[..., Any], args: tuple[Any, ...]) -> None:
        functools.update_wrapper(self, function)
        self._function, self._made_by = function, (maker, args)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """The value of an attribute of a class: a function made of a method is made anew of the bound method."""
        maker, (method, *options) = self._made_by
        bound = method.__get__(instance, owner) if hasattr(type(method), "__get__") else method
        if bound is method:
            return self
        made = maker(bound, *options)
        if hasattr(method, "__name__"):  # as Python pickles methods
            made._made_by = getattr, (owner if instance is None else instance, method.__name__)
        return made

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._made_by

    def __repr__(self) -> str:
        return f"<function {self._function.__name__}>"
