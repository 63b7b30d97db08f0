"""Write the API reference of duoln's public names into a folder, and fail where it lacks something.

    pip install ".[docs]" && python .ci/reference.py FOLDER

pdoc does not see names that a module resolves on first use, and shows an object that can be called as a variable
without a signature. So the names are resolved here, and an operator is shown as the function that it wraps. What needs
the library of a device is left out: the reference is the same on every machine.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import sys
import typing
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pdoc.doc
import pdoc.render

from duoln.cli.help import MODULES, public_names
from duoln.core import Op
from duoln.core.pytorch_names import is_missing


def prepare(module: ModuleType, shown: set[type]) -> list[Op[..., Any]]:
    """Make a module such that pdoc shows what it offers; the operators among that."""
    names = public_names(module)
    values = {name: getattr(module, name) for name in names}
    for name, value in values.items():
        if inspect.isclass(value) and issubclass(value, tuple):
            # A NamedTuple's constructor is in a module that lacks the names of its annotations.
            value.__new__.__annotations__ = typing.get_type_hints(value)
        if dataclasses.is_dataclass(value) and "__init__" in vars(value):
            # The same holds for a dataclass, whose fields may be those of a base in another module.
            value.__init__.__annotations__ = {**typing.get_type_hints(value), "return": None}
        if inspect.isclass(value):
            take_from_hidden_bases(value, shown)
        vars(module)[name] = function_of(value) if isinstance(value, Op) else value
    vars(module)["__all__"] = names
    return [value for value in values.values() if isinstance(value, Op)]


def take_from_hidden_bases(cls: type, shown: set[type]) -> None:
    """Give a class what it has from bases that no page shows, their words, constructor and methods, and take from it
    the names that it has not. How it is made and called is shown even where a base's page has it too.
    """
    for base in cls.__mro__[1:]:
        if not base.__module__.startswith("duoln."):
            continue
        if base not in shown:
            cls.__doc__ = "\n\n".join(inspect.cleandoc(text.__doc__ or "") for text in (cls, base))
        for name, member in vars(base).items():
            own = name in ("__init__", "__call__") or (base not in shown and not name.startswith("_"))
            if name not in vars(cls) and own and not is_missing(member):
                setattr(cls, name, member)
    for name, member in list(vars(cls).items()):
        if is_missing(member):
            delattr(cls, name)


def function_of(operator: Op[..., Any]) -> Callable[..., Any]:
    """The function that an operator wraps, under the operator's name and with its docstring."""
    function = operator.function
    function.__name__ = function.__qualname__ = operator.name
    function.__module__, function.__doc__ = operator.__module__, operator.__doc__
    return function


def gaps(page: pdoc.doc.Module, names: list[str], operators: list[Op[..., Any]]) -> list[str]:
    """The faults of a module's page: names, docstrings and signatures that it lacks."""
    lacking = [f"{name} is not shown" for name in names if name not in page.members]
    for name, member in page.members.items():
        if isinstance(member, pdoc.doc.Function | pdoc.doc.Class) and not member.docstring.strip():
            lacking.append(f"{name} has no docstring")
        if isinstance(member, pdoc.doc.Class) and isinstance(member.obj.__init__, FunctionType) \
                and "__init__" not in {own.name for own in member.own_members}:
            lacking.append(f"{name} has no constructor")
        if isinstance(member, pdoc.doc.Function) and "unknown" in member.signature.parameters:
            lacking.append(f"{name} has no signature")
    for operator in operators:
        member = page.members.get(operator.name)
        if not isinstance(member, pdoc.doc.Function):
            lacking.append(f"{operator.name} is an operator and not shown as a function")
        elif list(member.signature.parameters) != list(inspect.signature(operator).parameters):
            lacking.append(f"{operator.name} has another signature")
    return [f"{page.modulename}: {gap}" for gap in lacking]


def write(folder: Path, pages: dict[str, pdoc.doc.Module]) -> None:
    """The pages as files, with an index and a search."""
    pdoc.render.configure(docformat="google", show_source=False)
    texts = {f"{name.replace('.', '/')}.html": pdoc.render.html_module(page, pages) for name, page in pages.items()}
    texts |= {"index.html": pdoc.render.html_index(pages), "search.js": pdoc.render.search_index(pages)}
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def main(folder: Path) -> int:
    """Write the pages; 1 if something is missing in them. A warning, such as of a failed import, is an error."""
    warnings.simplefilter("error")
    modules = [importlib.import_module(name) for name in MODULES]
    values = [getattr(module, name) for module in modules for name in public_names(module)]
    pages, lacking = {}, []
    for module in modules:
        operators, names = prepare(module, {value for value in values if inspect.isclass(value)}), public_names(module)
        pages[module.__name__] = page = pdoc.doc.Module(module)
        lacking += gaps(page, names, operators)
        for member in page.members.values():
            if isinstance(member, pdoc.doc.Class) and "__call__" in member.members:
                member.members["__call__"].docstring += "\n\n@public"  # pdoc hides it: how a layer is used
    pages["duoln"].docstring += "\n\nPages: " + ", ".join(f"`{name}`" for name in MODULES[1:]) + "."
    write(folder, pages)
    for gap in lacking:
        print(gap, file=sys.stderr)
    print(f"{folder / 'index.html'}: {len(values)} names of {len(MODULES)} modules")
    return 1 if lacking else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
