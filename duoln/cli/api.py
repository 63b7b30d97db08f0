"""The public names of duoln: each in a line, or one of them with its signature and its docstring."""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
import types
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from duoln.core.arguments import nearest
from duoln.core.pytorch_names import is_missing
from duoln.errors import UsageError

MODULES = ("duoln", "duoln.nn", "duoln.nn.init", "duoln.ops", "duoln.optim", "duoln.data", "duoln.tasks",
           "duoln.extend", "duoln.testing", "duoln.training.train", "duoln.training.summary",
           "duoln.training.rate_test", "duoln.runtime", "duoln.errors",
           "duoln.randomness", "duoln.tree")
"""The modules whose names are public."""

_NEEDS_A_DEVICE = {"duoln.extend.cuda", "duoln.extend.metal"}
_SENTENCE = re.compile(r"(.+?\.)(?=\s+[A-Z`(]|$)")
_ENTRY = re.compile(r"\s+\**\w[\w, ]*: |\s*>>>|\s*\.\.\. ")
"""A line that begins anew: an argument with its words, or a line of code."""
PIPE = 120
"""The width of a page that is not on a terminal."""


class _Verbatim(str):
    """An annotation, which a signature shows without quotes."""

    __repr__ = str.__str__


def public_names(module: ModuleType) -> list[str]:
    """The names that a module offers, without other modules, and without those that need the library of a device."""
    own = [name for name, value in vars(module).items()
           if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__]
    return [name for name in getattr(module, "__all__", own)
            if f"{module.__name__}.{name}" not in _NEEDS_A_DEVICE and not inspect.ismodule(getattr(module, name))]


def lines(width: int, modules: Sequence[str] = MODULES) -> Iterator[str]:
    """A line for each public name, below a line for each module; a line ends at `width`, which 0 leaves open."""
    for name in modules:
        module = importlib.import_module(name)
        if name != modules[0]:
            yield ""
        yield cut(f"{name}: {first_sentence(module.__doc__).removeprefix(f'{name}: ')}", width)
        for each in public_names(module):
            yield cut(f"  {each:<18} {_in_words(getattr(module, each))}", width)


def cut(line: str, width: int) -> str:
    """A line that ends at `width`, which 0 leaves open."""
    return line if not width or len(line) <= width else f"{line[:width - 4].rstrip()} ..."


def first_sentence(text: str | None) -> str:
    """The first sentence of a docstring or a page's paragraph, in one line."""
    paragraph = " ".join(inspect.cleandoc(text or "").split("\n\n")[0].split())
    match = _SENTENCE.match(paragraph)
    return match[1] if match else paragraph


def _in_words(value: Any) -> str:
    return f"= {value!r}" if _is_plain(value) else first_sentence(inspect.getdoc(value))


def _is_plain(value: Any) -> bool:
    """Whether a value says more than the docstring of its type."""
    return type(value) in (int, tuple) or isinstance(value, types.GenericAlias)


def page(word: str, width: int) -> str:
    """The signature and the docstring of one public name, such as `nn.LSTM`; of a class also its methods. Of a module,
    such as `nn`, a line for each name.

    Lines have at most `width` columns, where the words allow that.

    Raises:
        UsageError: there is no such name, or several.
    """
    module = next((name for name in MODULES if name in (word, f"duoln.{word}")), None)
    if module is not None:
        return "\n".join(lines(width, [module]))
    full = [f"{name}.{each}" for name in MODULES for each in public_names(importlib.import_module(name))]
    fits = {id(_value(name)): name for name in reversed(full) if f".{name}".endswith(f".{word}")}
    if len(fits) > 1:
        raise UsageError(f"[help] expected one public name, found {word!r}, which is the end of "
                         f"{' and '.join(sorted(fits.values()))}")
    if not fits:
        ends = {end.lower(): end for name in full for end in (name.removeprefix("duoln."), name.rpartition(".")[2])}
        near = nearest(word, ends)
        raise UsageError(f"[help] expected a public name, found {word!r}"
                         f"{f'; did you mean {ends[near]!r}?' if near else ''}; `duoln help api` lists all names")
    [name] = fits.values()
    value = _value(name)
    parts = [_signed(name, value, width), "" if _is_plain(value) else filled(inspect.getdoc(value) or "", width)]
    if inspect.isclass(value):
        parts.append("\n".join(_members(value, width)))
    return "\n\n".join(part for part in parts if part)


