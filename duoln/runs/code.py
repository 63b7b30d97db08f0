"""The code of a task: the files of its package or its own file, and all modules of the user's own that they import.

Imports are read from the sources, so that the answer does not depend on what has been imported so far. A module whose
name is made while the program runs (`importlib.import_module(name)`) is not seen outside of the task's package.
Python's own modules and installed packages are left out, as long as the task is in none of them.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import os
import secrets
import sys
import sysconfig
import threading
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

_NO_BITS = frozenset({"bench", "cli", "doctor.py", "examples", "kernels", "paper", "pictures", "plugins", "testing"})
"""Parts of the package that do not take part in training, and the kernels, which a checkout has elsewhere."""
_DIGITS, _FILE_DIGITS = 12, 6
_TEXTS = (".py", ".cpp", ".cu", ".cuh", ".h", ".metal")
_STDLIB = os.path.realpath(sysconfig.get_path("stdlib")) + os.sep
_INSTALLED = frozenset({"site-packages", "dist-packages"})


class _Noted(NamedTuple):
    modules: Mapping[str, Any]
    """The specifications of the modules that were loaded; a module that is loaded again has another one."""
    digest: str
    files: Mapping[str, str]
    """A hash of each file by its name."""


_noted: WeakKeyDictionary[Any, _Noted] = WeakKeyDictionary()


def fingerprint_of(kind: type | Callable[..., Any]) -> str:
    """A hash of the code of a task's class, or of a function: as it was when it was first asked for, or when a module
    was loaded again. A change of a file while a command trains belongs to the next command. A class that no file holds
    is another one in each process, because nothing tells its code from that of a class of the same name.
    """
    return _noted_of(kind).digest


def files_of(kind: type | Callable[..., Any]) -> str:
    """The files of that code, each with a hash, to tell which one has changed."""
    return ", ".join(f"{name} {digest}" for name, digest in _noted_of(kind).files.items())


def _noted_of(kind: type | Callable[..., Any]) -> _Noted:
    noted = _noted.get(kind)
    if noted is None or any(_specification(name) is not spec for name, spec in noted.modules.items()):
        names = [kind.__module__]
        pieces = list(code_of(kind, names))
        digest = digest_of(pieces) if pieces else f"in no file, {secrets.token_hex(_DIGITS // 2)}"
        files = {name.decode(): digest_of([content])[:_FILE_DIGITS]
                 for name, content in zip(pieces[::2], pieces[1::2], strict=True)}
        _noted[kind] = noted = _Noted({name: _specification(name) for name in names}, digest, files)
    return noted


def _specification(name: str) -> Any:
    return getattr(sys.modules.get(name), "__spec__", None)


def digest_of(pieces: Iterable[bytes]) -> str:
    """A short hash of some pieces."""
    whole = hashlib.sha256()
    for piece in pieces:
        whole.update(len(piece).to_bytes(8, "little"))
        whole.update(piece)
    return whole.hexdigest()[:_DIGITS]


def code_of(kind: type | Callable[..., Any], names: list[str]) -> Iterator[bytes]:
    """The names and contents of the files that belong to the class of a task; nothing of one without a file.

    Args:
        kind: the class.
        names: gets the names of the modules of these files.
    """
    try:
        file = Path(inspect.getfile(kind))
    except (TypeError, OSError):  # made in an interpreter
        return
    if not file.is_file():  # such as <stdin>
        return
    package = getattr(sys.modules.get(kind.__module__), "__package__", None) or _package_around(file)
    if package:
        texts = list(texts_below(file.parent))
        for text_name, content in zip(texts[::2], texts[1::2], strict=True):
            yield text_name
            yield _without_comments(text_name.decode(), content)
        own = {path: ".".join([package, *path.relative_to(file.parent).with_suffix("").parts])
               for path in sorted(file.parent.rglob("*.py"))}
    else:
        yield file.name.encode()
        yield _without_comments(file.name, file.read_bytes())
        own = {file: ""}
    names += filter(None, own.values())
    for name, path in sorted(_imported(own, package.partition(".")[0]).items()):
        names.append(name)
        yield name.encode()
        yield _without_comments(path.name, path.read_bytes())


def _package_around(file: Path) -> str:
    """The package of a file that is run as a program, by folders with an __init__.py; empty if there is none."""
    names: list[str] = []
    for folder in file.resolve().parents:
        if not (folder / "__init__.py").is_file():
            break
        names.insert(0, folder.name)
    return ".".join(names)


def _without_comments(name: str, content: bytes) -> bytes:
    """A file without comments: of Python all of them, of a kernel's text the lines that are nothing else."""
    lines = content.split(b"\n")
    if not name.endswith(".py"):
        return b"\n".join(line for line in lines if not line.lstrip().startswith(b"//"))
    alone = set()
    try:
        for token in tokenize.tokenize(BytesIO(content).readline):
            if token.type == tokenize.COMMENT:
                row, column = token.start
                lines[row - 1] = lines[row - 1].decode()[:column].rstrip().encode()
                alone |= set() if lines[row - 1] else {row - 1}
    except (SyntaxError, ValueError, tokenize.TokenError):  # a template
        return content
    return b"\n".join(line for k, line in enumerate(lines) if k not in alone)


