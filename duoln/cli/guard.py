"""The exit code of a command. An error becomes one message on stderr, and with --json also one JSON document."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from duoln.cli import console, streams
from duoln.cli.parser import ParsedError, wants_json
from duoln.errors import (
    CheckpointWarning,
    CompileWarning,
    DuolnError,
    GradientWarning,
    Interrupted,
    MemoryExhaustedError,
    NotFiniteWarning,
    OutputError,
    ScheduleWarning,
    words_of,
)
from duoln.system.stopping import EXIT_CODE, end_quietly_on_interrupt, raise_on_interrupt

_SIGNALS = 128
"""Exit codes above this one come from signals that asked the command to stop; they are not failures."""


def run_to_exit_code(run: Callable[[], int], words: Sequence[str] = ()) -> int:
    """The exit code of a command.

    Args:
        run: the command.
        words: its command line, which says whether errors are written as JSON too.
    """
    with streams.claimed() as claim, _warnings_said():
        try:
            raise_on_interrupt()
            return run()
        except BaseException as error:
            code, message = _code_and_message(error)
            if os.environ.get("DUOLN_TRACEBACK") == "1" and isinstance(error, DuolnError | OSError):
                console.say("".join(traceback.format_exception(error)).rstrip())
            if message and not (isinstance(error, OutputError) and error.unread):
                console.say(message if isinstance(error, ParsedError) else f"duoln: {message}",
                            style="yellow" if code > _SIGNALS else "bold red")
            if message and wants_json(words) and not claim.written and not isinstance(error, OutputError):
                with contextlib.suppress(OutputError):  # stderr has the message, and the exit code stays the same
                    console.put_json({"error": as_document(error, message, code)})
            return code


def _code_and_message(error: BaseException) -> tuple[int, str]:
    if isinstance(error, ParsedError):
        return int(error.code or 0), error.message
    if isinstance(error, SystemExit):
        return 1, f"expected nobody but duoln to end the program, found SystemExit: {error.code}"
    if isinstance(error, DuolnError):  # the exit code of its class, because an error of a plug-in may carry any code
        return error.exit_code if isinstance(error, Interrupted) else type(error).exit_code, words_of(error)
    if isinstance(error, KeyboardInterrupt):
        return EXIT_CODE, "interrupted"
    if isinstance(error, MemoryError):
        return MemoryExhaustedError.exit_code, f"no memory left: {error}"
    if not isinstance(error, OSError):  # the system's errors, such as of a disk that fails, are no mistakes of ours
        console.say("".join(traceback.format_exception(error)).rstrip())
    return 1, f"{type(error).__name__}: {words_of(error)}"


@contextlib.contextmanager
def _warnings_said() -> Iterator[None]:
    """Within this context duoln's own warnings are remarks; those of other libraries look as Python shows them."""
    with warnings.catch_warnings():
        by_python = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **named: Any) -> None:
            if issubclass(category, CheckpointWarning | CompileWarning | GradientWarning | NotFiniteWarning |
                          ScheduleWarning):
                console.say(f"warning: {message}")
            else:
                by_python(message, category, *place, **named)

        warnings.showwarning = show
        yield


def as_document(error: BaseException, message: str, code: int) -> dict[str, Any]:
    """An error in the form of `--json`: its class, its message, and the exit code."""
    name = "UsageError" if isinstance(error, ParsedError) else type(error).__name__
    return {"class": name, "message": message, "exit_code": code}


def exit_process(code: int) -> NoReturn:
    """End the process with an exit code."""
    end_quietly_on_interrupt()
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # Python's end would give Ctrl-C its first effect
    sys.exit(code)
