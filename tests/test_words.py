"""One word for one thing: the names in the sources are none of those that the design has retired."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("duoln", "kernels", "plugins", "examples", "tests")
RETIRED = {
    "found": "what the value is: actual, errors, rows",
    "said": "what the value is: captured, stderr, output",
    "shown": "c_norm or h in a cell; elsewhere what the value is",
    "felt": "d_ and the name of the argument",
    "rung": "provenance",
    "held": "masked",
    "moods": "changes of the machine's speed, in words",
    "factor": "rstd for a norm, scale for a multiplier",
    "into": "input_gate",
    "candidate": "g in an LSTM, n in a GRU; elsewhere what the value is",
    "outer": "x_gates; elsewhere what the value is",
    "inner": "h_gates; elsewhere what the value is",
    "question": "query",
    "memory": "values",
    "there": "mask",
    "normal": "gaussian for a draw, normalised or xhat for the output of a norm",
    "other": "what the value is: second, peer, resumed",
    "it": "what the value is",
}
ATTENTION = ("plugins/las", "plugins/attentive_reader", "duoln/ops/attention.py", "duoln/ops/alignment.py")
"""Where `memory` means attention's values; elsewhere it means bytes, and is the right word."""
OPERATORS = frozenset(f"__{prefix}{name}__" for prefix in ("", "r", "i") for name in (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "eq", "ne", "lt", "le", "gt",
    "ge"))
"""Python's own documentation calls the argument of these methods `other`."""
NUMPYS = frozenset({"outer", "inner"})
"""`np.outer` and `np.inner` are NumPy's names."""
STANDARD = ("outer", "duoln/ops/")
"""The array API standard's name of an operator, and where it is one; elsewhere it is `ops.outer`."""

PHRASES = {
    "past the caches": "with streaming stores",
    "to be had": "available",
    "on the spot": "synthetic",
    "filled up": "padded",
    "first cache": "L1",
    "second cache": "L2",
    "last cache": "L3",
    "as it lies": "in its own layout, or unpacked",
    "as they lie": "in their own layout, or unpacked",
    "in one piece": "contiguous",
    "place of the depth": "k",
    "asks the memory": "prefetches",
    "optimiser": "optimizer",
}
"""Plain words in texts and comments for which the field has a term."""
FRAGMENT = re.compile(r"\s*(What|Where|How|Whether|Of)\b")
"""The first word of a docstring that cannot be read without the name above it."""
WHOLE_SENTENCES = ("duoln/data", "duoln/distributed", "duoln/system", "duoln/backends", "duoln/optim", "duoln/pictures",
                   "duoln/bridge", "duoln/nn", "examples", "kernels/recurrent", "kernels/norm", *(f"duoln/{name}.py" for name in (
                       "doctor", "errors", "extend", "randomness", "runtime", "tree")))
"""Rooms whose docstrings stand alone, those of fields too."""

C_ENDINGS = (".cu", ".cuh", ".h", ".metal", ".cpp")
NO_CODE = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])'""", re.DOTALL)
C_WORDS = re.compile(rf"\b({'|'.join(sorted(RETIRED.keys() - {'memory'}))})\b")


def words_in_python(source: str, file: str) -> Iterator[tuple[int, str]]:
    """Line and word of each retired identifier."""
    yield from _visit(ast.parse(source), file, "")


def _visit(node: ast.AST, file: str, function: str) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        function = node.name
    for name in _names(node):
        if name in RETIRED and not _allowed(name, node, file, function):
            yield getattr(node, "lineno", 0), name
    for child in ast.iter_child_nodes(node):
        yield from _visit(child, file, function)


def _names(node: ast.AST) -> tuple[str | None, ...]:
    match node:
        case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name) | ast.keyword(arg=name):
            return (name,)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return (name,)
        case ast.ExceptHandler(name=name) | ast.MatchAs(name=name) | ast.MatchStar(name=name):
            return (name,)
        case ast.alias(name=name, asname=asname):
            return (asname or name.rpartition(".")[2],)
    return ()


def _allowed(name: str, node: ast.AST, file: str, function: str) -> bool:
    if name == "question":  # the data sets of the reader are made of questions
        return file.startswith(("plugins/attentive_reader", "tests/plugins"))
    if name == "memory":
        return not file.startswith(ATTENTION)
    if name == "normal":  # an attribute of another library, such as `np.random.Generator.normal`
        return not isinstance(node, ast.Name | ast.arg)
    if name == "other":
        return function in OPERATORS
    if name == STANDARD[0] and file.startswith(STANDARD[1]):
        return isinstance(node, ast.FunctionDef | ast.alias)
    if name in NUMPYS and isinstance(node, ast.Attribute):
        return isinstance(node.value, ast.Name) and node.value.id in ("np", "ops")[:1 + (name == "outer")]
    return False


def words_in_c(source: str) -> Iterator[tuple[int, str]]:
    """Line and word of each retired word outside comments and texts."""
    code = NO_CODE.sub(lambda match: "\n" * match[0].count("\n") or " ", source)
    for number, line in enumerate(code.splitlines(), start=1):
        for match in C_WORDS.finditer(line):
            yield number, match[0]


def test_no_retired_word_is_a_name():
    errors, files = [], 0
    for path in sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*")):
        file = path.relative_to(ROOT).as_posix()
        if path.suffix not in (".py", *C_ENDINGS):
            continue
        files += 1
        source = path.read_text(encoding="utf-8")
        words = words_in_python(source, file) if path.suffix == ".py" else words_in_c(source)
        errors += [f"{file}:{line}: {word}; say {RETIRED[word]}" for line, word in words]
    assert files > 100 and errors == [], "\n".join(errors)


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring, also of those below a field or a variable."""
    for node in ast.walk(ast.parse(source)):
        before: object = node if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) else None
        for statement in getattr(node, "body", None) if isinstance(getattr(node, "body", None), list) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))) if before:
                    yield statement.lineno, text
            before = statement if isinstance(statement, ast.Assign | ast.AnnAssign) else None


def test_no_phrase_stands_for_a_term():
    errors = []
    for path in sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*")):
        file = path.relative_to(ROOT).as_posix()
        if path.suffix in (".py", *C_ENDINGS) and path != Path(__file__):
            text = " ".join(path.read_text(encoding="utf-8").replace("//", "").split())
            errors += [f"{file}: {phrase}; say {PHRASES[phrase]}" for phrase in PHRASES if f" {phrase}" in text]
    assert errors == [], "\n".join(errors)


def test_docstrings_stand_alone():
    files = [path for room in WHOLE_SENTENCES for path in ([ROOT / room] if room.endswith(".py") else (ROOT / room).rglob("*.py"))]
    errors = [f"{path.relative_to(ROOT)}:{line}: {text[:60]}" for path in files
              for line, text in docstrings(path.read_text(encoding="utf-8")) if FRAGMENT.match(text)]
    assert len(files) > 80 and errors == [], "\n".join(errors)
