"""The hooks that a plug-in may implement. A plug-in is a module or object found by an entry point.

    [project.entry-points.duoln]
    speech = "my_package.speech"

    # my_package/speech.py
    from duoln.tasks import hookimpl

    @hookimpl
    def duoln_tasks():
        return [SpeechTask()]

Operators need no hook: to import the module adds their rules and registers their cases (`duoln.extend`).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pluggy

if TYPE_CHECKING:
    from duoln.tasks.events import Listener
    from duoln.tasks.task import Task

hookspec = pluggy.HookspecMarker("duoln")
hookimpl = pluggy.HookimplMarker("duoln")


class Command(NamedTuple):
    """A command that a plug-in adds to `duoln`."""

    name: str
    """The word after `duoln`."""
    help: str
    """One line, for `duoln --help`."""
    options: Callable[[argparse.ArgumentParser], None]
    """Adds the arguments to the command's parser."""
    run: Callable[[argparse.Namespace], int | None]
    """Runs the parsed command line and returns the exit code; None is 0."""


@hookspec
def duoln_tasks() -> Sequence[Task]:  # type: ignore[empty-body]
    """Tasks to offer, as `Task` objects with names of their own."""


@hookspec
def duoln_commands() -> Sequence[Command]:  # type: ignore[empty-body]
    """Commands to add to `duoln`, with names of their own."""


@hookspec
def duoln_listeners() -> Sequence[Listener]:  # type: ignore[empty-body]
    """Listeners that get the events of every run."""
