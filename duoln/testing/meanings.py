"""Checks that a task says what its settings mean."""

from __future__ import annotations

from duoln.tasks.meanings import has_source, settings_of
from duoln.tasks.task import Task


def check_meanings(task: Task) -> None:
    """Check that a string stands under every field of the task's settings, from which `duoln show` has their meanings.

    A class without source, such as one that was typed into an interpreter, cannot be checked.

    Raises:
        AssertionError: a setting has none; the message names it.
    """
    if not has_source(task.config):
        return
    silent = [setting.name for setting in settings_of(task) if not setting.meaning]
    if silent:
        raise AssertionError(f"config: expected a string under every field of {task.config.__name__} that says what "
                             f"the setting means, found none under {', '.join(silent)}")
