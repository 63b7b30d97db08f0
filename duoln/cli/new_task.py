"""`duoln new-task NAME`: it writes a package with copies of `duoln.examples.own_task` and, with --operator, of
`own_operator`, which its user then changes.
"""

from __future__ import annotations

import argparse
import importlib.util
import keyword
import re
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Any

from duoln.cli import console
from duoln.errors import DuolnError, UsageError
from duoln.tasks.registry import Registry, plugins

FILES = {"pyproject.toml": "pyproject.toml", "README.md": "README.md", "tests/test_NAME.py": "test_task.py"}
"""The files beside the task by their paths in the new folder, each with its template. NAME, TITLE and DIST stand for
the new names.
"""

_NAME = re.compile(r"[a-z]([a-z0-9_]*[a-z0-9])?")


def add_command(commands: Any) -> None:
    """Add `new-task` to the command line."""
    new = commands.add_parser("new-task", help="write a package with a task that runs, to start your own from")
    new.add_argument("name", metavar="NAME", help="of the task, its package and its folder, such as my_task")
    new.add_argument("--operator", action="store_true", help="also an operator of your own, with kernels in C++, CUDA "
                     "and Metal, its cases and its timing")
    new.set_defaults(run=_new_task)


def _new_task(args: argparse.Namespace) -> int:
    folder = write_task(args.name, Path(), args.operator)
    console.say(f"wrote {folder}; next:")
    of_operator = [f"duoln selftest --op {args.name}_rows"] if args.operator else []
    for line in (f"pip install -e ./{folder}", f"duoln run {args.name} --preset smoke", *of_operator,
                 f"pytest ./{folder}"):
        console.put(line)
    return 0


def write_task(name: str, parent: Path, operator: bool = False) -> Path:
    """Write the package of a new task to the folder `name` in `parent`, with an operator or without; returns the
    folder.

    Raises:
        UsageError: the name cannot name a task and a package, or is not free, or the folder exists.
        DuolnError: the folder cannot be written; no part of it remains.
    """
    target = parent / name
    _check_name(name)
    if target.exists() or target.is_symlink():
        raise UsageError(f"[new-task] expected no folder {target} yet, found one; choose another name")
    _check_free(name)
    try:
        # The package is written elsewhere and moved as a whole, so that a full disk or a kill leaves no part of it.
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=parent) as aside:
            for path, text in fill(name, operator).items():
                file = Path(aside) / name / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
            (Path(aside) / name).rename(target)
    except OSError as error:
        raise DuolnError(f"{target}: cannot be written: {error.strerror or error}") from error
    return target


def fill(name: str, operator: bool = False) -> dict[str, str]:
    """The files of a task of that name."""
    title = "".join(part.capitalize() for part in name.split("_"))
    title = title.removesuffix("Task") or title
    words = {"TITLE": title, "DIST": name.replace("_", "-"), "NAME": name}

    def filled(text: str) -> str:
        return re.sub("|".join(words), lambda word: words[word[0]], text)

    def template(file: str) -> str:
        return filled(files("duoln.cli").joinpath("templates", f"{file}.txt").read_text(encoding="utf-8"))

    made = {filled(path): template(file) for path, file in FILES.items()}
    made[f"{name}/__init__.py"] = f'"""The task {name}."""\n'
    task = _task(name, title)
    if operator:
        before = "\n[tool.pytest"
        made["pyproject.toml"] = made["pyproject.toml"].replace(before, template("package_data.toml") + before)
        made["README.md"] += template("README_operator.md")
        made["tests/test_operator.py"] = template("test_operator.py")
        made |= _operator(name)
        last = "return nn.Sequential(*layers, nn.Linear"
        task = task.replace("\n\n\n@dataclass", f"\n\nfrom {name}.operators import {name}_rows\n\n\n@dataclass", 1)
        task = task.replace(last, last.replace("*layers", f"*layers, {name}_rows"))
    return {**made, f"{name}/task.py": task}


def _operator(name: str) -> dict[str, str]:
    """The files of the example's operator, named after the task: no two packages have operators of one name."""
    folder = files("duoln.examples")
    program = folder.joinpath("own_operator.py").read_text(encoding="utf-8").partition("\n\ndef main()")[0]
    first = f'"""The operator {name}_rows, with kernels in C++, CUDA and Metal."""'
    program = re.sub(r'(?s)^""".*?"""', first, program)
    for line in ("import numpy as np\n\n", "import duoln\n"):
        program = program.replace(line, "")
    program = program.replace("from duoln import extend, testing", "from duoln import extend")
    made = {f"{name}/operators.py": program.rstrip() + "\n"}
    for end in (".cpp", ".cu", ".metal"):
        made[f"{name}/l2_rows{end}"] = folder.joinpath(f"l2_rows{end}").read_text(encoding="utf-8")
    return {path.replace("l2_rows", f"{name}_rows"):
            text.replace("l2_rows", f"{name}_rows").replace("L2_ROWS", f"{name}_rows".upper())
            for path, text in made.items()}


def _task(name: str, title: str) -> str:
    """The example with the names of a new task, and without the words about the example itself."""
    text = files("duoln.examples").joinpath("own_task.py").read_text(encoding="utf-8")
    text = re.sub(r'(?s)^""".*?"""', f'"""The task {name}: two spirals, with and without layer norm."""', text)
    text = text.replace("import numpy as np\n\n", "import numpy as np\n")  # both are installed packages there
    text = text.replace("SpiralsConfig", f"{title}Config").replace("Spirals", f"{title}Task")
    return re.sub(r"(?<![Tt]wo )\bspirals\b", name, text)


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        near = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
        meant = f"; did you mean {near}?" if _NAME.fullmatch(near) and not keyword.iskeyword(near) else ""
        raise UsageError("[new-task] expected a name of lower-case letters, digits and underscores that starts with a "
                         "letter, does not end with an underscore and is not a keyword of Python; "
                         f"found {name!r}{meant}")


def _check_free(name: str) -> None:
    registry = Registry()
    taken = {task: entry.distribution for task, entry in registry.tasks.items()}
    for plugin, distribution in [*((plugin.name, owner) for plugin, owner in plugins()), *taken.items()]:
        if name == plugin:
            raise UsageError(f"[new-task] expected a name that is free, found {name!r}, which is {distribution}'s")
    if name == "tests" or importlib.util.find_spec(name) is not None:
        raise UsageError(f"[new-task] expected a name that no installed module has, found {name!r}")