def texts_below(*folders: Path) -> Iterator[bytes]:
    """The names and contents of source files below some folders, in order."""
    for top in folders:
        for place, inside, names in os.walk(top):
            inside[:] = sorted(set(inside) - _NO_BITS)
            for name in sorted(set(names) - _NO_BITS):
                if name.endswith(_TEXTS):
                    path = Path(place, name)
                    yield path.relative_to(top).as_posix().encode()
                    yield path.read_bytes()


def _imported(own: dict[Path, str], top: str) -> dict[str, Path]:
    """The files of the modules that some files import, and those that they import in turn, by their names.

    Args:
        own: the files, and their names as modules.
        top: the package whose modules belong to the task wherever they are.
    """
    files: dict[str, Path] = {}
    seen = {path.resolve() for path in own}
    waiting = list(own.items())
    asked: set[str] = set()
    while waiting:
        path, module = waiting.pop()
        for imported in set(_imports(path, module)) - asked:
            asked.add(imported)
            for name, file in _modules(imported, top):
                if file.resolve() not in seen:
                    seen.add(file.resolve())
                    files[name.removesuffix(".__init__")] = file
                    waiting.append((file, name))
    return files


_parsing = threading.Lock()
"""Python 3.11 counts the depth of its parser for all threads together: SystemError where two parse at once."""


def _imports(path: Path, module: str) -> Iterator[str]:
    """The names that a file imports, each of which may be a module or something in one."""
    try:
        with _parsing:
            nodes = list(ast.walk(ast.parse(path.read_bytes())))
    except (SyntaxError, ValueError, OSError):  # a template, or a file that went
        return
    parents = module.split(".")
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = parents[:-node.level] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            if base:
                yield from (base, *(f"{base}.{alias.name}" for alias in node.names if alias.name != "*"))


def _modules(name: str, top: str) -> Iterator[tuple[str, Path]]:
    """The files of the module of a name, and of the packages that it is in, that belong to the task: the name, with
    `.__init__` of a package, and the file. Nothing is imported.
    """
    whole, *rest = name.split(".")
    if whole == "duoln" and rest[:1] not in (["examples"], ["plugins"]):  # the code of every run has it
        return
    try:
        spec = importlib.util.find_spec(whole)
    except (ImportError, ValueError):  # a module without a specification, such as __main__
        return
    if spec is None or spec.origin in ("built-in", "frozen"):
        return
    file, places = Path(spec.origin) if spec.origin else None, spec.submodule_search_locations
    if whole not in (top, "duoln") and any(map(_is_installed, [file] if file else places or [])):
        return
    while True:
        if whole != "duoln" and file is not None and file.suffix == ".py" and file.is_file():
            yield whole if places is None else f"{whole}.__init__", file
        if not rest or places is None:
            return
        part, *rest = rest
        whole = f"{whole}.{part}"
        loaded = sys.modules.get(whole)
        candidates = [Path(place, part) for place in places]
        if loaded is not None and getattr(loaded, "__file__", None):
            file, places = Path(str(loaded.__file__)), getattr(loaded, "__path__", None)
        elif package := next((place for place in candidates if (place / "__init__.py").is_file()), None):
            file, places = package / "__init__.py", [str(package)]
        elif module := next((place for place in candidates if place.with_suffix(".py").is_file()), None):
            file, places = module.with_suffix(".py"), None
        elif folders := [str(place) for place in candidates if place.is_dir()]:
            file, places = None, folders
        else:
            return


def _is_installed(place: str | Path) -> bool:
    """True for a module of Python itself or of an installed package, of whichever environment."""
    real = os.path.realpath(place)
    return real.startswith(_STDLIB) or not _INSTALLED.isdisjoint(Path(real).parts)
