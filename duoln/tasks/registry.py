"""Where tasks are found: entry points of the group `duoln`, one plug-in each, loaded one by one.

A plug-in that cannot be loaded is kept as a `Broken` row with its reason; it never stops the others.
`DUOLN_STRICT_PLUGINS=1` makes it an error, `DUOLN_DISABLE_PLUGIN_AUTOLOAD=1` loads no outside plug-in but those
that are asked for by name.
"""

from __future__ import annotations

import os
import time
import tomllib
from collections.abc import Iterable, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, NamedTuple

import pluggy

from duoln.errors import PluginError, UsageError
from duoln.tasks import hookspecs
from duoln.tasks.events import Listener
from duoln.tasks.faults import named
from duoln.tasks.spec import Task

GROUP = "duoln"
SLOW_SECONDS = 1.0
"""How long a plug-in may take to load without a remark."""
_ruled: list[Any] = []
"""The plug-ins whose rules are attached: once a process, however many registries are made."""
_CHECKOUT = Path(__file__).resolve().parents[2] / "pyproject.toml"


class Found(NamedTuple):
    """A task and the distribution that brings it."""

    task: Task
    distribution: str


class Broken(NamedTuple):
    """A plug-in, or a task of it, that cannot be used, and why."""

    name: str
    distribution: str
    reason: str


class Slow(NamedTuple):
    """A plug-in whose loading takes long enough to be felt in every command."""

    name: str
    distribution: str
    seconds: float


class _StrictError(PluginError):
    """A refusal under DUOLN_STRICT_PLUGINS=1."""


class Registry:
    """The tasks of all plug-ins.

    Args:
        names: load only the plug-ins of these entry-point names; None loads all.
        asked: the same, for names that the user gave: they are loaded even where DUOLN_DISABLE_PLUGIN_AUTOLOAD=1.

    Raises:
        UsageError: a name in `asked` that no plug-in has.
    """

    def __init__(self, names: Iterable[str] | None = None, asked: Sequence[str] | None = None) -> None:
        self.tasks: dict[str, Found] = {}
        self.broken: list[Broken] = []
        self.slow: list[Slow] = []
        self._distributions: dict[str, str] = {}
        self._manager = pluggy.PluginManager(GROUP)
        self._manager.add_hookspecs(hookspecs)
        wanted = None if names is None else set(names)
        if asked is not None:
            wanted = set(asked) if wanted is None else wanted & set(asked)
        for entry, distribution in plugins() if asked is None else _asked(asked):
            if wanted is not None and entry.name not in wanted:
                continue
            if entry.name in self._distributions:
                self._refuse(entry.name, distribution, PluginError(
                    f"expected one plug-in named '{entry.name}', found a second; "
                    f"the first is {self._distributions[entry.name]}'s"))
                continue
            self._distributions[entry.name] = distribution
            started = time.perf_counter()
            self._load(entry, distribution)
            seconds = time.perf_counter() - started
            if seconds > SLOW_SECONDS:
                self.slow.append(Slow(entry.name, distribution, seconds))

    def _load(self, entry: EntryPoint, distribution: str) -> None:
        plugin: Any = None
        try:
            plugin = entry.load()
            self._manager.register(plugin, entry.name)
            self._manager.check_pending()
            tasks = self._ask(plugin, "duoln_tasks")
            for task in tasks:
                if not isinstance(task, Task) or not task.name:
                    raise PluginError(f"duoln_tasks: expected Task objects with a name, found {task!r:.60}")
            if not any(plugin is other for other in _ruled):
                for op, rule, backend in self._ask(plugin, "duoln_rules"):
                    op.add(rule, backend)
                _ruled.append(plugin)
            for task in tasks:
                self._add(task, entry.name, distribution)
        except (KeyboardInterrupt, _StrictError):
            raise
        except BaseException as error:  # a plug-in may even call sys.exit while it is imported
            if plugin is not None and self._manager.get_plugin(entry.name) is plugin:
                self._manager.unregister(plugin)
            self._refuse(entry.name, distribution, error)

    def _ask(self, plugin: Any, hook: str) -> Sequence[Any]:
        caller = self._manager.subset_hook_caller(hook, [p for p in self._manager.get_plugins() if p is not plugin])
        return [item for answer in caller() for item in answer]

    def _add(self, task: Task, plugin: str, distribution: str) -> None:
        if task.name in self.tasks:
            self._refuse(task.name, distribution, PluginError(
                f"expected one task named '{task.name}', found a second in plug-in '{plugin}'; "
                f"the first is {self.tasks[task.name].distribution}'s"))
            return
        self.tasks[task.name] = Found(task, distribution)

    def _refuse(self, name: str, distribution: str, error: BaseException) -> None:
        text = str(error).strip().splitlines()
        if not isinstance(error, pluggy.PluginValidationError):  # whose first line does not say what is wrong
            text = text[:1]
        reason = f"{type(error).__name__}: {'; '.join(text) or 'no message'}"
        if os.environ.get("DUOLN_STRICT_PLUGINS") == "1":
            raise _StrictError(f"plug-in '{name}' of {distribution}: {reason}") from error
        self.broken.append(Broken(name, distribution, reason))

    def listeners(self) -> list[Listener]:
        """Listeners that plug-ins bring; one that fails to make them becomes a broken row."""
        found: list[Listener] = []
        for name, plugin in self._manager.list_name_plugin():
            try:
                found.extend(self._ask(plugin, "duoln_listeners"))
            except Exception as error:
                self._refuse(name, self._distributions[name], error)
        return found