def _value(full: str) -> Any:
    module, _, name = full.rpartition(".")
    return getattr(importlib.import_module(module), name)


def filled(text: str, width: int) -> str:
    """A docstring whose paragraphs are filled anew where a line of them is too long."""
    groups: list[list[str]] = []
    for line in text.splitlines():
        first = groups[-1][0] if groups else ""
        if not line.strip() or not first.strip() or _ENTRY.match(line) or _indent(line) < _indent(first) \
                or re.fullmatch(r"\w+:", first):
            groups.append([line])
        else:
            groups[-1].append(line)
    return "\n".join(_filled(group, width) for group in groups)


def _filled(lines: list[str], width: int) -> str:
    """A paragraph, or an argument with its words; code stays as it is."""
    if max(map(len, lines)) <= width or lines[0].lstrip().startswith((">>>", "...")):
        return "\n".join(lines)
    indent = _indent(lines[0])
    return textwrap.fill(" ".join(line.strip() for line in lines), width, initial_indent=indent * " ",
                         subsequent_indent=(indent + 4 * bool(_ENTRY.match(lines[0]))) * " ",
                         break_long_words=False, break_on_hyphens=False)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _members(kind: type, width: int) -> Iterator[str]:
    """A line or two for each public method of a class, and for its call."""
    for name in dir(kind):
        member = inspect.getattr_static(kind, name)
        if (name.startswith("_") and name != "__call__") or is_missing(member):
            continue
        if inspect.isfunction(member) or isinstance(member, property | classmethod | staticmethod):
            text = name if isinstance(member, property) else _signed(name, getattr(kind, name), 0, without_first=True)
            yield textwrap.fill(f".{text}", width, subsequent_indent="        ")
            if words := first_sentence(inspect.getdoc(member)):
                yield textwrap.fill(words, width, initial_indent="    ", subsequent_indent="    ")


def _signed(name: str, value: Any, width: int, without_first: bool = False) -> str:
    """The name with the arguments that it takes, one a line where one line is too short."""
    if not callable(value) or _is_plain(value):
        return name if without_first else f"{name} = {value!r}"
    try:
        signature = inspect.signature(value)
    except ValueError:  # as of Python's own exceptions
        return name
    given = [_readable(each) for each in signature.parameters.values()][without_first:]
    returned = inspect.Signature.empty if inspect.isclass(value) else _annotation(signature.return_annotation)
    signature = signature.replace(parameters=given, return_annotation=returned)
    if len(name) + len(str(signature)) <= width or without_first:
        return f"{name}{signature}"
    rows = [str(each) for each in given]
    named = next((k for k, each in enumerate(given) if each.kind is each.KEYWORD_ONLY), None)
    if named is not None and not any(each.kind is each.VAR_POSITIONAL for each in given):
        rows.insert(named, "*")
    end = "" if returned is inspect.Signature.empty else f" -> {returned}"
    return "\n".join([f"{name}(", *(f"    {row}," for row in rows), f"){end}"])


def _readable(parameter: inspect.Parameter) -> inspect.Parameter:
    """A parameter as it is meant: a default of None stands for none where the type has no None."""
    annotation = _annotation(parameter.annotation)
    if parameter.default is None and annotation in ("Tensor", "Params", "Backend"):
        parameter = parameter.replace(default=inspect.Parameter.empty)
    return parameter.replace(annotation=annotation)


def _annotation(annotation: Any) -> Any:
    return _Verbatim(annotation) if isinstance(annotation, str) else annotation
