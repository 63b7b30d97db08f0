"""The text of a kernel, into which the headers of this folder are inserted.

A file is named by its path below this folder, or by its whole path where a plug-in brings it. Its entries are written
`ENTRY(layer_norm_forward) {`, in CUDA with what stands before the name, `ENTRY(adam_rates, __launch_bounds__(32)) {`:
the prototype is printed from the declaration (`kernels.launch`).

CuPy's disk cache identifies a kernel by its text and options, but not by the headers that it includes. A header that is
included by name could therefore change without a new compilation.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from duoln.errors import KernelError

FOLDER = Path(__file__).parent
_HEADERS = [FOLDER / "text" / dialect for dialect in ("", "cpp", "cuda", "metal")]
"""The folders of the headers that many texts share."""
_prototypes: dict[str, dict[str, str]] = {}
"""By file and entry."""
_first_texts: dict[str, str] = {}
"""The texts of other packages, as they were when they were declared."""
_variants: dict[str, str] = {}
"""Generated texts by name: a few lines before an #include, made from a table."""
_OPENED = re.compile(r"^ENTRY\((\w+)(?:, (.+))?\)(?= \{)", re.M)
_OURS = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"[ \t]*$', re.M)


_HIDDEN = "#pragma GCC visibility push(hidden)", "#pragma GCC visibility pop"
_SHOWN = '_Pragma("GCC visibility push(default)")', '_Pragma("GCC visibility pop")'


def declare(file: str, entry: str, prototype: str) -> None:
    """Let the text of a file have this prototype where it writes `ENTRY(entry)`.

    Raises:
        KernelError: the file of another package has another text than when it was first declared in this process.
    """
    if is_outside(file):
        text = Path(file).read_text(encoding="utf-8")
        if _first_texts.setdefault(file, text) != text:
            raise KernelError(f"[{entry}] {file} has changed since this process first read it, and a library that is "
                              "loaded cannot be replaced; start Python again")
    _prototypes.setdefault(file, {})[entry] = prototype


def make_variant(file: str, lines: str) -> None:
    """Generate a text of these lines, named as a file below this folder."""
    _variants[file] = lines


def variants() -> list[str]:
    """The names of the generated texts."""
    import_all()
    return list(_variants)


def import_all() -> None:
    """Import the modules where the declarations of all texts stand."""
    for folder in sorted(FOLDER.iterdir()):
        _import_declarations(folder.name)


def is_there(file: str) -> bool:
    """True if there is such a text; a wheel that is not unpacked has none."""
    return (FOLDER / file).is_file() or (file in _variants and FOLDER.is_dir())


def text(file: str, change: Callable[[str], str] | None = None) -> str:
    """The source of `kernels/<file>`, with its prototypes; each header stands where it is first included.

    A header is looked for beside the file that includes it, then among the shared ones in `kernels/text/`.

    Raises:
        FileNotFoundError: the file does not exist.
        KernelError: an entry has no declaration.
    """
    _import_declarations(file.partition("/")[0])
    declared = _prototypes.get(file, {})

    def prototype(entry: re.Match[str]) -> str:
        name, attributes = entry.groups()
        if name not in declared:
            raise KernelError(f"[source] {file}: expected a declaration of {name}, found "
                              f"{', '.join(declared) or 'none'}")
        if file.endswith(".cpp"):
            whole = declared[name]
            return f"{_SHOWN[0]} {whole}; {_SHOWN[1]} {whole}" if hides_names(file) else whole
        return f'extern "C" __global__ void {attributes or ""} {declared[name]}'

    whole = _OPENED.sub(prototype, with_headers(file) if change is None else _whole(file, change))
    by_words = [f"BY_WORDS({name})\n" for name in entries_in(file)] if "#define BY_WORDS" in whole else []
    return "".join((whole, *by_words))


def hides_names(file: str) -> bool:
    """True for the C++ text of another package. What it defines is hidden from other libraries: those of float32 and of
    float64, and of two packages, would share the statics of inline functions that have one name.
    """
    return file.endswith(".cpp") and is_outside(file)


def is_outside(file: str) -> bool:
    """True for the text of another package."""
    return Path(file).is_absolute()


def own_text(file: str) -> str:
    """A text without its headers."""
    return (FOLDER / file).read_text(encoding="utf-8")


def entries_in(file: str) -> list[str]:
    """The entries of a C++ or CUDA text, in their order, without those of headers; those of a variant are in one."""
    if file in _variants:
        return [name for name, _ in _OPENED.findall(with_headers(file))]
    return _entries_of(FOLDER / file)


@cache
def _entries_of(path: Path) -> list[str]:
    return [name for name, _ in _OPENED.findall(path.read_text(encoding="utf-8"))]


@cache
def _import_declarations(folder: str) -> None:
    """Import the modules of a folder of kernels where the declarations of its texts stand."""
    package = f"duoln.kernels.{folder}"
    if folder.isidentifier() and find_spec(package) is not None:
        for module in (package, f"{package}.cpu", f"{package}.launches"):
            if find_spec(module) is not None:
                importlib.import_module(module)


@cache
def with_headers(file: str) -> str:
    """A text with its headers, and without prototypes."""
    return _whole(file)


def _whole(file: str, change: Callable[[str], str] | None = None) -> str:
    """The same; `change` makes another text of the file's own, without its headers."""
    seen = {FOLDER / file}
    if file in _variants:
        return _inserted(_variants[file], FOLDER / file, seen)
    whole = _expand_file(FOLDER / file, seen, hides_names(file), change)
    return f"{_HIDDEN[0]}\n{whole}\n{_HIDDEN[1]}\n" if hides_names(file) else whole


def metal(file: str) -> tuple[str, str]:
    """The header and the body of a Metal kernel: the included text, and the text after the last `#include` line.

    MLX writes the signature around the body, so it needs the text outside the function separately.
    """
    own = (FOLDER / file).read_text(encoding="utf-8")
    cut = max((include.end() for include in _OURS.finditer(own)), default=0)
    whole = text(file)
    body = own[cut:]
    return whole.removesuffix(body), body


def _expand_file(path: Path, seen: set[Path], hides: bool = False, change: Callable[[str], str] | None = None) -> str:
    seen.add(path)
    own = path.read_text(encoding="utf-8")
    return _inserted(own if change is None else change(own), path, seen, hides)


def _inserted(own: str, path: Path, seen: set[Path], hides: bool = False) -> str:
    pieces, last = [f'#line 1 "{path.name}"\n'], 0
    for include in _OURS.finditer(own):
        pieces.append(own[last:include.start()])
        places = [folder / include.group(1) for folder in (path.parent, *_HEADERS, FOLDER)]
        header = next((each.resolve() for each in places if each.is_file()), None)
        if header is None:  # the compiler says it, and other texts are compiled
            pieces.append(f"#error {include.group(1)} is neither beside {path.name} nor one of duoln's; an installed "
                          "package has it if its package-data name it\n")
            last = include.end()
            continue
        if header not in seen:
            shows = hides and header.is_relative_to(FOLDER)  # threads are shared by all libraries
            pasted = _expand_file(header, seen, hides and not shows)
            pieces.append(f"{_HIDDEN[1]}\n{pasted}\n{_HIDDEN[0]}\n" if shows else pasted)
        pieces.append(f'\n#line {own.count(chr(10), 0, include.end()) + 2} "{path.name}"')
        last = include.end()
    return "".join((*pieces, own[last:]))
