"""Finds tasks: the entry points of the group `duoln`, one plug-in each, are loaded one by one.

A plug-in that cannot be loaded is kept as a `Broken` row with its reason; it never stops the others.
`DUOLN_STRICT_PLUGINS=1` makes it an error, `DUOLN_DISABLE_PLUGIN_AUTOLOAD=1` loads only those outside plug-ins that the
user names.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, distributions
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, NamedTuple

import pluggy

from duoln.core.arguments import did_you_mean
from duoln.errors import PluginError, UsageError
from duoln.tasks import hookspecs
from duoln.tasks.boundary import IsolatedListener, guard_task, preserve_cwd, refusal
from duoln.tasks.contract import NAME, check_attributes, kind_of
from duoln.tasks.events import Listener
from duoln.tasks.hookspecs import Command
from duoln.tasks.task import Task

GROUP = "duoln"
HOOKS = tuple(name for name in vars(hookspecs) if name.startswith("duoln_"))
"""The names of the functions that a plug-in may define."""
_CHECKOUT = Path(__file__).resolve().parents[2] / "pyproject.toml"

_OF_OTHERS = ("; a task of another package is there once that package is installed, as by pip install -e FOLDER, and "
              "duoln new-task NAME begins one")


class Found(NamedTuple):
    """A task and the distribution that brings it."""

    task: Task
    distribution: str


class Broken(NamedTuple):
    """A plug-in, or a task or command of it, that cannot be used, and why."""

    name: str
    distribution: str
    reason: str


class _StrictError(PluginError):
    """The error for a refused plug-in under DUOLN_STRICT_PLUGINS=1."""


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
        self.commands: dict[str, tuple[Command, str]] = {}
        """Each with the distribution that brings it."""
        self.broken: list[Broken] = []
        self.brings: dict[str, list[str]] = {}
        """In words, what each plug-in brings by hooks, by the name of its entry point."""
        self.packages: dict[str, str] = {}
        """The package of each, in which its operators are defined."""
        self.distributions: dict[str, str] = {}
        """The distribution of each plug-in by the name of its entry point."""
        self._manager = pluggy.PluginManager(GROUP)
        self._manager.add_hookspecs(hookspecs)
        wanted = None if names is None else set(names)
        if asked is not None:
            wanted = set(asked) if wanted is None else wanted & set(asked)
        for row in _outside()[1] if _autoloads() else ():
            self._refuse(row.name, row.distribution, row.reason)
        for entry, distribution in plugins() if asked is None else _checked_plugins(asked):
            if wanted is not None and entry.name not in wanted:
                continue
            if entry.name in self.distributions:
                self._refuse(entry.name, distribution, "PluginError: "
                             f"expected one plug-in named '{entry.name}', found a second; "
                             f"the first is {self.distributions[entry.name]}'s")
                continue
            self.distributions[entry.name] = distribution
            with preserve_cwd():
                self._load(entry, distribution)

    def _load(self, entry: EntryPoint, distribution: str) -> None:
        plugin: Any = None
        try:
            plugin = entry.load()
            self._manager.register(plugin, entry.name)
            self._manager.check_pending()
            for hook in HOOKS:
                function = getattr(plugin, hook, None)
                if callable(function) and not hasattr(function, f"{GROUP}_impl"):
                    raise PluginError(f"{hook}: expected @hookimpl of duoln.tasks above it, found none, so nothing "
                                      "would call it")
            tasks = self._ask(plugin, "duoln_tasks")
            for task in tasks:
                if not isinstance(task, Task):
                    raise PluginError(f"duoln_tasks: expected Task objects, found {kind_of(task)}")
                check_attributes(task)
            commands = self._ask(plugin, "duoln_commands")
            for command in commands:
                _check_command(command)
            for task in tasks:
                if self._is_first("task", task.name, self.tasks, entry.name, distribution):
                    self.tasks[task.name] = Found(task, distribution)
            for command in commands:
                if self._is_first("command", command.name, self.commands, entry.name, distribution):
                    self.commands[command.name] = (command, distribution)
            self.packages[entry.name] = entry.module if distribution == "duoln" else entry.module.partition(".")[0]
            self.brings[entry.name] = [
                *(f"task {task.name}" for task in tasks), *(f"command {command.name}" for command in commands),
                *(["listeners"] if hasattr(plugin, "duoln_listeners") else [])]
        except (_StrictError, KeyboardInterrupt):
            raise
        except BaseException as error:  # the import of a plug-in may call sys.exit
            if plugin is not None and self._manager.get_plugin(entry.name) is plugin:
                self._manager.unregister(plugin)
            self._refuse(entry.name, distribution, refusal(error), error)

    def _ask(self, plugin: Any, hook: str) -> Sequence[Any]:
        caller = self._manager.subset_hook_caller(hook, [p for p in self._manager.get_plugins() if p is not plugin])
        items: list[Any] = []
        for answer in caller():
            if not isinstance(answer, Iterable) or isinstance(answer, str):
                raise PluginError(f"{hook}: expected a list, found {kind_of(answer)}")
            items += answer
        return items

    def _is_first(self, kind: str, name: str, known: Mapping[str, tuple[Any, str]], plugin: str,
                  distribution: str) -> bool:
        """True if no plug-in before has brought one of that name; the second one is refused."""
        if name in known:
            self._refuse(name, distribution, f"PluginError: expected one {kind} named '{name}', found a second in "
                                             f"plug-in '{plugin}'; the first is {known[name][1]}'s")
        return name not in known

    def _refuse(self, name: str, distribution: str, reason: str, error: BaseException | None = None) -> None:
        if os.environ.get("DUOLN_STRICT_PLUGINS") == "1":
            raise _StrictError(f"plug-in '{name}' of {distribution}: {reason}") from error
        self.broken.append(Broken(name, distribution, reason))

    def listeners(self, say: Callable[[str], None]) -> list[IsolatedListener]:
        """The listeners of plug-ins. None of them can stop a run; one that fails becomes a `Broken` row.

        Args:
            say: takes one line about each plug-in or listener that is left out.
        """
        made: list[IsolatedListener] = []
        for name, plugin in self._manager.list_name_plugin():
            source = f"plug-in '{name}' of {self.distributions[name]}"
            with preserve_cwd():
                try:
                    given = self._ask(plugin, "duoln_listeners")
                    for listener in given:
                        if not isinstance(listener, Listener):
                            raise PluginError(f"duoln_listeners: expected Listener objects, found {kind_of(listener)}")
                    made += [IsolatedListener(listener, source, say) for listener in given]
                except KeyboardInterrupt:
                    raise
                except BaseException as error:
                    self._refuse(name, self.distributions[name], refusal(error), error)
                    say(f"{source} has no listeners for this run: {refusal(error)}")
        return made


@cache
def load_plugins(own: bool = True) -> tuple[Broken, ...]:
    """Import every plug-in, once in a process, so that what they add to operators is there; those that are broken.

    Args:
        own: load those of duoln, too.
    """
    names = None if own else {entry.name for entry, distribution in plugins() if distribution != "duoln"}
    return tuple(Registry(names).broken)


def package_of(module: str) -> str:
    """The name and version of the package that has a module, as its plug-in's metadata say; else the module's name."""
    top = module.partition(".")[0]
    for entry, distribution in plugins(autoload=True):
        if entry.module.partition(".")[0] == top:
            return f"{distribution} {entry.dist.version}" if entry.dist is not None else distribution
    return top


def _check_command(command: Any) -> None:
    """Raises PluginError for what is no command; its options are added to a parser, because that may fail, too."""
    if not isinstance(command, Command):
        raise PluginError(f"duoln_commands: expected Command objects, found {kind_of(command)}")
    if type(command.name) is not str or not NAME.fullmatch(command.name) or type(command.help) is not str:
        raise PluginError("duoln_commands: expected a command whose name is one word and whose help is a text, found "
                          f"{kind_of(command.name)} and {kind_of(command.help)}")
    for role, function in (("options", command.options), ("run", command.run)):
        if not callable(function):
            raise PluginError(f"duoln_commands: expected a function as {role} of {command.name}, found "
                              f"{kind_of(function)}")
    trial = argparse.ArgumentParser(command.name)
    command.options(trial)
    trial.format_help()


def plugins(autoload: bool = False) -> list[tuple[EntryPoint, str]]:
    """Every entry point of the group with its distribution, duoln's own first.

    Args:
        autoload: outside ones are among them even where DUOLN_DISABLE_PLUGIN_AUTOLOAD=1.
    """
    pairs = [(entry, "duoln") for entry in _own_entry_points()]
    if autoload or _autoloads():
        pairs += [(entry, name) for name, entries in _outside()[0].items() for entry in entries]
    return pairs


def _autoloads() -> bool:
    return os.environ.get("DUOLN_DISABLE_PLUGIN_AUTOLOAD") != "1"


def _outside() -> tuple[dict[str, list[EntryPoint]], list[Broken]]:
    """The plug-ins of each outside distribution, the first of each name on the path, and what cannot be read."""
    good: dict[str, list[EntryPoint]] = {}
    bad: list[Broken] = []
    names: set[str] = set()
    for installed in distributions():
        try:
            entries = list(installed.entry_points.select(group=GROUP))
            name = _name_of(installed) if entries else ""
        except Exception as error:
            path = getattr(installed, "_path", None)
            bad.append(Broken(getattr(path, "name", "a distribution"), "unknown", refusal(error)))
            continue
        key = re.sub(r"[-_.]+", "-", name).lower()
        if entries and key not in {*names, "duoln"}:
            names.add(key)
            good.setdefault(name, []).extend(entries)
    return good, bad


def _name_of(installed: Distribution) -> str:
    metadata = installed.metadata
    return str(metadata["Name"]) if metadata and "Name" in metadata else "an unknown distribution"


def _checked_plugins(names: Sequence[str]) -> list[tuple[EntryPoint, str]]:
    """All plug-ins, after a check that each name belongs to one of them."""
    pairs = plugins(autoload=True)
    known = dict.fromkeys(entry.name for entry, _ in pairs)
    for name in names:
        if name not in known:
            raise UsageError(f"[--plugin] expected one of {', '.join(known) or 'none'}; found {name!r}"
                             f"{did_you_mean(name, known)}")
    return pairs


def _own_entry_points() -> list[EntryPoint]:
    """The built-ins: from this checkout's pyproject.toml, else from the installed distribution; where the package has
    no metadata, as in a copied folder, its folders.
    """
    if _CHECKOUT.is_file():
        project = tomllib.loads(_CHECKOUT.read_text(encoding="utf-8")).get("project", {})
        if project.get("name") == "duoln":  # else duoln was installed into another project's folder
            return [EntryPoint(name, value, GROUP) for name, value in project["entry-points"][GROUP].items()]
    try:
        return list(Distribution.from_name("duoln").entry_points.select(group=GROUP))
    except PackageNotFoundError:
        own = importlib.import_module("duoln.plugins")
        return [EntryPoint(each.name, f"{own.__name__}.{each.name}", GROUP) for each in iter_modules(own.__path__)]


def find_task(name: str, asked: Sequence[str] | None = None) -> Task:
    """The task of that name; as few plug-ins as possible are imported. An error of the task's own code names the task.

    Args:
        name: of the task.
        asked: look in the plug-ins of these names only.

    Raises:
        UsageError: there is no such task; the message lists all tasks.
        PluginError: a plug-in of that name is broken; the message says why.
    """
    quick = Registry([name], asked)
    if name in quick.tasks:
        return guard_task(*quick.tasks[name])
    everything = Registry(asked=asked)
    if name in everything.tasks:
        return guard_task(*everything.tasks[name])
    for broken in everything.broken:
        if broken.name == name:
            raise PluginError(f"plug-in '{name}' of {broken.distribution} is broken: {broken.reason}")
    brought = everything.distributions.get(name)
    if brought is not None and all(each.distribution != brought for each in everything.tasks.values()):
        raise PluginError(f"plug-in '{name}' of {brought}: expected tasks, found none; its hook duoln_tasks, a "
                          "function below @hookimpl, returns them")
    raise UsageError(f"[task] expected one of {', '.join(sorted(everything.tasks)) or 'none'}; found {name!r}"
                     f"{did_you_mean(name, everything.tasks) or _OF_OTHERS}")