def plugins(autoload: bool | None = None) -> list[tuple[EntryPoint, str]]:
    """Every entry point of the group with its distribution, duoln's own first.

    Args:
        autoload: whether outside ones are among them; by default unless DUOLN_DISABLE_PLUGIN_AUTOLOAD=1.
    """
    own = _own_entry_points()
    found = [(entry, "duoln") for entry in own]
    if not (os.environ.get("DUOLN_DISABLE_PLUGIN_AUTOLOAD") != "1" if autoload is None else autoload):
        return found
    for entry in entry_points(group=GROUP):
        name = (entry.dist and entry.dist.name) or "an unknown distribution"
        if name != "duoln":
            found.append((entry, name))
    return found


def _asked(names: Sequence[str]) -> list[tuple[EntryPoint, str]]:
    """Every plug-in, once it is known that each name is one's."""
    found = plugins(autoload=True)
    there = dict.fromkeys(entry.name for entry, _ in found)
    for name in names:
        if name not in there:
            raise UsageError(f"[--plugin] expected one of {', '.join(there) or 'none'}; found {name!r}")
    return found


def _own_entry_points() -> list[EntryPoint]:
    """The built-ins: from this checkout's pyproject.toml, else from the installed distribution."""
    if _CHECKOUT.is_file():
        project = tomllib.loads(_CHECKOUT.read_text(encoding="utf-8")).get("project", {})
        if project.get("name") == "duoln":  # else duoln was installed into another project's folder
            return [EntryPoint(name, value, GROUP) for name, value in project["entry-points"][GROUP].items()]
    return [entry for entry in entry_points(group=GROUP) if entry.dist and entry.dist.name == "duoln"]


def find_task(name: str, asked: Sequence[str] | None = None) -> Task:
    """The task of that name, importing as few plug-ins as possible; what fails in its own code names it.

    Args:
        name: of the task.
        asked: look in the plug-ins of these names only.

    Raises:
        UsageError: there is none; the message lists those there are.
        PluginError: a plug-in of that name is broken; the message says why.
    """
    quick = Registry([name], asked)
    if name in quick.tasks:
        return named(*quick.tasks[name])
    everything = Registry(asked=asked)
    if name in everything.tasks:
        return named(*everything.tasks[name])
    for broken in everything.broken:
        if broken.name == name:
            raise PluginError(f"plug-in '{name}' of {broken.distribution} is broken: {broken.reason}")
    raise UsageError(f"[task] expected one of {', '.join(sorted(everything.tasks)) or 'none'}; found {name!r}")
